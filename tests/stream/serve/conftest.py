"""All tests of a process share a browser. A feed of a test's own on the broker that all share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from stream.config import Config
from tests.stream.serve.browser import chromium
from tests.stream.serve.city import city_config


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@pytest.fixture
def own_feed(kafka: str, topic_name: str) -> dict[str, str]:
    """Settings of a feed on the broker that no other test uses."""
    return {"feed.name": topic_name, "kafka.bootstrap": kafka}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The small city without files, unless a module has another."""
    return city_config(tmp_path)
