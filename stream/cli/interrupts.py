"""How commands that run until they are stopped learn of Ctrl-C and of a supervisor's wish."""

from __future__ import annotations

import asyncio
import signal


def stopped_by_signals() -> asyncio.Event:
    """An event of the running loop that SIGINT and SIGTERM set from now on, instead of ending the process."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping
