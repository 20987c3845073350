"""Turns recordings into the messages that a live producer would have sent, with the same bytes and keys.

A recording in the feed's own format is passed on: CSV rows as JSON objects, NDJSON lines byte for byte. Any known
format can also be converted to canonical events, with speeds in the unit that the feed declares. The content of a file,
not its name, says whether it is lines (NDJSON, CSV) or Parquet.

The file of a day is often grouped by route or trip, as CapMetro's are. If it were sent in that order, its first trips
would move the watermark to the evening, and every other vehicle would be late. So it is sorted by event time first, in
bounded memory.
"""

from __future__ import annotations

import atexit
import csv
import heapq
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Literal, Self, get_args

import msgspec
import numpy as np

from stream.config.feed import SPEED_TO_KMH, FeedConfig, FeedFields
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.formats import NO_LETTER, is_nothing, number, recording_format, time_us
from stream.sources.file_kinds import PARQUET, columns_of, is_header, is_remark, wrong_header
from stream.sources.lines import STDIN, Lines, RecordingError, StandardInput, Stored, open_stored
from stream.sources.messages import Messages

if TYPE_CHECKING:
    from stream.sources.tables import TableLines

FORMATS: tuple[str, ...] = get_args(FeedConfig.model_fields["format"].annotation)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def require_format(path: Path, file_format: str, feed: FeedConfig) -> None:
    """Raise :class:`RecordingError` if a recording in ``file_format`` cannot be read, or converted for ``feed``."""
    if file_format not in FORMATS or (file_format == "declared" and feed.fields is None):
        known = ", ".join(FORMATS)
        raise RecordingError(
            f"{path}: cannot read format {file_format!r}; use one of {known} (declared: [feed.fields])"
        )
    if feed.format not in ("canonical", file_format):
        raise RecordingError(
            f"{path}: a {file_format} recording cannot be sent to a feed of format {feed.format!r}; "
            f"set feed.format to 'canonical' or {file_format!r}"
        )


@dataclass
class _Block:
    """Messages of one block while they are read. ``last``: when the last event is due, µs UTC."""

    last: int
    due: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    unread: int = 0

    def add(self, key: bytes | None, due: int, value: bytes) -> None:
        """Add an event."""
        self.last = due
        self.due.append(due)
        self.keys.append(key)
        self.values.append(value)

    def pass_on(self, value: bytes) -> None:
        """Add what is no event."""
        self.unread += 1
        self.add(None, self.last, value)


class Recording:
    """One file as messages for ``feed``, in file order, due at their event time; iterated once.

    Raises :class:`RecordingError` for a file that cannot be read, or not to its end (after the lines before the
    damage), for missing CSV columns, and for a format that this feed does not accept.
    """

    def __init__(
        self,
        path: Path,
        file_format: str,
        feed: FeedConfig,
        stored: Stored | None = None,
        *,
        lines: TableLines | None = None,
        one_each: bool = False,
    ) -> None:
        """``stored``: the bytes of ``path``, if it is open already; ``lines``: its rows, if it is a table.

        ``one_each``: a line is one event, or refused.
        """
        require_format(path, file_format, feed)
        self._format = recording_format(feed, file_format)
        self._any_speed = feed.derives_speeds
        self._as_is = feed.format == file_format
        self._factor = self._format.kmh / SPEED_TO_KMH[feed.speed_unit]
        self._is_csv = lines is None and ".csv" in path.suffixes
        self._separator = ","
        self.path = path
        if one_each and feed.records is not None:
            raise RecordingError(
                f"{path}: feed.records names a list in one document, and under 'participation' the form of one event "
                "must not decide what becomes of another; write one event a line and leave feed.records out"
            )
        self._one_each = one_each
        self._lines = lines or Lines(path, stored, feed.encoding, feed.records, over_lines=not one_each)
        self._row = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.__exit__()

    def __iter__(self) -> Iterator[Messages]:
        blocks, last = iter(self._lines), 0
        names: list[str] | None = None
        at_start = True
        for lines in blocks:
            while at_start and lines and is_remark(lines[0]):
                del lines[0]
            if lines and at_start:
                at_start = False
                self._is_csv = self._is_csv or is_header(lines[0], self._format.fields)
                if self._is_csv:
                    names = self._header(lines.pop(0))
            block = _Block(last)
            for line in lines:
                line = line.rstrip(b"\r")
                if line:
                    self._read(line, names, block)
            last = block.last
            yield Messages(np.array(block.due, np.int64), block.keys, block.values, block.unread)
        if self._is_csv and names is None:
            raise RecordingError(f"{self.path} is empty; a CSV must begin with a header line")

    def _read(self, line: bytes, names: list[str] | None, block: _Block) -> None:
        try:
            if names is not None:
                line = self._csv_event(line, names)
            block.add(*self._event(line))
        except Exception:  # whatever error hostile bytes cause, the replay continues, and the service refuses them
            several = None
            if names is None and not (self._format.positional or self._one_each) and may_hold_several(line):
                several = elements(line)
            for event in several or [line]:
                try:
                    block.add(*self._event(event))
                except Exception:  # as above
                    block.pass_on(event)

    def _header(self, line: bytes) -> list[str]:
        fields = self._format.fields
        self._separator, names = columns_of(line, fields)
        missing = set(fields.paths) - set(names) - ({fields.value} if self._any_speed else set())
        if missing:
            raise RecordingError(f"{self.path}: {wrong_header(names, missing, fields)}")
        self._numeric = [names.index(path) for path in (fields.lat, fields.lng, fields.value) if path in names]
        self._user_column, self._time_column = names.index(fields.user), names.index(fields.time)
        return names

    def _csv_event(self, line: bytes, names: list[str]) -> bytes:
        """The row as a JSON object without the fields that are empty. Of a row of no such table, what is wrong."""
        separator, text = self._separator, line.decode("utf-8", "replace")
        at, self._row = self._row, self._row + 1
        try:
            row: list[Any] = next(csv.reader([text], delimiter=separator)) if '"' in text else text.split(separator)
        except csv.Error:
            return _encode({"row": at, "columns": 0, "of": len(names)})
        if len(row) != len(names):
            return _encode({"row": at, "columns": len(row), "of": len(names)})
        if NO_LETTER in row[self._user_column] and NO_LETTER.encode() not in line:
            return _encode({"row": at, "undecoded": 1})
        for column in self._numeric:
            row[column] = _number(row[column])
        time = row[self._time_column]
        if re.fullmatch(r"-?\d{1,400}(\.\d{1,400})?", time, re.ASCII):
            row[self._time_column] = float(time) if "." in time else int(time)
        return _encode({name: value for name, value in zip(names, row, strict=True) if value is not None})

    def _event(self, line: bytes) -> tuple[bytes, int, bytes]:
        fix = self._format.read(line)
        user, time, lat, lng, speed = (read(fix) for read in self._format.getters)
        moment = time_us(time)
        key = str(user).encode()
        if abs(moment) >= 1 << 62:
            raise ValueError(moment)
        if self._as_is:
            return key, moment, line
        fields = {"user": str(user), "time": time, "lat": lat, "lng": lng}
        if speed is not None:
            most = sys.float_info.max
            # Six decimals are exact for every pair of units, and remove rounding errors of floats from the messages.
            fields["speed"] = speed if self._factor == 1 else round(min(max(speed * self._factor, -most), most), 6)
        return key, moment, _encode(fields)


