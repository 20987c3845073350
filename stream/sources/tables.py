"""Reads Parquet as columns, never as one object per row, and turns columns into messages where Kafka needs them.

A time is a timestamp of Parquet, a number in ``time_format``, or text. A timestamp or text without a zone needs
``feed.fields.timezone``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self, overload
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.parquet import ParquetFile

from stream.config.feed import SPEED_TO_KMH, TIME_UNIT_US, FeedConfig, FeedFields
from stream.ingestion.decoding import FixColumns
from stream.ingestion.formats import (
    feed_format,
    field_path,
    is_nothing,
    number,
    recording_format,
    time_reader,
    time_us,
    utc_of_local,
)
from stream.sources.file_kinds import wrong_header
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages

_ROUNDED = 1e9
"""Speeds below this are rounded; to round much larger ones would make them infinite."""
_ROWS_AT_ONCE = 65_536
_LONGEST_METADATA = 64 << 20
_FAR_US = 2.0**62
_DAYS = "(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31"
"""Month and day of every date but 29 February."""
_ORDINARY = rf"^(19|20)\d\d-({_DAYS})[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{{1,6}})?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)$"
"""Texts that Arrow and :func:`~stream.ingestion.formats.read_instant` both read, as the same time. Arrow also reads
what is not RFC 3339."""

_Times = tuple[NDArray[np.int64], NDArray[np.bool_]]
_encode = msgspec.json.Encoder().encode


class Table:
    """One Parquet file as columns or messages for ``feed``, in file order; iterated once.

    ``position`` and ``size``: rows, for a progress bar. Raises :class:`~stream.sources.lines.RecordingError` for a file
    that is no Parquet, or whose columns are missing or of another type.
    """

    def __init__(self, path: Path, source: Path | IO[bytes], file_format: str, feed: FeedConfig) -> None:
        """``source``: the file, or its bytes; ``path`` names it in errors."""
        self.path = path
        read = recording_format(feed, file_format)
        self._any_speed = feed.derives_speeds
        self._fields, self._declared = read.fields, file_format == "declared"
        self._number_us = TIME_UNIT_US.get(
            self._fields.time_format, None if file_format == "declared" else TIME_UNIT_US["epoch-ms"]
        )
        self._factor = read.kmh / SPEED_TO_KMH[feed.speed_unit] if feed.format == "canonical" else 1.0
        self._target = feed_format(feed).fields
        self._canonical = feed.format == "canonical"
        self.position = 0
        try:
            self._file = ParquetFile(source, thrift_string_size_limit=_LONGEST_METADATA)
            self.size = int(self._file.metadata.num_rows)
            self._paths = self._column_paths()
        except RecordingError:
            raise
        except Exception as error:  # whatever error hostile bytes cause
            raise RecordingError(f"{path}: not a readable Parquet file ({_first_line(error)})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def columns(self) -> Iterator[FixColumns]:
        """Blocks of columns, with speeds in the unit that ``feed`` declares."""
        roots = sorted({str(path[0]) for path in self._paths.values()})
        try:
            for batch in self._file.iter_batches(_ROWS_AT_ONCE, columns=roots):
                self.position += batch.num_rows
                if batch.num_rows:
                    yield self._read(batch)
        except RecordingError:
            raise
        except Exception as error:  # whatever error hostile bytes cause
            raise RecordingError(
                f"{self.path}: damaged after row {self.position} ({_first_line(error)}); write it again"
            ) from None

    def messages(self, columns: FixColumns) -> TableMessages:
        """The rows of ``columns`` as messages of the feed, made one by one when they are asked for."""
        return TableMessages(columns, self._target, canonical=self._canonical)

    def __iter__(self) -> Iterator[Messages]:
        for columns in self.columns():
            values = list(self.messages(columns))
            unread = columns.missing | columns.wrong
            keys = [
                None if bad else str(user).encode() for user, bad in zip(columns.user, unread.tolist(), strict=True)
            ]
            sound = np.where(unread, 0, np.arange(len(values)))
            due = columns.time_us[np.maximum.accumulate(sound)]
            yield Messages(due, keys, values, int(unread.sum()))

    def _column_paths(self) -> dict[str, tuple[str | int, ...]]:
        schema = self._file.schema_arrow
        names = ("user", "time", "lat", "lng", "speed")
        paths: dict[str, tuple[str | int, ...]] = {}
        for name, text in zip(names, self._fields.paths, strict=False):
            paths[name] = (text,) if text in schema.names else field_path(text)
        if self._any_speed and "speed" in paths and not _is_there(schema, paths["speed"]):
            del paths["speed"]
        missing = {".".join(map(str, path)) for path in paths.values() if not _is_there(schema, path)}
        if missing:
            raise RecordingError(f"{self.path}: {wrong_header(schema.names, missing, self._fields)}")
        return paths

    def _read(self, batch: pa.RecordBatch) -> FixColumns:
        arrays = {name: _at(batch, path) for name, path in self._paths.items()}
        missing = np.zeros(batch.num_rows, dtype=bool)
        for name, array in arrays.items():
            if not (name == "speed" and self._any_speed):
                missing |= array.is_null().to_numpy(zero_copy_only=False)
        users, of_another_type = _users(arrays["user"], self._fields.user, self.path)
        times, wrong = self._times(arrays["time"])
        wrong |= of_another_type
        arrays.setdefault("speed", pa.nulls(batch.num_rows))
        numbers = []
        for name in ("lat", "lng", "speed"):
            values, are_none, unread = _numbers(
                arrays[name], str(getattr(self._fields, "value" if name == "speed" else name)), self.path
            )
            if not (name == "speed" and self._any_speed):
                missing, wrong = missing | are_none, wrong | unread
            numbers.append(values)
        lat, lng, speed = numbers
        lat, lng = lat / self._fields.units_per_degree, lng / self._fields.units_per_degree
        return FixColumns(users, times, lat, lng, self._converted(speed), missing, wrong)

    def _converted(self, speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """In the unit of the feed. Six decimals are exact for every pair of units; what is finite stays so."""
        if self._factor == 1:
            return speed
        most = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            converted = np.where(np.isfinite(speed), np.clip(speed * self._factor, -most, most), speed)
            return np.asarray(np.where(np.abs(converted) < _ROUNDED, converted.round(6), converted))

    def _times(self, array: pa.Array) -> _Times:
        kind, name = array.type, self._fields.time
        zone = None if self._fields.timezone is None else ZoneInfo(self._fields.timezone)
        if pa.types.is_timestamp(kind):
            whole = _numpy(pc.cast(array, pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()), 0)
            if kind.tz is not None:
                return whole, np.zeros(len(whole), dtype=bool)
            if zone is None:
                raise RecordingError(
                    f"{self.path}: the times in column {name!r} have no zone; set feed.format = 'declared', and in "
                    "[feed.fields] timezone to that of the recording, like 'UTC' or 'America/Chicago'"
                )
            return utc_of_local(whole, zone)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            if self._number_us is None:
                raise RecordingError(
                    f"{self.path}: column {name!r} contains numbers ({kind}), and time_format is 'rfc3339'; set it to "
                    "'epoch-s', 'epoch-ms' or 'epoch-us' in [feed.fields]"
                )
            return _of_numbers(array, self._number_us)
        if _is_text(kind):
            read = time_reader(self._fields, declared=self._declared)
            is_zoned = zone is not None or self._fields.time_format not in ("rfc3339", "epoch-ms")
            return _of_texts(array, read, ordinary_too=is_zoned)
        raise RecordingError(
            f"{self.path}: column {name!r} is {kind}, which is no time; name another one in [feed.fields]"
        )


class TableMessages(Sequence[bytes]):
    """Rows of columns as messages in JSON. An empty field is left out, so that the service says what is missing."""

    def __init__(self, columns: FixColumns, fields: FeedFields, *, canonical: bool) -> None:
        self._columns = columns
        self._paths = [field_path(path) for path in fields.paths]
        self._unit = "epoch-ms" if canonical else fields.time_format
        self._per_degree = 1 if canonical else fields.units_per_degree
        self._zone = ZoneInfo(fields.timezone or "UTC")

    def __len__(self) -> int:
        return len(self._columns.user)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        columns, tree = self._columns, dict[Any, Any]()
        user = columns.user[at]
        per_degree = self._per_degree
        place = float(columns.lat[at]) * per_degree, float(columns.lng[at]) * per_degree, float(columns.speed[at])
        empty = bool(columns.missing[at] or columns.wrong[at])
        for path, value in zip(self._paths, (user, self._time(int(columns.time_us[at])), *place), strict=True):
            if value is not None and not (empty and value != value):
                _put(tree, path, value)
        return _encode(_lists(tree))

    def _time(self, us: int) -> int | float | str:
        per = TIME_UNIT_US.get(self._unit)
        if "%" in self._unit:
            return datetime.fromtimestamp(us / 1e6, self._zone).strftime(self._unit)
        if per is None:
            return f"{np.datetime64(us, 'us')}Z"
        return us // per if us % per == 0 else us / per


def _put(tree: dict[Any, Any], path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _lists(tree: Any) -> Any:
    """The tree with lists in place of dicts whose keys are numbers."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _lists(value) for key, value in tree.items()}
    if inner and all(isinstance(key, int) for key in inner):
        return [inner.get(at) for at in range(max(inner) + 1)]
    return inner


