"""What ``inspect`` says of a topic is what the worker counts: mutated messages, on real Kafka, by real workers. An
inspection reads a topic within the worker's bounds, whatever producers sent: on real Kafka."""

import asyncio
import json
import random
import re
import subprocess
import time
import urllib.request

import pytest

from bench.fuzzing.messages import FORMATS, sound_event
from bench.fuzzing.mutation import Mutator
from stream.config import load_config
from stream.config.servers import KafkaConfig
from stream.diagnosis.inspection import configuration, inspect
from stream.diagnosis.live import newest_messages
from stream.diagnosis.observing import observe_messages
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.local import REPO_ROOT, free_port
from stream.messages.topics import INPUT_SETTINGS, create_topics
from tests.support.builders import bus_config
from tests.support.environment import worker_environment
from tests.support.feeding import create_topic, produce
from tests.support.live_events import event, send_batch

SMALL, LARGE = 300, 20_000
EVENTS = re.compile(r'hexveil_events_(ingested|late|rejected)_total(?:\{reason="(.+)"\})? (\S+)')


def mutated(form: str, count: int) -> list[bytes]:
    """Every second message is mutated; some are arrays of events."""
    rng = random.Random(f"{form} {count}")
    mutator, values = Mutator(rng, ("id", "vehicle", "location")), []
    for n in range(count):
        event = sound_event(form, rng)
        values.append(mutator.json([event] * 3 if n % 10 == 1 else event) if n % 2 else json.dumps(event).encode())
    return values


def counted(port: int) -> tuple[int, dict[str, int]]:
    """Events that a worker accepted, and refused by reason."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = [match for line in answer.read().decode().splitlines() if (match := EVENTS.fullmatch(line))]
    refused = {match[2]: int(float(match[3])) for match in lines if match[1] == "rejected" and float(match[3])}
    return sum(int(float(match[3])) for match in lines if match[1] != "rejected"), refused


@pytest.mark.parametrize(
    ("form", "count"),
    [
        *((form, SMALL) for form in ("canonical", "declared-s")),
        *(pytest.param(form, LARGE, marks=pytest.mark.nightly) for form in FORMATS),
    ],
)
def test_of_mutated_messages_the_worker_accepts_and_refuses_what_inspect_says(
    form, count, hexveil, kafka, redis_url, topic_name, tmp_path, monkeypatch
):
    """Under the configuration that is written from what ``inspect`` suggests."""
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # so that no age decides
    asyncio.run(create_topics(bus_config(tmp_path, **{"feed.topic": topic_name, "kafka.bootstrap": kafka})))
    asyncio.run(produce(kafka, topic_name, mutated(form, count), 1))
    values, arrived_us, unread = asyncio.run(newest_messages(KafkaConfig(bootstrap=kafka), topic_name, 10**6))
    guessed = inspect(observe_messages(values, arrived_us, 10**6), (values, arrived_us))
    template = (REPO_ROOT / "config" / "bus-fleet.toml").read_text(encoding="utf-8")
    written = tmp_path / "written.toml"
    written.write_text(configuration(template, guessed.suggestions, guessed.config.relation), encoding="utf-8")
    given = load_config(written)
    report = inspect(observe_messages(values, arrived_us, 10**6, given), (values, arrived_us), given)
    assert report.usable >= count // 3
    expected = report.usable, {str(why): number for why, number in (report.refused + unread).items()}
    port = free_port()
    env = worker_environment(tmp_path, kafka, redis_url, port, topic_name)
    with (
        (tmp_path / "worker.log").open("wb") as log,
        subprocess.Popen([*hexveil, "worker", "--config", str(written)], env=env, cwd=tmp_path, stderr=log) as worker,
    ):
        try:
            deadline, events = time.monotonic() + 240, (0, dict[str, int]())
            while events != expected and time.monotonic() < deadline and worker.poll() is None:
                time.sleep(0.5)
                try:
                    events = counted(port)
                except OSError:
                    continue
                if events[0] + sum(events[1].values()) >= expected[0] + sum(expected[1].values()):
                    break
        finally:
            worker.kill()
    assert events == expected, (tmp_path / "worker.log").read_text()[-2000:]


async def test_a_compressed_bomb_in_a_topic_is_left_out_and_said(kafka, topic_name):
    """90 MiB in one batch of some kB, and one message above the limit, between events of three vehicles."""
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, "zstd", [event("a", now, 1)])
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)] * 3)
    await send_batch(kafka, topic_name, "zstd", [event("b", now, 2), bytes(MAX_ARRAY_BYTES + 1)])
    await send_batch(kafka, topic_name, "gzip", [event("c", now, 3)])
    values, _, left_out = await newest_messages(KafkaConfig(bootstrap=kafka), topic_name, 1_000)
    assert len(values) == 3
    assert dict(left_out) == {"too-large": 1, "unreadable-batch": 3}
