"""Reads what a campaign left behind: close markers as they appear, topics from their beginning, ledgers from Redis."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec
import redis
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from bench.faults.checker import OutputRecord
from bench.faults.recount import InputRecord, Recount
from stream.config import Config
from stream.messages.message import OUTPUT_TOPICS, WINDOW
from stream.storage.keys import FeedKeys

_POLL_SECONDS = 0.1


class Observer(threading.Thread):
    """Follows the topic of close markers and notes when each window first appeared: ``seen``, by feed and slot."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True, name="observer")
        self.seen: dict[str, dict[int, float]] = defaultdict(dict)
        self._brokers = bootstrap
        self._over = threading.Event()

    def run(self) -> None:
        asyncio.run(self._follow())

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join(30)

    def next_window(self, feed: str, after: float, seconds: float) -> float | None:
        """Seconds from ``after`` (epoch seconds) until a window of ``feed`` appeared; None if none did in
        ``seconds``."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            times = [at for at in list(self.seen[feed].values()) if at > after]
            if times:
                return min(times) - after
            time.sleep(_POLL_SECONDS)
        return None

    def wait_for(self, feed: str, slots: Collection[int], seconds: float) -> bool:
        """Wait until all of ``slots`` appeared; False if some did not in ``seconds``."""
        deadline = time.time() + seconds
        while not set(slots) <= set(self.seen[feed]):
            if time.time() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    async def _follow(self) -> None:
        position: dict[TopicPartition, int] = {}
        while not self._over.is_set():
            consumer = AIOKafkaConsumer(bootstrap_servers=self._brokers, metadata_max_age_ms=5_000)
            try:
                await consumer.start()
                while not (numbers := consumer.partitions_for_topic(WINDOW)) and not self._over.is_set():
                    await consumer._client.force_metadata_update()
                    await asyncio.sleep(_POLL_SECONDS)
                partitions = [TopicPartition(WINDOW, number) for number in numbers or ()]
                consumer.assign(partitions)
                for partition in partitions:
                    consumer.seek(partition, position.get(partition, 0))
                await self._note(consumer, position)
            except (KafkaError, OSError):
                await asyncio.sleep(0.5)
            finally:
                with suppress(asyncio.CancelledError):  # one of its own tasks, cancelled while no broker answers
                    await consumer.stop()

    async def _note(self, consumer: AIOKafkaConsumer, position: dict[TopicPartition, int]) -> None:
        while not self._over.is_set() and consumer.assignment():
            for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                now = time.time()
                for record in records:
                    body = msgspec.json.decode(record.value)
                    slot = round(datetime.fromisoformat(body["window"]["start"]).timestamp())
                    self.seen[body["feed"]].setdefault(slot, now)
                    position[partition] = record.offset + 1


async def _read_topic(bootstrap: str, topic: str, take: Callable[[int, Sequence[ConsumerRecord]], None]) -> None:
    """Give every record of ``topic`` to ``take``, with its partition, in order within each."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        fetch_max_bytes=64 << 20,
        max_partition_fetch_bytes=8 << 20,
    )
    await consumer.start()
    try:
        await consumer._client.force_metadata_update()
        numbers = await consumer._client._wait_on_metadata(topic)
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                for records in (await consumer.getmany(partition, timeout_ms=500, max_records=20_000)).values():
                    take(partition.partition, records)
    finally:
        await consumer.stop()


def recount(bootstrap: str, config: Config) -> Recount:
    """The recount of a feed's input topic."""
    counted = Recount(config, config.privacy.user_key_file.read_bytes())

    def take(partition: int, records: Sequence[ConsumerRecord]) -> None:
        counted.add(partition, [InputRecord(record.timestamp * 1000, record.value) for record in records])

    asyncio.run(_read_topic(bootstrap, config.feed.topic, take))
    return counted


def outputs(bootstrap: str) -> dict[str, list[OutputRecord]]:
    """Every message of the output topics, by feed."""
    records_of: dict[str, list[OutputRecord]] = defaultdict(list)
    for topic in OUTPUT_TOPICS:

        def take(_: int, records: Sequence[ConsumerRecord]) -> None:
            for record in records:
                headers = dict(record.headers)
                feed = headers["ce_source"].decode().rpartition("/")[2]
                records_of[feed].append(OutputRecord(record.topic, headers["ce_id"].decode(), record.value))

        asyncio.run(_read_topic(bootstrap, topic, take))
    return records_of


def ledger(redis_url: str, feed: str) -> dict[str, dict[int, int]]:
    """Units that every user spent, by period and pseudonym."""
    prefix = FeedKeys(feed).ledger("")
    with redis.Redis.from_url(redis_url) as client:
        keys = [key.decode() for key in client.scan_iter(count=1_000) if key.decode().startswith(prefix)]
        return {
            key.removeprefix(prefix): {int(user): int(spent) for user, spent in client.hgetall(key).items()}
            for key in keys
        }


def committed(redis_url: str, feed: str) -> int:
    """Number of windows that Redis remembers as committed."""
    with redis.Redis.from_url(redis_url) as client:
        return int(client.get(FeedKeys(feed).sequence) or 0)
