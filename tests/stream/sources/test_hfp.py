"""HFP over MQTT becomes events whatever is published: real brokers that die, deny and flood; a reason for each message
refused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from paho.mqtt import client as paho
from structlog.testing import capture_logs
from trustme import CA

from stream.config.feed import FeedConfig
from stream.local.server import LOOPBACK, Server, free_port
from stream.sources import mqtt
from stream.sources.hfp import LARGEST_MESSAGE, HighFrequencyPositions, Publication, vehicle_of
from stream.sources.mqtt import Broker, Following
from stream.windows import Slotting
from tests.stream.sources.agency import Kept
from tests.support.builders import bus_fleet_file
from tests.support.command import run
from tests.support.environment import write_secret
from tests.support.feeding import until_true
from tests.support.topics_reader import stored

BOX = {"south": 59.9, "west": 24.0, "north": 60.5, "east": 25.5}
NOON_S = 1_775_044_800
RECEIVED_US = NOON_S * 1_000_000
USER, PASSWORD = "city", "s3cret"
TOPIC = "/hfp/v2/journey/ongoing/vp/bus/0055/01216/1069/1/Malmi/7:20/1130106/2/60;24/19/73/44"


def fix(second: int = 0, **fields: object) -> dict[str, object]:
    """The object of one position."""
    times = {"tst": f"2026-04-01T12:{second // 60:02d}:{second % 60:02d}.500Z", "tsi": NOON_S + second}
    return {"oper": 22, "veh": 1216, "spd": 10.0, "lat": 60.2, "long": 24.9} | times | fields


def published(topic: str = TOPIC, event: str = "VP", **fields: object) -> Publication:
    return Publication(topic, json.dumps({event: fix(**fields)}).encode())  # type: ignore[arg-type]


def reader(**changes: object) -> HighFrequencyPositions:
    given: dict[str, object] = {"name": "bus", "topic": "bus", "timezone": "Europe/Helsinki", "domain": BOX}
    feed = FeedConfig.model_validate(given | changes)
    return HighFrequencyPositions(feed, Slotting(timedelta(hours=1), timedelta(days=1), feed.timezone))


def events(*publications: Publication, **changes: object) -> list[dict[str, object]]:
    return [json.loads(value) for value in reader(**changes).of(publications, RECEIVED_US + 60_000_000).values]


def test_a_message_becomes_an_event_of_the_vehicle_that_the_topic_names():
    """A topic of version 1 names nobody, because its levels would make a user of each route."""
    (event,) = events(published())
    assert event == {"user": "55:1216", "time": RECEIVED_US // 1000 + 500, "lat": 60.2, "lng": 24.9, "speed": 36.0}
    for unit in ("km/h", "mph", "m/s"):
        assert events(published(), speed_unit=unit)[0]["speed"] == pytest.approx(10.0), "it is sent in the feed's unit"
    assert vehicle_of("city/hfp/v2/journey/ongoing/doo/tram/0040/00000/x") == "40:0"
    first = TOPIC.replace("v2", "v1").replace("vp/", "")
    for topic in ("", "/hfp/v2/journey", "/other/v2/a/b/c/d/1/2", "/hfp/v2/a/b/c/d//2", first):
        assert vehicle_of(topic) is None


@pytest.mark.parametrize(
    ("fields", "hours"),
    [({}, 0), ({"tst": None}, 0), ({"tst": "2026-04-01T15:00:00+03:00"}, 3), ({"tst": None, "tsi": None}, 3)],
)
def test_local_times_that_claim_utc_are_read_in_the_zone_of_the_clocks_and_no_others(fields, hours):
    """Clocks of Helsinki, three hours ahead in April. A time with another offset, and that of an arrival, are right."""
    sent = Publication(TOPIC, published(**fields).payload, RECEIVED_US)
    (event,) = events(sent, times_zone="Europe/Helsinki")
    assert datetime.fromisoformat(str(event["time"])).timestamp() // 60 * 60 == NOON_S - 3600 * (3 - hours)


def test_a_position_without_a_time_has_that_of_its_arrival_however_late_it_is_decoded():
    timeless = published(tst=None, tsi=None)
    (event,) = events(timeless._replace(arrived_us=RECEIVED_US))
    assert event["time"] == RECEIVED_US // 1000
    (event,) = events(timeless)
    assert event["time"] == RECEIVED_US // 1000 + 60_000


def test_one_event_per_vehicle_and_timestamp_whatever_is_repeated_or_comes_late():
    source = reader()
    batch = [published(), published(event="DOO"), published(second=1), published(TOPIC.replace("01216", "00007"))]
    assert len(source.of(batch, RECEIVED_US).values) == 3
    assert source.of([published(), published(second=1)], RECEIVED_US).values == []
    assert (source.tally.events, source.tally.repeated, source.tally.snapshots) == (3, 3, 6)


REFUSED = {
    "no JSON": (b"\x00\xff garbage", "unreadable"),
    "an array": (b"[]", "unreadable"),
    "no event": (b"{}", "unreadable"),
    "two events": (b'{"VP": {}, "DOO": {}}', "unreadable"),
    "deep": (b'{"VP": ' + b"[" * 5000 + b"]" * 5000 + b"}", "unreadable"),
    "large": (b'{"VP": {"x": "' + b"x" * LARGEST_MESSAGE + b'"}}', "too-large"),
    "no position": (published(lat=None).payload, "no-position"),
    "text": (published(lat="60").payload, "no-place"),
    "a truth": (published(long=True).payload, "no-place"),
    "a huge number": (published(lat=10**300).payload, "no-place"),
    "off the globe": (published(lat=97.0).payload, "no-place"),
    "no time": (published(tst="noon").payload, "time-unreadable"),
    "milliseconds": (published(tst=None, tsi=NOON_S * 1000).payload, "time-no-epoch-seconds"),
    "tomorrow": (published(tst=None, tsi=NOON_S + 90_000).payload, "time-in-future"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_that_is_no_position_is_refused_alone_with_its_reason(name):
    payload, reason = REFUSED[name]
    source = reader()
    batch = [published(), Publication(TOPIC, payload), published("no/topic"), published(second=1)]
    assert len(source.of(batch, RECEIVED_US).values) == 2
    assert dict(source.tally.refused) == {reason: 1, "no-vehicle-id": 1}


@asynccontextmanager
async def followed(
    broker: Broker, source: HighFrequencyPositions | None = None
) -> AsyncIterator[tuple[Following, Kept]]:
    """Who follows a broker, and what is kept of it."""
    sink, stopping = Kept(), asyncio.Event()
    following = Following(source or reader(), broker, sink, stopping)
    running = asyncio.create_task(following.run())
    async with asyncio.timeout(240):
        yield following, sink
    stopping.set()
    await running


class Mosquitto(Server):
    """A real broker on 127.0.0.1, with TLS for :data:`USER` and ``plain`` for anybody.

    Its folder has its CA in ``ca.pem``, and user and password in ``login``.
    """

    name = "mosquitto"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = f"{os.environ['PATH']}:/usr/bin:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
        program, passwords = (shutil.which(name, path=path) for name in ("mosquitto", "mosquitto_passwd"))
        if program is None or passwords is None:
            pytest.skip("no mosquitto; Debian: apt-get install mosquitto")
        self.port, ca = free_port(), CA()
        address, login = f"mqtts://localhost:{self.port}", (USER, PASSWORD)
        self.broker = Broker(address, ("/hfp/#",), folder / "ca.pem", login, pause_s=0.05)
        self.plain = Broker(f"mqtt://{LOOPBACK}:{free_port()}", ("/hfp/#",), pause_s=0.05)
        ca.cert_pem.write_to_path(folder / "ca.pem")
        ca.issue_cert("localhost", LOOPBACK).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        write_secret(folder / "login", f"{USER}:{PASSWORD}\n")
        write_secret(folder / "passwords", "")
        subprocess.run([passwords, "-b", str(folder / "passwords"), USER, PASSWORD], check=True)
        (folder / "acl").write_text(f"user {USER}\ntopic readwrite /hfp/#\n")
        lines = ["per_listener_settings true", "persistence false", "user root"]
        lines += [f"listener {self.plain.port} {LOOPBACK}", "allow_anonymous true"]
        lines += [f"listener {self.port} {LOOPBACK}", "allow_anonymous false"]
        files = {"password_file": "passwords", "acl_file": "acl", "certfile": "server.pem", "keyfile": "server.pem"}
        lines += [f"{setting} {folder / name}" for setting, name in files.items()]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._command = [program, "-c", str(folder / "mosquitto.conf")]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._run(self._command, self._listens, 60)

    def _listens(self) -> bool:
        with socket.socket() as link:
            return link.connect_ex((LOOPBACK, self.port)) == 0


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    yield broker
    broker.stop()


@contextmanager
def city(broker: Mosquitto) -> Iterator[Callable[[bytes, str], None]]:
    """What publishes to a broker, as the vehicles of a city do."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.tls_set(str(broker.folder / "ca.pem"))
    client.username_pw_set(USER, PASSWORD)
    client.connect(LOOPBACK, broker.port)
    client.loop_start()
    while not client.is_connected():  # a position before the broker's answer may end the connection
        time.sleep(0.01)
    yield lambda payload, topic: client.publish(topic, payload).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


