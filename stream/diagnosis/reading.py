"""Reads a file, the bytes of an answer, or messages of a topic for an inspection, and recognises what they are."""

from __future__ import annotations

import csv
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream.diagnosis.columns import ROLES, format_of, guess_fields, paths_of
from stream.diagnosis.observations import InspectionError, Observations, as_numbers, as_times, numbered
from stream.diagnosis.snapshots import form_of, observe_folder, observe_snapshot
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.formats import field_path, walk
from stream.sources.file_kinds import HEAD_BYTES, PARQUET, SEPARATORS, header_readings, is_row, seems_to_be, unpacked
from stream.sources.lines import Lines, RecordingError, open_stored
from stream.sources.standard_input import StandardInput

_decode = msgspec.json.Decoder().decode
_SAMPLE = 50
"""Number of objects whose fields are looked at."""
_CALLED = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}


def observe_file(path: Path, limit: int) -> Observations:
    """Rows of a Parquet, CSV or NDJSON file or standard input, or of a GTFS-realtime snapshot or a folder of them.

    At most ``limit``, and of snapshots at most those of one more than it takes.

    Raises :class:`InspectionError`.
    """
    try:
        if path.is_dir():
            return observe_folder(path, limit)
        stored = open_stored(path)
        head = stored.peek(HEAD_BYTES)
        if (form := form_of(unpacked(head))) is not None:
            return observe_snapshot(path, stored, form, limit)
        if head.startswith(PARQUET):
            return _parquet(path, stored.spool() if isinstance(stored, StandardInput) else stored, limit)
        lines = chain.from_iterable(Lines(path, stored))
        return observe_lines(islice(filter(None, (line.rstrip(b"\r") for line in lines)), limit + 1), limit, path)
    except (RecordingError, OSError, EOFError, zlib.error) as error:
        raise InspectionError(str(error)) from None


