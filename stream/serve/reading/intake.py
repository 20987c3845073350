"""The seam between a source of committed messages and what the service knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from stream.serve.metrics import PublicMetrics
from stream.serve.window_store import View, WindowView


class Intake:
    """Puts messages into the view, counts them, and announces each window that they complete."""

    def __init__(self, view: View, metrics: PublicMetrics, announce: Callable[[WindowView], None]) -> None:
        self.view = view
        self._metrics = metrics
        self._announce = announce
        self.caught_up = asyncio.Event()
        """Set by the source once it has handed over what was there at the start; no window is announced before."""

    def take(self, topic: str, ce_id: str, value: bytes, number: int) -> None:
        """One message of an output topic; ``number`` is a marker's place among the markers, from 1."""
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
        """Count what is no message at all."""
        self._metrics.messages.inc(count)
        self._metrics.invalid.inc(count)


class Source(Protocol):
    """A place where committed messages appear. It hands each over at least once, a window's marker after its place is fixed."""

    open_files: int
    """Files that it may hold open at a time."""

    async def run(self, intake: Intake) -> None:
        """Hand messages to ``intake`` until cancelled; whatever it reads from may go away and come back."""