def now(vehicle: int, **fields: object) -> tuple[bytes, str]:
    """A position of the present, and its topic."""
    body = {"VP": fix(tst=None, tsi=int(time.time()), **fields)}  # type: ignore[arg-type]
    return json.dumps(body).encode(), TOPIC.replace("01216", f"{vehicle:05d}")


@contextmanager
def city_that_publishes(broker: Mosquitto) -> Iterator[None]:
    """Garbage and positions of ever new vehicles until the block ends; a broker keeps nothing for later readers."""
    ended = threading.Event()

    def drive() -> None:
        with city(broker) as publish:
            for vehicle in range(1, 10_000):
                if ended.wait(0.05):
                    break
                publish(b"\xff\x00garbage", "/hfp/v2/garbage")
                publish(*now(vehicle))

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def test_it_outlives_a_broker_that_restarts_and_reads_on_after_garbage(mosquitto):
    source = reader()
    async with followed(mosquitto.broker, source) as (_, sink):
        for _ in range(2):
            known = len(sink.values)
            with city_that_publishes(mosquitto):
                await until_true(lambda known=known: len(sink.values) > known)
            mosquitto.kill()
            await asyncio.sleep(0.1)
            mosquitto.start()
    assert source.tally.refused["unreadable"] >= 2


async def test_what_arrives_faster_than_it_is_stored_is_dropped_and_counted_without_tls_too(mosquitto, monkeypatch):
    monkeypatch.setattr(mqtt, "MOST_WAITING", 50)
    source = reader()
    async with followed(mosquitto.plain, source) as (following, sink):
        with city_that_publishes(mosquitto):
            await until_true(lambda: bool(sink.values))
        sink.gate.clear()
        before = source.tally.snapshots
        with city(mosquitto) as publish:
            for vehicle in range(20_002, 20_302):
                publish(*now(vehicle))
            publish(b"x" * (LARGEST_MESSAGE + 1), TOPIC)
        await until_true(lambda: following.refused["too-large"] == 1)
        sink.gate.set()
        await until_true(lambda: source.tally.snapshots - before + following.refused["queue-full"] >= 300)
    assert following.refused["queue-full"] >= 300 - 3 * 51


