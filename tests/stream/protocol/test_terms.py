"""The terms on which a ledger period was first charged hold until its end, even if the configuration changes. The loop
of plan and charge: a plan that meets an exhausted budget is replaced, at most a few times."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.accounting import epsilon_of_rho
from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, Message
from stream.offline import MemoryRows
from stream.protocol.release_protocol import NOBODY, PLAN_ATTEMPTS, ReleaseProtocol, statistics_of
from stream.statistics.plan import Plan, encode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, TermsError
from stream.windows import Period
from tests.support.builders import SLOT, bus_config, located_rows, random_rows, with_histograms, zcdp_config
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.participating import SMALL, riders
from tests.support.stored_rows import rows_in, store

HOUR, DAY = 3600, 86_400
TODAY, TOMORROW = "2017-03-21", "2017-03-22"


async def release(
    redis: Redis, config: Config, slot: int, rows: np.ndarray | None = None, **hooks: Any
) -> list[Message]:
    """Messages of one window of the same twelve users."""
    ledger, out = Ledger(redis, config.feed.name), Collected()
    await ledger.start_generation(birth=0)
    stored = MemoryRows({slot: random_rows(slot, 200, slot=slot) if rows is None else rows})
    await ReleaseProtocol(statistics_of(config), redis, stored, ledger, out, Noise(), **hooks).close(slot)
    return out.messages


async def most_spent(redis: Redis, config: Config, period: str) -> int:
    users = np.arange(1, 13, dtype=np.uint64)
    return int((await Ledger(redis, config.feed.name).spent(period, users, besides=0)).max())


def marker(messages: list[Message]) -> dict[str, Any]:
    return json.loads(messages[-1].value)


def pure(tmp_path: Path, budget: float) -> Config:
    return riders(tmp_path, **{"privacy.epsilon": 2.0, "privacy.budget": budget})


def zcdp(tmp_path: Path, budget: float) -> Config:
    return zcdp_config(
        tmp_path, 0.05, 0.025 * budget, **SMALL, **{"participation.weight": "user", "participation.cells_per_user": 4}
    )


@pytest.mark.parametrize("config_of", [pure, zcdp])
async def test_a_budget_raised_in_a_period_holds_from_the_next_one_on_and_every_marker_says_what_holds(
    redis, tmp_path, config_of
):
    """Close markers state B for the period. A doubled budget would grant B again to users who have spent it."""
    low, high = config_of(tmp_path, 2.0), config_of(tmp_path, 4.0)
    first = marker(await release(redis, low, SLOT))
    again = marker(await release(redis, high, SLOT + HOUR))
    assert await most_spent(redis, low, TODAY) <= low.privacy.ledger_budget
    assert first["budget"] == again["budget"] == low.privacy.budget
    assert again.get("rho_budget") == first.get("rho_budget")
    later = [marker(await release(redis, high, SLOT + DAY + hour * HOUR)) for hour in (0, 1)]
    assert [body["budget"] for body in later] == [high.privacy.budget] * 2
    assert low.privacy.ledger_budget < await most_spent(redis, high, TOMORROW) <= high.privacy.ledger_budget
    if low.privacy.accounting == "zcdp":
        assert first["budget"] == epsilon_of_rho(low.privacy.ledger_budget, 1e-6)


async def test_a_lowered_budget_holds_at_once_and_cannot_be_raised_again_before_the_period_is_over(redis, tmp_path):
    budgets = [marker(await release(redis, pure(tmp_path, 8.0), SLOT))["budget"]]
    budgets.append(marker(await release(redis, pure(tmp_path, 4.0), SLOT + HOUR))["budget"])
    budgets.append(marker(await release(redis, pure(tmp_path, 8.0), SLOT + 2 * HOUR))["budget"])
    assert budgets == [8.0, 4.0, 4.0]
    assert await most_spent(redis, pure(tmp_path, 4.0), TODAY) <= 4_000_000


async def test_a_worker_with_the_old_higher_budget_is_held_to_the_lower_one(redis, tmp_path):
    """The period is charged under a lower one after the window was planned. The script decides, not the worker's
    configuration."""
    low, high = pure(tmp_path, 2.0), pure(tmp_path, 4.0)
    await release(redis, high, SLOT)
    seen: list[str] = []

    async def meanwhile(step: str) -> None:
        seen.append(step)
        if step == "plan" and seen.count("plan") == 1:
            await redis.hset(FeedKeys.of(low).terms(TODAY), "budget", low.privacy.ledger_budget)

    body = marker(await release(redis, high, SLOT + 2 * HOUR, after_step=meanwhile))
    assert await most_spent(redis, high, TODAY) <= low.privacy.ledger_budget
    assert seen.count("plan") == 2, "the first plan was refused"
    assert body["budget"] == 2.0


def histograms(messages: list[Message]) -> int:
    return sum(message.topic == SPATIAL_HISTOGRAM for message in messages)


async def test_histograms_switched_on_under_values_begin_with_the_next_period(redis, tmp_path):
    """Exact losses depend on which other users took part; admission to a histogram must not depend on that."""
    config = with_histograms("values", tmp_path, ["ug"])
    alone = config.model_copy(update={"histogram": None})
    slots = [SLOT, SLOT + HOUR, SLOT + DAY, SLOT + DAY + HOUR, SLOT + DAY + 2 * HOUR]
    counts = [
        histograms(await release(redis, setting, slot, located_rows(slot, 200, slot=slot)))
        for setting, slot in zip([alone, config, config, alone, config], slots, strict=True)
    ]
    assert counts == [0, 0, 1, 0, 0]
    assert await most_spent(redis, config, TOMORROW) > config.histogram_grant


async def test_histograms_planned_before_exact_losses_were_charged_elsewhere_are_planned_again_without(redis, tmp_path):
    config, seen = with_histograms("values", tmp_path, ["ug"]), list[str]()

    async def meanwhile(step: str) -> None:
        seen.append(step)
        if step == "plan" and seen.count("plan") == 1:
            await redis.hset(FeedKeys("bus").terms(TODAY), "counts", 1)

    assert histograms(await release(redis, config, SLOT, located_rows(2, 200), after_step=meanwhile)) == 0
    assert seen.count("plan") == 2


async def test_histograms_under_participation_may_begin_at_any_time(redis, tmp_path):
    """Under this relation a charge depends on the user's own data alone, whatever is released."""
    config = with_histograms("participation", tmp_path, ["ug"])
    alone = config.model_copy(update={"histogram": None})
    counts = [
        histograms(await release(redis, setting, slot, located_rows(slot, 200, slot=slot)))
        for setting, slot in ((alone, SLOT), (config, SLOT + HOUR))
    ]
    assert counts == [0, 1]


