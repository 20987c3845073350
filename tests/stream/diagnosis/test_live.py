"""A worker says that times or speeds of its feed are read in another unit or zone than they are sent."""

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from stream.config import Config
from stream.diagnosis.live import FeedDoubts
from stream.ingestion.decoding import Batch, Decoder
from stream.local.server import free_port
from stream.messages.topics import create_topics
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import worker_environment
from tests.support.feeding import produce, until_true

AHEAD = timedelta(hours=5, minutes=30)
Change = Callable[[dict[str, Any], float], dict[str, Any]]
"""What of an event is otherwise, by the event and its moment; ABSENT: is not there."""
ABSENT = object()


def fleet(now: float, change: Change) -> list[bytes]:
    """60 buses that drive north at 36 km/h and reported every 15 s in the last two and a half minutes."""
    fixes = []
    for step in range(10):
        moment = now - 15 * (10 - step)
        for bus in range(60):
            lat = 30.0 + bus / 1000 + step * 150 / 111_195
            fix = {"user": f"secret-{bus}", "time": round(moment * 1000), "lat": lat, "lng": -97.7, "speed": 36.0}
            fix |= change(fix, moment)
            fixes.append(json.dumps({name: value for name, value in fix.items() if value is not ABSENT}).encode())
    return fixes


def local(moment: float, ahead: timedelta = AHEAD) -> str:
    return (datetime.fromtimestamp(moment, UTC) + ahead).isoformat(timespec="seconds")


def of(form: str) -> Change:
    """Times in another form."""
    return lambda fix, moment: {"time": datetime.fromtimestamp(moment, UTC).strftime(form)}


FAULTS: dict[str, tuple[Change, str, str]] = {
    "speed": (lambda fix, moment: {"speed": 10.0}, "speed", "they would fit m/s: set feed.speed_unit"),
    "mph": (lambda fix, moment: {"speed": 36 / 1.609344}, "doubtful-speed", "positions; they would fit mph or kn"),
    "epoch": (lambda fix, moment: {"time": round(moment)}, "refused", "time_format = 'epoch-s'"),
    "text epoch": (
        lambda fix, moment: {"time": str(round(moment))},
        "refused",
        "set feed.format = 'declared' and time_format = 'epoch-s'",
    ),
    "German times": (
        of("%d.%m.%Y %H:%M:%S"),
        "refused",
        "as wrong-type: times are of another form: set feed.format = 'declared' and time_format = '%d.%m.%Y %H:%M:%S'",
    ),
    "times of no known form": (of("%S-%M-%H on %d/%m"), "refused", "wrong-type: times are like '99-99-99 aa 99/99'"),
    "swapped axes": (
        lambda fix, moment: {"lat": fix["lng"], "lng": fix["lat"]},
        "refused",
        "as swapped-axes: latitude and longitude are swapped",
    ),
    "another city": (lambda fix, moment: {"lat": fix["lat"] - 10}, "refused", "of another place than feed.domain"),
    "microdegrees": (
        lambda fix, moment: {"lat": round(fix["lat"] * 1e6), "lng": round(fix["lng"] * 1e6)},
        "refused",
        "they are degrees x 10^6 or 10^7: set feed.format = 'declared' and units_per_degree = 1000000 in",
    ),
    "a recording": (lambda fix, moment: {"time": fix["time"] - 10**10}, "refused", "older than window.max_age"),
    "no speeds": (lambda fix, moment: {"speed": ABSENT}, "refused", "they have no 'speed' (speed): name its field"),
    "null speeds": (lambda fix, moment: {"speed": None}, "refused", "derive speeds before the worker's topic"),
    "other names": (lambda fix, moment: {"lat": ABSENT}, "refused", "name their fields in [feed.fields]"),
    "zone": (lambda fix, moment: {"time": local(moment)}, "refused", "most times are 5 h 30 min ahead of"),
    "zone behind": (
        lambda fix, moment: {"time": local(moment, -AHEAD)},
        "zone",
        "most times are 5 h 30 min behind the moments when they arrive: local time sent as UTC?",
    ),
    "users": (
        lambda fix, moment: {"user": fix["user"] + str(moment), "time": fix["time"] - 60_000 * int(fix["user"][-1])},
        "users",
        "field 'user' is no user: 100.0% of its values in 600 events occur once",
    ),
    "bound": (
        lambda fix, moment: {"speed": 66.0 if fix["user"][-1] in "37" else 36.0},
        "bound",
        "20% of the speeds are above value.upper, 65 km/h",
    ),
}
SOUND: dict[str, Change] = {
    "as declared": lambda fix, moment: {},
    "texts": lambda fix, moment: {"time": local(moment, timedelta(0))},
    "now and then no speed": lambda fix, moment: {"speed": ABSENT} if round(moment) % 2 else {},
    "numbers in texts": lambda fix, moment: {"speed": "36,0", "time": str(round(moment * 1000))},
    "compact times": of("%Y%m%dT%H%M%SZ"),
    "one user once": lambda fix, moment: {} if fix["user"][-1] == "7" else {"user": f"x-{round(moment)}"},
    "few above the bound": lambda fix, moment: {"speed": 66.0 if fix["user"] == "secret-7" else 36.0},
    "parked": lambda fix, moment: {"lat": 30.2, "speed": 0.0},
}


