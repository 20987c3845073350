"""The events of another topic reach the feed's topic with the speeds of a live source, whoever dies, joins or reads twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.cli import app
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.ingestion.pseudonyms import load_user_key
from stream.local import REPO_ROOT
from stream.sources.bridge import Bridge
from stream.sources.fix_memory import fix_memory
from stream.sources.live import KafkaSink
from stream.sources.messages import Messages
from tests.stream.sources.speedless import Fix, by_vehicle, config_of, configured, day, feed, live
from tests.support.topics_reader import PARTITIONS, stored

PATIENCE_S = 120


def message(fix: Fix) -> bytes:
    name, clock, lat, lng, speed = fix
    return json.dumps(
        {"bus": name, "seen": clock, "y": lat, "x": lng} | ({} if speed is None else {"v": speed})
    ).encode()


@pytest.fixture
async def topics(kafka: str, topic_name: str) -> AsyncIterator[tuple[str, str]]:
    """A city's own topic, and the feed's."""
    names = f"{topic_name}-own", topic_name
    stamped = {"message.timestamp.type": "LogAppendTime"}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=stamped) for name in names])
    yield names
    await admin.delete_topics(list(names))
    await admin.close()


async def publish(kafka: str, topic: str, fixes: Sequence[Fix], values: Sequence[bytes] | None = None) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    try:
        for fix, value in zip(fixes, values or map(message, fixes), strict=True):
            await producer.send(topic, value, key=fix[0].encode())
        await producer.flush()
    finally:
        await producer.stop()


def config_for(
    tmp_path: Path, kafka: str, redis_url: str, topic: str, relation: str = "values", **window: Any
) -> Config:
    made = config_of(tmp_path, feed(topic=topic), relation)
    changed = {
        "kafka": KafkaConfig(bootstrap=kafka, group=topic),
        "redis": made.redis.model_copy(update={"url": redis_url}),
        "window": made.window.model_copy(update={"lateness": "event-time"} | window),
    }
    return made.model_copy(update=changed)


async def bridged(bridge: Bridge, sink: Any, *, events: int) -> None:
    """Run until so many events were sent."""
    stopping = asyncio.Event()
    task = asyncio.create_task(bridge.run(sink, stopping))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while bridge.tally.events < events and not task.done():
                await asyncio.sleep(0.05)
    finally:
        stopping.set()
        await task


async def sent_to(kafka: str, topic: str) -> list[bytes]:
    return [value for part in await stored(kafka, topic) for _, value in part]


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_topic_without_speeds_is_the_live_feed_with_derived_ones(
    kafka: str, redis: Redis, redis_url: str, topics: tuple[str, str], tmp_path: Path, relation: str
) -> None:
    shift = int(time.time()) - day()[-1][1]
    fixes = [(name, clock + shift, lat, lng, None) for name, clock, lat, lng, _ in day()][-600:]
    wanted = live(fixes)
    await publish(kafka, topics[0], fixes)
    config = config_for(tmp_path, kafka, redis_url, topics[1], relation, lateness="append-time")
    bridge = Bridge(config, topics[0], "declared")
    await bridged(bridge, KafkaSink(config, asyncio.Event()), events=len(wanted))
    assert by_vehicle(await sent_to(kafka, topics[1])) == by_vehicle(wanted)
    assert bridge.tally.derived == len(wanted) > 300
    assert bridge.tally.without_speed == len(fixes) - len(wanted)


class Dying:
    """A sink that stores events in Kafka, and dies after the first batch."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    async def __aenter__(self) -> Dying:
        await self._sink.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sink.__aexit__(*_)

    async def take(self, messages: Messages) -> None:
        await self._sink.take(messages)
        raise RuntimeError("died")


async def test_what_is_read_again_after_a_death_has_the_same_bytes_and_what_was_kept_is_not_sent_again(
    kafka: str, redis: Redis, redis_url: str, topics: tuple[str, str], tmp_path: Path
) -> None:
    fixes = [(*fix[:4], None) for fix in day()]
    wanted, half = live(fixes), len(fixes) // 2
    config = config_for(tmp_path, kafka, redis_url, topics[1])
    load_user_key(config.privacy.user_key_file)

    def started() -> Bridge:
        bridge = Bridge(config, topics[0], "declared")
        bridge.remember_by(fix_memory(config))
        return bridge

    sink = KafkaSink(config, asyncio.Event())
    await publish(kafka, topics[0], fixes[:half])
    with pytest.raises(RuntimeError, match="died"):
        await started().run(Dying(sink), asyncio.Event())
    twice = len(await sent_to(kafka, topics[1]))
    assert twice > 30
    await bridged(started(), sink, events=len(live(fixes[:half])))
    await publish(kafka, topics[0], fixes[half:])
    await bridged(started(), sink, events=len(wanted) - len(live(fixes[:half])))
    values = await sent_to(kafka, topics[1])
    assert set(values) == set(wanted)
    assert len(values) == len(wanted) + twice, "only what had not been committed came twice"


