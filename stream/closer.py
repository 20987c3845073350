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
from stream.closing import Closing, ledger_policy, user_identity
from stream.config import Config
from stream.ledger import Ledger, LedgerError
from stream.plan import PlanError
from stream.publishing import KafkaPublisher, PublishError, last_marker, make_producer
from stream.state import State


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


_vouched: dict[tuple[str, str], tuple[str, str]] = {}
"""Which Redis (process and replication history) was last known to remember every release, by its address and feed."""


async def _vouch(config: Config, redis: Redis) -> None:
    """Verify the ledger unless this very Redis was verified before: one that was restarted or replaced may have forgotten.

    Raises :class:`LedgerError` as :func:`verify_ledger`.
    """
    info = await redis.info()
    _refuse_eviction(info)
    present = str(info["run_id"]), str(info["master_replid"])
    feed = config.redis.url, config.feed.name
    if _vouched.get(feed) != present:
        await verify_ledger(config, redis)
        _vouched[feed] = present


async def _close_all(config: Config, slots: list[int]) -> list[CloseReport]:
    redis = Redis.from_url(config.redis.url)
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
            ledger=Ledger(redis, config.feed.name),
            publisher=KafkaPublisher(producer, config.kafka),
            noise=Noise(),
            on_redraw=count_redraw,
        )
        for slot in slots:
            started, redraws = time.monotonic(), 0
            try:
                await _vouch(config, redis)
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

    Reads the feed's last close marker from Kafka. Raises :class:`LedgerError` if that release was made under another
    generation or is unknown to Redis: then budgets were lost, and releasing again would spend them twice.
    """
    _refuse_eviction(await redis.info())
    ledger = Ledger(redis, config.feed.name)
    await ledger.claim_policy(ledger_policy(config))
    await ledger.claim_identity(user_identity(config))
    marker = await last_marker(config.kafka, config.feed.name)
    generation = await ledger.generation()
    if marker is None:
        return generation or await ledger.start_generation()
    known = msgspec.json.decode(marker)
    start = known["window"]["start"]
    if generation is None or generation != known["generation"]:
        raise LedgerError(
            f"the last release of feed {config.feed.name!r} (window {start}) was made under ledger generation "
            f"{known['generation']}, Redis holds {generation or 'none'}: spent budgets are lost, so nothing is released. "
            "Restore Redis from its append-only file, or start a new feed name once the period is over"
        )
    slot = int(datetime.fromisoformat(start).timestamp())
    prefix = f"hv:{{{config.feed.name}}}:"
    if not (await redis.hexists(prefix + "closed", str(slot)) or await redis.exists(prefix + f"outbox:{slot}")):
        raise LedgerError(
            f"window {start} was published, but Redis does not know it: Redis was set back to an older state and its "
            "budgets with it, so nothing is released. Restore the newest append-only file"
        )
    return generation