def observed(doubts: FeedDoubts, decoder: Decoder, values: list[bytes], now: float) -> dict[str, str]:
    doubts.observe(values, decoder.decode_part(values, round(now * 1e6)), round(now * 1e6))
    return doubts.found()


def told(config: Config, values: list[bytes], now: float) -> dict[str, str]:
    """What is found once all messages were observed, some at a time."""
    doubts, decoder, arrived_us = FeedDoubts(config), Decoder(config, bytes(32)), round(now * 1e6)
    for part in (values[at : at + 50] for at in range(0, len(values), 50)):
        doubts.observe(part, decoder.decode_part(part, arrived_us), arrived_us)
    return doubts.found()


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("in_arrays", [False, True])
def test_each_fault_is_named_alone_with_its_remedy_and_without_a_value_of_any_event(name, in_arrays, tmp_path):
    changed, kind, words = FAULTS[name]
    now = time.time()
    values = fleet(now, changed)
    if in_arrays:
        values = [b"[" + b",".join(values[at : at + 10]) + b"]" for at in range(0, len(values), 10)]
    reasons = told(bus_config(tmp_path), values, now)
    assert list(reasons) == [kind]
    assert words in reasons[kind]
    assert "secret" not in reasons[kind]
    assert "30." not in reasons[kind]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_feed_and_a_late_one_raise_no_doubt(name, tmp_path):
    now = time.time()
    assert told(bus_config(tmp_path), fleet(now, SOUND[name]), now) == {}
    shuffled = random.Random(7).sample(fleet(now - 400, SOUND[name]), 600)
    assert told(bus_config(tmp_path), shuffled, now) == {}


@pytest.mark.parametrize(
    ("speed", "form", "kinds"),
    [(36.0, "epoch-ms", []), (None, "epoch-ms", ["refused"]), (36.0, "rfc3339", ["refused"])],
    ids=["sound", "no speed", "a number as time where texts are declared"],
)
def test_events_that_are_lists_are_judged_whole(speed, form, kinds, tmp_path):
    now, names = time.time(), ("user", "time", "lat", "lng", "speed")
    paths = {name: str(at) for at, name in enumerate((*names[:4], "value"))} | {"time_format": form}
    config = bus_config(tmp_path, **{"feed.format": "declared", "feed.fields": paths})
    values = fleet(now, lambda fix, moment: {"speed": speed})
    lists = [json.dumps([json.loads(value)[name] for name in names]).encode() for value in values]
    assert list(told(config, lists, now)) == kinds


HOSTILE = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "-1e308", "1e-400", "0", "-1", "null", "true"),
    *("false", "[]", "{}", "[[]]", '""', '"x"', r'"\ud800"', r'"\u0000"', "9" * 400, "-" + "9" * 400, "9" * 5000),
    *('"0001-01-01T00:00:00"', '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59"', '"9999-12-31T23:59:59-14:00"'),
    *('"2026-02-30T00:00:00Z"', "[" * 5000 + "]" * 5000, '"' + "x" * 60_000 + '"'),
]
"""What may stand as a value in JSON, or nearly."""


