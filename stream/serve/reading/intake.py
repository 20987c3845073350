"""Passes committed messages from a source to the store of windows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from stream.serve.metrics import PublicMetrics
from stream.serve.window_store import View, WindowView


class Intake:
    """Puts messages into the store, counts them, and announces each window that becomes complete."""

    def __init__(self, view: View, metrics: PublicMetrics, announce: Callable[[WindowView], None]) -> None:
        self.view = view
        self._metrics = metrics
        self._announce = announce
        self.caught_up = asyncio.Event()
        """Set by the source once it has passed on everything that existed at the start. No window is announced before that."""

    def take(self, topic: str, ce_id: str, value: bytes, number: int) -> None:
        """Take one message of an output topic. ``number``: a close marker's position among the markers, from 1."""
        self._metrics.messages.inc()
        outcome = self.view.add(topic, ce_id, value, number)
        if outcome == "invalid":
            self._metrics.invalid.inc()
        elif outcome == "duplicate":
            self._metrics.duplicate.inc()
        elif outcome == "completed" and (window := self.view.last_completed):
            self._metrics.windows.inc()
            self._metrics.last_window_seconds.set(datetime.fromisoformat(window.end).timestamp())
            if self.caught_up.is_set():
                self._announce(window)

    def refuse(self, count: int = 1) -> None:
        """Count something that is not a message."""
        self._metrics.messages.inc(count)
        self._metrics.invalid.inc(count)


class Source(Protocol):
    """A source of committed messages. It passes on each at least once, and a close marker only when its position is final."""

    open_files: int
    """Number of files that it may have open at a time."""

    async def run(self, intake: Intake) -> None:
        """Pass messages to ``intake`` until cancelled. Its server or file may disappear and come back."""
