"""Sends generated releases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer

from stream.messages.message import Message


async def deliver(producer: AIOKafkaProducer, messages: Sequence[Message]) -> None:
    """Send all and return once the broker has them."""
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
    await asyncio.gather(*waiting)
