"""Every test here draws from a tape of its own; all tests of a process share a browser."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from tests.stream.serve.browser import chromium
from tests.support.tapes import recorded_noise

__all__ = ["recorded_noise"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started
