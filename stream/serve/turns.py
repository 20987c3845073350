"""Costly answers are made one at a time, so that many requests at once cannot fill memory or processor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stream.serve.responses import Problem


class Turns:
    """A queue of bounded length before one kind of answer."""

    def __init__(self, kind: str, most: int, retry_seconds: int) -> None:
        """``kind``: what is asked for, in the plural. ``most`` may have a turn or wait for one; others may try again later."""
        self._kind, self._most, self._retry_seconds = kind, most, retry_seconds
        self._turn, self._present = asyncio.Semaphore(1), 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn and have it. Raises :class:`Problem` 503 where too many wait already."""
        if self._present >= self._most:
            later = {"Retry-After": str(self._retry_seconds)}
            raise Problem(503, f"too many {self._kind} are asked for at once", "try again later", later)
        self._present += 1
        try:
            async with self._turn:
                yield
        finally:
            self._present -= 1
