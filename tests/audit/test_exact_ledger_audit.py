"""Exact audit of the ledger under both relations: every short history of charges, by the script that runs in Redis.

A history is three calls, each for one of three windows and two users with charges of 1 or 2 out of a budget of 3; a call
that refuses nobody lets its plan be drawn. 12³ histories, no samples, power 1: what a user can lose is the largest drawn
charge of every window, added up.
"""

from __future__ import annotations

import itertools
from importlib import resources

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.storage.ledger import Ledger
from stream.windows import Period

PERIOD = Period(0, 86_400, "p")
BUDGET, SLOTS, CHARGES = 3, (1, 2, 3), (1, 2)
CALLS = tuple((slot, pair) for slot in SLOTS for pair in itertools.product(CHARGES, repeat=2))
USERS = np.array([7, 8], dtype=np.uint64)
PLANTED = {
    "admit while anything is left": ("if spent > budget then", "if spent - due >= budget then"),
    "give back what a smaller plan does not need": ("if due > 0 then", "if due ~= 0 then"),
    "draw first, charge later": (
        "spendings[#spendings + 1], spendings[#spendings + 2] = user, string.format('%.0f', spent)",
        "",
    ),
}
"""Bug -> (line of the script, what it becomes)."""


async def worst_loss(redis: Redis, bug: str | None = None) -> int:
    """Largest loss of a user over all histories; stops at the first above the budget."""
    ledger, worst = Ledger(redis, "bus"), 0
    if bug is not None:
        script = resources.files("stream.storage").joinpath("lua", "charge.lua").read_text(encoding="utf-8")
        assert script.count(PLANTED[bug][0]) == 1
        ledger.charge_script = redis.register_script(script.replace(*PLANTED[bug]))
    for history in itertools.product(CALLS, repeat=3):
        await redis.flushdb()
        generation = await ledger.start_generation(birth=0)
        drawn = np.zeros((len(USERS), 1 + max(SLOTS)), dtype=np.int64)
        for slot, pair in history:
            charges = np.array(pair)
            refused = await ledger.charge(slot, PERIOD, generation, USERS, charges, BUDGET)
            if not len(refused):
                drawn[:, slot] = np.maximum(drawn[:, slot], charges)
        loss = drawn.sum(axis=1)
        if bug is None:
            spent = await ledger.spent("p", USERS, besides=0)
            assert np.all(loss <= spent), f"drawn and not paid for: {history}"
            assert np.all(spent <= BUDGET), history
        worst = max(worst, int(loss.max()))
        if worst > BUDGET:
            break
    return worst


async def test_no_history_of_charges_lets_a_user_lose_more_than_their_budget(redis: Redis) -> None:
    assert await worst_loss(redis) == BUDGET


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_ledger_with_a_planted_bug_is_caught(redis: Redis, bug: str) -> None:
    assert await worst_loss(redis, bug) > BUDGET
