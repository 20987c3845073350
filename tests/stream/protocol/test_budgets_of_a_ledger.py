"""The budget of a shared ledger: one in a period, for all feeds and all workers of a feed, whoever is configured
otherwise when. A new user key needs a new name, grants nothing twice, and is made by a worker that starts alone."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import redis as blocking
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from stream.app.doctor import ledger_finding
from stream.app.services import Closing
from stream.app.worker import Worker
from stream.config import Config, load_config
from stream.config.privacy import PrivacyConfig
from stream.ingestion.pseudonyms import KEY_BYTES, Pseudonyms, key_fingerprint
from stream.local.server import free_port
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.protocol.release_protocol import NOBODY
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError, TermsError
from stream.storage.row_store import RowStore, StateError
from stream.storage.shared_ledger import SharedLedger
from stream.windows import Horizon, Period, Slotting
from tests.support.builders import SLOT, random_rows
from tests.support.city import HOUR
from tests.support.closing import Collected, close_until, closed, protocol_of, refused
from tests.support.command import run
from tests.support.environment import worker_environment
from tests.support.nightly import nightly_but
from tests.support.sharing import LEDGER, PERIOD, sharing, sharing_file, spent, stored
from tests.support.stored_rows import store

DAY = 86_400


async def state(redis: Redis, *configs: Config) -> None:
    """Workers start with these budgets, and an operator states them."""
    for config in configs:
        await starts(redis, config)
        await raises(redis, config)


async def hold(redis: Redis, config: Config, seed: int, slot: int) -> None:
    """Rows of twelve users in one more window, from a topic that begins anew."""
    keys = FeedKeys.of(config)
    await redis.delete(keys.opened, PartKeys(keys, "bus/0").progress)
    await store(redis, config, random_rows(seed, 100, slot=slot), slot)


async def budget_of(redis: Redis, config: Config, slot: int = SLOT) -> float:
    """The budget that the close marker of a window states."""
    return json.loads((await closed(redis, config, slot))[-1].value)["budget"]


@pytest.mark.every_server
@pytest.mark.parametrize("seed", nightly_but(range(4), range(12)))
async def test_whatever_is_configured_when_the_least_that_is_stated_as_a_period_begins_is_its_budget_for_all_feeds(
    redis, tmp_path, seed
):
    """Feeds are restarted with any budget at any moment; plans may be left behind at any moment, too, and stop neither
    their window nor the other feed. Each feed releases oldest first, and one may be in the next period already."""
    rng, budgets = np.random.default_rng(seed), (1.6, 2.0, 3.0)
    slots = [SLOT + day * DAY + hour * HOUR for day in range(3) for hour in range(2)]
    stated = [2.0, 2.0]
    feeds = list(sharing(tmp_path, **{"privacy.budget": 2.0}))
    await state(redis, *feeds)
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


@pytest.mark.every_server
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


@pytest.mark.every_server
async def test_a_withheld_window_states_the_budget_of_its_period(redis, tmp_path):
    two, three = (sharing(tmp_path, **{"privacy.budget": budget}) for budget in (2.0, 3.0))
    await state(redis, *two)
    await stored(redis, two[0], 1)
    assert await budget_of(redis, two[0]) == 2.0
    await state(redis, *three)
    tram = three[1]
    planning = protocol_of(redis, tram, Collected())
    plan = await planning.make(tram.slotting.window(SLOT), None, NOBODY)
    assert plan.withheld
    assert plan.budget == 2_000_000
    assert await planning.charge(plan) is None


async def starts(redis: Redis, config: Config) -> None:
    """What a worker does to the budgets when it starts, and before each window."""
    await Ledger.of(redis, config).start_generation(birth=0, budget=config.privacy.ledger_budget)


async def raises(redis: Redis, config: Config) -> None:
    """What ``hexveil ledger budget`` does."""
    await SharedLedger(redis, config.feed.name, LEDGER).state_budget(config.privacy.ledger_budget)


async def looks(redis: Redis, config: Config) -> None:
    """What a worker does to the budgets before it looks for due windows."""
    await SharedLedger(redis, config.feed.name, LEDGER).lower_budget(config.privacy.ledger_budget)


def workers(folder: Path, *budgets: float) -> list[Config]:
    """The configurations of workers of one feed, with these budgets."""
    return [sharing(folder, **{"privacy.budget": budget})[0] for budget in budgets]


def configured(config: Config, budget: float) -> Config:
    given = config.privacy.model_dump(by_alias=True, exclude_unset=True) | {"budget": budget}
    return config.model_copy(update={"privacy": PrivacyConfig.model_validate(given)})


async def stated(redis: Redis) -> dict[str, int]:
    return await SharedLedger(redis, "any", LEDGER).budgets()


@pytest.fixture
def by_budget(tmp_path: Path) -> dict[float, Config]:
    return {budget: workers(tmp_path, budget)[0] for budget in (1.75, 2.0, 3.0)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([starts, looks, raises]), st.sampled_from([1.75, 2.0, 3.0])), max_size=12))
def test_stated_is_the_lowest_budget_of_a_worker_since_an_operator_stated_one(redis_url, by_budget, steps):
    """Whichever worker starts or looks last, as in a rolling upgrade: they lower it alone."""

    async def stating() -> None:
        async with Redis.from_url(redis_url) as redis:
            await redis.flushall()
            expected = 3.0
            for step, budget in [(starts, expected), *steps]:
                await step(redis, by_budget[budget])
                expected = budget if step is raises else min(expected, budget)
                assert await stated(redis) == {"bus": round(1e6 * expected)}

    asyncio.run(stating())


@pytest.mark.parametrize("first", ["low", "high"])
async def test_no_feed_begins_a_period_above_a_worker_that_started_whatever_starts_after_it(redis, tmp_path, first):
    """Before the lower worker looks again, one of the other feed charges, or one with a higher budget of its own."""
    low, high = workers(tmp_path, 2.0, 3.0)
    tram = sharing(tmp_path, **{"privacy.budget": 3.0})[1]
    for seed, config in enumerate((low, tram)):
        await stored(redis, config, seed)
        await starts(redis, config)
    await looks(redis, low)
    await starts(redis, high)
    await closed(redis, tram if first == "low" else high)
    assert (await Ledger.of(redis, low).terms(PERIOD)).budget == 2_000_000
    assert 0 < max((await spent(redis, low)).values()) <= 2_000_000


async def test_a_window_is_released_although_a_worker_with_a_higher_budget_restarts_all_the_time(redis, tmp_path):
    low, high = workers(tmp_path, 2.0, 3.0)
    await stored(redis, low, 1)
    await starts(redis, low)
    restarts = []

    async def restart(step: str) -> None:
        restarts.append(step)
        await starts(redis, high)

    assert await closed(redis, low, after_step=restart)
    assert restarts.count("plan") == 1
    assert 0 < max((await spent(redis, low)).values()) <= 2_000_000


@pytest.mark.parametrize("last", ["seal", "read", "plan"])
async def test_a_worker_never_begins_a_period_above_its_own_budget(redis, tmp_path, last):
    """An operator raises the budget while it still runs, between its look and its charge. The window waits for the next
    look."""
    low, high = workers(tmp_path, 2.0, 3.0)
    await stored(redis, low, 1)
    await starts(redis, low)

    async def interrupt(step: str) -> None:
        if step == last:
            await raises(redis, high)

    await refused(redis, low, LedgerError, "budgets were spent elsewhere", after_step=interrupt)
    assert max((await spent(redis, low)).values()) == 0
    await looks(redis, low)
    await closed(redis, low)
    assert 0 < max((await spent(redis, low)).values()) <= 2_000_000


async def test_a_feed_that_left_states_no_budget(redis, tmp_path):
    (bus,) = workers(tmp_path, 2.0)
    shared = SharedLedger(redis, "bus", LEDGER)
    await starts(redis, bus)
    await shared.leave("bus")
    await shared.lower_budget(1)
    with pytest.raises(LedgerError, match="'bus' did not join ledger 'city'; its feeds are: none"):
        await shared.state_budget(1)
    assert await stated(redis) == {}


async def test_a_worker_that_closes_nothing_states_its_lower_budget_too(redis, redis_url, tmp_path):
    low, high = (sharing(tmp_path, **{"privacy.budget": budget, "redis.url": redis_url})[0] for budget in (2.0, 3.0))
    await starts(redis, low)
    await raises(redis, high)
    worker = Worker(low)
    await Closing(worker).look()
    await worker.redis.aclose()
    assert await stated(redis) == {"bus": 2_000_000}


def test_the_command_states_the_configured_budget_and_asks_for_a_confirmation(redis_url, redis, tmp_path):
    file = sharing_file(tmp_path)
    config = load_config(file)
    keys, command = FeedKeys.of(config), ["ledger", "budget", "--config", file]
    environment = {"HEXVEIL_REDIS__URL": redis_url}
    with blocking.Redis.from_url(redis_url) as client:
        assert "did not join" in run(*command, "--yes", code=1, env=environment).output
        client.hset(keys.feeds, config.feed.name, 0)
        client.hset(keys.budgets, config.feed.name, 1)
        assert "repeat the command with --yes" in run(*command, code=2, env=environment).output
        assert client.hget(keys.budgets, config.feed.name) == b"1"
        client.set(keys.policy, "another unit")
        run(*command, "--yes", code=1, env=environment)
        assert client.hget(keys.budgets, config.feed.name) == b"1"
        client.delete(keys.policy)
        run(*command, "--yes", env=environment)
        assert int(client.hget(keys.budgets, config.feed.name) or 0) == config.privacy.ledger_budget


@pytest.mark.parametrize(
    ("tram", "given", "sentence", "differ"),
    [
        (90, 90, "", "the next one gets 90"),
        (90, 96, "states the budget 90, the configuration 96: no worker raises it", "the next one gets 90"),
        (96, 90, "states the budget 96, the configuration 90: a worker that starts lowers it", "the next one gets 95"),
    ],
)
async def test_doctor_names_the_feeds_who_holds_periods_the_budgets_that_are_stated_and_what_changes_them(
    city, tram, given, sentence, differ
):
    names = city.bus.feed.name, city.tram.feed.name
    await city.verify(configured(city.bus, 95.0))
    await city.verify(configured(city.tram, float(tram)))
    await city.client.hset(FeedKeys.of(city.bus).feeds, names[0], SLOT)
    finding = await ledger_finding(configured(city.tram, float(given)), city.client)
    assert finding.ok, finding
    sentences = finding.found
    assert "of the feeds {}, {}".format(*names) in sentences
    assert f"retirement waits for '{names[1]}'" in sentences
    assert f"'{names[0]}' 95, '{names[1]}' {tram}" in sentences
    assert sentence in sentences
    assert ("states the budget" in sentences) == bool(sentence)
    assert differ in sentences


START = 1_490_572_800
"""2017-03-27 00:00 UTC, on which a block of 28 days begins."""
OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES


@pytest.mark.parametrize("horizon", [None, Horizon(timedelta(days=28), 10)])
async def test_a_new_key_needs_a_new_name_and_grants_no_budget_twice(horizon, redis):
    slotting = Slotting(timedelta(hours=1), timedelta(days=1), "UTC", horizon)
    await RowStore(redis, "bus").claim_key(key_fingerprint(OLD))
    before, one = Ledger(redis, "bus"), np.array([1])
    user = np.array([Pseudonyms(OLD)["bus 7"]], dtype=np.uint64)
    running = slotting.period_of(START + DAY)
    await before.charge(running.start, running, await before.start_generation(birth=0), user, one, 10)
    with pytest.raises(StateError, match="another user key"):
        await RowStore(redis, "bus").claim_key(key_fingerprint(NEW))  # whenever it is tried

    await RowStore(redis, "bus-2").claim_key(key_fingerprint(NEW))
    after, changed = Ledger(redis, "bus-2"), START + DAY + DAY // 2
    generation = await after.start_generation(birth=changed)
    user = np.array([Pseudonyms(NEW)["bus 7"]], dtype=np.uint64)
    with pytest.raises(BeforeBirthError):
        await after.charge(running.start, running, generation, user, one, 10)
    following = slotting.period_of(START + 2 * DAY if horizon is None else START + 28 * DAY)
    assert await after.releases_since(slotting) <= following.start
    assert not len(await after.charge(following.start, following, generation, user, one, 10))
    if horizon is not None:
        within = slotting.period_of(START + 2 * DAY)
        with pytest.raises(BeforeBirthError):
            await after.charge(within.start, within, generation, user, one, 10)


async def test_adopting_periods_without_the_user_key_is_refused_and_makes_none(city, tmp_path):
    """A key that never was cannot be the one that the charges of the ledger were made under."""
    key = tmp_path / "nowhere" / "user.key"
    env = worker_environment(key.parent, city.bus.kafka.bootstrap, city.server.url, free_port())
    command = ["ledger", "adopt", "--no-other-ledger", "--config", sharing_file(tmp_path)]
    adopted = await asyncio.to_thread(run, *command, code=1, env=env)
    assert str(key) in adopted.output
    assert not key.parent.exists()
    assert await city.client.keys() == []


async def test_a_check_that_is_no_start_of_a_worker_makes_no_key_and_binds_no_ledger_and_a_start_makes_one_once(city):
    key = city.bus.privacy.user_key_file
    key.unlink(missing_ok=True)
    with pytest.raises(LedgerError, match="the first worker creates it"):
        await LedgerCheck(city.bus, city.client, Ledger.of(city.client, city.bus), Known()).verify()
    assert await city.client.keys() == []
    assert not key.exists()
    await city.verify(city.bus)
    key.unlink()  # the ledger has it, so a worker without it is refused and makes none
    with pytest.raises(LedgerError, match="another user key"):
        await city.verify(city.tram)
    assert not key.exists()
