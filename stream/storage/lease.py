"""A lease in Redis: while one worker closes windows, the others wait. It saves work; nothing depends on it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.storage.client import run

LEASE_SECONDS = 15.0
"""Seconds after which another worker can continue if the owner was killed."""


class Lease:
    """A claim on ``key``. It is renewed while it is held, and expires ``seconds`` after its owner stops."""

    def __init__(self, redis: Redis, key: str, seconds: float = LEASE_SECONDS) -> None:
        self._redis: Any = redis
        self._key = key
        self._owner = uuid.uuid4().hex
        self._seconds = seconds

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[bool]:
        """True if this owner holds the lease during the block; False at once if another owner holds it.

        If the lease cannot be renewed, it expires without an error. Then two workers may do the same work, and the
        release protocol lets the first writer win.
        """
        milliseconds = int(self._seconds * 1000)
        if not await self._redis.set(self._key, self._owner, nx=True, px=milliseconds):
            yield False
            return
        over = (
            asyncio.Event()
        )  # not a cancellation: the client of Redis may lose one, and then this would wait for ever
        renewing = asyncio.create_task(self._renew(milliseconds, over))
        try:
            yield True
        finally:
            over.set()
            await renewing
            with suppress(RedisError):
                await run(self._redis, "release_lease", [self._key], self._owner)

    async def _renew(self, milliseconds: int, over: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._seconds / 3)
                return
            with suppress(RedisError):
                await run(self._redis, "renew_lease", [self._key], self._owner, milliseconds)