def observe_answer(body: bytes, limit: int) -> Observations:
    """Observations of the answer of a server, whatever its format. Raises :class:`InspectionError`."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        try:
            return observe_file(Path(file.name), limit)
        except InspectionError as error:
            raise InspectionError(str(error).replace(file.name, "the answer")) from None


def observe_lines(lines: Iterable[bytes], limit: int, path: Path | None = None) -> Observations:
    """Observations of lines of JSON, or of a table whose first line is its header."""
    source = iter(lines)
    first = next(source, b"").removeprefix(b"\xef\xbb\xbf")
    if first.lstrip()[:1] in (b"{", b"["):
        return observe_messages(chain([first], source), None, limit)
    separator, names = max(header_readings(first), key=_sense)
    roles = _roles(set(names), path)
    index = {role: names.index(name) for role, name in roles.items()}
    columns: dict[str, list[Any]] = {role: [] for role in ROLES}
    unread: Counter[str] = Counter()
    for row in csv.reader(_texts(source, unread), delimiter=separator):
        if len(row) != len(names):
            unread["another number of columns"] += 1
            continue
        for role in ROLES:
            columns[role].append(row[index[role]] if role in index else None)
    called = _CALLED.get(separator, repr(separator))
    return _observations(f"CSV, separated by {called}", set(names), roles, columns, unread)


def _sense(reading: tuple[str, list[str]]) -> tuple[int, bool, int]:
    """How much sense a reading of a header makes: fields that are recognised, then a usual separator, then columns."""
    separator, names = reading
    return len(guess_fields(names)), separator in SEPARATORS and len(names) > 1, len(names)


def observe_messages(messages: Iterable[bytes], arrived_us: NDArray[np.int64] | None, limit: int) -> Observations:
    """Observations of at most ``limit`` JSON objects, elements of arrays among them. ``arrived_us``: when each message arrived, µs UTC."""
    unread: Counter[str] = Counter()
    source = _objects(messages, unread)
    sample = list(islice(source, _SAMPLE))
    paths = set(chain.from_iterable(paths_of(parsed.tree) for parsed in sample))
    roles = _roles(paths, None)
    keys = {role: field_path(path) for role, path in roles.items()}
    columns: dict[str, list[Any]] = {role: [] for role in ROLES}
    readable: list[int] = []
    arrays = False
    for parsed in islice(chain(sample, source), limit):
        readable.append(parsed.message)
        arrays = arrays or parsed.is_element
        for role in ROLES:
            columns[role].append(_value_at(parsed.tree, keys[role]) if role in keys else None)
    arrived = None if arrived_us is None else arrived_us[readable]
    kind = "JSON, arrays of objects" if arrays else "JSON, one object per line"
    return _observations(kind, paths, roles, columns, unread, arrived)


class _Parsed(NamedTuple):
    """A JSON object: the index of its message, and whether it is an element of an array there."""

    tree: dict[str, Any]
    message: int
    is_element: bool


def _objects(messages: Iterable[bytes], unread: Counter[str]) -> Iterator[_Parsed]:
    """The JSON objects of messages. ``unread`` counts what is none, once it is passed."""
    for at, message in enumerate(messages):
        several = elements(message) if may_hold_several(message) else None
        for event in several or [message]:
            try:
                tree = _decode(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                unread["no JSON"] += 1
                continue
            if isinstance(tree, dict):
                yield _Parsed(tree, at, several is not None)
            else:
                unread["no JSON object"] += 1


def _value_at(tree: dict[str, Any], keys: tuple[str | int, ...]) -> int | float | str | None:
    try:
        value = walk(tree, keys)
    except LookupError:
        return None
    return value if isinstance(value, int | float | str) else None


def _texts(lines: Iterable[bytes], unread: Counter[str]) -> Iterator[str]:
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            unread["no UTF-8"] += 1
            continue
        if text.count('"') % 2 or "\0" in text or "\r" in text or len(text) > 1 << 16:
            unread["no row of a table"] += 1
        else:
            yield text


def _roles(paths: set[str], path: Path | None) -> dict[str, str]:
    roles = guess_fields(sorted(paths))
    missing = [role for role in ROLES if role not in roles and role != "speed"]
    if missing:
        kind = (path and seems_to_be(path)) or ""
        if not paths or not all(name.isprintable() for name in paths):
            nothing = "no JSON objects, no header of a table, no Parquet and no GTFS-realtime in it"
            raise InspectionError(
                f"{nothing}. {kind or 'If it is empty, or of another format, name another file or topic.'}"
            )
        if is_row(paths):
            raise InspectionError(
                "its first line has numbers, so it is no header: write the names of its columns before it, like user,time,lat,lng,speed"
            )
        shown = ", ".join(sorted(paths))[:200]
        raise InspectionError(
            f"no field looks like {', '.join(missing)} among {shown!r}; rename fields, or declare them in [feed.fields]. "
            f"A table needs a header, whose names any one character separates. {kind}".strip()
        )
    return roles


def _observations(
    kind: str,
    paths: set[str],
    roles: dict[str, str],
    columns: dict[str, list[Any]],
    unread: Counter[str],
    arrived_us: NDArray[np.int64] | None = None,
) -> Observations:
    times, time_format, local = as_times(columns["time"])
    name, fields = format_of(paths, roles)
    if name == "canonical" and time_format in ("epoch-s", "epoch-us"):
        name, fields = format_of(set(), roles)
    _, guessed = format_of(set(), roles)
    own_fields = guessed and guessed.model_copy(update={"time_format": time_format})
    return Observations(
        kind=kind,
        format=name,
        fields=fields and own_fields,
        own_fields=own_fields,
        user=numbered(columns["user"]),
        time_us=times,
        lat=as_numbers(columns["lat"]),
        lng=as_numbers(columns["lng"]),
        speed=as_numbers(columns["speed"]),
        arrived_us=np.full(len(times), -1, dtype=np.int64) if arrived_us is None else arrived_us,
        speed_unit={"itms": "km/h", "capmetro": "m/s"}.get(name),
        local=local,
        unread=unread,
    )


def _parquet(path: Path, stored: IO[bytes], limit: int) -> Observations:
    try:
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise InspectionError(f"{path}: Parquet needs pyarrow; pip install 'hexveil[parquet]'") from None
    columns: dict[str, list[Any]] = {role: [] for role in ROLES}
    zones: list[str | None] = []
    try:
        with stored, ParquetFile(stored) as file:
            names = set(file.schema_arrow.names)
            roles = _roles(names, None)
            for batch in file.iter_batches(columns=list(roles.values())):
                for role in ROLES:
                    column = batch.column(roles[role]) if role in roles else None
                    columns[role] += [None] * len(batch) if column is None else _column_values(column, zones)
                if len(columns[ROLES[0]]) >= limit:
                    break
    except InspectionError:
        raise
    except Exception as error:  # whatever error hostile bytes cause
        raise InspectionError(f"{path}: not a readable Parquet file ({str(error)[:160]})") from None
    kept = {role: values[:limit] for role, values in columns.items()}
    seen = _observations("Parquet", names, roles, kept, Counter())
    return _stamped(seen, zones[-1]) if zones else seen


def _column_values(array: Any, zones: list[str | None]) -> list[Any]:
    """The values of an Arrow column; timestamps as microseconds, and their zone is added to ``zones``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(array.type):
        zones.append(array.type.tz)
        array = pc.cast(array, pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def _stamped(seen: Observations, zone: str | None) -> Observations:
    """The observations of a file whose times are timestamps, local ones if they have no zone."""
    fields, own_fields = (
        named and named.model_copy(update={"time_format": "rfc3339"}) for named in (seen.fields, seen.own_fields)
    )
    return replace(seen, fields=fields, own_fields=own_fields, local=zone is None)
