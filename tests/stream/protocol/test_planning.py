"""The loop of plan and charge: a plan that meets an exhausted budget is replaced, at most a few times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from stream.messages.message import HEXAGON_SPEED
from stream.protocol.planning import NOBODY, Planning
from stream.protocol.release_protocol import PLAN_ATTEMPTS
from stream.statistics.plan import Plan, encode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import LedgerError
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.stored_rows import rows_in, store

LEDGER = FeedKeys("bus").ledger("2017-03-21")


class Refusing(Planning):
    """Before every charge, another window spends the budget of one of the users."""

    async def charge(self, plan: Plan) -> np.ndarray:
        return plan.charged_users()[0][:1]


async def test_a_window_whose_users_are_spent_elsewhere_again_and_again_is_left_for_later_undrawn(
    redis: Redis, tmp_path: Path
) -> None:
    config, steps = bus_config(tmp_path), []
    await store(redis, config, random_rows(6, 120))
    publisher = Collected()
    protocol = protocol_of(redis, config, publisher, after_step=steps.append)
    refusing = Refusing(protocol.statistics, protocol.store, protocol.ledger)
    with pytest.raises(LedgerError, match=f"during {PLAN_ATTEMPTS} plans"):
        await dataclasses.replace(protocol, planning=refusing).close(SLOT)
    assert steps == ["seal", "read", *["plan"] * (PLAN_ATTEMPTS + 1)]
    assert publisher.messages == []
    assert await protocol.ledger.periods() == []
    await protocol.close(SLOT)
    assert publisher.messages


async def test_the_first_stored_plan_stands_and_only_the_plan_that_was_seen_is_replaced(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(6, 120))
    planning = protocol_of(redis, config, Collected()).planning
    window, _, planned = await planning.window(SLOT)
    assert planned is None
    rows = planning.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    first = await planning.first(window, rows)
    kept = await planning.store.store_plan(SLOT, b"of a worker that saw no plan while it made its own")
    assert kept == await planning.store.plan(SLOT) == first.stored
    refused = first.plan.charged_users()[0][:1]
    replaced = await planning.replaced(window, rows, first, refused)
    assert refused[0] not in replaced.plan.charged_users()[0]
    assert await planning.first(window, rows) == replaced
    assert (await planning.window(SLOT)).planned == replaced
    late = await planning.replaced(window, rows, first, NOBODY)
    assert late == replaced, "a worker that saw the older plan must not undo the newer"
    assert await planning.charge(replaced.plan) is None
    await redis.hset(LEDGER, str(int(refused[0])), config.privacy.ledger_budget)
    assert np.array_equal(await planning.charge(first.plan), refused)


def scales_of(publisher: Collected) -> np.ndarray:
    """Scales of mean and variance of every published cell, in the order of the cells."""
    bodies = [msgspec.json.decode(message.value) for message in publisher.messages if message.topic == HEXAGON_SPEED]
    by_cell = {body["cell"]: [body[name]["scale"] for name in ("mean", "variance")] for body in bodies}
    return np.array([by_cell[cell] for cell in sorted(by_cell)])


@pytest.mark.parametrize("last", ["plan", "charge", "draw"])
async def test_a_window_that_another_version_planned_with_other_scales_is_charged_and_released_as_it_was_planned(
    redis: Redis, tmp_path: Path, last: str
) -> None:
    """The other version's worker dies after step ``last``; its scales are three times ours, its charges a third, and 1
    µε."""
    config, rows = bus_config(tmp_path), random_rows(6, 120)
    publisher, ours = Collected(), Collected()
    await store(redis, config, rows)
    protocol = protocol_of(redis, config, publisher)
    window = config.slotting.window(SLOT)
    contributions = protocol.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    plan = await protocol.planning.make(window, contributions, NOBODY)
    charges = np.where(plan.charges > 0, plan.charges // 3 + 1, 0)
    theirs = msgspec.structs.replace(plan, numerators=(3 * plan.scales.numerator), charges=(charges))
    await protocol.store.store_plan(SLOT, encode_plan(theirs))
    await close_until(protocol_of(redis, config, publisher), SLOT, last)
    assert publisher.messages == []
    await protocol.close(SLOT)
    spent = await protocol.ledger.spent("2017-03-21", plan.users, besides=0)
    assert np.array_equal(spent, charges)

    await redis.flushall()
    await store(redis, config, rows)
    await protocol_of(redis, config, ours).close(SLOT)
    assert scales_of(publisher) == pytest.approx(3 * scales_of(ours), rel=1e-4)


@pytest.mark.parametrize(("admission", "taking_part"), [("first-come", [30, 30, 0, 0, 0, 0]), ("paced", None)])
async def test_paced_users_take_turns_where_the_budget_pays_for_a_third_of_the_windows(
    redis: Redis, tmp_path: Path, admission: str, taking_part: list[int] | None
) -> None:
    """Six windows of four hours, two of which the budget pays for; everybody is in all of them.

    Every paced user is admitted to one or two windows. That a window has nobody of 30 whose turns are independent
    happens with probability (2/3)³⁰ = 5·10⁻⁶ for each.
    """
    settings = {"window.slot": "4h", "privacy.epsilon": "1", "privacy.budget": "2", "privacy.admission": admission}
    config = bus_config(tmp_path, **settings)
    midnight = config.slotting.period_of(SLOT).start
    protocol, admitted = protocol_of(redis, config, Collected()), []
    await protocol.ledger.start_generation(midnight)
    for slot in range(midnight, midnight + 86_400, 4 * 3600):
        planning = protocol.planning
        rows = planning.statistics.arrange(random_rows(6, 3_000, users=30, slot=slot), config.slotting.window(slot))
        planned = await planning.first(config.slotting.window(slot), rows)
        assert await planning.charge(planned.plan) is None
        await redis.set(FeedKeys("bus").outbox(slot), b"committed")
        admitted.append(int((planned.plan.charged_users()[1] > 0).sum()))
    if taking_part is not None:
        assert admitted == taking_part
    else:
        assert min(admitted) > 0
        assert 30 <= sum(admitted) <= 60
    spent = await protocol.ledger.spent("2017-03-21", rows.counts.users, besides=0)
    assert spent.max() <= config.privacy.ledger_budget
