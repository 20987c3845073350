"""Every row is stored once after redelivery, with other batch boundaries, by former owners, and in shuffled
partitions.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from redis.asyncio import Redis

from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.ingestion.reader import Ingestor
from stream.metrics import OperatorMetrics
from stream.sources.recording import Recording
from stream.statistics.plan import encode_plan
from stream.storage.row_store import Appended, RowStore
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.feeding import administering
from tests.support.releasing import planned
from tests.support.stored_rows import rows_in


@pytest.mark.parametrize("seed", range(20))
async def test_overlapping_redeliveries_with_any_boundaries_leave_each_row_once(redis: Redis, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(seed, 300, hours=3)
    offsets = np.sort(rng.choice(900, 300, replace=False)).astype(np.int64)
    slots = SLOT + (rows["time"] // 1_000_000 - SLOT) // 3600 * 3600
    state = RowStore(redis, "bus")
    taken = 0
    high = 0
    while high < 900:
        first = int(rng.integers(0, high + 1))
        following = int(rng.integers(high, min(high + 200, 900))) + 1
        part = (offsets >= first) & (offsets < following)
        result = await state.append("t/0", first, following, rows[part], offsets[part], slots[part])
        taken += result.appended
        high = max(high, following)
    assert taken == len(rows)
    assert await state.next_offsets() == {"t/0": 900}
    stored = [await rows_in(redis, "bus", slot) for slot in await state.open_slots()]
    assert sorted(np.concatenate(stored).tolist()) == sorted(rows.tolist())


async def test_a_sealed_slot_takes_nothing_and_the_rest_of_the_batch_still_lands(redis: Redis) -> None:
    rows = random_rows(1, 100, hours=2)
    slots = SLOT + (rows["time"] // 1_000_000 - SLOT) // 3600 * 3600
    state = RowStore(redis, "bus")
    await state.seal(SLOT)
    result = await state.append("t/0", 0, 100, rows, np.arange(100), slots)
    assert result == Appended(int((slots != SLOT).sum()), 0, int((slots == SLOT).sum()))
    assert await state.open_slots() == [SLOT + 3600]
    assert len(await state.read(SLOT)) == 0


class Redelivering(Ingestor):
    """A consumer that forgot where it was, as after a commit that never reached Kafka."""

    async def on_partitions_assigned(self, assigned) -> None:
        assigned = list(assigned)
        await super().on_partitions_assigned(assigned)
        for partition in assigned:
            self.bounded.kafka.seek(partition, 0)


async def _drop(message) -> None:
    return None


async def _ingest(ingestor: Ingestor, metrics: OperatorMetrics, until: int) -> None:
    running = asyncio.create_task(ingestor.run())
    for _ in range(600):
        done = sum(
            counter._value.get() for counter in (metrics.events_ingested, metrics.events_duplicate, metrics.events_late)
        )
        if done >= until or running.done():
            break
        await asyncio.sleep(0.05)
    await ingestor.stop()
    await running


async def test_a_day_replayed_twice_with_redelivery_and_shuffled_partitions_gives_the_same_rows_plans_and_charges(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, shared_data: Path
) -> None:
    path = shared_data / "capmetro" / "2017-03-21.csv.gz"
    outcomes, n = [], 11_346
    for run, partitions in enumerate((1, 3)):
        topic = f"{topic_name}-{run}"
        settings = {"feed.topic": topic, "kafka.bootstrap": kafka, "kafka.group": topic, "redis.url": redis_url}
        settings["window.lateness"] = "event-time"
        config = bus_config(tmp_path, **settings)
        await redis.flushall()
        async with administering(kafka) as admin:
            await admin.create_topics([NewTopic(topic, partitions, 1)])
        with Recording(path, "capmetro", config.feed) as recording:
            messages = [pair for block in recording for pair in zip(block.keys, block.values, strict=True)][::4]
        if run:
            order = np.random.default_rng(7).permutation(len(messages))
            messages = [messages[i] for i in order]
        producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=20)
        await producer.start()
        waiting = [
            await producer.send(topic, value, partition=index % partitions) for index, (_, value) in enumerate(messages)
        ]
        await asyncio.gather(*waiting)
        await producer.stop()
        decoder = Decoder(config, load_user_key(config.privacy.user_key_file))
        metrics = OperatorMetrics()
        await _ingest(Ingestor(config, redis, decoder, metrics, _drop), metrics, n)
        if run:
            again = OperatorMetrics()
            redelivered = config.model_copy(
                update={"kafka": config.kafka.model_copy(update={"group": topic + "-again"})}
            )
            await _ingest(Redelivering(redelivered, redis, decoder, again, _drop), again, n)
            assert again.events_duplicate._value.get() == n
            assert again.events_ingested._value.get() == 0
        state = RowStore(redis, config.feed.name)
        outcome = {}
        for slot in await state.open_slots():
            plan, contributions = planned(config, await rows_in(redis, config.feed.name, slot), slot=slot)
            outcome[slot] = (contributions.values.tobytes(), encode_plan(plan))
        outcomes.append(outcome)
    assert len(outcomes[0]) == 11
    assert outcomes[0] == outcomes[1]


async def test_bad_messages_are_counted_and_reported_without_payload_and_the_good_ones_arrive(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"feed.topic": topic_name, "kafka.bootstrap": kafka, "kafka.group": topic_name, "redis.url": redis_url}
    settings["window.lateness"] = "event-time"
    config = bus_config(tmp_path, **settings)
    async with administering(kafka) as admin:
        await admin.create_topics([NewTopic(topic_name, 1, 1, topic_configs={"max.message.bytes": str(20 << 20)})])
    good = {"user": "b1", "time": "2026-01-01T10:00:00Z", "lat": 30.2, "lng": -97.7, "speed": 30.0}
    secret = "GJ05NH3216"
    bad = [
        b"{not json",
        b"\xff\xfe\x00",
        b"[" * 60_000,
        json.dumps(good | {"user": secret, "speed": None}).encode(),
        b'{"user":"x","time":"2026-01-01T10:00:00Z","lat":30.2,"lng":-97.7,"speed":NaN}',
        json.dumps(good | {"lat": 3.0}).encode(),
        json.dumps(good | {"time": "1901-01-01T00:00:00Z"}).encode(),
        json.dumps(good | {"time": "2999-01-01T00:00:00Z"}).encode(),
        json.dumps(good | {"user": secret * 100}).encode(),
        json.dumps(good | {"user": ""}).encode(),
        json.dumps(good | {"speed": "fast"}).encode(),
        b'{"user":"' + b"A" * 10_000_000 + b'"}',
        None,
    ]
    producer = AIOKafkaProducer(bootstrap_servers=kafka, max_request_size=20 << 20)
    await producer.start()
    for value in bad:
        await producer.send_and_wait(topic_name, value, key=b"k")
    await producer.send_and_wait(topic_name, json.dumps(good).encode(), key=b"k")
    await producer.stop()
    reports = []

    async def keep(message) -> None:
        reports.append(message)

    metrics = OperatorMetrics()
    decoder = Decoder(config, load_user_key(config.privacy.user_key_file))
    await _ingest(Ingestor(config, redis, decoder, metrics, keep), metrics, 1)
    assert metrics.events_ingested._value.get() == 1
    assert (await RowStore(redis, config.feed.name).next_offsets())[f"{topic_name}/0"] == len(bad) + 1
    assert sum(json.loads(report.value)["count"] for report in reports) == len(bad)
    assert not any(secret.encode() in report.value or b"AAAA" in report.value for report in reports)
    assert TopicPartition(topic_name, 0)