def _is_there(schema: pa.Schema, path: tuple[str | int, ...]) -> bool:
    """Whether the columns have such a path, as far as their types say."""
    if path[0] not in schema.names:
        return False
    kind = schema.field(str(path[0])).type
    for key in path[1:]:
        if pa.types.is_struct(kind):
            if kind.get_field_index(str(key)) < 0:
                return False
            kind = kind.field(str(key)).type
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        else:
            return bool(pa.types.is_null(kind))
    return True


def _at(batch: pa.RecordBatch, path: tuple[str | int, ...]) -> pa.Array:
    array = batch.column(str(path[0]))
    for key in path[1:]:
        if pa.types.is_null(array.type):
            return array
        array = _element(array, key) if isinstance(key, int) else pc.struct_field(array, key)
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return array.cast(pa.string()) if pa.types.is_string_view(array.type) else array


def _element(array: pa.Array, at: int) -> pa.Array:
    """The element ``at`` of each list; null where there is none. Arrow's own kernel raises there."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind) and at >= kind.list_size:
        return pa.nulls(len(array), kind.value_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return pc.list_element(array, at)
    long_enough = pc.greater(pc.list_value_length(array), at)
    return array.values.take(pc.if_else(long_enough, pc.add(array.offsets[:-1], at), None))


def _numpy(array: pa.Array, instead: float) -> NDArray[Any]:
    """Values, with ``instead`` where there is none."""
    return np.asarray(array.fill_null(instead).to_numpy(zero_copy_only=False))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _users(array: pa.Array, name: str, path: Path) -> tuple[list[Any], NDArray[np.bool_]]:
    kind = array.type
    if pa.types.is_decimal(kind) and kind.scale == 0:
        array = pc.cast(array, pa.string())
    elif not (_is_text(kind) or pa.types.is_integer(kind)):
        raise RecordingError(f"{path}: column {name!r} is {kind}; a user is a text or a whole number")
    return array.to_pylist(), np.zeros(len(array), dtype=bool)


def _numbers(
    array: pa.Array, name: str, path: Path
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Numbers, NaN where there is none; in which rows a text stands for none, and in which it is no number.

    Raises :class:`RecordingError` for a column of another type.
    """
    kind, none = array.type, np.zeros(len(array), dtype=bool)
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan), none, none
    if _is_text(kind):
        return _of_number_texts(array)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise RecordingError(f"{path}: column {name!r} is {kind}, not a number")
    return _numpy(pc.cast(array, pa.float64(), safe=False), np.nan), none, none