async def test_charges_for_histograms_are_refused_in_a_period_whose_charges_followed_from_counts(redis):
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    users, charges = np.array([7], dtype=np.uint64), np.array([1])
    await ledger.charge(SLOT, Period(SLOT, SLOT + 86_400, "p"), generation, users, charges, 10, basis="counts")
    with pytest.raises(TermsError, match="the period after p"):
        await ledger.charge(
            SLOT + HOUR, Period(SLOT, SLOT + 86_400, "p"), generation, users, charges, 10, basis="histograms"
        )
    assert await ledger.total("p") == (1, 1)
    await ledger.charge(
        SLOT + HOUR, Period(SLOT, SLOT + 86_400, "q"), generation, users, charges, 10, basis="histograms"
    )


LEDGER = FeedKeys("bus").ledger("2017-03-21")


async def refusing(plan: Plan) -> np.ndarray:
    """Before every charge, another window spends the budget of one of the users."""
    return plan.charged_users()[0][:1]


async def test_a_window_whose_users_are_spent_elsewhere_again_and_again_is_left_for_later_undrawn(redis, tmp_path):
    config, steps = bus_config(tmp_path), []
    await store(redis, config, random_rows(6, 120))
    publisher = Collected()
    protocol = protocol_of(redis, config, publisher, after_step=steps.append)
    object.__setattr__(protocol, "charge", refusing)
    with pytest.raises(LedgerError, match=f"during {PLAN_ATTEMPTS} plans"):
        await protocol.close(SLOT)
    assert steps == ["seal", "read", *["plan"] * (PLAN_ATTEMPTS + 1)]
    assert publisher.messages == []
    assert await protocol.ledger.periods() == []
    await protocol_of(redis, config, publisher).close(SLOT)
    assert publisher.messages


async def test_the_first_stored_plan_stands_and_only_the_plan_that_was_seen_is_replaced(redis, tmp_path):
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(6, 120))
    planning = protocol_of(redis, config, Collected())
    window, _, planned = await planning.window(SLOT)
    assert planned is None
    rows = planning.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    first = await planning.plan(window, rows)
    kept = await planning.store.store_plan(SLOT, b"of a worker that saw no plan while it made its own")
    assert kept == await planning.store.plan(SLOT) == first.stored
    refused = first.plan.charged_users()[0][:1]
    replaced = await planning.replaced(window, rows, first, refused)
    assert refused[0] not in replaced.plan.charged_users()[0]
    assert await planning.plan(window, rows) == replaced
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
    redis, tmp_path, last
):
    """The other version's worker dies after step ``last``; its scales are three times ours, its charges a third, and 1
    µε."""
    config, rows = bus_config(tmp_path), random_rows(6, 120)
    publisher, ours = Collected(), Collected()
    await store(redis, config, rows)
    protocol = protocol_of(redis, config, publisher)
    window = config.slotting.window(SLOT)
    contributions = protocol.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    plan = await protocol.make(window, contributions, NOBODY)
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
    redis, tmp_path, admission, taking_part
):
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
        rows = protocol.statistics.arrange(random_rows(6, 3_000, users=30, slot=slot), config.slotting.window(slot))
        planned = await protocol.plan(config.slotting.window(slot), rows)
        assert await protocol.charge(planned.plan) is None
        await redis.set(FeedKeys("bus").outbox(slot), b"committed")
        admitted.append(int((planned.plan.charged_users()[1] > 0).sum()))
    if taking_part is not None:
        assert admitted == taking_part
    else:
        assert min(admitted) > 0
        assert 30 <= sum(admitted) <= 60
    spent = await protocol.ledger.spent("2017-03-21", rows.counts.users, besides=0)
    assert spent.max() <= config.privacy.ledger_budget
