"""Tests that spent budgets are kept run on every supported server of this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stream.config import Config
from stream.messages.topics import create_topics
from tests.support.builders import bus_config
from tests.support.city import city, deployment
from tests.support.redis_servers import pytest_generate_tests
from tests.support.stored_rows import Clock

__all__ = ["city", "deployment", "pytest_generate_tests"]


@pytest.fixture
async def feed(kafka: str, redis_url: str, tmp_path: Path, topic_name: str) -> Callable[..., Config]:
    """Makes configurations of a feed of this test's own, on real servers that have its topics."""
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}

    def of(make: Callable[..., Config] = bus_config, **overrides: object) -> Config:
        return make(tmp_path, **(settings | overrides))

    await create_topics(of())
    return of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.rules(monkeypatch)
    return clock
