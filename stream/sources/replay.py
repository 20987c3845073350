"""Replays a recording like a live feed, at a multiple of its pace, once or in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

from stream.config.feed import FeedConfig
from stream.sources.messages import Messages
from stream.sources.opening import open_recording
from stream.sources.ordering import in_time_order

Order = Literal["time", "file"]


class Replay:
    """Blocks of messages of one file. With ``loop`` it repeats, and moves the times of each pass forward by whole days.

    ``order`` is ``"time"`` (sorted, like a live feed) or ``"file"`` (as in the file). Raises
    :class:`~stream.sources.lines.RecordingError` at once for a file or format that cannot be read, and later if the
    file is cut short. Standard input cannot be looped.
    """

    def __init__(
        self, path: Path, file_format: str, feed: FeedConfig, *, order: Order = "time", loop: bool = False
    ) -> None:
        self._path, self._file_format, self._feed, self._order, self._loop = path, file_format, feed, order, loop
        self._recording = open_recording(path, file_format, feed)

    @property
    def share_read(self) -> float:
        """Share of the file that this pass has read, 0 to 1."""
        return min(self._recording.position / max(self._recording.size, 1), 1.0)

    def __iter__(self) -> Iterator[Messages]:
        shift = timedelta(0)
        while True:
            first = last = None
            with self._recording as recording:
                for block in in_time_order(recording) if self._order == "time" else recording:
                    if len(block.due):
                        low, high = int(block.due.min()), int(block.due.max())
                        first, last = (
                            min(low, low if first is None else first),
                            max(high, high if last is None else last),
                        )
                    yield block
            if not self._loop or first is None or last is None:
                return
            shift += timedelta(days=timedelta(microseconds=last - first).days + 1)
            self._recording = open_recording(self._path, self._file_format, self._feed, shift)
