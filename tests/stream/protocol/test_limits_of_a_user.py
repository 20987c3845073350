"""The closing process counts events beyond a user's limits in an operator metric, and they appear nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.app.worker import Worker
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.protocol.close_process import close_windows
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.topics_reader import read_all


async def test_events_beyond_a_limit_are_counted_and_not_released(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 events of 12 users, of which at most 3 count: real Kafka and Redis."""
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    monkeypatch.setattr("stream.terms.MAX_EVENTS_PER_USER", 3)
    config = bus_config(tmp_path, **settings)
    await create_topics(config)
    await Ledger(redis, topic_name).start_generation(birth=0)
    rows = random_rows(1, 60)
    await RowStore(redis, topic_name).append("t/0", 0, 60, rows, np.arange(60), np.full(60, SLOT))
    (report,) = await close_windows(config, [SLOT])
    counts = np.unique(rows["user"], return_counts=True)[1]
    beyond = int(np.maximum(counts - 3, 0).sum())
    assert report.failure is None
    assert report.beyond_limits == beyond > 0
    bodies = [(r.topic, json.loads(r.value)) for r in await read_all(kafka, topic_name)]
    assert sum(body["events"] for topic, body in bodies if topic != WINDOW) == 60 - beyond
    worker = Worker(config)
    try:
        worker.record(report)
    finally:
        await worker.redis.aclose()
    assert worker.metrics.events_beyond_limits._value.get() == beyond
