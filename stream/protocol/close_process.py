"""Closes windows in a process of their own: connects Redis and Kafka to the release protocol and reports how it went."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dpcore.noise import Noise
from stream.config import Config
from stream.local import die_with_parent
from stream.logs import configure_logs
from stream.protocol.content import ContentError
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import PlanError
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import RowStore


@dataclass(frozen=True)
class CloseReport:
    """How one attempt to close a window went; ``failure`` is ledger, publish, redis or content, None where it was released.

    ``beyond_limits``: events read that do not count, because their user is above a limit of the window.
    """

    slot: int
    seconds: float
    messages: int = 0
    suppressed: int = 0
    redraws: int = 0
    withheld: bool = False
    failure: str | None = None
    reason: str = ""
    beyond_limits: int = 0


FAILURES: dict[type[Exception], str] = {
    LedgerError: "ledger",
    PlanError: "ledger",
    ContentError: "content",
    RedisError: "redis",
    PublishError: "publish",
    KafkaError: "publish",
}
"""What an attempt may meet that the next one may overcome."""

_known: dict[tuple[str, str], Known] = {}
"""What this process knows of each broker and feed, from one call to the next."""


def begin_closing(parent: int) -> None:
    """First in the closing process: it ends with ``parent``, and logs as that does."""
    die_with_parent(parent)
    configure_logs()


def close_in_process(config: Config, slots: list[int]) -> list[CloseReport]:
    """Close ``slots`` in order; stops at the first failure that others would share. Runs in a process of its own."""
    return asyncio.run(close_windows(config, slots))


def forget_everything() -> None:
    """Know as little as a new process does."""
    _known.clear()


async def close_windows(config: Config, slots: list[int]) -> list[CloseReport]:
    """:func:`close_in_process` on a running event loop."""
    known = _known.setdefault((config.kafka.bootstrap, config.feed.name), Known())
    redis = redis_client(config.redis)
    ledger = Ledger(redis, config.feed.name)
    ledger.committed = known.committed
    check = LedgerCheck(config, redis, ledger, known)
    producer = make_producer(config.kafka)
    reports: list[CloseReport] = []
    try:
        await producer.start()
        publisher = KafkaPublisher(producer, config.kafka)
        for slot in slots:
            reports.append(await _attempt(config, redis, check, publisher, slot))
            if reports[-1].failure not in (None, "content"):
                break
    except KafkaError as error:
        reports.append(CloseReport(slots[0], 0.0, failure="publish", reason=str(error)))
    finally:
        known.committed = ledger.committed
        await producer.stop()
        await redis.aclose()
    return reports


async def _attempt(
    config: Config, redis: Redis, check: LedgerCheck, publisher: KafkaPublisher, slot: int
) -> CloseReport:
    """Close one window, once the ledger is known to remember everything that was published."""
    started, redraws, beyond_limits = time.monotonic(), [0], [0]

    def count_redraw() -> None:
        redraws[0] += 1

    def count_beyond_limits(events: int) -> None:
        beyond_limits[0] = events

    rows = RowStore(redis, config.feed.name)
    protocol = ReleaseProtocol.connect(
        config,
        redis,
        rows,
        check.ledger,
        publisher,
        Noise(),
        on_redraw=count_redraw,
        on_beyond_limits=count_beyond_limits,
    )
    try:
        await check.verify()
        released = await protocol.close(slot)
    except tuple(FAILURES) as error:
        failure = next(name for kind, name in FAILURES.items() if isinstance(error, kind))
        return CloseReport(slot, time.monotonic() - started, failure=failure, reason=str(error))
    seconds = time.monotonic() - started
    return CloseReport(
        slot,
        seconds,
        released.messages,
        released.suppressed,
        redraws[0],
        released.withheld,
        beyond_limits=beyond_limits[0],
    )
