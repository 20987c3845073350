"""A store of windows that takes messages as the service does, outside an event loop."""

import asyncio
from collections.abc import Iterable, Sequence

from stream.messages.message import Message
from stream.serve.metrics import PublicMetrics
from stream.serve.reading.intake import Arrival, Intake
from stream.serve.window_store import Outcome, View


def arrivals(messages: Iterable[Message], number: int = 0) -> list[Arrival]:
    """The messages as a source passes them on. ``number``: the close marker's position among the markers, from 1."""
    return [Arrival(message.topic, message.ce_id, message.value, number) for message in messages]


def outcomes(view: View, messages: Sequence[Arrival]) -> list[Outcome]:
    """What became of each message that the service's intake put into ``view``."""

    async def take() -> list[Outcome]:
        intake = Intake(view, PublicMetrics(), "bus", lambda window: None)
        try:
            return await intake.take(messages)
        finally:
            intake.close()

    return asyncio.run(take())