@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
def test_no_value_of_a_field_makes_the_judgement_raise_or_ends_a_sound_feed(zone, tmp_path):
    config, now = bus_config(tmp_path), time.time()
    if zone is not None:
        fields = {name: name for name in ("user", "time", "lat", "lng")} | {"value": "speed", "timezone": zone}
        config = bus_config(tmp_path, **{"feed.format": "declared", "feed.fields": fields})
    decoder = Decoder(config, bytes(32))
    sound = fleet(now, SOUND["texts" if zone else "as declared"])[:12]
    for hostile in HOSTILE:
        for field in ("time", "speed"):
            event = json.loads(sound[0]) | {field: "@"}
            message = json.dumps(event).replace('"@"', hostile).encode()
            for values in ([*sound, message], [message] * 20, [*sound, b"[" + message + b"]"], [hostile.encode()] * 20):
                doubts = FeedDoubts(config)
                observed(doubts, decoder, values, now)
                assert not doubts.has_failed, (hostile[:60], field)


def test_a_failure_of_the_judgement_does_not_reach_the_reader_and_is_forgotten(tmp_path, monkeypatch, capsys):
    config, now = bus_config(tmp_path), time.time()
    doubts, decoder, values = FeedDoubts(config), Decoder(config, bytes(32)), fleet(now, FAULTS["speed"][0])
    with monkeypatch.context() as patched:
        patched.setattr("stream.diagnosis.live.check_rows", lambda *_: 1 / 0)
        assert observed(doubts, decoder, values, now) == {}
        assert observed(doubts, decoder, values, now) == {}
    assert doubts.has_failed
    assert capsys.readouterr().out.count("ZeroDivisionError") == 1
    assert list(observed(doubts, decoder, values, now)) == ["speed"]


def held(judge: FeedDoubts) -> int:
    """Bytes of all objects that a judge holds, its configuration and what belongs to modules aside: the same in every
    process."""
    passed: set[int] = set()
    left: list[object] = [judge]
    size = 0
    while left:
        thing = left.pop()
        if id(thing) not in passed and not isinstance(thing, type | ModuleType | FunctionType | BaseModel):
            passed.add(id(thing))
            size += sys.getsizeof(thing)
            left += gc.get_referents(thing)
    return size


