"""All tests of a process share a browser. A feed of a test's own on the broker that all share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.stream.serve.browser import chromium


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@pytest.fixture
def own_feed(kafka: str, topic_name: str) -> dict[str, str]:
    """Settings of a feed on the broker that no other test uses."""
    return {"feed.name": topic_name, "kafka.bootstrap": kafka}
