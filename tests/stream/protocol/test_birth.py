"""A ledger releases no window of a period that began before its birth, so a new feed name is no new budget. Real Redis.
A ledger is bound to the settings that define users and periods: others would grant a second budget, and are refused. A
horizon in the release protocol: every close marker states it, and a block that is spent silences users to its end."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from dpcore.noise import Noise
from stream.app.doctor import ledger_finding
from stream.app.worker import Worker
from stream.cli import app
from stream.cli import app as command
from stream.config import Config, ConfigError
from stream.ingestion.pseudonyms import key_fingerprint, load_user_key
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.offline import LinePublisher, MemoryRows, OfflineSummary, replay_offline, split_by_slot
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.release_protocol import ReleaseProtocol, statistics_of
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError
from stream.storage.row_store import ReadThrough, RowStore
from stream.windows import Period, Window
from tests.support import hourly
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, random_rows, riders_config, zcdp_config
from tests.support.closing import Collected, protocol_of
from tests.support.participating import SMALL, riders
from tests.support.releasing import verified
from tests.support.stored_rows import altered_script, store
from tests.support.topics_reader import read_all

HOUR, DAY = 3600, 86_400
TODAY = Period(SLOT - 12 * HOUR, SLOT + 12 * HOUR, "2017-03-21")
TOMORROW = Period(TODAY.end, TODAY.end + DAY, "2017-03-22")
USERS, B = np.array([7, 8], dtype=np.uint64), 100


async def spend(redis: Redis, feed: str, period: Period) -> int:
    """The charge of user 7 if ``feed`` charges the whole budget in a window of ``period``."""
    ledger = Ledger(redis, feed)
    generation = await ledger.start_generation(birth=SLOT)
    await ledger.charge(period.start + HOUR, period, generation, USERS, np.full(2, B), B)
    return int((await ledger.spent(period.key, USERS, besides=0))[0])


async def test_a_new_feed_name_in_the_middle_of_a_period_grants_nothing_until_the_next(redis):
    await Ledger(redis, "old").start_generation(birth=0)
    assert await spend(redis, "old", TODAY) == B
    with pytest.raises(
        BeforeBirthError, match=r"born 2017-03-21T12:00:00Z; windows of period 2017-03-21.*ledger adopt"
    ):
        await spend(redis, "new", TODAY)
    assert await Ledger(redis, "new").periods() == []
    assert await spend(redis, "new", TOMORROW) == B


async def test_without_the_check_the_same_user_has_two_budgets_in_one_period(redis):
    """The planted bug."""
    await Ledger(redis, "old").start_generation(birth=0)
    spent = await spend(redis, "old", TODAY)
    with altered_script("charge", "if not birth or tonumber(ARGV[9]) < tonumber(birth) then", "if not birth then"):
        assert spent + await spend(redis, "new", TODAY) == 2 * B


async def test_a_ledger_whose_birth_is_not_recorded_charges_nothing(redis):
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation()
    await redis.delete(FeedKeys("bus").birth)
    with pytest.raises(BeforeBirthError, match="not recorded"):
        await ledger.charge(SLOT, TODAY, generation, USERS, np.full(2, B), B)


async def test_a_ledger_is_born_when_redis_makes_it_and_adopting_only_moves_it_back(redis):
    ledger = Ledger(redis, "bus")
    await ledger.start_generation()
    now, _ = await redis.time()
    assert now - 60 <= (await ledger.birth() or 0) <= now
    await ledger.start_generation(birth=0)
    assert (await ledger.birth() or 0) >= now - 60, "a ledger is born once"
    assert await ledger.adopt(SLOT) == SLOT
    assert await ledger.adopt(SLOT + DAY) == SLOT
    assert await ledger.adopt(SLOT - DAY) == SLOT - DAY


class Clock:
    now = float(SLOT + 3 * DAY)

    async def now_us(self) -> int:
        return int(self.now * 1e6)


async def due(worker: Worker) -> list[int]:
    """The windows that are due after the feed was read up to now."""
    now = await worker.rows.now_us()
    await worker.rows.list_partitions(["t/0"], now)
    assert await worker.rows.read_through([ReadThrough("t/0", 60, 60, now)]) == {}
    return await worker.due_slots()


async def filled(redis: Redis, config: Config) -> None:
    """Rows in a period before the birth and in one after it."""
    store, rows = RowStore(redis, config.feed.name), random_rows(3, 60)
    slots = np.repeat([SLOT, SLOT + 2 * DAY], 30)
    await Ledger(redis, config.feed.name).start_generation(birth=SLOT)
    await store.append("t/0", 0, 60, rows, np.arange(60), slots)


async def test_under_values_windows_of_earlier_periods_wait_until_they_are_adopted(
    redis, redis_url, tmp_path, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr(RowStore, "now_us", lambda _: clock.now_us())
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await filled(redis, config)
    worker = Worker(config)
    try:
        assert await due(worker) == [SLOT + 2 * DAY]
        await Ledger(redis, "bus").adopt(0)
        assert await due(worker) == [SLOT, SLOT + 2 * DAY]
    finally:
        await worker.redis.aclose()


async def test_under_participation_no_tick_of_an_earlier_period_is_published(redis, redis_url, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(RowStore, "now_us", lambda _: clock.now_us())
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    clock.now = SLOT + 60.0
    await filled(redis, config)
    worker = Worker(config)
    try:
        assert await due(worker) == []
        clock.now = float(SLOT + 2 * DAY)
        slots = await due(worker)
    finally:
        await worker.redis.aclose()
    begins = config.slotting.period_of(SLOT).end
    assert slots[0] == begins
    assert all(config.slotting.period_of(slot).start >= SLOT for slot in slots)


async def test_a_close_of_an_earlier_period_draws_and_publishes_nothing(redis, tmp_path):
    config = bus_config(tmp_path)
    await filled(redis, config)
    out = Collected()
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, config, out).close(SLOT)
    assert out.messages == []
    assert not await redis.exists(FeedKeys("bus").outbox(SLOT))


def test_adopt_explains_itself_and_changes_nothing_unless_the_operator_says_that_no_other_ledger_has():
    at = ["ledger", "adopt", "--config", str(hourly.BUS)]
    result = CliRunner().invoke(command, [*at, "--since", "2017-03-21"])
    assert result.exit_code == 2
    assert "periods from 2017-03-21T05:00:00Z on" in result.stderr
    assert "every user gets" in result.stderr
    wrong = CliRunner().invoke(command, [*at, "--since", "yesterday", "--no-other-ledger"])
    assert wrong.exit_code == 2
    assert "write a date like 2017-03-21" in wrong.stderr


FIELDS = {"time": "t", "lat": "y", "lng": "x", "value": "v", "time_format": "epoch-ms"}
AN_HOUR = 3600


def declared(tmp_path: Path, user: str, **overrides: Any) -> Config:
    """config/bus-fleet.toml for a declared feed whose field ``user`` names a user."""
    fields = {f"feed.fields.{name}": path for name, path in (FIELDS | {"user": user}).items()}
    return bus_config(tmp_path, **({"feed.format": "declared"} | fields | overrides))


def replay(config: Config, tmp_path: Path, hour: int) -> tuple[OfflineSummary, str]:
    """Release one hour of three buses, each with a plate and a number of its own, with a ledger that stays."""
    file = tmp_path / "day.ndjson"
    events = [
        {
            "plate": f"P{bus}",
            "number": f"N{bus}",
            "t": (SLOT + h * AN_HOUR + bus) * 1000,
            "y": 30.2,
            "x": -97.7,
            "v": 20.0,
        }
        for h in range(2)
        for bus in range(3)
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    out, start = io.StringIO(), SLOT + hour * AN_HOUR
    span = Window(start, start + AN_HOUR)
    return replay_offline(config, file, "declared", out, span=span, state=tmp_path / "ledger"), out.getvalue()


def test_another_field_for_the_user_is_refused_and_with_the_old_one_the_ledger_goes_on(tmp_path):
    first, _ = replay(declared(tmp_path, "plate"), tmp_path, 0)
    assert first.charged["2017-03-21"][0] == 3
    with pytest.raises(LedgerError, match=r"field 'plate' of .*field 'number' of .*\[feed.fields\].*new name"):
        replay(declared(tmp_path, "number"), tmp_path, 1)
    second, out = replay(declared(tmp_path, "plate"), tmp_path, 1)
    assert second.charged["2017-03-21"][0] == 3
    assert second.charged["2017-03-21"][1] > first.charged["2017-03-21"][1]
    assert out.count(WINDOW) > 0


def test_were_the_field_not_bound_three_buses_would_have_six_budgets(tmp_path, monkeypatch):
    """The planted bug."""

    async def anything(self: Ledger, identity: str) -> None:
        return None

    monkeypatch.setattr(Ledger, "claim_identity", anything)
    replay(declared(tmp_path, "plate"), tmp_path, 0)
    second, _ = replay(declared(tmp_path, "number"), tmp_path, 1)
    assert second.charged["2017-03-21"][0] == 6


def test_the_command_says_what_is_bound_what_was_given_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = {
        "canonical": {"user": "a", "time": SLOT * 1000, "lat": 30.2, "lng": -97.7, "speed": 12.0},
        "capmetro": {
            "vehicle_id": "a",
            "timestamp": "2017-03-21T13:00:01Z",
            "latitude": 30.2,
            "longitude": -97.7,
            "speed": 4.0,
        },
    }
    runs = []
    for name, event in events.items():
        (tmp_path / f"{name}.ndjson").write_text(json.dumps(event) + "\n")
        command = ["replay", f"{name}.ndjson", "--format", name, "--offline", "--state", "ledger"]
        runs.append(CliRunner().invoke(app, [*command, "--config", str(hourly.BUS)]))
    assert [run.exit_code for run in runs] == [0, 1]
    assert runs[1].stdout == ""
    assert all(part in runs[1].stderr for part in ("field 'user'", "field 'vehicle_id'", "new name"))


@pytest.mark.parametrize(
    "change",
    [{"feed.format": "capmetro"}, {"feed.topic": "other.positions"}, {"feed.format": "itms"}],
    ids=["format", "topic", "format with another field"],
)
async def test_a_worker_that_would_know_users_by_another_name_releases_nothing(
    change, kafka, redis, redis_url, tmp_path, topic_name
):
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    before, after = bus_config(tmp_path, **settings), bus_config(tmp_path, **(settings | change))
    await create_topics(before)
    await store(redis, before, random_rows(4, 60))
    await verify_ledger(before, redis)
    with pytest.raises(LedgerError, match="second budget in the same period"):
        await verify_ledger(after, redis)
    (report,) = await close_windows(after, [SLOT])
    assert report.failure == "ledger"
    assert await Ledger(redis, topic_name).periods() == []
    assert [record for record in await read_all(kafka, topic_name) if record.topic == WINDOW] == []
    (report,) = await close_windows(before, [SLOT])
    assert report.failure is None


async def test_formats_that_name_users_by_the_same_field_share_a_ledger(kafka, redis, redis_url, tmp_path, topic_name):
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    await create_topics(bus_config(tmp_path, **settings))
    formats = [bus_config(tmp_path, **(settings | {"feed.format": name})) for name in ("capmetro", "capmetro-2015")] + [
        declared(tmp_path, "vehicle_id", **settings)
    ]
    assert len({await verify_ledger(config, redis) for config in formats}) == 1


async def test_doctor_finds_another_or_a_missing_user_key_before_a_worker_starts(
    kafka, redis, redis_url, tmp_path, topic_name
):
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    config = bus_config(tmp_path, **settings)
    await create_topics(config)
    key = load_user_key(config.privacy.user_key_file)
    await RowStore(redis, topic_name).claim_key(key_fingerprint(key))
    assert (await ledger_finding(config, redis)).ok
    config.privacy.user_key_file.unlink()
    missing = await ledger_finding(config, redis)
    assert not missing.ok
    assert "restore the file" in missing.found
    load_user_key(config.privacy.user_key_file)
    another = await ledger_finding(config, redis)
    assert not another.ok
    assert "user_key_file" in another.found


HORIZON_DAY = 86_400
START = SLOT + 10 * HORIZON_DAY
"""A day in the first half of a block of 28 days."""
DAYS = 5


def with_horizon(folder: Path, budget: float, **overrides: Any) -> Config:
    horizon = {"period": "28d", "budget": budget}
    return bus_config(
        folder, **PLAINLY_PLANNED, **{"privacy.horizon": horizon, "speed.allocation": "uniform"}, **overrides
    )


async def released(redis: Redis, config: Config) -> list[str]:
    """Lines of one window on each of some days, in which the same users drive."""
    ledger, out = Ledger.of(redis, config), io.StringIO()
    await ledger.start_generation(birth=0)
    rows = np.concatenate([random_rows(1, 60, users=6, slot=START + day * HORIZON_DAY) for day in range(DAYS)])
    by_slot = split_by_slot(rows, config)
    protocol = ReleaseProtocol(statistics_of(config), redis, MemoryRows(by_slot), ledger, LinePublisher(out), Noise())
    for slot in sorted(by_slot):
        await protocol.close(slot)
    return out.getvalue().splitlines()


def markers(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line)["value"] for line in lines if f'"topic":"{WINDOW}"' in line]


async def test_a_block_pays_for_its_days_and_then_for_none(redis, tmp_path):
    config = with_horizon(tmp_path, 480.0)
    lines = await released(redis, config)
    spent = await Ledger.of(redis, config).periods()
    block = config.slotting.block_of(START)
    assert block is not None
    assert spent.count(block.key) == 1
    users, total = await Ledger.of(redis, config).total(block.key)
    days = [await Ledger.of(redis, config).total(period) for period in spent if period != block.key]
    assert total == sum(sum_of_day for _, sum_of_day in days), "every charge counts in its period and in its block"
    assert users == 6
    report = verified(lines)
    assert report["sound"], report["problems"]
    assert {marker["horizon"]["budget"] for marker in markers(lines)} == {480.0}

    await redis.flushall()
    small = with_horizon(tmp_path, 2 * config.privacy.epsilon, **{"privacy.budget": 2 * config.privacy.epsilon})
    lines = await released(redis, small)
    assert len(markers(lines)) == DAYS, "a window is released, whoever can pay"
    last = config.slotting.period_of(START + (DAYS - 1) * HORIZON_DAY).key
    assert await Ledger.of(redis, small).total(last) == (0, 0)
    users, total = await Ledger.of(redis, small).total(block.key)
    assert 0 < total <= users * small.privacy.horizon_budget


async def test_participation_and_zcdp_have_a_horizon_too(redis, tmp_path):
    config = riders(tmp_path, **{"privacy.horizon": {"period": "7d", "budget": 20.0}})
    assert {marker["horizon"]["budget"] for marker in markers(await released(redis, config))} == {20.0}
    await redis.flushall()
    zcdp = zcdp_config(tmp_path, **SMALL, **{"privacy.horizon": {"period": "7d", "budget": 8.0}})
    stated = [marker["horizon"] for marker in markers(await released(redis, zcdp))]
    block = zcdp.privacy.horizon_budget
    assert {horizon["rho_budget"] for horizon in stated} == {block / 1e9}
    assert {horizon["budget"] for horizon in stated} == {zcdp.privacy.stated_epsilon(block)}
    assert 7.99 < zcdp.privacy.stated_epsilon(block) <= 8.0


async def test_another_horizon_is_another_ledger(redis, tmp_path):
    """Blocks of another length would forget what was spent."""
    ledger = Ledger.of(redis, with_horizon(tmp_path, 480.0))
    await ledger.claim_policy(with_horizon(tmp_path, 480.0).ledger_policy)
    await ledger.claim_policy(with_horizon(tmp_path, 300.0).ledger_policy)
    with pytest.raises(LedgerError, match="spent budgets would be forgotten"):
        await ledger.claim_policy(bus_config(tmp_path).ledger_policy)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"privacy.horizon": {"period": "28d", "budget": 1.0}}, "below privacy.budget"),
        ({"privacy.horizon": {"period": "36h", "budget": 100.0}}, "whole periods"),
        ({"privacy.horizon": {"period": "28d", "budget": 100.0}, "ledger.name": "city"}, "not for privacy.horizon"),
    ],
)
def test_a_horizon_that_cannot_be_kept_is_refused(overrides, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        bus_config(tmp_path, **overrides)
