"""Derived speeds do not depend on which process derives them, when it was restarted, or what was delivered twice.

Except that after a crash a fix that Kafka has may be missing among those that later fixes are compared with.
"""

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis as blocking
from redis.asyncio import Redis
from structlog.testing import capture_logs

from stream.ingestion.pseudonyms import key_fingerprint, load_user_key
from stream.local import LOOPBACK, RedisServer
from stream.sources import fix_memory as module
from stream.sources.derived_speed import MOST_S
from stream.sources.vehicle_positions import GtfsRealtime
from stream.storage import last_fixes
from stream.storage.last_fixes import FIX
from stream.storage.row_store import RowStore
from tests.stream.sources.agency import KEY, START, Vehicle, fleet, memory, reader, snapshot_bytes, started
from tests.support.builders import bus_config, riders_config


def day(seed: int) -> list[bytes]:
    """Snapshots 1 to 20 s apart of a fleet that drives, jumps, stands still for long, and now and then is left out."""
    rng, bodies, clock = random.Random(seed), [], START
    places = {f"bus-{k}": (28.6, 77.2 + k / 100) for k in range(12)}
    for _ in range(130):
        clock += rng.choice([1, 2, 3, 8, 15, 20])
        fixes: list[Vehicle] = []
        for number, (name, (lat, lng)) in enumerate(places.items()):
            step = 0.0 if number % 4 == 0 else rng.choice([0.0, 0.0004, 0.001, 0.3 if rng.random() < 0.02 else 0.0])
            places[name] = (round(lat + step, 6), lng)
            if rng.random() < 0.9:
                fixes.append((name, clock - rng.randrange(4), *places[name], 7.0 if number == 11 else None))
        bodies.append(snapshot_bytes(fixes, clock))
    return bodies


def sent(source: GtfsRealtime, body: bytes) -> list[bytes]:
    """The events of a snapshot, which reach Kafka before its fixes are kept."""
    values = source.events(body).values
    source.keep()
    return values


@pytest.fixture
def url(redis: Redis, redis_url: str) -> str:
    """Address of an emptied Redis."""
    return redis_url


def test_restarts_between_any_two_snapshots_change_no_byte_of_any_event(url):
    alone, source, rng = started(None), started(url), random.Random(3)
    for body in day(1):
        if rng.random() < 0.5:
            source = started(url)
        assert sent(source, body) == sent(alone, body)
    assert alone.tally.derived > 300


def test_two_processes_that_take_turns_at_random_or_see_everything_twice_derive_the_speeds_of_one(url):
    alone, pair, rng = started(None), [started(url), started(url)], random.Random(5)
    for body in day(2):
        wanted = sent(alone, body)
        first, second = rng.sample(pair, 2)
        assert sent(first, body) == wanted
        if rng.random() < 0.3:
            assert sent(second, body) == [], "what the other has sent is a counted repeat"
    assert pair[0].tally.repeated + pair[1].tally.repeated > 100


def test_a_process_that_dies_before_its_events_are_stored_leaves_them_to_the_next_with_the_same_speeds(url):
    alone, source = started(None), started(url)
    for number, body in enumerate(day(3)):
        wanted = sent(alone, body)
        if number % 3 == 0:
            assert source.events(body).values == wanted
            source = started(url)
        assert sent(source, body) == wanted


def test_if_the_next_process_reads_a_later_snapshot_it_derives_from_an_older_fix_of_the_same_vehicle(url):
    """Kafka has the second snapshot, but its fixes were not kept; the agency does not show it again."""
    north, clocks = [0.0, 0.0005, 0.002, 0.003], [START + 15 * step for step in range(4)]
    bodies = [
        snapshot_bytes([(f"bus-{k}", at, 28.6 + k * lat, 77.2, None) for k in (1, 2, 3)], at)
        for at, lat in zip(clocks, north, strict=True)
    ]
    alone, source = started(None), started(url)
    wanted = [sent(alone, body) for body in bodies]
    sent(source, bodies[0])
    assert source.events(bodies[1]).values == wanted[1]
    source = started(url)
    values = sent(source, bodies[2])
    metres = [k * 0.002 * 111_195 for k in (1, 2, 3)]
    assert [json.loads(event)["user"] for event in values] == ["bus-1", "bus-2", "bus-3"], "none is lost"
    assert [json.loads(event)["speed"] for event in values] == pytest.approx([3.6 * m / 30 for m in metres], rel=0.01)
    assert not set(values) & set(wanted[2]), "it is not what a process that never ends derives"
    assert sent(source, bodies[3]) == wanted[3], "the fix after it has the same reference again"


