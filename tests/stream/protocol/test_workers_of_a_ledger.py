"""Two workers of one feed of a shared ledger whose budgets differ: a mistake, or an upgrade of one worker after the
other. What docs/operators.md says of a user key that is lost or known to others: a new key needs a new name, and grants
nothing twice. A shared ledger and the user key: only a worker that starts makes one, and only where no other is known.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import redis as blocking
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.app.doctor import ledger_finding
from stream.app.services import Closing
from stream.app.worker import Worker
from stream.cli import app
from stream.config import Config, load_config
from stream.config.privacy import PrivacyConfig
from stream.ingestion.pseudonyms import KEY_BYTES, Pseudonyms, key_fingerprint
from stream.local import free_port
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError
from stream.storage.row_store import RowStore, StateError
from stream.storage.shared_ledger import SharedLedger
from stream.windows import Horizon, Slotting
from tests.support.builders import SLOT
from tests.support.closing import Collected, protocol_of
from tests.support.environment import worker_environment
from tests.support.sharing import LEDGER, PERIOD, sharing, sharing_file, spent, stored


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


async def test_of_two_workers_the_lower_budget_holds_whichever_looks_last(redis, tmp_path):
    low, high = workers(tmp_path, 2.0, 3.0)
    await stored(redis, low, 1)
    for config in (low, high):
        await starts(redis, config)
    for config in (low, high):
        await looks(redis, config)
    assert await stated(redis) == {"bus": 2_000_000}
    await protocol_of(redis, high, Collected()).close(SLOT)
    assert 0 < max((await spent(redis, high)).values()) <= 2_000_000


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
    charges = tram if first == "low" else high
    await protocol_of(redis, charges, Collected()).close(SLOT)
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

    publisher = Collected()
    await protocol_of(redis, low, publisher, after_step=restart).close(SLOT)
    assert publisher.messages
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

    publisher = Collected()
    with pytest.raises(Exception, match="budgets were spent elsewhere"):
        await protocol_of(redis, low, publisher, after_step=interrupt).close(SLOT)
    assert publisher.messages == []
    assert max((await spent(redis, low)).values()) == 0
    await looks(redis, low)
    await protocol_of(redis, low, publisher).close(SLOT)
    assert 0 < max((await spent(redis, low)).values()) <= 2_000_000


async def test_a_higher_budget_holds_once_an_operator_states_it(redis, tmp_path):
    """A rolling upgrade: each worker is stopped and started, one after the other."""
    old, new = workers(tmp_path, 2.0, 3.0)
    await starts(redis, old)
    await starts(redis, new)  # the first of two
    await raises(redis, new)  # too early
    await looks(redis, old)
    assert await stated(redis) == {"bus": 2_000_000}
    await starts(redis, new)  # the second, after the last old one
    await looks(redis, new)
    assert await stated(redis) == {"bus": 2_000_000}
    await raises(redis, new)
    await looks(redis, new)
    assert await stated(redis) == {"bus": 3_000_000}


async def test_a_worker_that_starts_states_its_budget_only_if_it_is_lower(city):
    """The start itself, against Kafka and Redis."""
    async with Redis.from_url(city.server.url) as client:
        shared = SharedLedger(client, "any", str(city.bus.shared_ledger))
        name, kept = city.bus.feed.name, []
        for budget in (2.0, 3.0, 1.75):
            await city.verify(configured(city.bus, budget))
            kept.append((await shared.budgets())[name])
    assert kept == [2_000_000, 2_000_000, 1_750_000]


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
    keys, command = FeedKeys.of(config), ["ledger", "budget", "--config", str(file)]
    environment = {"HEXVEIL_REDIS__URL": redis_url}
    with blocking.Redis.from_url(redis_url) as client:
        refused = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert refused.exit_code == 1
        assert "did not join" in refused.output
        client.hset(keys.feeds, config.feed.name, 0)
        client.hset(keys.budgets, config.feed.name, 1)
        asked = CliRunner().invoke(app, command, env=environment)
        assert asked.exit_code == 2
        assert "repeat the command with --yes" in asked.output
        assert client.hget(keys.budgets, config.feed.name) == b"1"
        client.set(keys.policy, "another unit")
        other = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert other.exit_code == 1
        assert client.hget(keys.budgets, config.feed.name) == b"1"
        client.delete(keys.policy)
        done = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert done.exit_code == 0, done.output
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
    async with Redis.from_url(city.server.url) as client:
        await client.hset(FeedKeys.of(city.bus).feeds, names[0], SLOT)
        finding = await ledger_finding(configured(city.tram, float(given)), client)
    assert finding.ok, finding
    sentences = finding.found
    assert "of the feeds {}, {}".format(*names) in sentences
    assert f"retirement waits for '{names[1]}'" in sentences
    assert f"'{names[0]}' 95, '{names[1]}' {tram}" in sentences
    assert sentence in sentences
    assert ("states the budget" in sentences) == bool(sentence)
    assert differ in sentences


DAY, START = 86_400, 1_490_572_800
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
    command = ["ledger", "adopt", "--no-other-ledger", "--config", str(sharing_file(tmp_path))]
    adopted = await asyncio.to_thread(CliRunner().invoke, app, command, env=env)
    assert adopted.exit_code == 1, adopted.output
    assert str(key) in adopted.output
    assert not key.parent.exists()
    async with Redis.from_url(city.server.url) as client:
        assert await client.keys() == []


async def test_a_check_that_is_no_start_of_a_worker_neither_makes_a_key_nor_binds_the_ledger(city):
    key = city.bus.privacy.user_key_file
    key.unlink(missing_ok=True)
    async with Redis.from_url(city.server.url) as client:
        with pytest.raises(LedgerError, match="the first worker creates it"):
            await LedgerCheck(city.bus, client, Ledger.of(client, city.bus), Known()).verify()
        assert await client.keys() == []
    assert not key.exists()
    await city.verify(city.bus)
    assert key.exists()


async def test_a_worker_without_the_key_of_a_ledger_that_has_one_is_refused_and_makes_none(city):
    await city.verify(city.bus)
    key = city.tram.privacy.user_key_file
    key.unlink()
    with pytest.raises(LedgerError, match="another user key"):
        await city.verify(city.tram)
    assert not key.exists()
