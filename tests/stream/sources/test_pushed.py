"""Events that vehicles push by HTTP reach Kafka before they are acknowledged; what a sender may cost is bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config import Config
from stream.local import LOOPBACK, free_port
from stream.sources.pushed import (
    MOST_BYTES,
    MOST_EVENTS,
    MOST_WAITING_BYTES,
    PushAllowance,
    PushError,
    PushIntake,
    application,
    read_body,
    serve_push,
)
from tests.support.builders import bus_config, riders_config
from tests.support.feeding import create_topic
from tests.support.secret_files import write_secret
from tests.support.topics_reader import stored

TOKEN = "0123456789abcdef0123456789abcdef"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


def event(vehicle: str, **changes: object) -> dict[str, object]:
    return {"user": vehicle, "time": round(time.time() * 1000), "lat": 30.2, "lng": -97.7, "speed": 20.0} | changes


def lines(*events: dict[str, object]) -> bytes:
    return b"\n".join(json.dumps(entry).encode() for entry in events)


@asynccontextmanager
async def receiving(config: Config, rate: float = 1e5) -> AsyncIterator[str]:
    """The address of a running receiver."""
    stopping, port, intake = asyncio.Event(), free_port(), PushIntake(config)
    serving = asyncio.create_task(serve_push(application(intake, TOKEN, PushAllowance(rate)), port, stopping))
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        writer.close()
        yield f"http://{LOOPBACK}:{port}/v1/events"
    finally:
        stopping.set()
        await serving
        await intake.close()


async def post(session: aiohttp.ClientSession, url: str, body: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    async with session.post(url, data=body, headers=ALLOWED | headers) as answer:
        return answer.status, await answer.json()


async def test_what_is_acknowledged_is_in_kafka_and_what_is_refused_is_not(
    kafka: str, topic_name: str, tmp_path: Path
) -> None:
    await create_topic(kafka, topic_name, 4)
    config = bus_config(tmp_path, **{"kafka.bootstrap": kafka, "feed.topic": topic_name})
    async with receiving(config) as url, aiohttp.ClientSession() as session:
        sound = [event(f"v{k % 3}", time=round(time.time() * 1000) - 1000 * k) for k in range(9)]
        sound[1]["lat"] = "30.2"  # as the service reads it, too
        assert await post(session, url, lines(*sound[:3])) == (202, {"accepted": 3})
        assert await post(session, url, json.dumps(sound[3:8]).encode()) == (202, {"accepted": 5})
        assert await post(session, url, json.dumps(sound[8]).encode()) == (202, {"accepted": 1})
        status, said = await post(session, url, lines(event("a"), event("b", lat=0.0, lng=0.0), event("c", speed="x")))
        assert status == 422
        assert said["refused"] == [{"event": 1, "reason": "at-origin"}, {"event": 2, "reason": "wrong-type"}]
    parts = await stored(kafka, topic_name)
    messages = [(key, json.loads(value)) for part in parts for key, value in part]
    assert sorted(str(entry) for _, entry in messages) == sorted(str(entry) for entry in sound)
    assert all(key == str(entry["user"]).encode() for key, entry in messages)


async def test_under_participation_a_refused_event_does_not_keep_out_those_of_others(
    kafka: str, topic_name: str, tmp_path: Path
) -> None:
    await create_topic(kafka, topic_name, 4)
    config = riders_config(tmp_path, **{"kafka.bootstrap": kafka, "feed.topic": topic_name})
    async with receiving(config) as url, aiohttp.ClientSession() as session:
        wrong, sound = event("a", lat=0.0, lng=0.0), event("b")
        refused = [{"event": 0, "reason": "at-origin"}]
        assert await post(session, url, lines(wrong, sound)) == (202, {"accepted": 1, "refused": refused})
        assert (await post(session, url, lines(wrong)))[0] == 422
    assert [json.loads(value) for part in await stored(kafka, topic_name) for _, value in part] == [sound]


async def test_a_sender_without_the_token_or_beyond_a_bound_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Without a broker: no request of these would reach it, and a sound one is told to come back."""
    config = bus_config(tmp_path, **{"kafka.bootstrap": f"{LOOPBACK}:9"})
    async with receiving(config, rate=100.0) as url, aiohttp.ClientSession() as session:
        for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \u00fc"):
            assert (await post(session, url, lines(event("a")), Authorization=wrong))[0] == 401
        assert (await post(session, url, b"[1, 2"))[0] == 400
        assert (await post(session, url, b"[" * 20_000))[0] == 400
        assert (await post(session, url, b"\xff"))[0] == 400
        assert (await post(session, url, b""))[0] == 400
        assert (await post(session, url, b"[1]"))[1]["refused"] == [{"event": 0, "reason": "missing-field"}]
        assert (await post(session, url, bytes(MOST_BYTES + 1)))[0] == 413
        assert (await post(session, url, b"1\n" * (MOST_EVENTS + 1)))[0] == 413
        assert (await post(session, url, lines(event("a")), **{"Content-Encoding": "gzip"}))[0] == 415
        async with session.post(url, data=lines(event("a")), headers=ALLOWED) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert (await post(session, url, b"1\n" * 4_000))[0] == 422
        status, said = await post(session, url, b"1\n" * 4_000)
        assert (status, said["error"]) == (429, "more than 100 events a second")
        async with session.get(url, headers=ALLOWED) as answer:
            assert answer.status == 405


