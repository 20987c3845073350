"""Every row is stored once after redelivery, with other batch boundaries, by former owners, and in shuffled
partitions.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from redis.asyncio import Redis

from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.ingestion.reader import Ingestor
from stream.metrics import OperatorMetrics
from stream.sources.recording import Recording
from stream.statistics.plan import encode_plan
from stream.storage.row_store import RowStore
from tests.support.builders import bus_config
from tests.support.feeding import administering
from tests.support.releasing import planned
from tests.support.stored_rows import rows_in


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
    outcomes = []
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
        n = len(messages)
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
