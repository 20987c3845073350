"""An HTTP service of this machine alone, which runs until it is told to stop."""

from __future__ import annotations

import asyncio

from aiohttp import web

from stream.local import LOOPBACK


async def serve_until(stopping: asyncio.Event, runner: web.AppRunner, port: int) -> None:
    """Serve what ``runner`` holds on 127.0.0.1 until ``stopping`` is set. Raises :class:`OSError` if it cannot listen."""
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, port).start()
        await stopping.wait()
    finally:
        await runner.cleanup()
