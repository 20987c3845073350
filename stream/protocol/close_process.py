"""Closing windows apart from the worker's event loop: connects Redis and Kafka to the release protocol."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dpcore.noise import Noise
from stream.config import Config
from stream.ingestion.formats import user_identity
from stream.messages.message import decode_outbox
from stream.protocol.markers import Marker, Published, read_markers
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.protocol.release_protocol import Closed, Closing
from stream.statistics.plan import PlanError
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import State


@dataclass(frozen=True)
class CloseReport:
    """How one attempt to close a window went; ``failure`` is ledger, publish or redis, None where it was released."""

    slot: int
    seconds: float
    messages: int = 0
    suppressed: int = 0
    redraws: int = 0
    failure: str | None = None
    reason: str = ""


def close_in_process(config: Config, slots: list[int]) -> list[CloseReport]:
    """Close ``slots`` in order; stops at the first failure. Runs in a process of its own."""
    return asyncio.run(_close_all(config, slots))


_published: dict[tuple[str, str], Published] = {}
"""What was read of the output topic so far, by broker and feed."""
_committed: dict[tuple[str, str], int] = {}
"""Windows that this process knows to be committed, published or not, by broker and feed."""


async def _vouch(config: Config, redis: Redis, ledger: Ledger) -> None:
    """Before every window: Redis remembers whatever was published by now. Raises :class:`LedgerError` as :func:`verify_ledger`."""
    feed = config.kafka.bootstrap, config.feed.name
    _published[feed] = await _verify(config, redis, ledger, _published.get(feed))


async def _close_all(config: Config, slots: list[int]) -> list[CloseReport]:
    redis = Redis.from_url(config.redis.url)
    feed = config.kafka.bootstrap, config.feed.name
    ledger = Ledger(redis, config.feed.name)
    ledger.committed = _committed.get(feed, 0)
    producer = make_producer(config.kafka)
    reports: list[CloseReport] = []
    try:
        await producer.start()
        redraws = 0

        def count_redraw() -> None:
            nonlocal redraws
            redraws += 1

        closing = Closing(
            config=config,
            redis=redis,
            rows=State(redis, config.feed.name),
            ledger=ledger,
            publisher=KafkaPublisher(producer, config.kafka),
            noise=Noise(),
            on_redraw=count_redraw,
        )
        for slot in slots:
            started, redraws = time.monotonic(), 0
            try:
                await _vouch(config, redis, ledger)
                closed = await closing.close(slot)
            except (LedgerError, PlanError) as error:
                reports.append(_failed(slot, started, "ledger", error))
                break
            except RedisError as error:
                reports.append(_failed(slot, started, "redis", error))
                break
            except (PublishError, KafkaError) as error:
                reports.append(_failed(slot, started, "publish", error))
                break
            seconds = time.monotonic() - started
            reports.append(CloseReport(slot, seconds, closed.messages, closed.suppressed, redraws))
    except KafkaError as error:
        reports.append(_failed(slots[0], time.monotonic(), "publish", error))
    finally:
        _committed[feed] = ledger.committed
        await producer.stop()
        await redis.aclose()
    return reports


def _failed(slot: int, started: float, failure: str, error: Exception) -> CloseReport:
    return CloseReport(slot, time.monotonic() - started, failure=failure, reason=str(error))


def _refuse_eviction(info: dict[str, Any]) -> None:
    if int(info["maxmemory"]) > 0 and str(info["maxmemory_policy"]).startswith("allkeys"):
        raise LedgerError(
            f"Redis may evict the ledger: maxmemory-policy {info['maxmemory_policy']} with maxmemory {info['maxmemory']}; an "
            "evicted budget is granted again, so nothing is released. CONFIG SET maxmemory-policy noeviction"
        )


async def verify_ledger(config: Config, redis: Redis) -> str:
    """The ledger generation, once Redis is known to remember everything that was published.

    Raises :class:`LedgerError` if a window was published under another generation, if Redis remembers fewer windows than
    were published (:class:`stream.storage.ledger.SetBackError`) or does not know the last one: then budgets were lost, and releasing
    again would spend them twice. Also where the configuration would give everybody a second budget.
    """
    ledger = Ledger(redis, config.feed.name)
    await _verify(config, redis, ledger, None)
    generation = await ledger.generation()
    if generation is None:
        raise LedgerError(
            f"Redis lost the ledger of feed {config.feed.name!r} while it was verified; restore its append-only file"
        )
    return generation


async def _verify(config: Config, redis: Redis, ledger: Ledger, known: Published | None) -> Published:
    """:func:`verify_ledger` with what is ``known`` of the topic; returns what it shows now."""
    _refuse_eviction(await redis.info())
    published = await read_markers(config.kafka, config.feed.name, known)
    # Redis is asked after the topic: what is committed meanwhile can only make it remember more.
    if published.last is None:
        await ledger.start_generation()
    else:
        await _remembers(config, redis, ledger, published, published.last)
    await ledger.claim_policy(config.ledger_policy)
    await ledger.claim_identity(user_identity(config.feed))
    return published


async def _remembers(config: Config, redis: Redis, ledger: Ledger, published: Published, last: Marker) -> None:
    """Raise :class:`LedgerError` unless Redis holds the ledger of every marker and knows the last of them."""
    generation = await ledger.generation()
    foreign = sorted(published.generations - {generation})
    if foreign:
        raise LedgerError(
            f"feed {config.feed.name!r} was released under ledger generation {', '.join(foreign)} (last window {last.window.start}), "
            f"Redis holds {generation or 'none'}: spent budgets are lost, or two Redis serve one feed, so nothing is released. "
            "Restore Redis from its append-only file, or start a new feed name once the period is over"
        )
    ledger.committed = max(ledger.committed, last.sequence)
    await ledger.sequence()
    slot = int(datetime.fromisoformat(last.window.start).timestamp())
    prefix = f"hv:{{{config.feed.name}}}:"
    async with redis.pipeline(transaction=True) as both:
        both.hget(prefix + "closed", str(slot))
        both.get(prefix + f"outbox:{slot}")
        closed, outbox = await both.execute()
    digests = {
        None if closed is None else msgspec.json.decode(closed, type=Closed).digest,
        None if outbox is None else msgspec.json.decode(decode_outbox(outbox)[-1].value, type=Marker).digest,
    }
    if last.digest not in digests:
        raise LedgerError(
            f"window {last.window.start} was published, but Redis does not know it: Redis was set back to an older state and its "
            "budgets with it, so nothing is released. Restore the newest append-only file"
        )
