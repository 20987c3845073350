"""Recorded feeds as the messages that a live producer would have sent: same bytes, same keys.

A recording in the feed's own format is passed on (CSV rows as JSON objects, NDJSON lines byte for byte); any known format
can also be turned into canonical events, speeds in the unit that the feed declares.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stream.config import SPEED_TO_KMH, FeedConfig, FeedFields
from stream.sources.lines import Lines, RecordingError

FORMATS = ("canonical", "capmetro", "capmetro-2015", "itms", "declared")

_CAPMETRO = FeedFields(user="vehicle_id", time="timestamp", lat="latitude", lng="longitude", speed="speed")
_LAYOUTS: dict[str, tuple[FeedFields, str | None]] = {
    "canonical": (FeedFields(user="user", time="time", lat="lat", lng="lng", speed="speed"), None),
    "capmetro": (_CAPMETRO, "m/s"),
    "capmetro-2015": (_CAPMETRO, "mph"),
    "itms": (
        FeedFields(
            user="license_plate",
            time="observationDateTime",
            lat="location.coordinates.1",
            lng="location.coordinates.0",
            speed="speed",
        ),
        "km/h",
    ),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RowError(ValueError):
    """One row that is not an event; the message is its reason code: ``malformed``, ``missing``, ``number`` or ``time``."""


@dataclass(frozen=True)
class Messages:
    """Messages in order, keyed by vehicle; ``time`` is each one's event time, µs UTC.

    ``rejected`` counts rows by reason since the last block. A line of the feed's own format that cannot be read is passed
    on for the service to reject, without a key and with the event time of the line before it.
    """

    time: np.ndarray
    keys: list[bytes | None]
    values: list[bytes]
    rejected: Counter[str]


def parse_time(value: object, time_format: str = "rfc3339") -> int:
    """RFC 3339 text, or a number of milliseconds (``epoch-s``: seconds), as µs UTC. Raises :class:`RowError`."""
    try:
        if isinstance(value, str) and not value.lstrip("-").replace(".", "", 1).isdigit():
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise RowError("time")
            return (moment - _EPOCH) // _MICROSECOND
        number = float(value) * (1_000_000 if time_format == "epoch-s" else 1_000)  # type: ignore[arg-type]
        if abs(number) < 1 << 62:
            return round(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise RowError("time")


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise RowError("number") from None
    if not math.isfinite(number):
        raise RowError("number")
    return number


def _at(path: str) -> Callable[[Any], Any]:
    parts = [int(part) if part.isdigit() else part for part in path.split(".")]

    def walk(value: Any) -> Any:
        try:
            for part in parts:
                value = value[part]
        except (KeyError, IndexError, TypeError):
            raise RowError("missing") from None
        return value

    return walk


class Recording:
    """One file as messages for ``feed``. ``position``/``size`` (stored bytes) and ``rows`` serve a progress bar.

    Raises :class:`RecordingError` on a file that cannot be read (to its end), a missing CSV column, or a format that
    this feed does not take.
    """

    def __init__(self, path: Path, file_format: str, feed: FeedConfig) -> None:
        if file_format not in FORMATS or (file_format == "declared" and feed.fields is None):
            raise RecordingError(f"{path}: no format {file_format!r} here; use one of {', '.join(FORMATS)}")
        if feed.format not in ("canonical", file_format):
            raise RecordingError(
                f"{path}: a {file_format} recording cannot be sent to a feed of format {feed.format!r}; "
                f"set feed.format to 'canonical' or {file_format!r}"
            )
        if file_format == "declared":
            assert feed.fields is not None
            self.fields, unit = feed.fields, feed.speed_unit
        else:
            self.fields, fixed = _LAYOUTS[file_format]
            unit = fixed or feed.speed_unit
        self.path, self.feed = path, feed
        self.as_is = feed.format == file_format
        self.factor = SPEED_TO_KMH[unit] / SPEED_TO_KMH[feed.speed_unit]
        self.is_csv = ".csv" in path.suffixes
        self.rows = 0
        self._lines = Lines(path)

    @property
    def position(self) -> int:
        """Stored bytes read so far."""
        return self._lines.position

    @property
    def size(self) -> int:
        """Stored bytes in all."""
        return self._lines.size

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.__exit__()

    def __iter__(self) -> Iterator[Messages]:
        blocks = iter(self._lines)
        convert = self._csv_row if self.is_csv else self._json_line
        last = 0
        header_read = not self.is_csv
        while True:
            rejected: Counter[str] = Counter()
            times: list[int] = []
            keys: list[bytes | None] = []
            values: list[bytes] = []
            try:
                lines = next(blocks, None)
            finally:
                if self._lines.too_long:
                    rejected["too-long"], self._lines.too_long = self._lines.too_long, 0
            if lines is None:
                if not header_read:
                    raise RecordingError(f"{self.path}: empty; a CSV needs a header line")
                if rejected:
                    yield Messages(np.array(times, np.int64), keys, values, rejected)
                return
            if not header_read:
                self._read_header(lines.pop(0))
                header_read = True
            for line in lines:
                line = line.rstrip(b"\r")
                if not line:
                    continue
                self.rows += 1
                try:
                    key, last, value = convert(line)
                except RowError as error:
                    if not self.as_is or self.is_csv:
                        rejected[str(error)] += 1
                        continue
                    key, value = None, line
                times.append(last)
                keys.append(key)
                values.append(value)
            yield Messages(np.array(times, np.int64), keys, values, rejected)

    def _read_header(self, line: bytes) -> None:
        try:
            self._names = next(csv.reader([line.decode("utf-8-sig").rstrip("\r")]))
            fields = self.fields
            self._columns = [self._names.index(n) for n in (fields.user, fields.time, fields.lat, fields.lng, fields.speed)]
        except (UnicodeDecodeError, csv.Error, StopIteration, ValueError) as error:
            raise RecordingError(f"{self.path}: the header does not fit the format ({error}); choose --format") from None

    def _csv_row(self, line: bytes) -> tuple[bytes, int, bytes]:
        try:
            text = line.decode()
            row = next(csv.reader([text])) if '"' in text else text.split(",")
        except (UnicodeDecodeError, csv.Error):
            raise RowError("malformed") from None
        if len(row) != len(self._names):
            raise RowError("malformed")
        user, time, lat, lng, speed = (row[index] for index in self._columns)
        if not user:
            raise RowError("missing")
        moment = parse_time(time, self.fields.time_format)
        position = _number(lat), _number(lng)
        if not self.as_is:
            return user.encode(), moment, self._canonical(user, moment, time, *position, _number(speed))
        event: dict[str, Any] = dict(zip(self._names, row, strict=True))
        event[self.fields.lat], event[self.fields.lng] = position
        event[self.fields.speed] = _number(speed)
        if self.fields.time_format != "rfc3339":
            event[self.fields.time] = _number(time)
        return user.encode(), moment, _encode(event)

    def _json_line(self, line: bytes) -> tuple[bytes, int, bytes]:
        try:
            event = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RowError("malformed") from None
        fields = self.fields
        user = str(_at(fields.user)(event))
        time = _at(fields.time)(event)
        moment = parse_time(time, fields.time_format)
        if self.as_is:
            return user.encode(), moment, line
        lat, lng, speed = (_number(_at(path)(event)) for path in (fields.lat, fields.lng, fields.speed))
        return user.encode(), moment, self._canonical(user, moment, time, lat, lng, speed)

    def _canonical(self, user: str, moment: int, time: object, lat: float, lng: float, speed: float) -> bytes:
        # Six decimals are exact for every unit pair that occurs and keep float dust out of the messages.
        text = time if isinstance(time, str) and "T" in time else moment // 1000
        return _encode({"user": user, "time": text, "lat": lat, "lng": lng, "speed": round(speed * self.factor, 6)})
