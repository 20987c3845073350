"""Exact audit of the ledger under both relations: every short history of charges, by the script that runs in Redis.

A history is three calls, each for one of three windows and two users with charges of 1 or 2 out of a budget of 3; a
call that refuses nobody lets its plan be drawn. 12³ histories, of which 320 differ in more than the names of their
windows: the script looks at a window's name only as part of a key. The same with the windows divided among two feeds
that share a ledger. No samples, power 1: what a user can lose is the largest drawn charge of every window, added up.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.windows import Period
from tests.support.redis_scripts import altered_script

PERIOD = Period(0, 86_400, "p")
BUDGET, SLOTS, CHARGES = 3, (1, 2, 3), (1, 2)
CALLS = tuple((slot, pair) for slot in SLOTS for pair in itertools.product(CHARGES, repeat=2))
HISTORIES = tuple(
    history
    for history in itertools.product(CALLS, repeat=3)
    if all(slot <= 1 + max([0, *(before for before, _ in history[:at])]) for at, (slot, _) in enumerate(history))
)
"""Windows are named in the order in which they first occur."""
USERS = np.array([7, 8], dtype=np.uint64)
BUS = FeedKeys("bus")
PLANTED = {
    "admit while anything is left": ("if spent > budget or", "if spent - due >= budget or"),
    "give back what a smaller plan does not need": ("if due > 0 then", "if due ~= 0 then"),
    "draw first, charge later": (
        "spendings[#spendings + 1], spendings[#spendings + 2] = user, string.format('%.0f', spent)",
        "",
    ),
}
"""Bug -> (line of the script, what it becomes)."""


async def worst_loss(redis: Redis, *, honest: bool = True, feeds: tuple[FeedKeys, ...] = 3 * (BUS,)) -> int:
    """Largest loss of a user over all histories; stops at the first above the budget. ``feeds``: that of each
    window."""
    ledgers, worst = [Ledger(redis, keys.feed, keys.shared_ledger) for keys in feeds], 0
    for history in HISTORIES:
        await redis.flushdb()
        generations = [await ledger.start_generation(birth=0) for ledger in ledgers]
        drawn = np.zeros((len(USERS), 1 + max(SLOTS)), dtype=np.int64)
        for slot, pair in history:
            charges = np.array(pair)
            ledger, generation = ledgers[slot - 1], generations[slot - 1]
            refused = await ledger.charge(slot, PERIOD, generation, USERS, charges, BUDGET)
            if not len(refused):
                drawn[:, slot] = np.maximum(drawn[:, slot], charges)
        loss = drawn.sum(axis=1)
        if honest:
            spent = await ledgers[0].spent("p", USERS, besides=0)
            assert np.all(loss <= spent), f"drawn and not paid for: {history}"
            assert np.all(spent <= BUDGET), history
        worst = max(worst, int(loss.max()))
        if worst > BUDGET:
            break
    return worst


async def test_no_history_of_charges_lets_a_user_lose_more_than_their_budget(redis: Redis) -> None:
    assert await worst_loss(redis) == BUDGET


@pytest.mark.parametrize("of_bus", [{1, 2}, {1, 3}, {1}], ids=str)
async def test_no_history_of_two_feeds_of_one_ledger_lets_a_user_lose_more_than_one_budget(
    redis: Redis, of_bus: set[int]
) -> None:
    """Every division of three windows among two feeds, except for which of the feeds is called bus."""
    feeds = tuple(FeedKeys("bus" if slot in of_bus else "tram", "city") for slot in SLOTS)
    assert await worst_loss(redis, feeds=feeds) == BUDGET


async def test_two_feeds_with_a_ledger_each_are_caught(redis: Redis) -> None:
    """The planted bug."""
    with pytest.raises(AssertionError, match="drawn and not paid for"):
        await worst_loss(redis, feeds=(BUS, BUS, FeedKeys("tram")))


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_ledger_with_a_planted_bug_is_caught(redis: Redis, bug: str) -> None:
    with altered_script("charge", *PLANTED[bug]):
        assert await worst_loss(redis, honest=False) > BUDGET