def kept(config: Config, values: list[bytes], looks: int) -> int:
    """Bytes that a judge holds of so many messages at which it looked."""
    arrived_us = round(time.time() * 1e6)
    batch = Decoder(config, bytes(32)).decode_part(values, arrived_us)
    doubts = FeedDoubts(config)
    doubts.found()
    empty = held(doubts)
    for _ in range(looks // len(values)):
        doubts.found()
        doubts.observe(values, batch, arrived_us)
    return held(doubts) - empty


def hostile_messages(length: int) -> list[bytes]:
    begin = b'{"user":"a","lat":30.2,"lng":-97.7,"speed":1,"time":'
    nested = begin + b"[" + b"{}," * (length // 3 - 40) + b"0]}"
    return [nested, begin + b'"' + b"x" * (length - 200) + b'"}'] * 5


def test_of_a_hostile_message_less_than_a_kilobyte_is_kept_and_of_no_more_than_the_newest_400(tmp_path, monkeypatch):
    config, long = bus_config(tmp_path), (1 << 16) - 200
    for length in (long, (1 << 18) - 200):
        assert 0 < kept(config, hostile_messages(length), 50) < 50 * 1_000
    most = kept(config, hostile_messages(1_000), 400)
    assert kept(config, hostile_messages(1_000), 1_200) <= most < 400 * 1_000
    monkeypatch.setattr("stream.diagnosis.refusals.LONGEST_TEXT", 1 << 16)
    assert kept(config, hostile_messages(long), 50) > 50 * 1_000


@pytest.mark.parametrize(("buses", "every", "most_s"), [(100, 15, 60), (60, 60, 320), (60, 120, 620), (10, 300, 6600)])
def test_a_fleet_of_any_size_that_reports_every_five_minutes_or_more_often_is_judged_and_stays_judged(
    buses, every, most_s, tmp_path
):
    config, begin = bus_config(tmp_path), time.time()
    doubts, decoder = FeedDoubts(config), Decoder(config, bytes(32))
    said = []
    for step in range(2 * most_s // every):
        now = begin + step * every
        rows = drive(decoder, buses, now, speed=10.0)
        doubts.observe([], rows, round(now * 1e6))
        said.append("speed" in doubts.found())
    assert said.index(True) * every <= most_s
    assert all(said[said.index(True) :])


def drive(decoder: Decoder, buses: int, now: float, speed: float) -> Batch:
    """A fix of each of some buses that drive north at 36 km/h."""
    fix = {"time": round(now * 1000), "lat": 30.0 + now % 3600 / 11_119.5, "lng": -97.7, "speed": speed}
    return decoder.decode([json.dumps(fix | {"user": f"b{bus}"}).encode() for bus in range(buses)], round(now * 1e6))


def test_a_flood_of_invented_vehicles_is_bounded_and_forgotten_and_a_fault_that_ends_is_withdrawn(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("stream.diagnosis.live.MOST_ROWS", 3_000)
    config, begin = bus_config(tmp_path), time.time()
    doubts, decoder = FeedDoubts(config), Decoder(config, bytes(32))
    for step in range(20):
        flood = drive(decoder, 400, begin + step / 1e3, speed=36.0)
        flood.rows["user"] = np.random.default_rng(step).integers(0, 2**63, len(flood.rows))
        doubts.observe([], flood, round(begin * 1e6))
        assert doubts.found() == {}
    later, said = begin + 3000, []
    for step in range(24):
        now = later + 15 * step
        doubts.observe([], drive(decoder, 100, now, speed=10.0 if step < 10 else 36.0), round(now * 1e6))
        said.append("speed" in doubts.found())
    assert said.index(True) <= 4
    assert not said[-1]


def test_what_is_refused_is_said_of_the_newest_events_and_withdrawn_once_they_are_accepted(tmp_path):
    config, now = bus_config(tmp_path), time.time()
    doubts, decoder = FeedDoubts(config), Decoder(config, bytes(32))
    wrong = fleet(now, FAULTS["another city"][0])
    sound = fleet(now, SOUND["as declared"])
    assert observed(doubts, decoder, wrong[:99], now) == {}
    assert list(observed(doubts, decoder, wrong[:1], now)) == ["refused"]
    assert list(observed(doubts, decoder, sound[:99], now)) == ["refused"]
    assert observed(doubts, decoder, sound[:1], now) == {}
    assert observed(doubts, decoder, wrong[:50] + sound[:50], now) == {}
    assert list(observed(doubts, decoder, wrong[:51] + sound[:50], now)) == ["refused"]


@pytest.mark.parametrize(
    ("fault", "level"),
    [("zone behind", "error"), ("text epoch", "error"), ("users", "error"), ("bound", "warning"), ("mph", "warning")],
)
async def test_a_worker_says_it_in_its_log_and_no_message_ends_it(
    fault, level, hexveil, kafka, redis_url, topic_name, tmp_path
):
    changed, _, words = FAULTS[fault]
    await create_topics(bus_config(tmp_path, **{"feed.topic": topic_name, "kafka.bootstrap": kafka}))
    env, path = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name), tmp_path / "worker.log"
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    with path.open("wb") as log, subprocess.Popen(command, env=env, cwd=tmp_path, stderr=log) as worker:
        try:
            await until_true(lambda: "partitions assigned" in path.read_text() or worker.poll() is not None)
            values = fleet(time.time(), changed)
            hostile = [values[0].replace(b'"lat"', b'"time": NaN, "lat"'), values[0].replace(b"30.", b"1e999, 30.")]
            await produce(kafka, topic_name, values + hostile, 1)
            await until_true(lambda: "misread" in path.read_text() or worker.poll() is not None)
            assert worker.poll() is None, path.read_text()[-3000:]
        finally:
            worker.kill()
    (line,) = (json.loads(line) for line in path.read_text().splitlines() if "misread" in line)
    assert words in line["reason"]
    assert line["level"] == level
    assert "secret-" not in path.read_text()