def _of_number_texts(array: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    values = np.full(len(array), np.nan)
    none, wrong = np.zeros(len(array), dtype=bool), np.zeros(len(array), dtype=bool)
    for at, text in enumerate(array.to_pylist()):
        try:
            none[at] = text is not None and is_nothing(text)
            values[at] = np.nan if text is None or none[at] else number(text)
        except (ValueError, OverflowError):
            wrong[at] = True
    return values, none, wrong


def _of_numbers(array: pa.Array, unit_us: int) -> _Times:
    if pa.types.is_integer(array.type) and unit_us == 1:
        return _numpy(pc.cast(array, pa.int64(), safe=False), 0), np.zeros(len(array), dtype=bool)
    numbers = _numpy(pc.cast(array, pa.float64(), safe=False), 0.0)
    finite = np.isfinite(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        us = np.clip(np.where(finite, numbers, 0.0) * unit_us, -_FAR_US, _FAR_US)
    return np.rint(us).astype(np.int64), ~finite


def _of_texts(array: pa.Array, read: Callable[[Any], datetime | int | float], *, ordinary_too: bool) -> _Times:
    """Each text is read by itself: no row decides how another one is read. Arrow reads the ordinary ones, which is
    fast, unless ``ordinary_too``.
    """
    if ordinary_too:
        times, others = np.zeros(len(array), dtype=np.int64), np.arange(len(array))
    else:
        ordinary = pc.match_substring_regex(array, _ORDINARY)
        parsed = pc.cast(pc.if_else(ordinary, array, pa.scalar(None, array.type)), pa.timestamp("us", "UTC"))
        times, others = np.array(_numpy(parsed.cast(pa.int64()), 0)), np.flatnonzero(~_numpy(ordinary, True))
    wrong = np.zeros(len(array), dtype=bool)
    for at, text in zip(others.tolist(), array.take(pa.array(others)).to_pylist(), strict=True):
        try:
            times[at] = time_us(read(text))
        except (ValueError, OverflowError):
            wrong[at] = text is not None
    return times, wrong


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