@pytest.fixture
def helsinki(tmp_path: Path) -> Path:
    return bus_fleet_file(tmp_path, BOX)


def hexveil(
    broker: Mosquitto, *arguments: object, login: str = "login", ca: str | None = "ca.pem", code: int = 0
) -> Result:
    """What the command says that follows a broker by the configuration in its folder."""
    command = ["hfp", broker.broker.url, "--once", "--json", "--login", str(broker.folder / login)]
    command += ["--config", str(broker.folder / "hexveil.toml"), *(["--ca", str(broker.folder / ca)] if ca else [])]
    return run(*command, *arguments, code=code)


def test_positions_reach_kafka_over_tls(mosquitto, helsinki, kafka, topic, monkeypatch):
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
    monkeypatch.setenv("HEXVEIL_FEED__TOPIC", topic)
    with city_that_publishes(mosquitto):
        done = hexveil(mosquitto, "--topic", "/hfp/#")
    report = json.loads(done.stdout)["snapshots"]
    assert report["refused"]["unreadable"] >= 1
    stored_events = [json.loads(value) for part in asyncio.run(stored(kafka, topic)) for _, value in part]
    assert len(stored_events) == report["events"] >= 1
    assert stored_events[0]["user"].startswith("55:")


def test_a_live_feed_is_released_without_kafka(mosquitto, helsinki):
    out = helsinki.parent / "releases.ndjson"
    with city_that_publishes(mosquitto):
        hexveil(mosquitto, "--offline", "--out", out)
    assert sum(json.loads(line)["value"].get("events", 0) for line in out.read_text().splitlines()) >= 1


