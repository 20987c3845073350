"""Closes and publishes windows in a separate process: connects Redis and Kafka to the release protocol, and reports."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka.errors import KafkaError
from redis.exceptions import RedisError

from dpcore.noise import Noise
from stream.config import Config
from stream.local.server import die_with_parent
from stream.logs import configure_logs
from stream.protocol.due_windows import DueWindows
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.protocol.release_protocol import ContentError, ReleaseProtocol, signer_of, statistics_of
from stream.servers.connection import start_client
from stream.statistics.plan import PlanError
from stream.statistics.window_rows import WindowRows
from stream.storage.client import redis_client, spans_servers
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, OutOfTurnError
from stream.storage.release_store import Released, ReleaseStore
from stream.storage.row_store import NotSealedError, RowStore


@dataclass(frozen=True)
class CloseReport:
    """The result of one attempt to close or publish a window.

    ``failure``: turn, ledger, publish, redis, content, unsealed or unexpected; None if the window was committed.
    ``released``: None if the window waits for its instant of publication. ``behind``: seconds by which it was published
    after its first instant; None if windows are published as soon as they are committed. ``beyond_limits``: number of
    events that do not count, because their user exceeds a limit of the window. ``refused``: number of events that a
    rule of ``feed.quality`` refused, by reason.
    """

    slot: int
    seconds: float
    released: Released | None = None
    redraws: int = 0
    behind: float | None = None
    failure: str | None = None
    reason: str = ""
    beyond_limits: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def blocks(self) -> bool:
        """Whether the windows behind this one wait for it: it failed, but not for its content."""
        return self.failure not in (None, "content")


FAILURES: dict[type[Exception], str] = {
    OutOfTurnError: "turn",
    LedgerError: "ledger",
    PlanError: "ledger",
    ContentError: "content",
    NotSealedError: "unsealed",
    RedisError: "redis",
    PublishError: "publish",
    KafkaError: "publish",
}
"""Errors that the next attempt may overcome; any other error is unexpected."""
PUBLICATION_LEAD_SECONDS = 3.0
"""How long before its instant a window is given to the publishing process, which first connects and verifies the
ledger. Where that takes longer, the instant is missed, and the next attempt gets more time.
"""
_known: dict[tuple[str, FeedKeys], Known] = {}
"""What this process knows about each broker and feed; it is kept between calls."""


def begin_closing(parent: int) -> None:
    """Initialise the process: it ends when ``parent`` ends, and logs like ``parent``."""
    die_with_parent(parent)
    configure_logs()


def close_in_process(config: Config, slots: list[int]) -> list[CloseReport]:
    """:func:`close_windows`, in a process of its own."""
    return asyncio.run(close_windows(config, slots))


def publish_in_process(config: Config, slots: list[int], lead_seconds: float) -> list[CloseReport]:
    """:func:`publish_windows`, in a process of its own."""
    return asyncio.run(publish_windows(config, slots, lead_seconds))


def begin_anew() -> None:
    """Know nothing yet, as in a new process. Calling it imports what closing needs, so that no window waits."""
    _known.clear()


async def close_windows(config: Config, slots: list[int]) -> list[CloseReport]:
    """Close ``slots``, which ascend, in order. Stops at the first that fails and is not set aside.

    If windows are published at fixed instants, they are only committed here and wait for :func:`publish_windows`.
    """
    reports: list[CloseReport] = []
    try:
        async with _connected(config) as servers:
            for slot in slots:
                reports.append(await servers.close(slot, publishes=config.publication is None))
                if reports[-1].blocks:
                    break
    except KafkaError as error:
        reports.append(_failed(slots[0], error))
    return reports


async def publish_windows(
    config: Config, slots: list[int], lead_seconds: float = PUBLICATION_LEAD_SECONDS
) -> list[CloseReport]:
    """Publish the committed windows ``slots``, each at its next instant by the clock of Redis, in the order of the
    instants.

    Connections are made and the ledger is verified before the first instant. If a window misses its instant meanwhile
    and its next one is more than ``lead_seconds`` away, it is left for the next call, because another window may come
    first. Stops at the first failure.
    """
    times, reports = config.publication, list[CloseReport]()
    assert times is not None, "without instants a window is published by the process that closes it"
    ends = {slot: config.slotting.window(slot).end for slot in slots}
    try:
        async with _connected(config) as servers:
            await servers.check.verify()
            now_us = await servers.rows.now_us()
            instants = sorted((times.next_us(end, now_us), slot) for slot, end in ends.items())
            for instant_us, slot in instants:
                if instant_us > now_us + lead_seconds * 1e6:
                    break
                begun_us = await _until(instant_us, servers.rows)
                report = await servers.close(slot, publishes=True, commits=False)
                reports.append(replace(report, behind=(begun_us - times.first_us(ends[slot])) / 1e6))
                if report.blocks:
                    break
    except (KafkaError, RedisError, LedgerError) as error:
        reports.append(_failed(slots[0], error))
    return reports


async def _until(instant_us: int, rows: RowStore) -> int:
    """Wait until Redis's clock shows ``instant_us`` or later, and return its time. A worker's clock may be wrong."""
    while (now_us := await rows.now_us()) < instant_us:
        await asyncio.sleep(min((instant_us - now_us) / 1e6, 1.0))
    return now_us


@dataclass(frozen=True)
class _Servers:
    """Connections to the Redis and Kafka of one feed."""

    config: Config
    check: LedgerCheck
    publisher: KafkaPublisher

    @property
    def rows(self) -> RowStore:
        return RowStore.of(self.check.redis, self.config)

    def _protocol(self, **hooks: Any) -> ReleaseProtocol:
        check, rows = self.check, self.rows
        due = DueWindows(self.config, rows, ReleaseStore.of(check.redis, self.config), check.ledger)
        return ReleaseProtocol(
            statistics_of(self.config),
            check.redis,
            rows,
            check.ledger,
            self.publisher,
            Noise(),
            signer_of(self.config),
            before_publishing=self.check.verify,
            sealing=due.seal if spans_servers(check.redis) else None,
            **hooks,
        )

    async def close(self, slot: int, *, publishes: bool, commits: bool = True) -> CloseReport:
        """Verify the ledger and commit one window, and publish it at once; each of both only if asked to."""
        started, redraws, arranged = time.monotonic(), list[int](), list[WindowRows]()
        try:
            protocol = self._protocol(on_redraw=lambda: redraws.append(slot), on_uncounted=arranged.append)
            if commits:
                await self.check.verify_all()
                await protocol.commit(slot)
            released = await protocol.publish(slot) if publishes else None
        except Exception as error:
            return _failed(slot, error, started)
        report = CloseReport(slot, time.monotonic() - started, released, len(redraws))
        if not arranged:
            return report
        return replace(report, beyond_limits=arranged[-1].beyond_limits, refused=arranged[-1].refused)


@asynccontextmanager
async def _connected(config: Config) -> AsyncIterator[_Servers]:
    known = _known.setdefault((config.kafka.bootstrap, FeedKeys.of(config)), Known())
    redis, producer = redis_client(config.redis), make_producer(config.kafka)
    ledger = Ledger.of(redis, config)
    ledger.committed = known.committed
    try:
        await start_client(producer)
        yield _Servers(config, LedgerCheck(config, redis, ledger, known), KafkaPublisher(producer, config.kafka))
    finally:
        known.committed = ledger.committed
        await producer.stop()
        await redis.aclose()


def _failed(slot: int, error: Exception, started: float | None = None) -> CloseReport:
    """The report on an attempt that raised ``error``."""
    failure = next((name for kind, name in FAILURES.items() if isinstance(error, kind)), "unexpected")
    reason = f"{type(error).__name__}: {error}" if failure == "unexpected" else str(error)
    seconds = 0.0 if started is None else time.monotonic() - started
    return CloseReport(slot, seconds, failure=failure, reason=reason)
