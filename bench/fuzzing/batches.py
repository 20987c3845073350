"""Batches as the broker sends them: record batches of every codec whose bytes are mutated, with a fitting checksum."""

from __future__ import annotations

import asyncio
import random
import struct
from functools import partial
from types import TracebackType
from typing import Any, Self

import aiokafka.consumer.fetcher as fetcher
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import sound_event
from bench.fuzzing.mutation import Mutator, json_of
from stream.config.servers import KafkaConfig
from stream.ingestion.bounded import BoundedConsumer, FeedRecord
from stream.ingestion.unpacking import MAX_BATCH_BYTES

_PARTITION = TopicPartition("fuzz", 0)
_HEADER, _CRC_AT, _CRC_OF = 61, 17, 21
"""Sizes of a record batch's parts (Kafka protocol, record batch v2): its header, where its CRC-32C is, and from where
it is taken."""
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Batches(Target):
    """Three batches after one another of which the middle one is mutated."""

    name = "kafka-batches"
    contract = (
        "records, or a batch that is skipped with its offsets, or an error of Kafka; the batch before it is read whole"
    )

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._make())
        return self

    async def _make(self) -> BoundedConsumer:
        return BoundedConsumer(KafkaConfig(), None)

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._loop.run_until_complete(self._consumer.kafka.stop())
        self._loop.close()

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """A hundred batches."""
        mutator = Mutator(rng)
        values = [json_of(sound_event("canonical", rng)) for _ in range(8)]
        first = {name: _batch(codec, 0, values) for name, codec in _CODECS.items()}
        for _ in range(100):
            codec = rng.choice(list(_CODECS))
            middle = _batch(_CODECS[codec], 8, [mutator.json(sound_event("canonical", rng)) for _ in range(4)])
            hunt.attempt(self._mutated(mutator, middle), partial(self._check, first[codec], values))

    @staticmethod
    def _mutated(mutator: Mutator, batch: bytes) -> bytes:
        if mutator.rng.random() < 0.1:
            batch = mutator.octets(batch)
        else:
            batch = batch[:_CRC_OF] + mutator.octets(batch[_CRC_OF:])
        if len(batch) < _HEADER:
            return batch
        length = struct.pack(">i", len(batch) - 12)
        if mutator.rng.random() < 0.1:
            return batch[:8] + length + batch[12:]  # damaged in the log
        checksum = struct.pack(">I", calc_crc32c(batch[_CRC_OF:]))
        return batch[:8] + length + batch[12:_CRC_AT] + checksum + batch[_CRC_OF:]

    def _check(self, before: bytes, values: list[bytes], data: bytes) -> None:
        consumer = self._consumer
        consumer.skipped.clear()
        consumer.bytes_read = 0
        limits = consumer.kafka._value_deserializer
        records: list[FeedRecord] = []
        try:
            reading: Any = fetcher.PartitionRecords(
                _PARTITION, MemoryRecords(before + data), [], 0, None, limits, True, fetcher.READ_UNCOMMITTED
            )
            for record in reading:
                records.append(record)
                assert isinstance(record, FeedRecord)
        except (KafkaError, struct.error):
            return
        assert [record.value for record in records[: len(values)]] == values, "a batch changes what came before it"
        assert sum(len(record.value or b"") for record in records) <= 2 * MAX_BATCH_BYTES


def _batch(codec: int, offset: int, values: list[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for at, value in enumerate(values):
        builder.append(at, 1_700_000_000_000 + at, b"key", value, [])
    return struct.pack(">q", offset) + bytes(builder.build())[8:]
