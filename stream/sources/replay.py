"""Replays a recording like a live feed, at a multiple of its pace.

Sorts recordings by event time, in bounded memory.

The file of a day is often grouped by route or trip, as CapMetro's are. If it were sent in that order, its first trips
would move the watermark to the evening, and every other vehicle would be late. Sorted by event time it is like a live
feed.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from stream.config.feed import FeedConfig
from stream.sources.messages import Messages
from stream.sources.opening import open_recording

RUN_ROWS = 500_000
_BLOCK_ROWS = 4096


def in_time_order(blocks: Iterable[Messages], run_rows: int = RUN_ROWS) -> Iterator[Messages]:
    """The same messages sorted by event time, ties in file order. Runs of ``run_rows`` are kept in a temporary file.

    An error of the source is raised after the messages read before it.
    """
    runs: list[IO[bytes]] = []
    unsorted: list[Messages] = []
    rows = unread = 0
    failure: Exception | None = None
    try:
        source = iter(blocks)
        while True:
            try:
                block = next(source, None)
            except Exception as error:  # the rows that were read before the error are still sent
                block, failure = None, error
            if block is not None and block.values:
                unsorted.append(block)
                rows += len(block.values)
                unread += block.unread
            if block is None and not runs:
                if unsorted:
                    yield _sorted(unsorted)
                break
            if unsorted and (block is None or rows >= run_rows):
                runs.append(_spill(_sorted(unsorted)))
                unsorted, rows = [], 0
            if block is None:
                yield from _merge(runs, unread)
                break
        if failure is not None:
            raise failure
    finally:
        for run in runs:
            run.close()


def _sorted(parts: list[Messages]) -> Messages:
    time = np.concatenate([part.due for part in parts])
    order = np.argsort(time, kind="stable")
    keys = [key for part in parts for key in part.keys]
    values = [value for part in parts for value in part.values]
    index = order.tolist()
    return Messages(
        time[order], [keys[i] for i in index], [values[i] for i in index], sum(part.unread for part in parts)
    )


def _spill(run: Messages) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by in_time_order, which outlives this call
    for at in range(0, len(run.values), _BLOCK_ROWS):
        part = slice(at, at + _BLOCK_ROWS)
        body = msgspec.msgpack.encode((run.due[part].tolist(), run.keys[part], run.values[part]))
        file.write(len(body).to_bytes(8, "little") + body)
    file.seek(0)
    return file


_Block = tuple[list[int], list[bytes | None], list[bytes]]


def _rows(run: IO[bytes], index: int) -> Iterator[tuple[int, int, bytes | None, bytes]]:
    while head := run.read(8):
        columns = msgspec.msgpack.decode(run.read(int.from_bytes(head, "little")), type=_Block)
        for time, key, value in zip(*columns, strict=True):
            yield time, index, key, value


def _merge(runs: list[IO[bytes]], unread: int) -> Iterator[Messages]:
    merged = heapq.merge(*(_rows(run, index) for index, run in enumerate(runs)), key=lambda row: row[:2])
    while rows := list(islice(merged, _BLOCK_ROWS)):
        time, _, keys, values = zip(*rows, strict=True)
        yield Messages(np.array(time, np.int64), list(keys), list(values), unread)
        unread = 0


Order = Literal["time", "file"]


class Replay:
    """Blocks of messages of one file.

    ``order`` is ``"time"`` (sorted, like a live feed) or ``"file"`` (as in the file). Raises
    :class:`~stream.sources.lines.RecordingError` at once for a file or format that cannot be read, and later if the
    file is cut short.
    """

    def __init__(self, path: Path, file_format: str, feed: FeedConfig, *, order: Order = "time") -> None:
        self._order, self._recording = order, open_recording(path, file_format, feed)

    @property
    def share_read(self) -> float:
        """Share of the file that was read, 0 to 1."""
        return min(self._recording.position / max(self._recording.size, 1), 1.0)

    def __iter__(self) -> Iterator[Messages]:
        with self._recording as recording:
            yield from in_time_order(recording) if self._order == "time" else recording
