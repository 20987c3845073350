"""How commands that run until they are stopped learn of Ctrl-C and of a supervisor's wish."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """From its creation on, SIGINT and SIGTERM raise KeyboardInterrupt in whatever the main thread runs.

    Python ignores exceptions in what it calls around a fork, so an interrupt that arrives while a process is started
    can be lost: ``asked`` says that there was one.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in HANDLED:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt


def stopped_by_signals() -> asyncio.Event:
    """An event of the running loop that SIGINT and SIGTERM set from now on, instead of ending the process."""
    stopping = asyncio.Event()
    for number in HANDLED:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping
