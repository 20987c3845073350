"""Passes committed messages from a source to the store of windows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from stream.serve.metrics import PublicMetrics
from stream.serve.received import Received, received
from stream.serve.window_store import Outcome, View, WindowView

Argument = TypeVar("Argument")
Result = TypeVar("Result")

PIECE_BYTES = 256 << 10
"""Messages are checked by this many bytes at a time; between two pieces the event loop answers readers."""


class Arrival(NamedTuple):
    """A message as a source found it, not checked yet. ``number``: a close marker's position among the markers, from
    1."""

    topic: str
    ce_id: str
    value: bytes
    number: int


class Intake:
    """Puts messages into the store, counts them, and announces each window that becomes complete.

    Whatever takes time in proportion to a message or a window happens in a thread: decoding, the schema, histograms and
    digests. The thread is the intake's own, so that readers who ask for much cannot hold it up. The store is changed in
    the event loop alone.
    """

    def __init__(self, view: View, metrics: PublicMetrics, feed: str, announce: Callable[[WindowView], None]) -> None:
        """``feed``: the one whose newest window the metrics state; windows of others may be in the same topics."""
        self.view = view
        self._metrics = metrics
        self._feed = feed
        self._announce = announce
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self.caught_up = asyncio.Event()
        """Set by the source once it has passed on everything that existed at the start. No window is announced before
        that."""

    async def take(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Take messages of output topics in their order; returns what became of each.

        One source calls this, and waits before it calls it again.
        """
        outcomes = []
        for piece in _pieces(arrivals):
            for message in await self.in_thread(_checked, piece):
                outcomes.append(await self._put(message))
        return outcomes

    async def in_thread(self, work: Callable[[Argument], Result], argument: Argument) -> Result:
        """Run ``work`` in the intake's thread and return its result for ``argument``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, argument)

    async def _put(self, message: Received | None) -> Outcome:
        self._metrics.messages.inc()
        outcome: Outcome = "invalid" if message is None else self.view.put(message)
        if outcome == "invalid":
            self._metrics.invalid.inc()
        elif outcome == "duplicate":
            self._metrics.duplicate.inc()
        elif outcome == "taken" and message is not None and (window := self.view.full(message)):
            cells = await self.in_thread(WindowView.agreeing, window)
            if cells is not None:
                self._complete(window, cells)
                return "completed"
        return outcome

    def _complete(self, window: WindowView, cells: list[bytes]) -> None:
        self.view.finish(window, cells)
        self._metrics.windows.inc()
        if (span := self.view.span(self._feed)) is not None:
            newest = self.view.windows[self._feed, span[1]]
            self._metrics.last_window_seconds.set(datetime.fromisoformat(newest.end).timestamp())
        if self.caught_up.is_set():
            self._announce(window)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def refuse(self, count: int = 1) -> None:
        """Count something that is not a message."""
        self._metrics.messages.inc(count)
        self._metrics.invalid.inc(count)


class Source(Protocol):
    """A source of committed messages. It passes on each at least once, and a close marker only when its position is
    final."""

    open_files: int
    """Number of files that it may have open at a time."""

    async def run(self, intake: Intake) -> None:
        """Pass messages to ``intake`` until cancelled. Its server or file may disappear and come back."""


def _pieces(arrivals: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The messages in their order, :data:`PIECE_BYTES` together, or one message that has more."""
    piece: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        if piece and size + len(arrival.value) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(arrival)
        size += len(arrival.value)
    if piece:
        yield piece


def _checked(piece: list[Arrival]) -> list[Received | None]:
    return [received(*arrival) for arrival in piece]