def test_a_snapshot_of_the_past_changes_no_later_speed_and_is_a_counted_repeat(url):
    alone, bodies = started(None), day(4)
    for number, body in enumerate(bodies):
        wanted = sent(alone, body)
        source = started(url)
        assert sent(source, body) == wanted
        old = bodies[max(0, number - 3)]
        again = started(url)
        assert sent(again, old) == sent(alone, old) == []
        assert again.tally.repeated > 0


def test_fakes_beyond_what_is_kept_are_counted_and_said_and_change_nobody_elses_speed(url, monkeypatch):
    monkeypatch.setattr(last_fixes, "MOST_USERS", 40)
    source = started(url)
    sent(source, fleet(0))
    with capture_logs() as logs:
        for step in range(3):
            fakes: list[Vehicle] = [(f"fake-{step}-{k}", START + step, 28.7, 77.3, None) for k in range(100)]
            sent(source, snapshot_bytes(fakes, START + 2))
    assert source.tally.unkept == 300 - 37
    assert [log["event"].split(":")[0] for log in logs] == ["too many vehicles"]
    assert len(sent(started(url), fleet(1))) == 3


def test_neither_a_vehicle_nor_its_name_can_be_read_from_what_is_kept(url):
    sent(started(url), fleet(0, names=["bus-17-of-the-agency"]))  # type: ignore[arg-type]
    with blocking.Redis.from_url(url) as client:
        keys = client.keys("*")
        assert len(keys) == 1
        assert keys[0].startswith(b"hv:{bus}:fixes:")
        assert b"agency" not in b"".join(part for item in client.hgetall(keys[0]).items() for part in item)
        assert 0 < client.ttl(keys[0]) <= 2 * MOST_S
        (field,) = client.hkeys(keys[0])
    assert len(field) == 8


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def test_while_redis_is_away_events_go_on_and_it_is_said_once_and_made_up_for(own_redis, monkeypatch):
    """Of a Redis behind a Unix socket."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    alone, source = started(None), started(own_redis.url)
    with capture_logs() as logs:
        assert sent(source, fleet(0)) == sent(alone, fleet(0))
        own_redis.stop()
        for step in (1, 2):
            assert sent(source, fleet(step)) == sent(alone, fleet(step)) != []
        assert sent(started(own_redis.url), fleet(2)) == [], "a restart meanwhile derives no speed, and says why"
        own_redis.start()
        assert sent(source, fleet(3)) == sent(alone, fleet(3))
    assert source.tally.unkept == 6
    assert [log["event"].split(";")[0].split(":")[0] for log in logs] == [
        "redis is away",
        "redis is away",
        "positions are kept in redis again",
    ]
    assert sent(started(own_redis.url), fleet(4)) == sent(alone, fleet(4)) != []


RIGHTS = "on >pw resetchannels -@all ~hv:{bus}:* +eval +evalsha +script|load +time +get +pexpire +hget +hset"


@pytest.mark.parametrize(
    ("refuse", "allow", "why"),
    [
        (f"ACL SETUSER old {RIGHTS}", "ACL SETUSER old +hlen +hdel", "hlen"),
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "OutOfMemory"),
        (f"REPLICAOF {LOOPBACK} 1", "REPLICAOF NO ONE", "ReadOnly"),
    ],
    ids=["an old right", "maxmemory", "a replica"],
)
def test_a_redis_that_reads_but_refuses_to_write_is_said_once_as_a_refusal_until_it_keeps(
    own_redis, monkeypatch, refuse, allow, why
):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    with blocking.Redis.from_url(own_redis.url) as operator:
        sent(started(own_redis.url), fleet(0))
        operator.execute_command(*refuse.split())
        url = own_redis.url.replace("//", "//old:pw@") if refuse.startswith("ACL") else own_redis.url
        alone, source = started(None), started(url)
        sent(alone, fleet(0))
        with capture_logs() as logs:
            for step in range(1, 6):
                assert sent(source, fleet(step)) == sent(alone, fleet(step)) != [], "recalled, and sent on"
        assert [(log["log_level"], log["event"].split(";")[0]) for log in logs] == [
            ("warning", "redis refuses to keep positions")
        ]
        assert why in logs[0]["error"]
        operator.execute_command(*allow.split())
        with capture_logs() as logs:
            sent(source, fleet(6))
            sent(source, fleet(7))
        assert [log["event"] for log in logs] == ["positions are kept in redis again"]
        assert len(sent(started(own_redis.url), fleet(8))) == 3


def records(client: blocking.Redis) -> dict[tuple[bytes, bytes], bytes]:
    """What is kept, by hash and user."""
    return {(key, user): octets for key in client.keys("*") for user, octets in client.hgetall(key).items()}


def damages(rng: random.Random, sound: bytes) -> bytes:
    """Random bytes, or a record that was cut, turned round, or changed in a field."""
    fixes = np.frombuffer(sound, FIX).copy()
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(3) * FIX.itemsize)
        case 1:
            return rng.randbytes(rng.randrange(700))
        case 2:
            return sound[: FIX.itemsize * rng.randrange(len(sound) // FIX.itemsize) + rng.randrange(1, FIX.itemsize)]
        case 3:
            fixes[rng.choice(["lat", "lng"])] = rng.choice([np.nan, np.inf, 1e300, -181.0])
        case 4:
            fixes[rng.choice(["time", "since"])] = rng.choice([0, -1, 2**63 - 1, -(2**63)])
        case 5:
            return fixes[::-1].tobytes() + sound
    return fixes.tobytes()


def test_damaged_records_are_counted_said_and_deleted_and_cost_speeds_but_change_none(url):
    rng, alone, source = random.Random(6), started(None), started(url)
    written, lost, damaged = list[bytes](), 0, 0
    with capture_logs() as logs, blocking.Redis.from_url(url) as client:
        for step in range(80):
            before = records(client)
            for key, user in rng.sample(sorted(before), min(len(before), rng.randrange(4))):
                written.append(damages(rng, before[key, user]))
                client.hset(key, user, written[-1])  # type: ignore[arg-type]
            if rng.random() < 0.3:
                damaged += source.tally.damaged
                source = started(url)
            body = fleet(step, names="abcdefghijkl")
            wanted, values = set(sent(alone, body)), set(sent(source, body))
            assert values <= wanted
            lost += len(wanted - values)
    damaged += source.tally.damaged
    assert damaged == len(written) > 80
    assert 10 < lost < damaged, "those of a process that has just started"
    assert {log["event"].split(":")[0] for log in logs} == {"kept positions were damaged and are deleted"}
    assert len(logs) < damaged / 3, "once for each process"


@pytest.mark.parametrize("octets", [b"", b"x" * 31, b"x" * 33, bytes(FIX.itemsize)])
def test_what_is_kept_over_a_damaged_record_replaces_it(url, octets):
    sent(started(url), fleet(0))
    with blocking.Redis.from_url(url) as client:
        for key, user in records(client):
            client.hset(key, user, octets)
        with capture_logs() as logs:
            source = started(url)
            assert sent(source, fleet(1)) == []
        assert source.tally.damaged == 3
        assert len(logs) == 1
        assert len(sent(started(url), fleet(2))) == 3


def test_nothing_to_keep_does_not_say_that_positions_are_kept_again(own_redis, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    kept = memory(own_redis.url)
    own_redis.stop()
    with capture_logs() as logs:
        assert kept.keep({"a": bytes(FIX.itemsize)}) is None
        assert kept.keep({}) == 0
        assert kept.keep({"": bytes(FIX.itemsize)}) == 1, "a name that has no pseudonym"
    assert [log["event"].split(":")[0] for log in logs] == ["redis is away"]


def test_a_redis_that_never_answers_holds_the_feed_up_for_seconds_at_most_and_not_with_every_batch(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with socket.create_server((LOOPBACK, 0)) as silent:
        source = started(f"redis://{LOOPBACK}:{silent.getsockname()[1]}/0")
        began = time.monotonic()
        values = [sent(source, fleet(step)) for step in range(20)]
        assert time.monotonic() - began < module.PAUSE_S
    assert [len(events) for events in values] == [0, *[3] * 19]
    assert all(json.loads(event)["derived"] for events in values for event in events)
    assert source.tally.unkept == 60


def test_reported_speeds_alone_need_no_memory(url):
    source = reader("reported")
    source.remember_by(memory(url))
    assert len(sent(source, fleet(0, speed=7.0))) == 3
    with blocking.Redis.from_url(url) as client:
        assert client.keys("*") == []


@pytest.mark.parametrize("key", ["privacy.user_key_file", "redis.password_file"])
def test_a_key_or_password_that_cannot_be_read_is_said_and_the_feed_goes_on(tmp_path, key):
    load_user_key(tmp_path / "user.key")
    alone, source = started(None), reader()
    with capture_logs() as logs:
        source.remember_by(module.fix_memory(bus_config(tmp_path, **{key: str(tmp_path)})))
        for step in range(3):
            assert sent(source, fleet(step)) == sent(alone, fleet(step))
    assert [log["log_level"] for log in logs] == ["warning"], "it is tried again each time, and said once"
    assert str(tmp_path) in logs[0]["reason"]


def test_a_source_that_starts_before_the_first_worker_keeps_fixes_once_there_is_a_key(url, tmp_path):
    config = bus_config(tmp_path, **{"redis.url": url})
    alone, source = started(None), reader()
    with capture_logs() as logs:
        source.remember_by(module.fix_memory(config))
        for step in (0, 1):
            assert sent(source, fleet(step)) == sent(alone, fleet(step))
        assert list(tmp_path.iterdir()) == [], "a key of its own would fit no worker's"
        load_user_key(config.privacy.user_key_file)
        with blocking.Redis.from_url(url) as client:
            assert client.keys("*") == []
            assert source.events(fleet(2)).values == sent(alone, fleet(2)), (
                "the key is looked for once events are stored"
            )
            assert client.keys("*") == []
            source.keep()
            assert len(client.keys("*")) == 1
    assert [log["log_level"] for log in logs] == ["warning", "info"]
    assert f"{config.privacy.user_key_file}: No such file" in logs[0]["reason"]
    assert "copy the workers' privacy.user_key_file there" in logs[0]["reason"]
    assert source.tally.unkept == 6
    restarted = reader()
    restarted.remember_by(module.fix_memory(config))
    assert sent(restarted, fleet(3)) == sent(alone, fleet(3)) != []


async def test_a_key_that_is_not_the_feeds_is_said_once_with_its_file_and_neither_reads_nor_writes(
    redis, url, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    config = bus_config(tmp_path, **{"redis.url": url})
    load_user_key(config.privacy.user_key_file)
    await RowStore(redis, "bus").claim_key(key_fingerprint(KEY))
    before = await redis.keys("*")
    alone, source = started(None), reader()
    with capture_logs() as logs:
        source.remember_by(module.fix_memory(config))
        for step in range(3):
            assert sent(source, fleet(step)) == sent(alone, fleet(step))
    assert [log["log_level"] for log in logs] == ["warning"]
    assert logs[0]["event"].startswith(
        f"{config.privacy.user_key_file} is not the user key of this feed in redis; copy"
    )
    assert await redis.keys("*") == before
    assert sent(started(url), fleet(3)) == [], "nothing was kept"
    assert len(sent(started(url), fleet(4))) == 3, "the feed's own key keeps and recalls"


def test_under_participation_nothing_is_kept_so_nobody_decides_about_anothers_speed(url, tmp_path):
    config = riders_config(tmp_path, **{"redis.url": url})
    load_user_key(config.privacy.user_key_file)
    with capture_logs() as logs:
        for step in (0, 1):
            source = reader()
            source.remember_by(module.fix_memory(config))
            assert sent(source, fleet(step)) == [], "nothing is known after a restart"
    assert [log["event"].split(",")[0] for log in logs] == [
        "positions are not kept in redis under relation 'participation'"
    ] * 2
    with blocking.Redis.from_url(url) as client:
        assert client.keys("*") == []
