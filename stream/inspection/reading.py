"""Reads a file, the bytes of an answer, or messages of a topic for an inspection, and recognises what they are."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.formats import field_path, walk
from stream.inspection.columns import ROLES, format_of, guess_fields, paths_of
from stream.inspection.observations import Observations, as_numbers, as_times, numbered
from stream.sources.file_kinds import (
    GZIP,
    HEAD_BYTES,
    PARQUET,
    SEPARATORS,
    header_readings,
    is_gtfs_realtime,
    seems_to_be,
    unpacked,
)
from stream.sources.lines import Lines, RecordingError, Stored, open_stored
from stream.sources.snapshots import LARGEST_SNAPSHOT, SnapshotError
from stream.sources.standard_input import StandardInput

_decode = msgspec.json.Decoder().decode
_SAMPLE = 50
"""Number of objects whose fields are looked at."""
_CALLED = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}


class InspectionError(ValueError):
    """A source that cannot be inspected; the message says why and what to do."""


def observe_file(path: Path, limit: int) -> Observations:
    """At most ``limit`` rows of a Parquet, CSV or NDJSON file or standard input, or all of a GTFS-realtime snapshot or a folder of them.

    Raises :class:`InspectionError`.
    """
    try:
        if path.is_dir():
            files = sorted(entry for entry in path.iterdir() if entry.is_file())
            return _of_snapshots(((str(file), _body(open_stored(file))) for file in files), "a folder of snapshots")
        stored = open_stored(path)
        head = stored.peek(HEAD_BYTES)
        if head.startswith(PARQUET):
            return _parquet(path, _whole(stored), limit)
        if is_gtfs_realtime(unpacked(head)):
            return _of_snapshots([(str(path), _body(stored))], "GTFS-realtime")
        lines = chain.from_iterable(Lines(path, stored))
        return observe_lines(islice(filter(None, (line.rstrip(b"\r") for line in lines)), limit + 1), limit, path)
    except (RecordingError, OSError, EOFError, zlib.error) as error:
        raise InspectionError(str(error)) from None


def _whole(stored: Stored) -> IO[bytes]:
    """All of a file or of standard input, to be read from any place."""
    return stored.spool() if isinstance(stored, StandardInput) else stored


def _body(stored: Stored) -> bytes:
    """One snapshot, decompressed; at most as much as a snapshot may have, and one byte."""
    with _whole(stored) as file:
        is_packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        return (gzip.GzipFile(fileobj=file) if is_packed else file).read(LARGEST_SNAPSHOT + 1)


def observe_lines(lines: Iterable[bytes], limit: int, path: Path | None = None) -> Observations:
    """Observations of lines of JSON, or of a table whose first line is its header."""
    source = iter(lines)
    first = next(source, b"").removeprefix(b"\xef\xbb\xbf")
    if first.lstrip()[:1] in (b"{", b"["):
        return observe_messages(islice(chain([first], source), limit), None)
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


def observe_messages(messages: Iterable[bytes], arrived_us: NDArray[np.int64] | None) -> Observations:
    """Observations of JSON objects, and of the elements of arrays. ``arrived_us``: when each message arrived, µs UTC."""
    trees: list[Any] = []
    unread: Counter[str] = Counter()
    readable: list[int] = []
    arrays = 0
    for at, message in enumerate(messages):
        several = elements(message) if may_hold_several(message) else None
        arrays += several is not None
        for event in several or [message]:
            try:
                tree = _decode(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                unread["no JSON"] += 1
                continue
            if isinstance(tree, dict):
                trees.append(tree)
                readable.append(at)
            else:
                unread["no JSON object"] += 1
    paths = set(chain.from_iterable(map(paths_of, trees[:_SAMPLE])))
    roles = _roles(paths, None)
    columns = {role: _values(trees, roles.get(role)) for role in ROLES}
    arrived = None if arrived_us is None else arrived_us[readable]
    kind = "JSON, arrays of objects" if arrays else "JSON, one object per line"
    return _observations(kind, paths, roles, columns, unread, arrived)


def _values(trees: Sequence[Any], path: str | None) -> list[Any]:
    if path is None:
        return [None] * len(trees)
    keys = field_path(path)
    values: list[Any] = []
    for tree in trees:
        try:
            value = walk(tree, keys)
        except LookupError:
            value = None
        values.append(value if isinstance(value, int | float | str) else None)
    return values


def _texts(lines: Iterable[bytes], unread: Counter[str]) -> Iterator[str]:
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            unread["no UTF-8"] += 1
            continue
        if text.count('"') % 2 or "\0" in text or len(text) > 1 << 16:
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


def observe_snapshot(body: bytes) -> Observations:
    """Observations of one GTFS-realtime answer. Raises :class:`InspectionError`."""
    return _of_snapshots([("the answer", body)], "GTFS-realtime")


def _of_snapshots(bodies: Iterable[tuple[str, bytes]], kind: str) -> Observations:
    try:
        from stream.sources.vehicle_positions import parse_feed, vehicle_name
    except ModuleNotFoundError:
        raise InspectionError("GTFS-realtime needs its bindings; pip install 'hexveil[gtfs]'") from None
    columns: dict[str, list[Any]] = {role: [] for role in ROLES}
    arrived: list[int] = []
    unread: Counter[str] = Counter()
    for name, body in bodies:
        try:
            message = parse_feed(body)
        except SnapshotError as error:
            unread["no snapshot"] += 1
            if not arrived:
                unread[f"{name}: {error}"] += 1
            continue
        for entity in message.entity:
            vehicle = entity.vehicle
            if not entity.HasField("vehicle") or not vehicle.HasField("position"):
                unread["no position"] += 1
                continue
            where = vehicle.position
            columns["user"].append(vehicle_name(vehicle.vehicle))
            columns["time"].append(vehicle.timestamp or message.header.timestamp)
            columns["lat"].append(where.latitude)
            columns["lng"].append(where.longitude)
            columns["speed"].append(where.speed if where.HasField("speed") else None)
            arrived.append(message.header.timestamp * 1_000_000 or -1)
    if not arrived:
        raise InspectionError(f"no vehicle positions in it: {', '.join(unread) or 'it is empty'}")
    return Observations(
        kind=kind,
        format="canonical",
        fields=None,
        user=numbered(columns["user"]),
        time_us=np.array(columns["time"], dtype=np.float64).astype(np.int64) * 1_000_000,
        lat=as_numbers(columns["lat"]).round(6),
        lng=as_numbers(columns["lng"]).round(6),
        speed=as_numbers(columns["speed"]),
        arrived_us=np.array(arrived, dtype=np.int64),
        speed_unit="m/s",
        unread=unread,
    )
