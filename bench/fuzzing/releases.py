"""Output messages: the intake of ``hexveil serve``, all answers made from what it took, followed files, and ``hexveil
query``."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import random
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import jsonschema
import msgspec
from aiohttp import ClientSession, web
from typer.testing import CliRunner

from bench.fuzzing.hunting import FolderTarget, Hunt, LoopTarget, Target
from bench.fuzzing.messages import feed_config
from bench.fuzzing.mutation import Mutator
from stream.cli import app as commands
from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK
from stream.messages.lines import read_line
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, digest, schema
from stream.serve.api import SERVICE, make_app
from stream.serve.metrics import PublicMetrics
from stream.serve.reading.files import FileSource, ReleaseSourceError, feed_in
from stream.serve.reading.intake import Arrival, Intake
from stream.serve.received import received
from stream.serve.window_store import View

_GOLDEN = (
    "values",
    "values-histograms",
    "values-percentiles",
    "values-merged",
    "participation",
    "participation-histograms",
    "participation-zcdp",
)
_START, _END = b"2017-03-21T12:00:00Z", b"2017-03-21T13:00:00Z"
_MOST_WINDOWS = 24
_LONG_LINE = 64 << 20
"""Bytes of a line that takes 60 kB once it is packed."""
_BOXES = ("-97.9,30.1,-97.5,30.6", "-97.8,30.2,-97.7,30.3", "-97.80001,30.20001,-97.8,30.2001", "-98.3,29.8,-97.2,30.9")


class Release(NamedTuple):
    """One message of an output topic; its window begins at 2017-03-21T12:00Z."""

    topic: str
    ce_id: str
    value: bytes


def sound_windows() -> list[list[Release]]:
    """Whole windows as our own code released them, the close marker last; the largest are cut to a dozen cells."""
    windows = []
    for name in _GOLDEN:
        with gzip.open(REPO_ROOT / "tests" / "golden" / f"{name}.ndjson.gz") as file:
            lines = [read_line(line) for line in file if b'"topic"' in line]
        messages = [Release(line.topic, line.ce_id, bytes(line.value)) for line in lines if _START in bytes(line.value)]
        cells = [message for message in messages if message.topic == HEXAGON_SPEED][:12]
        histograms = [
            message for message in messages if message.topic == SPATIAL_HISTOGRAM and len(message.value) < 20_000
        ]
        marker = next(message for message in messages if message.topic == WINDOW)
        windows.append(
            [*cells, *histograms, Release(WINDOW, marker.ce_id, marker_of(marker.value, cells + histograms))]
        )
    return windows


def marker_of(marker: bytes, messages: Iterable[Release]) -> bytes:
    """A close marker for these messages."""
    values = [message.value for message in messages]
    body = json.loads(marker) | {"messages": len(values), "digest": digest(values)}
    return msgspec.json.encode(body)


def moved(value: bytes, hours: int) -> bytes:
    """A message about the window so many hours later."""
    start = datetime(2017, 3, 21, 12, tzinfo=UTC) + timedelta(hours=hours)
    first, last = (f"{moment:%Y-%m-%dT%H:%M:%SZ}".encode() for moment in (start, start + timedelta(hours=1)))
    return value.replace(_END, b"\0").replace(_START, first).replace(b"\0", last)


def mutated(mutator: Mutator, window: list[Release], count: int) -> list[Release]:
    """Mutated messages of one window, the marker among them."""
    bodies = [json.loads(message.value) for message in window]
    changed = []
    for number in range(count):
        at = mutator.rng.randrange(len(window))
        topic = (
            window[at].topic if mutator.rng.random() < 0.97 else mutator.rng.choice((WINDOW, HEXAGON_SPEED, "", "x"))
        )
        changed.append(Release(topic, f"m{number}" if mutator.rng.random() < 0.95 else "", mutator.json(bodies[at])))
    return changed


class IntakeOfMessages(LoopTarget):
    """Mutated messages, one after the other, into the intake of a store."""

    name = "intake"
    contract = "taken or counted as invalid; what a second reader of the schema refuses is never taken"

    def __init__(self) -> None:
        self._windows = sound_windows()
        topics = (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)
        self._schemas = {topic: jsonschema.Draft202012Validator(schema(topic)) for topic in topics}

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Three hundred messages of one window into a store of their own."""
        intake = Intake(View(_MOST_WINDOWS), PublicMetrics(), "bus", lambda window: None)
        mutator = Mutator(
            rng, ("cell", "mean", "post_processed", "interval", "structure", "counts", "events", "excludes")
        )
        for number, message in enumerate(mutated(mutator, rng.choice(self._windows), 300), 1):
            check = self._check_schema if number % 30 == 0 else self._check
            hunt.attempt(message.value, partial(check, intake, message, number))
        intake.close()

    def _check(self, intake: Intake, message: Release, number: int, value: bytes) -> None:
        arrival = Arrival(message.topic, message.ce_id, value, number)
        # Checked here first, because the time limit and the place of an error are those of this thread.
        if received(*arrival) is not None:
            self._loop.run_until_complete(intake.take([arrival]))
        assert len(intake.view.windows) <= 2 * _MOST_WINDOWS + 1

    def _check_schema(self, intake: Intake, message: Release, number: int, value: bytes) -> None:
        if received(message.topic, message.ce_id or "x", value, number) is not None:
            assert self._schemas[message.topic].is_valid(json.loads(value)), "taken, though its schema refuses it"
        self._check(intake, message, number, value)


