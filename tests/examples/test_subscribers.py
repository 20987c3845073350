"""The example subscribers read complete windows, each once, from a real broker that repeats and mixes messages."""

import asyncio
import itertools
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from stream.local.kafka import REPO_ROOT
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, Message
from stream.messages.topics import create_topics
from tests.stream.serve.made_windows import windows_of, with_histograms
from tests.stream.serve.serving import publish
from tests.support.builders import bus_config

EXAMPLES = REPO_ROOT / "examples"
KILLED = 9
sys.path.append(str(EXAMPLES))
subscriber: Any = import_module("subscriber")


def packages_missing() -> bool:
    return shutil.which("node") is None or not (EXAMPLES / "node_modules" / "@platformatic").is_dir()


CLIENTS = [
    pytest.param([sys.executable, "subscriber.py"], id="python"),
    pytest.param(
        ["sh", "subscriber.sh"],
        id="kcat",
        marks=pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here (Debian: apt-get install kcat)"),
    ),
    pytest.param(
        ["node", "subscriber.js"],
        id="javascript",
        marks=pytest.mark.skipif(packages_missing(), reason="no node_modules in examples; run: npm ci"),
    ),
]


async def plant_rubbish(kafka: str, copied: Message) -> None:
    """Write into every topic what Hexveil never writes: no JSON, no value, no UTF-8, a message without headers."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    try:
        for topic in (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW):
            for value in (b"rubbish", None, b"\xff", copied.value):
                await producer.send_and_wait(topic, value, key=copied.key)
    finally:
        await producer.stop()


@pytest.mark.parametrize("command", CLIENTS)
async def test_a_subscriber_tells_each_complete_window_once(command, kafka, tmp_path, topic_name):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    histograms, _ = with_histograms(tmp_path, **overrides)
    _, torn, last = windows_of(tmp_path, 3, **overrides)
    altered = [torn[0]._replace(value=torn[0].value.replace(b'"epsilon":2.0', b'"epsilon":2.5')), *torn[1:]]
    assert altered[0].value != torn[0].value
    await create_topics(bus_config(tmp_path, **overrides))
    await plant_rubbish(kafka, histograms[0])
    await publish(kafka, [*histograms, *histograms, *altered, *last[:-1]])
    process = await asyncio.create_subprocess_exec(
        *command, kafka, topic_name, "2", cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(90):
            first = (await process.stdout.readline()).decode()
            await publish(kafka, [histograms[-1], last[-1], *last])
            rest = (await process.stdout.read()).decode()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    said = (await process.stderr.read()).decode()
    assert code == 0, said
    starts = [json.loads(made[-1].value)["window"]["start"] for made in (histograms, last)]
    assert (first + rest).splitlines() == [
        f"{topic_name} {starts[0]} {len(histograms) - 1} messages",
        f"{topic_name} {starts[1]} {len(last) - 1} messages",
    ], said


class Runs:
    """Runs of ``subscriber.py`` over one state, each in a process that dies like one that is killed."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self._state, self._arguments = state, (*arguments, float("inf"), str(state))

    async def begin_at_the_end(self, bootstrap: str) -> None:
        """Skip what other tests sent."""
        async with AIOKafkaConsumer(*subscriber.TOPICS, bootstrap_servers=bootstrap) as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
        with closing(sqlite3.connect(self._state)) as db:
            db.executescript(subscriber.TABLES)
            rows = [(part.topic, part.partition, offset) for part, offset in ends.items()]
            db.executemany("INSERT INTO offsets VALUES (?, ?, ?)", rows)
            db.commit()

    def killed_after_a_message(self) -> None:
        """One more message is read, and of another one the effects are written and not committed. A process that waits
        for ever ends with this one."""
        process = multiprocessing.get_context("fork").Process(target=self._die, daemon=True)
        process.start()
        process.join(60)
        assert process.exitcode == KILLED

    def _die(self) -> None:
        read, calls = subscriber.read, itertools.count()

        def reading(*given: Any) -> str | None:
            text: str | None = read(*given)
            if next(calls):
                os._exit(KILLED)
            return text

        subscriber.read = reading
        asyncio.run(subscriber.main(*self._arguments))

    def told(self) -> list[str]:
        """The starts of the windows that were told."""
        with closing(sqlite3.connect(self._state, isolation_level=None)) as db:
            return [text for (text,) in db.execute("SELECT start FROM results ORDER BY start")]


def test_a_subscriber_that_keeps_its_offsets_tells_each_window_once_though_it_is_killed_at_each_message(
    kafka, tmp_path, topic_name
):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    windows, runs, deaths = windows_of(tmp_path, 2, **overrides), Runs(tmp_path / "state", kafka, topic_name), 0
    asyncio.run(create_topics(bus_config(tmp_path, **overrides)))
    asyncio.run(runs.begin_at_the_end(kafka))
    asyncio.run(publish(kafka, 2 * [message for window in windows for message in window]))
    while runs.told() != [json.loads(window[-1].value)["window"]["start"] for window in windows]:
        runs.killed_after_a_message()
        deaths += 1
    assert deaths >= sum(map(len, windows))


@pytest.mark.parametrize("command", CLIENTS)
def test_a_subscriber_without_arguments_says_how_it_is_used(command):
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "BOOTSTRAP FEED [COUNT]" in done.stderr