def _number(text: str) -> float | str | None:
    """The number, with a decimal point or comma; None for none; other text as it is, so that the service names it."""
    if is_nothing(text):
        return None
    try:
        return number(text)
    except (ValueError, OverflowError):
        return text


def recordings_in(path: Path) -> list[Path]:
    """The files of a folder and of those in it, in order of name, without hidden ones; else the file itself."""
    if path == STDIN or not path.is_dir():
        return [path]
    files = sorted(entry for entry in path.rglob("*") if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise RecordingError(f"{path} is a folder without files; name one that contains recordings")
    return files


def together(paths: Sequence[Path]) -> Path:
    """One path for several files and folders: a folder of links to them, which is removed when the process ends."""
    if len(paths) == 1:
        return paths[0]
    folder = TemporaryDirectory(prefix="hexveil-recordings-")
    atexit.register(folder.cleanup)
    for at, file in enumerate(file for path in paths for file in recordings_in(path)):
        (Path(folder.name) / f"{at:06}-{file.name}").symlink_to(file.resolve())
    return Path(folder.name)


class Folder:
    """The recordings of a folder as one, file by file; iterated once."""

    def __init__(self, path: Path, file_format: str, feed: FeedConfig, *, one_each: bool = False) -> None:
        self._files, self._one_each = recordings_in(path), one_each
        self._format, self._feed = file_format, feed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each file is closed once it was read, or is left."""

    def __iter__(self) -> Iterator[Messages]:
        for file in self._files:
            with open_recording(file, self._format, self._feed, one_each=self._one_each) as part:
                yield from part


def open_recording(path: Path, file_format: str, feed: FeedConfig, *, one_each: bool = False) -> Recording | Folder:
    """The recording at ``path``, a file or a folder, or on standard input if that is ``-``.

    ``one_each``: a line is one event, or refused as a whole, as a message of relation "participation" is, where the
    form of one event must not decide what becomes of another. Raises :class:`RecordingError` for what cannot be read.
    """
    require_format(path, file_format, feed)
    if path != STDIN and path.is_dir():
        return Folder(path, file_format, feed, one_each=one_each)
    stored = open_stored(path)
    if not stored.peek(len(PARQUET)).startswith(PARQUET):
        return Recording(path, file_format, feed, stored, one_each=one_each)
    source = stored.spool() if isinstance(stored, StandardInput) else stored
    rows = table_lines(path, source, recording_format(feed, file_format).fields, any_value=feed.derives_speeds)
    return Recording(path, file_format, feed, lines=rows, one_each=one_each)


def table_lines(
    path: Path, source: Path | IO[bytes], fields: FeedFields | None = None, *, any_value: bool = False
) -> TableLines:
    """The rows of a Parquet file, as :class:`~stream.sources.tables.TableLines` reads them."""
    try:
        from stream.sources.tables import TableLines
    except ModuleNotFoundError:
        raise RecordingError(f"{path}: Parquet needs pyarrow; pip install 'hexveil[parquet]'") from None
    return TableLines(path, source, fields, any_value=any_value)


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


_Rows = tuple[list[int], list[bytes | None], list[bytes]]


def _rows(run: IO[bytes], index: int) -> Iterator[tuple[int, int, bytes | None, bytes]]:
    while head := run.read(8):
        columns = msgspec.msgpack.decode(run.read(int.from_bytes(head, "little")), type=_Rows)
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

    def __iter__(self) -> Iterator[Messages]:
        with self._recording as recording:
            yield from in_time_order(recording) if self._order == "time" else recording