class _NoSource:
    """A source without messages, because the target passes messages to the intake itself."""

    open_files = 0

    async def run(self, intake: Intake) -> None:
        intake.caught_up.set()
        await asyncio.Event().wait()


class Readers(Target):
    """Mutated messages into a running service, each window completed by a fitting marker; then all that readers can
    ask."""

    name = "readers"
    contract = "whatever was taken, every path answers below 500, in the format that it names"

    def __enter__(self) -> Self:
        self._windows, self._hours = sound_windows(), 0
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())
        return self

    async def _start(self) -> None:
        config = feed_config("canonical")
        public = config.public.model_copy(update={"max_windows": _MOST_WINDOWS})
        served = make_app(config.model_copy(update={"public": public}), None, _NoSource())
        self._service = served[SERVICE]
        self._runner = web.AppRunner(served, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self._client = ClientSession(f"http://{LOOPBACK}:{port}")

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Four windows of thirty mutated messages."""
        mutator = Mutator(
            rng, ("cell", "mean", "post_processed", "interval", "structure", "counts", "events", "excludes")
        )
        for _ in range(4):
            window = rng.choice(self._windows)
            strange = mutated(mutator, window, 30)
            messages = [*strange, *window[:-1]]
            marker = window[-1]
            if rng.random() < 0.3:
                marker = next((m for m in messages if m.topic == WINDOW and received(*m) is not None), marker)
                messages = [message for message in messages if message.topic != WINDOW]
            hunt.attempt(messages, partial(self._read, marker), [message.value for message in strange])

    def _read(self, marker: Release, messages: list[Release]) -> None:
        self._loop.run_until_complete(self._check(messages, marker))

    async def _check(self, messages: list[Release], marker: Release) -> None:
        self._hours += 1
        hours, view = self._hours, self._service.view
        arrivals = [Arrival(topic, ce_id, moved(value, hours), hours) for topic, ce_id, value in messages]
        await self._service.intake.take(arrivals)
        start = json.loads(moved(b'"' + _START + b'"', hours))
        for window in [window for window in view.windows.values() if window.start == start]:
            taken = [*window.in_order(), *(window.histograms[name] for name in sorted(window.histograms))]
            fitting = marker_of(moved(marker.value, hours), [Release("", "", value) for value in taken])
            fitting = fitting.replace(b'"feed":"bus"', f'"feed":"{window.feed}"'.encode())
            await self._service.intake.take([Arrival(WINDOW, "fitting", fitting, hours)])
            for path in self._paths(window.feed, start, sorted(window.cells), sorted(window.histograms)):
                await self._ask(path, len(window.cells) if window.complete else None)

    @staticmethod
    def _paths(feed: str, start: str, cells: list[str], mechanisms: list[str]) -> list[str]:
        named = f"feed={feed}"
        whole = [
            f"windows?limit=5&{named}",
            f"windows/{start}?{named}",
            f"windows/{start}/other-day?{named}",
            f"histograms?{named}",
        ]
        whole += [
            f"hexagons?window={start}&{named}{more}"
            for more in ("", "&format=geojson", f"&bbox={_BOXES[0]}", "&resolution=7")
        ]
        whole += [f"windows/{start}/download.{suffix}?{named}" for suffix in ("csv", "geojson", "parquet")]
        whole += [f"cells/{cell}?{named}" for cell in cells[:2]]
        for mechanism in mechanisms:
            whole.append(f"histograms/{start}/{mechanism}?{named}")
            whole += [f"histograms/{start}/count?bbox={box}&mechanism={mechanism}&{named}" for box in _BOXES]
        return [f"/api/v1/{path}" for path in whole]

    async def _ask(self, path: str, cells: int | None) -> None:
        async with self._client.get(path) as answer:
            body = await answer.read()
            assert answer.status < 500, f"{path} answers {answer.status}"
            if "json" in answer.content_type:
                json.loads(body, parse_constant=_refuse)
            if answer.status == 200 and answer.content_type == "text/csv":
                assert len(list(csv.reader(io.StringIO(body.decode())))) - 1 == cells


def _refuse(constant: str) -> None:
    raise AssertionError(f"an answer contains {constant}, which is not JSON")


class Files(FolderTarget):
    """Files of releases in which mutated lines stand between those of a sound window."""

    name = "release-files"
    contract = (
        "a ReleaseSourceError, or a store that holds the sound window complete, and every other line taken or counted"
    )

    def __enter__(self) -> Self:
        super().__enter__()
        self._file = self.folder / "releases.ndjson"
        self._windows, self._loop = sound_windows(), asyncio.new_event_loop()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        super().__exit__(kind, _, __)

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Eight files of thirty mutated lines."""
        mutator = Mutator(rng)
        for _ in range(8):
            window = rng.choice(self._windows)
            lines, strange = [(_line(message), True) for message in window], []
            for message in mutated(mutator, window, 30):
                line = _line(message._replace(value=moved(message.value, 1)))
                line = mutator.octets(line) if rng.random() < 0.5 else line
                strange.append(line.replace(b"\n", b"").replace(_START, b""))
                lines.insert(rng.randrange(len(lines) + 1), (strange[-1], False))
            hunt.attempt(lines, lambda given: self._loop.run_until_complete(self._check(given)), strange)

    async def _check(self, lines: list[tuple[bytes, bool]]) -> None:
        self._file.write_bytes(b"".join(line + b"\n" for line, _ in lines))
        with suppress(ReleaseSourceError):
            feed_in(self._file)
        intake = Intake(View(_MOST_WINDOWS), PublicMetrics(), "bus", lambda window: None)
        reading = asyncio.create_task(FileSource(self._file).run(intake))
        caught_up = asyncio.create_task(intake.caught_up.wait())
        try:
            await asyncio.wait([reading, caught_up], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            intake.close()
        sound = [line for line, is_sound in lines if is_sound]
        if any(WINDOW.encode() in line for line in sound):
            message = read_line(sound[0])
            start = json.loads(bytes(message.value))["window"]["start"]
            windows = [window for window in intake.view.windows.values() if window.start == start]
            counted = json.loads(bytes(read_line(sound[-1]).value))["messages"] == len(sound) - 1
            assert not counted or any(window.complete for window in windows), "a bad line costs its neighbours' window"


def _line(message: Release) -> bytes:
    head = json.dumps({"topic": message.topic, "key": "k", "headers": {"ce_id": message.ce_id}})
    return head[:-1].encode() + b',"value":' + message.value + b"}"


class Query(FolderTarget):
    """``hexveil query`` on files of mutated lines, plain and gzipped."""

    name = "query"
    contract = "exit 0 with JSON of finite numbers, or exit 2 with a sentence"

    def __enter__(self) -> Self:
        super().__enter__()
        self._histograms = [m for window in sound_windows() for m in window if m.topic == SPATIAL_HISTOGRAM]
        self._runner = CliRunner()
        return self

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Twelve files."""
        mutator = Mutator(rng, ("structure", "counts", "variances", "domain", "noise", "mechanism", "rows", "columns"))
        for _ in range(12):
            chosen = rng.choice(self._histograms)
            body = json.loads(chosen.value)
            values = [chosen.value] * rng.randrange(2) + [mutator.json(body) for _ in range(rng.choice((1, 1, 2)))]
            bare = rng.random() < 0.3
            data = b"\n".join(value if bare else _line(chosen._replace(value=value)) for value in values)
            suffix = ".gz" if rng.random() < 0.3 else ""
            if suffix:
                data = gzip.compress(data, 1)
                data = mutator.octets(data) if rng.random() < 0.7 else data
            if rng.random() < 0.05:
                data, suffix = gzip.compress(b" " * _LONG_LINE, 1), ".gz"
            box = rng.choice(_BOXES)
            hunt.attempt(data, lambda given, suffix=suffix, box=box: self._check(given, suffix, box))  # type: ignore[misc]

    def _check(self, data: bytes, suffix: str, box: str) -> None:
        path = self.folder / f"releases.ndjson{suffix}"
        path.write_bytes(data)
        for form in ([], ["--json"]):
            result = self._runner.invoke(commands, ["query", str(path), f"--bbox={box}", *form])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert result.exit_code in (0, 2)
            if result.exit_code == 0 and form:
                answers: list[Any] = json.loads(result.stdout, parse_constant=_refuse)["answers"]
                assert answers
