"""The published numbers of windows do not tell how long a draw took. Real Kafka and Redis."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from redis.asyncio import Redis

from stream.app.closing import Closing
from stream.app.process import WorkProcess
from stream.app.publishing import Publishing
from stream.app.worker import Worker
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.statistics import window_release
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.stream.app.test_publication import BOX, beside, in_a_thread, read_on, text
from tests.support.builders import random_rows, riders_config
from tests.support.feeding import until

SLOT_SECONDS, WINDOWS = 3, 5
COST = 7.0
"""Seconds of the first draw: two other windows become due meanwhile."""


async def test_windows_are_numbered_in_the_order_of_their_time_however_long_the_first_draw_takes(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = {"window.slot": f"{SLOT_SECONDS}s", "window.allowed_delay": "0s", "window.publication_margin": "12s"}
    servers = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    config = riders_config(tmp_path, **servers, **window, **{"feed.domain": BOX, "hexagons.resolution": 7})
    await create_topics(config)
    await Ledger(redis, config.feed.name).start_generation(birth=0)
    rows, numbers = RowStore(redis, config.feed.name), dict[str, int]()
    listening = asyncio.Event()

    async def listen() -> None:
        consumer = AIOKafkaConsumer(WINDOW, bootstrap_servers=kafka, auto_offset_reset="latest")
        await consumer.start()
        try:
            await consumer.seek_to_end()
            listening.set()
            async for record in consumer:
                marker = json.loads(record.value)
                if marker["feed"] == topic_name:
                    numbers[marker["window"]["start"]] = marker["sequence"]
        finally:
            await consumer.stop()

    async with beside(listen(), read_on(rows)):
        await listening.wait()
        first = int(time.time()) // SLOT_SECONDS * SLOT_SECONDS + 2 * SLOT_SECONDS
        await redis.set(FeedKeys(config.feed.name).first_slot, first)
        crowd = random_rows(1, 500, slot=first)
        crowd["time"] = first * 1_000_000 + np.arange(500)
        await rows.append("t/0", 0, 500, crowd, np.arange(500), np.full(500, first))
        draw = window_release.draw

        def costly(plan: Any, *rest: Any) -> Any:
            if plan.window.start == first:
                time.sleep(COST)
            return draw(plan, *rest)

        monkeypatch.setattr(window_release, "draw", costly)
        monkeypatch.setattr(WorkProcess, "run", in_a_thread)
        monkeypatch.setattr(Worker, "end_soon", lambda _: None)
        worker = Worker(config)
        worker.ready.set()
        services = [Closing(worker), Publishing(worker)]
        slots = range(first, first + WINDOWS * SLOT_SECONDS, SLOT_SECONDS)

        async def all_published() -> bool:
            return all(text(slot) in numbers for slot in slots)

        for service in services:
            await service.start()
        try:
            await until(all_published, 240.0)
        finally:
            for service in services:
                await service.stop()
            await worker.redis.aclose()
    assert [numbers[text(slot)] for slot in slots] == list(range(1, WINDOWS + 1))