def test_a_wrong_password_or_ca_ends_the_command_and_shows_no_secret(mosquitto, helsinki):
    write_secret(helsinki.parent / "wrong", "city:guessed-wrong")
    for wrong, says in (
        ({"login": "wrong"}, "does not accept this user and password"),
        ({"ca": None}, "certificate verify failed"),
    ):
        done = hexveil(mosquitto, "--out", "-", **wrong, code=3)
        assert done.stdout == ""
        assert says in done.stderr
        assert "guessed-wrong" not in done.stderr


@contextmanager
def scripted(suback: bytes, publishes: bytes = b"", after: threading.Event | None = None) -> Iterator[Broker]:
    """A broker of three answers to one client; the last, ``publishes``, comes once ``after`` is set.

    Mosquitto accepts every subscription, filters what it delivers, and passes no malformed topic on.
    """
    with socket.create_server((LOOPBACK, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
                subscribe = connection.recv(4096)
                connection.sendall(b"\x90\x03" + subscribe[2:4] + suback)
                assert after is None or after.wait(240)
                connection.sendall(publishes)
                connection.recv(4096)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield Broker(f"mqtt://{LOOPBACK}:{server.getsockname()[1]}", ("/hfp/#",))
        thread.join()


def packet(topic: bytes, payload: bytes) -> bytes:
    """A PUBLISH of 128 to 16 383 bytes after its header."""
    body = len(topic).to_bytes(2, "big") + topic + payload
    return bytes((0x30, len(body) & 0x7F | 0x80, len(body) >> 7)) + body


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_broker_that_sends_a_quality_of_service_unasked_is_left(qos):
    """Of QoS 2, a message stays in the memory until the broker releases it."""
    unasked = bytearray(packet(TOPIC.encode(), b"\0\1" + published().payload))
    unasked[0] |= qos << 1
    with capture_logs() as logs, scripted(b"\x00", bytes(unasked)) as broker:
        async with followed(broker) as (following, sink):
            await until_true(lambda: bool(logs))
    assert dict(following.refused) == {"qos-not-granted": 1}
    assert "QoS 1 or 2" in logs[0]["reason"]
    assert not sink.values


def test_a_broker_that_refuses_the_topic_ends_the_command(helsinki):
    with scripted(suback=b"\x80") as broker:
        done = run("hfp", broker.url, "--config", helsinki, "--out", "-", code=3)
    assert "refuses a topic" in done.stderr


async def test_a_malformed_topic_is_refused_alone_and_a_silence_before_it_is_said_once(monkeypatch):
    monkeypatch.setattr(mqtt, "SILENT_SECONDS", 0.01)
    spoken, timeless = threading.Event(), published(tst=None, tsi=None).payload
    topics = (b"/hfp/\xff\xfe", b"/hfp/+/x", b"/hfp/#", TOPIC.encode())
    packets = b"".join(packet(topic, timeless) for topic in topics)
    with capture_logs() as logs, scripted(b"\x00", packets, spoken) as broker:
        async with followed(broker) as (following, sink):
            await until_true(lambda: bool(logs))
            spoken.set()
            await until_true(lambda: bool(sink.values))
    assert dict(following.refused) == {"topic-unreadable": 3}
    assert [json.loads(value)["user"] for value in sink.values] == ["55:1216"]
    assert sink.ages[0] >= 0.15, "its time is that of the arrival, before messages are gathered for 0.2 s"
    assert "sends no message" in logs[0]["event"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["https://agency.example"], "is not like mqtts://"),
        (["mqtts://agency.example:99999"], "is not like mqtts://"),
        (["mqtts://" + "a" * 70 + ".example"], "is not like mqtts://"),
        (["mqtts://city:s3cret@agency.example"], "in a file"),
        ([f"mqtts://city:{PASSWORD}\u2100@agency.example"], "in a file"),
        (["mqtts://agency\u2100.example"], "is not like mqtts://"),
        (["mqtt://agency.example", "--login", "login"], "without TLS is public"),
        (["mqtts://agency.example", "--login", "none"], "name a readable text file"),
        (["mqtts://agency.example", "--ca", "login"], "file of certificates"),
        (["mqtts://agency.example", "--topic", "hfp/#/x"], "is no topic filter"),
        (["mqtts://agency.example", "--offline"], "name a file like releases.ndjson"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(arguments, says, helsinki, monkeypatch):
    monkeypatch.chdir(helsinki.parent)
    write_secret(helsinki.parent / "login", f"{USER}:{PASSWORD}")
    done = run("hfp", *arguments, "--config", helsinki, code=2)
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert PASSWORD not in done.stderr
