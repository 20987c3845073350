"""The budget of a shared ledger: one in a period, for all feeds, whoever is configured otherwise when."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.config import Config
from stream.protocol.release_protocol import NOBODY
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, TermsError
from stream.storage.shared_ledger import SharedLedger
from stream.windows import Period
from tests.support.builders import SLOT, random_rows
from tests.support.city import HOUR
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.nightly import nightly_but
from tests.support.sharing import LEDGER, each_stored, sharing, spent, stored
from tests.support.stored_rows import store

pytestmark = pytest.mark.every_server

DAY = 86_400


async def state(redis: Redis, *configs: Config) -> None:
    """Workers start with these budgets, and an operator states them."""
    for config in configs:
        await Ledger.of(redis, config).start_generation(birth=0, budget=config.privacy.ledger_budget)
        await SharedLedger(redis, config.feed.name, LEDGER).state_budget(config.privacy.ledger_budget)


async def with_budgets(redis: Redis, folder: Path, bus: float, tram: float) -> tuple[Config, Config]:
    """Two feeds that are started with these budgets."""
    both = tuple(sharing(folder, **{"privacy.budget": budget})[at] for at, budget in enumerate((bus, tram)))
    await state(redis, *both)
    return both[0], both[1]


async def hold(redis: Redis, config: Config, seed: int, slot: int) -> None:
    """Rows of twelve users in one more window, from a topic that begins anew."""
    keys = FeedKeys.of(config)
    await redis.delete(keys.opened, PartKeys(keys, "bus/0").progress)
    await store(redis, config, random_rows(seed, 100, slot=slot), slot)


async def budget_of(redis: Redis, config: Config, slot: int = SLOT) -> float:
    """The budget that the close marker of a window states."""
    publisher = Collected()
    await protocol_of(redis, config, publisher).close(slot)
    return json.loads(publisher.messages[-1].value)["budget"]


async def planned(redis: Redis, folder: Path) -> None:
    """Two feeds with a window each; that of the bus is planned under the budget of :func:`sharing`, and not charged."""
    bus, tram = sharing(folder)
    await each_stored(redis, bus, tram)
    await state(redis, bus, tram)
    await close_until(protocol_of(redis, bus, Collected()), SLOT, "plan")


async def test_a_stored_plan_under_an_old_budget_stops_neither_its_window_nor_the_other_feed(redis, tmp_path):
    await planned(redis, tmp_path)
    bus, tram = await with_budgets(redis, tmp_path, 3.0, 3.0)
    assert await budget_of(redis, tram) == 3.0
    assert await budget_of(redis, bus) == 3.0
    assert 0 < max((await spent(redis, bus)).values()) <= 3_000_000


@pytest.mark.parametrize("changed", [1.7, 3.0])
async def test_a_stored_plan_that_is_the_first_of_its_period_takes_the_budget_that_is_stated_now(
    redis, tmp_path, changed
):
    await planned(redis, tmp_path)
    bus, tram = await with_budgets(redis, tmp_path, changed, changed)
    assert [await budget_of(redis, config) for config in (bus, tram)] == [changed] * 2


@pytest.mark.parametrize("changed", [1.7, 3.0])
async def test_a_changed_budget_begins_with_the_next_period_although_another_feed_has_begun_it(
    redis, tmp_path, changed
):
    """The bus has charged tomorrow before the tram has released the last windows of today; then both are restarted."""
    bus, tram = await with_budgets(redis, tmp_path, 2.0, 2.0)
    for seed, config in enumerate((bus, tram)):
        for slot in (SLOT, SLOT + HOUR, SLOT + DAY, SLOT + DAY + HOUR, SLOT + 2 * DAY):
            await hold(redis, config, seed, slot)
    assert await budget_of(redis, bus, SLOT) == await budget_of(redis, bus, SLOT + DAY) == 2.0
    bus, tram = await with_budgets(redis, tmp_path, changed, changed)
    assert await budget_of(redis, tram, SLOT + HOUR) == 2.0
    for config in (tram, bus):
        assert await budget_of(redis, config, SLOT + DAY + HOUR) == 2.0
        assert await budget_of(redis, config, SLOT + 2 * DAY) == changed
    assert max((await spent(redis, bus)).values()) <= 2_000_000


async def test_of_different_budgets_the_least_holds_for_all_feeds(redis, tmp_path):
    bus, tram = await with_budgets(redis, tmp_path, 3.0, 2.0)
    await each_stored(redis, bus, tram)
    assert await budget_of(redis, bus) == await budget_of(redis, tram) == 2.0
    assert max((await spent(redis, bus)).values()) <= 2_000_000


@pytest.mark.parametrize("seed", nightly_but([0, 1], range(4)))
async def test_whatever_is_configured_when_all_markers_of_a_period_state_one_budget_and_nobody_spends_more(
    redis, tmp_path, seed
):
    """Feeds are restarted with any budget at any moment; plans may be left behind at any moment, too. Each feed
    releases oldest first."""
    rng, budgets = np.random.default_rng(seed), (1.6, 2.0, 3.0)
    slots = [SLOT + day * DAY + hour * HOUR for day in range(2) for hour in range(3)]
    feeds = list(await with_budgets(redis, tmp_path, 2.0, 2.0))
    for at, config in enumerate(feeds):
        for slot in slots:
            await hold(redis, config, at, slot)
    waiting = [iter(slots), iter(slots)]
    stated: dict[str, set[float]] = defaultdict(set)
    for at in rng.permutation([0, 1] * len(slots)).tolist():
        slot = next(waiting[at])
        if rng.random() < 0.5:
            await close_until(protocol_of(redis, feeds[at], Collected()), slot, str(rng.choice(["plan", "charge"])))
        for other in range(2):
            if rng.random() < 0.5:
                feeds[other] = sharing(tmp_path, **{"privacy.budget": float(rng.choice(budgets))})[other]
                await state(redis, feeds[other])
        period = feeds[at].slotting.period_of(slot).key
        stated[period].add(await budget_of(redis, feeds[at], slot))
    users = np.arange(1, 13, dtype=np.uint64)
    assert len(stated) == 2
    for period, figures in stated.items():
        most = (await Ledger.of(redis, feeds[0]).spent(period, users, besides=0)).max()
        assert len(figures) == 1, f"markers of {period} state {figures}"
        assert 0 < most <= 1e6 * min(figures)


async def test_the_charge_itself_refuses_another_budget_and_writes_nothing(redis):
    """Two feeds that plan at once both see a period that is not charged yet."""
    bus, tram = (Ledger(redis, feed, LEDGER) for feed in ("bus", "tram"))
    generation, period = await bus.start_generation(birth=0, budget=10), Period(0, 2 * SLOT, "p")
    await tram.start_generation(birth=0, budget=12)
    users, charges = np.array([7], dtype=np.uint64), np.array([1])
    for budget in (9, 11, 12):
        with pytest.raises(TermsError, match="another budget now"):
            await bus.charge(SLOT, period, generation, users, charges, budget)
    assert await bus.periods() == []
    await bus.charge(SLOT, period, generation, users, charges, 10)
    await SharedLedger(redis, "bus", LEDGER).state_budget(12)
    for budget in (9, 12):
        with pytest.raises(TermsError, match="another budget now"):
            await tram.charge(SLOT, period, generation, users, charges, budget)
    assert await bus.total("p") == (1, 1)
    assert not len(await tram.charge(SLOT, period, generation, users, charges, 10))


async def test_a_withheld_window_states_the_budget_of_its_period(redis, tmp_path):
    bus, tram = await with_budgets(redis, tmp_path, 2.0, 2.0)
    await stored(redis, bus, 1)
    assert await budget_of(redis, bus) == 2.0
    _, tram = await with_budgets(redis, tmp_path, 3.0, 3.0)
    planning = protocol_of(redis, tram, Collected())
    plan = await planning.make(tram.slotting.window(SLOT), None, NOBODY)
    assert plan.withheld
    assert plan.budget == 2_000_000
    assert await planning.charge(plan) is None
