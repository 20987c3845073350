"""The budget of a shared ledger: one in a period, for all feeds, whoever is configured otherwise when."""

import json
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
from tests.support.sharing import LEDGER, sharing, stored
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


@pytest.mark.parametrize("seed", nightly_but(range(4), range(12)))
async def test_whatever_is_configured_when_the_least_that_is_stated_as_a_period_begins_is_its_budget_for_all_feeds(
    redis, tmp_path, seed
):
    """Feeds are restarted with any budget at any moment; plans may be left behind at any moment, too, and stop neither
    their window nor the other feed. Each feed releases oldest first, and one may be in the next period already."""
    rng, budgets = np.random.default_rng(seed), (1.6, 2.0, 3.0)
    slots = [SLOT + day * DAY + hour * HOUR for day in range(3) for hour in range(2)]
    stated = [2.0, 2.0]
    feeds = list(await with_budgets(redis, tmp_path, *stated))
    for at, config in enumerate(feeds):
        for slot in slots:
            await hold(redis, config, at, slot)
    waiting, begun, charged = [[*slots], [*slots]], dict[str, float](), set[tuple[int, int]]()
    for at in rng.permutation([0, 1] * len(slots)).tolist():
        ahead = int(rng.integers(2))
        if waiting[ahead] and rng.random() < 0.5:  # a worker is killed
            slot, last = waiting[ahead][0], str(rng.choice(["plan", "charge"]))
            if last == "charge":
                begun.setdefault(feeds[ahead].slotting.period_of(slot).key, min(stated))
            if (ahead, slot) not in charged:
                await close_until(protocol_of(redis, feeds[ahead], Collected()), slot, last)
            charged |= {(ahead, slot)} if last == "charge" else set()
        for other in range(2):
            if rng.random() < 0.5:
                stated[other] = float(rng.choice(budgets))
                feeds[other] = sharing(tmp_path, **{"privacy.budget": stated[other]})[other]
                await state(redis, feeds[other])
        slot = waiting[at].pop(0)
        expected = begun.setdefault(feeds[at].slotting.period_of(slot).key, min(stated))
        assert await budget_of(redis, feeds[at], slot) == expected
    users = np.arange(1, 13, dtype=np.uint64)
    assert len(begun) == 3
    for period, budget in begun.items():
        most = (await Ledger.of(redis, feeds[0]).spent(period, users, besides=0)).max()
        assert 0 < most <= 1e6 * budget


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
    planning = protocol_of(redis, tram, Collected()).planning
    plan = await planning.make(tram.slotting.window(SLOT), None, NOBODY)
    assert plan.withheld
    assert plan.budget == 2_000_000
    assert await planning.charge(plan) is None
