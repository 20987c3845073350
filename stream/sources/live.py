"""Polls a live feed. The events of each answer reach Kafka or a file before the next request is sent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Protocol, Self

import structlog

from stream.config import Config
from stream.sources.delivery import DeliveryError, KafkaSender
from stream.sources.messages import Messages
from stream.sources.polling import Poller, PollSettings, documents
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import SnapshotError
from stream.sources.timestamps import Staleness

log = structlog.get_logger()

_REPORT_SECONDS = 60.0
_RETRY_SECONDS = 5.0
_AT_ONCE = 10_000
"""Messages that are queued before the event loop may turn."""


class Sink(Protocol):
    """Receives events."""

    async def __aenter__(self) -> Self:
        """Open it."""

    async def __aexit__(self, *_: object) -> None:
        """Close it. All events that it took have been stored."""

    async def take(self, messages: Messages) -> None:
        """Store the events; returns once they are stored."""


async def poll(
    reader: SnapshotEvents,
    poller: Poller,
    settings: PollSettings,
    sink: Sink,
    stopping: asyncio.Event,
    *,
    once: bool,
    staleness: Staleness | None = None,
) -> None:
    """Feed ``sink`` until ``stopping`` is set, or with ``once`` until the first answer.

    Bad answers are logged and skipped; a feed that stands still is logged.
    """
    loop, staleness = asyncio.get_running_loop(), staleness or Staleness()
    async with poller, sink:
        reported = loop.time()
        async for body, received_us in documents(poller, settings, stopping):
            messages = await _events(reader, body, received_us)
            if messages is not None and messages.values:
                await sink.take(messages)
            await asyncio.to_thread(reader.keep)
            brought = messages is not None and bool(messages.values)
            header = None if messages is None else reader.header_us
            change = staleness.answered(header, received_us, brought_events=brought)
            if change is not None:
                log.warning(change)
            reader.tally.stale += staleness.stale
            if loop.time() - reported >= _REPORT_SECONDS:
                reported = loop.time()
                log.info("fed", events=reader.tally.events, derived=reader.tally.derived)
            if once:
                return


async def _events(reader: SnapshotEvents, body: bytes | None, received_us: int) -> Messages | None:
    """The new events of an answer; None if the document did not change, or is no snapshot, which is logged.

    A large answer takes seconds to decode. A thread waits for it, one answer at a time, so that the event loop goes on
    with Kafka's requests and the clock of windows.
    """
    if body is None:
        return None
    try:
        return await asyncio.to_thread(reader.events, body, received_us)
    except SnapshotError as error:
        log.warning("an answer is not a snapshot and is skipped", reason=str(error))
        return None


class FileSink:
    """Writes canonical events as lines to a file; ``-`` is standard output."""

    def __init__(self, out: Path) -> None:
        self._file = sys.stdout.buffer if str(out) == "-" else out.open("ab")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.flush()

    async def take(self, messages: Messages) -> None:
        """Append the events; returns once they are stored."""
        await asyncio.to_thread(self._write, messages.values)

    def _write(self, values: list[bytes]) -> None:
        self._file.writelines(value + b"\n" for value in values)
        self._file.flush()


class KafkaSink:
    """Writes events to the feed's topic. While Kafka is down it sends them again; the service counts each once."""

    def __init__(self, config: Config, stopping: asyncio.Event) -> None:
        self._config, self._stopping = config, stopping
        self._sender: KafkaSender | None = None

    async def __aenter__(self) -> Self:
        self._sender = await KafkaSender(self._config.kafka, self._config.feed.topic).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sender is not None:
            await self._sender.__aexit__(None, None, None)

    async def take(self, messages: Messages) -> None:
        """Send and wait for the acknowledgements."""
        while True:
            try:
                if self._sender is None:
                    await self.__aenter__()
                assert self._sender is not None
                for begin in range(0, len(messages.values), _AT_ONCE):
                    await self._sender.send(messages.part(begin, begin + _AT_ONCE))
                    await asyncio.sleep(0)
                await self._sender.confirm()
                return
            except DeliveryError as error:
                log.warning(
                    "kafka does not accept events, sending them again", reason=str(error), seconds=_RETRY_SECONDS
                )
                sender, self._sender = self._sender, None
                if sender is not None:
                    await sender.__aexit__(None, None, None)
                try:
                    await asyncio.wait_for(self._stopping.wait(), _RETRY_SECONDS)
                except TimeoutError:
                    continue
                raise