async def test_killed_restarted_and_doubled_processes_send_the_events_of_one(
    kafka: str, redis: Redis, redis_url: str, topics: tuple[str, str], tmp_path: Path
) -> None:
    fixes, rng = [(*fix[:4], None) for fix in day()], random.Random(3)
    file = configured(tmp_path)
    environment = os.environ | {
        "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
        "HEXVEIL_KAFKA__GROUP": topics[1],
        "HEXVEIL_REDIS__URL": redis_url,
        "HEXVEIL_FEED__TOPIC": topics[1],
        "HEXVEIL_WINDOW__LATENESS": "event-time",
        "HEXVEIL_PRIVACY__USER_KEY_FILE": str(tmp_path / "user.key"),
        "PYTHONPATH": str(REPO_ROOT),
    }
    command = [sys.executable, "-m", "stream", "bridge", topics[0], "--config", str(file)]
    load_user_key(tmp_path / "user.key")
    processes: list[subprocess.Popen[bytes] | None] = [None, None]
    wanted, steps = set(live(fixes)), 3
    try:
        async with asyncio.timeout(PATIENCE_S):
            for step in range(steps):
                for which in (step % 2, rng.randrange(2)):
                    processes[which] = processes[which] or subprocess.Popen(command, cwd=REPO_ROOT, env=environment)
                await publish(kafka, topics[0], fixes[step * len(fixes) // steps : (step + 1) * len(fixes) // steps])
                await asyncio.sleep(rng.uniform(3, 6))
                process = processes[step % 2]
                if step < steps - 1 and process is not None:
                    process.kill()
                    process.wait()
                    processes[step % 2] = None
            while set(await sent_to(kafka, topics[1])) != wanted:
                await asyncio.sleep(0.5)
            for process in filter(None, processes):
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0
    finally:
        for process in filter(None, processes):
            process.kill()
            process.wait()
    assert set(await sent_to(kafka, topics[1])) == wanted


async def test_what_is_no_event_is_counted_and_arrays_are_events_under_values_alone(
    kafka: str, redis: Redis, redis_url: str, topics: tuple[str, str], tmp_path: Path
) -> None:
    fixes = [(*fix[:4], None) for fix in day()][-200:]
    faults = [b"x", b"\xff" * 70_000, b"{}", b"[]", b"[" * 5_000, b'{"bus": "a", "seen": 0, "y": 30.2, "x": -97.7}']
    array = (
        b"[" + b",".join(message((f"array-{k % 2}", fixes[0][1] + 20 * k, 30.2, -97.7, 5.0)) for k in range(6)) + b"]"
    )
    await publish(kafka, topics[0], [fixes[0]] * 7, [*faults, array])
    await publish(kafka, topics[0], fixes)
    counts = []
    for relation, extra in (("values", 6), ("participation", 0)):
        config = config_for(tmp_path, kafka, redis_url, topics[1], relation)
        group = KafkaConfig(bootstrap=kafka, group=f"{topics[1]}-{relation}")
        bridge = Bridge(config.model_copy(update={"kafka": group}), topics[0], "declared")
        await bridged(bridge, KafkaSink(config, asyncio.Event()), events=len(live(fixes)) + extra)
        counts.append(bridge.tally.refused)
    unreadable = {"unreadable": 5, "time-no-epoch-seconds": 1}
    assert counts == [unreadable, unreadable | {"several-events": 1}]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["no-such-topic"], 3, "has no topic 'no-such-topic'"),
        (["bus.positions"], 2, "bus.positions is feed.topic, to which events are sent"),
        (["other", "--format", "gpx"], 2, "--format gpx is none of canonical"),
    ],
)
def test_a_topic_or_format_that_cannot_be_read_is_refused(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "user.key"))
    done = CliRunner().invoke(app, ["bridge", *arguments, "--config", str(configured(tmp_path))])
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr
