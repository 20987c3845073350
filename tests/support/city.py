"""Feeds with real servers, whose Redis can be set back."""

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stream.config import Config
from stream.ingestion.pseudonyms import load_user_key
from stream.local.server import RedisServer
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.protocol import close_process
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import LedgerCheck, verify_ledger
from stream.storage.ledger import Ledger
from stream.storage.shared_ledger import SharedLedger
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config
from tests.support.sharing import PERIOD, sharing
from tests.support.stored_rows import dump, fill, put_back
from tests.support.topics_reader import read_all

HOUR = 3600


@dataclass
class City:
    """Feeds with a Redis of their own that can be copied and set back. Where none is named, the first is meant."""

    feeds: tuple[Config, ...]
    server: RedisServer
    folder: Path
    client: Redis

    @property
    def bus(self) -> Config:
        return self.feeds[0]

    @property
    def tram(self) -> Config:
        return self.feeds[1]

    @property
    def shared(self) -> SharedLedger:
        return SharedLedger(self.client, self.bus.feed.name, str(self.bus.shared_ledger))

    async def fill(self, hours: int = 3) -> None:
        for config in self.feeds:
            await fill(self.client, config, hours)

    async def verify(self, config: Config | None = None) -> str:
        return await verify_ledger(config or self.bus, self.client)

    async def release(self, config: Config, hour: int) -> str | None:
        """Why the window was not released; None if it was."""
        (report,) = await close_windows(config, [SLOT + hour * HOUR])
        return report.reason if report.failure else None

    async def failures(self, *hours: int) -> list[str | None]:
        """What became of windows of the first feed that were closed in turn; None: it was released."""
        return [report.failure for report in await close_windows(self.bus, [SLOT + hour * HOUR for hour in hours])]

    async def spent(self) -> tuple[int, int]:
        return await Ledger.of(self.client, self.bus).total(PERIOD)

    async def markers(self, config: Config | None = None) -> list[dict[str, Any]]:
        """Every close marker, in order of publication."""
        feed = config or self.bus
        return [json.loads(record.value) for record in await read_all(feed.kafka.bootstrap, feed.feed.name, [WINDOW])]

    async def sequences(self) -> list[int]:
        """The numbers of the windows that were published."""
        return [marker["sequence"] for marker in await self.markers()]

    @contextmanager
    def losing_after_the_next_look(self, config: Config) -> Iterator[None]:
        """After the next look at the close markers, a window of ``config`` is released, and Redis loses it again."""
        look, looks = LedgerCheck.verify, []

        async def overtaken(check: LedgerCheck) -> None:
            await look(check)
            looks.append(1)
            if len(looks) == 1:
                older = await dump(self.client)
                assert await self.release(config, 0) is None
                await put_back(self.client, older)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LedgerCheck, "verify", overtaken)
            yield

    def backup(self) -> None:
        """Copy the append-only file, in place of an earlier copy."""
        shutil.rmtree(self.folder / "backup", ignore_errors=True)
        shutil.copytree(self.server.folder / "appendonlydir", self.folder / "backup")

    async def set_back(self) -> None:
        """Start Redis again with the copy, as an operator does who restores a backup."""
        self.server.stop()
        shutil.rmtree(self.server.folder / "appendonlydir")
        shutil.copytree(self.folder / "backup", self.server.folder / "appendonlydir")
        self.server.start()
        await self.client.connection_pool.disconnect()


@pytest.fixture
async def city(kafka: str, redis_binary: str | None, tmp_path: Path, topic_name: str) -> AsyncIterator[City]:
    """Two feeds of one ledger."""
    with RedisServer(tmp_path / "redis", binary=redis_binary) as server:
        settings = {"kafka.bootstrap": kafka, "redis.url": server.url, "privacy.budget": 96.0}
        both = sharing(tmp_path, f"{topic_name}-", topic_name, **settings)
        for config in both:
            await create_topics(config)
            load_user_key(config.privacy.user_key_file)  # as a worker that starts does
        close_process.begin_anew()
        async with Redis.from_url(server.url) as client:
            yield City(both, server, tmp_path, client)


@pytest.fixture
async def deployment(kafka: str, redis_binary: str | None, tmp_path: Path, topic_name: str) -> AsyncIterator[City]:
    """A feed with a ledger of its own."""
    with RedisServer(tmp_path / "redis", binary=redis_binary) as server:
        named = {"feed.name": topic_name, "feed.topic": topic_name, "kafka.group": topic_name}
        config = bus_config(tmp_path, **named, **PLAINLY_PLANNED, **{"kafka.bootstrap": kafka, "redis.url": server.url})
        await create_topics(config)
        async with Redis.from_url(server.url) as client:
            yield City((config,), server, tmp_path, client)
