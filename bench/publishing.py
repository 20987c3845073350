"""Sending made-up releases to a broker whose topics are a moment old."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import NotLeaderForPartitionError

from stream.releases import Message


async def deliver(producer: AIOKafkaProducer, messages: Sequence[Message]) -> None:
    """Send all and return once the broker has them; again from the start while a partition has no leader yet."""
    while True:
        waiting = [
            await producer.send(
                message.topic,
                message.value,
                key=message.key,
                headers=list(message.headers),
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        failed = [
            done for done in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(done, Exception)
        ]
        if not failed:
            return
        if not isinstance(failed[0], NotLeaderForPartitionError):
            raise failed[0]
        await asyncio.sleep(0.1)
