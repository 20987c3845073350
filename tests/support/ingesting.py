"""``python -m tests.support.ingesting TOPIC BOOTSTRAP REDIS``: an ingesting process that a test may kill."""

from __future__ import annotations

import asyncio
import sys

from redis.asyncio import Redis

from stream.ingestion.decoding import Decoder
from stream.ingestion.reader import Ingestor
from stream.messages.message import Message
from stream.metrics import OperatorMetrics
from tests.support.feeding import KEY, make_config


class Ingesting:
    """An ingestor that runs while its block does; collects its reports."""

    def __init__(self, topic: str, bootstrap: str, redis_url: str, group: str = "group", **window: object) -> None:
        self.config = make_config(topic, bootstrap, redis_url, group, **window)
        self.metrics = OperatorMetrics()
        self.reports: list[Message] = []
        self._redis = Redis.from_url(redis_url)
        self.ingestor = Ingestor(self.config, self._redis, Decoder(self.config, KEY), self.metrics, self._collect)

    async def _collect(self, message: Message) -> None:
        self.reports.append(message)

    async def __aenter__(self) -> Ingesting:
        self.task = asyncio.create_task(self.ingestor.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ingestor.stop()
        await self.task
        await self.close()

    async def close(self) -> None:
        """Free the connections of an ingestor that does not run."""
        await self._redis.aclose()

    def count(self, name: str) -> float:
        """Value of the operator metric ``hexveil_<name>``."""
        return self.metrics.registry.get_sample_value(f"hexveil_{name}") or 0.0

    def rejected(self, reason: str) -> float:
        """Number of events that were rejected for ``reason``."""
        return self.metrics.registry.get_sample_value("hexveil_events_rejected_total", {"reason": reason}) or 0.0


async def main() -> None:
    async with Ingesting(*sys.argv[1:4]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
