"""A lease in Redis that saves work: while one worker closes windows, the others wait. Correctness never rests on it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

LEASE_SECONDS = 15.0
"""How long the windows of a worker that was killed wait for the next one."""

_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Lease:
    """One owner's claim on ``key``, renewed while it is held and gone ``seconds`` after its owner is."""

    def __init__(self, redis: Redis, key: str, seconds: float = LEASE_SECONDS) -> None:
        self._redis: Any = redis
        self._key = key
        self._owner = uuid.uuid4().hex
        self._seconds = seconds

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[bool]:
        """Whether the lease is ours for the block; False at once where another owner has it.

        A lease that cannot be renewed is lost in silence: then two workers do the same work, and the release protocol
        lets the first writer win.
        """
        milliseconds = int(self._seconds * 1000)
        if not await self._redis.set(self._key, self._owner, nx=True, px=milliseconds):
            yield False
            return
        renewing = asyncio.create_task(self._renew(milliseconds))
        try:
            yield True
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            with suppress(RedisError):
                await self._redis.eval(_RELEASE, 1, self._key, self._owner)

    async def _renew(self, milliseconds: int) -> None:
        while True:
            await asyncio.sleep(self._seconds / 3)
            with suppress(RedisError):
                await self._redis.eval(_RENEW, 1, self._key, self._owner, milliseconds)
