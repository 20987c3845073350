"""Turns recordings into the messages that a live producer would have sent, with the same bytes and keys.

A recording in the feed's own format is passed on: CSV rows as JSON objects, NDJSON lines byte for byte. Any known
format can also be converted to canonical events, with speeds in the unit that the feed declares.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import msgspec
import numpy as np

from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.formats import NO_LETTER, is_nothing, number, recording_format, time_us
from stream.sources.file_kinds import columns_of, is_header, is_remark, wrong_header
from stream.sources.lines import Lines, RecordingError, Stored
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

    ``position`` and ``size`` (stored bytes) are for a progress bar. Raises
    :class:`RecordingError` for a file that cannot be read, or not to its end (after the lines before the damage), for
    missing CSV columns, and for a format that this feed does not accept.
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

    @property
    def position(self) -> int:
        """Stored bytes that were read so far."""
        return self._lines.position

    @property
    def size(self) -> int:
        """Stored bytes of the whole file."""
        return self._lines.size

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
        """Add the event of a line to ``block``, or the events of an array."""
        try:
            if names is not None:
                line = self._csv_event(line, names)
            block.add(*self._event(line))
        except Exception:  # whatever error hostile bytes cause, the replay continues, and the service refuses them
            several = None
            if names is None and not (self._format.positional or self._one_each) and may_hold_several(line):
                several = elements(line)
            for event in several or [line]:
                self._read_alone(event, block)

    def _read_alone(self, line: bytes, block: _Block) -> None:
        try:
            block.add(*self._event(line))
        except Exception:  # as above
            block.pass_on(line)

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
            # Six decimals are exact for every pair of units, and remove rounding errors of floats from the messages.
            fields["speed"] = speed if self._factor == 1 else round(_finite(speed * self._factor), 6)
        return key, moment, _encode(fields)


def _finite(number: float) -> float:
    """The nearest finite number: a unit makes no number out of bounds."""
    return min(max(number, -sys.float_info.max), sys.float_info.max)


def _number(text: str) -> float | str | None:
    """The number, with a decimal point or comma; None for none; other text as it is, so that the service names it."""
    if is_nothing(text):
        return None
    try:
        return number(text)
    except (ValueError, OverflowError):
        return text