async def test_what_waits_for_a_silent_broker_is_bounded(tmp_path: Path) -> None:
    """A broker that accepts connections and never answers: without the bound, every request would be kept meanwhile."""
    over = asyncio.Event()

    async def stay_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    silent = await asyncio.start_server(stay_silent, LOOPBACK, 0)
    address = f"{LOOPBACK}:{silent.sockets[0].getsockname()[1]}"
    intake = PushIntake(bus_config(tmp_path, **{"kafka.bootstrap": address}))
    events = [json.dumps(event(f"v{k}", note="x" * 60_000)).encode() for k in range(MOST_WAITING_BYTES // 120_000)]
    waiting = [asyncio.create_task(intake.take(events)) for _ in range(4)]
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (2, 2)
    assert all("too many events wait" in str(task.exception()) for task in done)
    over.set()
    silent.close()
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)


async def test_what_is_refused_is_counted_before_it_is_written_anew_and_costs_allowance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of 500 000 zeros took the loop 0.9 s and cost nothing; sixteen at a time kept an honest sender
    waiting."""
    written: list[object] = []
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: written.append(args))
    config = bus_config(tmp_path, **{"kafka.bootstrap": f"{LOOPBACK}:9"})
    async with receiving(config, rate=100.0) as url, aiohttp.ClientSession() as session:
        flood = b"[" + b"0," * 500_000 + b"0]"
        answers = [await post(session, url, flood) for _ in range(4)]
    assert [status for status, _ in answers] == [413, 413, 429, 429]
    assert not written


def test_the_allowance_fills_at_its_rate_and_no_further() -> None:
    now = [0.0]
    bucket = PushAllowance(10.0, clock=lambda: now[0])
    assert bucket.take(MOST_EVENTS) == 0
    assert bucket.take(1) == 1
    assert bucket.take(100) == 11
    now[0] = 5.0
    assert bucket.take(51) == 1
    assert bucket.take(50) == 0
    now[0] = 1e9
    assert bucket.take(MOST_EVENTS + 1) > 0


READ: dict[str, tuple[bytes, int]] = {
    "an object": (b'{"a": 1}', 1),
    "lines": (b'{"a": 1}\r\n\n{"a": 2}\n', 2),
    "an array": (b' [{"a": 1}, {"a": "\xc3\xa9"}]', 2),
}


@pytest.mark.parametrize("name", READ)
def test_objects_lines_and_arrays_are_read(name: str) -> None:
    body, count = READ[name]
    assert len(read_body(body)) == count


WEAK = {"absent": None, "short": "secret", "two lines": "0123456789abcdef\n0123456789abcdef"}


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_or_missing_token_is_refused_and_not_shown(name: str, tmp_path: Path) -> None:
    token = WEAK[name]
    if token is not None:
        write_secret(tmp_path / "token", token)
    done = CliRunner().invoke(app, ["push", "--token-file", str(tmp_path / "token")])
    assert done.exit_code == 2
    assert "--token-file" in done.stderr
    assert "0123456789abcdef" not in done.stderr


def test_an_array_of_no_objects_is_no_error_of_the_reader() -> None:
    assert read_body(b"[null, [], 3]") == [b"null", b"[]", b"3"]
    with pytest.raises(PushError, match="no event"):
        read_body(b"[]")
