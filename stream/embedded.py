"""The service without Kafka: a source writes directly into Redis, the release protocol closes windows, releases go to a
file.

The source's own clock replaces the broker's: a message arrives when it is due. An event is in time if it arrives by the
end of its window plus the allowed delay. A window is released once the source is past that time, so its content depends
neither on the pace nor on who else sends.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import structlog
from redis.exceptions import RedisError

from dpcore.arrays import IntArray
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.diagnosis.reading import ageless
from stream.ingestion.decoding import Batch, Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.messages.message import Message, rejected_message
from stream.offline import LinePublisher, claim_feed
from stream.protocol.close_process import begin_closing
from stream.protocol.release_protocol import ContentError, ReleaseProtocol, signer_of, statistics_of
from stream.sources.delivery import Pacer, Progress, deliver
from stream.sources.messages import Messages
from stream.statistics.plan import PlanError
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import utc_text

log = structlog.get_logger()

PARTITION = "embedded/0"
_LOOK_SECONDS = 0.2
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM)
AT_ONCE = 10_000
"""Messages that are decoded at a time, within about 30 ms."""


def present_us() -> int:
    """The present by this machine's clock, µs UTC."""
    return time.time_ns() // 1000


class EmbeddedError(RuntimeError):
    """A window that could not be closed; the message says why."""


