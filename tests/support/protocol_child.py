"""Closes one window and kills itself with SIGKILL after a named protocol step; run as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import load_config
from stream.protocol.publishing import KafkaPublisher, make_producer
from stream.protocol.release_protocol import ReleaseProtocol
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore


async def close(config_path: Path, feed: str, key: str, bootstrap: str, url: str, slot: int, last_step: str) -> None:
    overrides = {"feed.name": feed, "privacy.user_key_file": key, "kafka.bootstrap": bootstrap}
    config = load_config(config_path, **overrides)
    redis = Redis.from_url(url)
    producer = make_producer(config.kafka)
    await producer.start()

    def kill_after(step: str) -> None:
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    closing = ReleaseProtocol.connect(
        config,
        redis,
        RowStore(redis, feed),
        Ledger(redis, feed),
        KafkaPublisher(producer, config.kafka),
        Noise(),
        after_step=kill_after,
    )
    try:
        await closing.close(slot)
    finally:
        await producer.stop()
        await redis.aclose()


if __name__ == "__main__":
    path, feed, key, bootstrap, url, slot, step = sys.argv[1:]
    asyncio.run(close(Path(path), feed, key, bootstrap, url, int(slot), step))