class EmbeddedFeed:
    """A :class:`stream.sources.delivery.Sender` that stores the messages of a source in Redis at once."""

    def __init__(
        self,
        config: Config,
        rows: RowStore,
        store: ReleaseStore,
        decoder: Decoder,
        report: Callable[[Message], None],
        start_us: int | None,
    ) -> None:
        """``report``: called with each report of refused messages. ``start_us``: when the first window under
        "participation" begins."""
        self._config, self._rows, self._store, self._decoder, self._report = config, rows, store, decoder, report
        self._slotting, self._start_us = config.slotting, start_us
        self._offset = 0
        self._reached_us = self._settled_us = np.iinfo(np.int64).min
        """What the source's clock shows, and what it showed before the blocks that are being stored."""
        self._storing = 0
        """Number of blocks that are being stored."""
        self.late = 0
        """Number of events that were too late for their window."""
        self.ended = False
        """Set once the source has no more messages; then no window waits any longer."""
        self.abandoned = False
        """Set once no further window shall be closed, because the Redis client may lose a cancellation."""

    async def send(self, messages: Messages) -> None:
        """Decode and store a block, in parts, so that a large one does not hold up the event loop.

        When its messages arrived is decided before the first part, so no event is late because of others in its block.
        """
        arrived = np.maximum.accumulate(np.maximum(messages.due, self._reached_us))
        self._storing += 1
        try:
            for begin in range(0, len(messages.values), AT_ONCE):
                part = slice(begin, begin + AT_ONCE)
                await self._send(messages.values[part], arrived[part])
                self.reach(int(arrived[part][-1]))
        finally:
            self._storing -= 1
            self.reach(self._reached_us)

    async def _send(self, values: list[bytes], arrived: IntArray) -> None:
        now_us = time.time_ns() // 1000
        batch = self._decoder.decode(values, now_us)
        offsets = self._offset + np.arange(len(values), dtype=np.int64)
        slots = self._slotting.slot_starts(batch.rows["time"].astype(np.int64))
        distinct, which = np.unique(slots, return_inverse=True)
        deadlines = np.array([self._deadline(slot) for slot in distinct.tolist()], dtype=np.int64)
        in_time = arrived[batch.index] <= deadlines[which]
        self.late += int(np.count_nonzero(~in_time))
        first, self._offset = self._offset, self._offset + len(values)
        await self._rows.append(
            PARTITION, first, self._offset, batch.rows[in_time], offsets[batch.index[in_time]], slots[in_time]
        )
        self._report_rejected(batch, offsets)

    def reach(self, time_us: int) -> None:
        """Note that the source's clock shows ``time_us`` (µs UTC). No window becomes due while a block is stored."""
        self._reached_us = max(self._reached_us, time_us)
        if not self._storing:
            self._settled_us = self._reached_us

    async def flush(self) -> None:
        """Do nothing, because no message is kept."""

    async def confirm(self) -> None:
        """Do nothing, because every message is stored already."""

    def _deadline(self, slot: int) -> int:
        """The time (µs UTC) until which events of the slot are in time."""
        delay = self._config.window.allowed_delay // timedelta(microseconds=1)
        return self._slotting.window(slot).end * 1_000_000 + delay

    def _report_rejected(self, batch: Batch, offsets: IntArray) -> None:
        if self._config.relation == NeighbouringRelation.PARTICIPATION:
            return  # as in the worker: it is private how much arrived
        topic, number = PARTITION.split("/")
        for reason, *where in batch.refusals(offsets):
            self._report(rejected_message(self._config.feed.name, reason.value, topic, int(number), *where))

    async def due_slots(self) -> list[int]:
        """Slots that take no more events and are neither released nor set aside, oldest first."""
        aside = await self._store.slots_set_aside()
        if self._config.relation == NeighbouringRelation.VALUES:
            unreleased = [slot for slot in await self._rows.open_slots() if slot not in aside]
        else:
            unreleased = []
            for slot in self._every_slot():
                if slot not in aside and not await self._rows.is_closed(slot):
                    unreleased.append(slot)
                elif not unreleased:
                    self._start_us = self._slotting.window(slot).end * 1_000_000  # no need to ask again
        return [slot for slot in unreleased if self.ended or self._deadline(slot) < self._settled_us]

    def _every_slot(self) -> list[int]:
        """Under "participation", the clock alone decides which windows are released."""
        assert self._start_us is not None, "a source under 'participation' says when it begins"
        slots, slot = [], self._slotting.window(self._start_us // 1_000_000).start
        while self._deadline(slot) < self._settled_us:
            slots.append(slot)
            slot = self._slotting.window(slot).end
        return slots


async def run_embedded(
    config: Config,
    blocks: Iterable[Messages],
    pacer: Pacer,
    out: Path,
    progress: Progress,
    *,
    start_us: int | None = None,
    report: Callable[[Message], None] = lambda message: None,
) -> None:
    """Take ``blocks`` at their pace, and append each window's releases to ``out`` once it is due. Returns once all are
    released.

    Raises :class:`EmbeddedError` if a window cannot be closed, and the errors of the source and of Redis. When
    cancelled, it first finishes the current window.
    """
    async with embedded_feed(config, out, report, start_us) as (feed, closing):
        await deliver(blocks, feed, pacer, progress, stopped=closing.done)


@asynccontextmanager
async def embedded_feed(
    config: Config, out: Path, report: Callable[[Message], None], start_us: int | None
) -> AsyncIterator[tuple[EmbeddedFeed, asyncio.Task[None]]]:
    """A feed whose due windows are released to ``out``, and the task that closes them, which ends if one cannot be
    closed.

    When the context ends without an error, all windows that are left are released. Raises :class:`EmbeddedError`.
    """
    decoder = Decoder(ageless(config), load_user_key(config.privacy.user_key_file))
    context, parent = multiprocessing.get_context("spawn"), multiprocessing.current_process().pid or 0
    async with redis_client(config.redis) as redis:
        await claim_feed(config, redis, decoder.key_fingerprint)
        feed = EmbeddedFeed(
            config, RowStore.of(redis, config), ReleaseStore.of(redis, config), decoder, report, start_us
        )
        # Closing computes for seconds, so it runs outside of the event loop, as in the worker.
        with ProcessPoolExecutor(1, mp_context=context, initializer=_initialise, initargs=(parent,)) as pool:
            closing = asyncio.create_task(_close_due(config, feed, pool, out))
            try:
                yield feed, closing
                feed.ended = True
                await closing
            finally:
                feed.abandoned = True
                closing.cancel()


class EmbeddedSink:
    """A :class:`stream.sources.polling.Sink` that releases a live feed here. This machine's clock decides what is in
    time."""

    def __init__(self, config: Config, out: Path, stopping: asyncio.Event) -> None:
        self._stopping, self._stack = stopping, AsyncExitStack()
        self._embedded = embedded_feed(config, out, lambda message: None, present_us())
        self._feed: EmbeddedFeed | None = None

    async def __aenter__(self) -> Self:
        self._feed, closing = await self._stack.enter_async_context(self._embedded)
        closing.add_done_callback(lambda _: self._stopping.set())
        self._following = asyncio.create_task(self._follow_clock())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._following.cancel()
        await self._stack.__aexit__(*error)

    async def take(self, messages: Messages) -> None:
        """Store the events as arriving now; returns once they are stored."""
        assert self._feed is not None, "used outside its context"
        await self._feed.send(replace(messages, due=np.full(len(messages.values), present_us(), dtype=np.int64)))

    async def _follow_clock(self) -> None:
        assert self._feed is not None
        while True:
            self._feed.reach(present_us())
            await asyncio.sleep(_LOOK_SECONDS)


async def _close_due(config: Config, feed: EmbeddedFeed, pool: ProcessPoolExecutor, out: Path) -> None:
    loop = asyncio.get_running_loop()
    # The process inherits what is blocked here, until it has left the group.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
    try:
        started = loop.run_in_executor(pool, _initialised)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    await started
    while not feed.abandoned:
        ended = feed.ended
        for slot in await feed.due_slots():
            problem = await loop.run_in_executor(pool, close_to_file, config, slot, out)
            if problem is not None:
                raise EmbeddedError(problem)
        if ended:
            return
        await asyncio.sleep(_LOOK_SECONDS)


def close_to_file(config: Config, slot: int, out: Path) -> str | None:
    """Close one window and append its messages to ``out``. Returns why it and all later ones cannot be closed; one that
    fails for its content is set aside. Runs in its own process.
    """
    try:
        asyncio.run(_close(config, slot, out))
    except ContentError as error:
        log.error("window not closed", window=utc_text(slot), reason=str(error))
    except (LedgerError, PlanError, RedisError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


async def _close(config: Config, slot: int, out: Path) -> None:
    async with redis_client(config.redis) as redis:
        with out.open("a", encoding="utf-8") as lines:
            rows, ledger, publisher = RowStore.of(redis, config), Ledger.of(redis, config), LinePublisher(lines)
            await ReleaseProtocol(
                statistics_of(config), redis, rows, ledger, publisher, Noise(), signer_of(config)
            ).close(slot)


def _initialise(parent: int) -> None:
    begin_closing(parent)
    os.setsid()  # what is sent to the whole group is for the parent, which lets the current window finish
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)  # forgets what came before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which the pool ends it


def _initialised() -> None:
    """Do nothing. Submitting it starts the process early, so that the first window need not wait."""
