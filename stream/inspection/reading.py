"""Reads a file, the bytes of an answer, or messages of a topic for an inspection, and recognises what they are."""

from __future__ import annotations

import csv
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.formats import field_path, walk
from stream.inspection.columns import ROLES, format_of, guess_fields, paths_of
from stream.inspection.observations import Observations, as_numbers, as_times, numbered
from stream.sources.file_kinds import (
    HEAD_BYTES,
    PARQUET,
    SEPARATORS,
    header_readings,
    is_gtfs_realtime,
    seems_to_be,
    unpacked,
)
from stream.sources.lines import Lines, RecordingError, Stored, open_stored
from stream.sources.siri import decode_siri
from stream.sources.snapshots import LARGEST_SNAPSHOT, Snapshot, SnapshotError, decompressed
from stream.sources.standard_input import StandardInput
from stream.windows import EARLIEST_S, LATEST_S

_decode = msgspec.json.Decoder().decode
_SAMPLE = 50
"""Number of objects whose fields are looked at."""
_NO_TIME_S = 1 << 42
"""Seconds since 1970 that are no time, and as microseconds an integer of 64 bits; larger ones of a feed count as this."""
_AS_SENT = 3.6
"""As km/h of a unit, it leaves the numbers of SIRI as they are, because snapshots have m/s."""
_LOCAL_TIME = re.compile(rb"RecordedAtTime>\s*[0-9-]{10}T\d\d:\d\d(:\d\d(\.\d+)?)?\s*<")
"""A time without a zone."""
_CALLED = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}


class InspectionError(ValueError):
    """A source that cannot be inspected; the message says why and what to do."""


def observe_file(path: Path, limit: int) -> Observations:
    """Rows of a Parquet, CSV or NDJSON file or standard input, or of a GTFS-realtime snapshot or a folder of them.

    At most ``limit``, and of snapshots at most those of one more than it takes.

    Raises :class:`InspectionError`.
    """
    try:
        if path.is_dir():
            files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
            bodies = ((str(file), partial(_body_of_file, file)) for file in files)
            if files and _is_xml(_head_of_file(files[0])):
                return _of_siri(bodies, "a folder of SIRI-VM", limit)
            return _of_snapshots(bodies, "a folder of snapshots", limit)
        stored = open_stored(path)
        head = stored.peek(HEAD_BYTES)
        if _is_xml(unpacked(head)):
            return _of_siri([(str(path), partial(_body, stored))], "SIRI-VM", limit)
        if head.startswith(PARQUET):
            return _parquet(path, _whole(stored), limit)
        if is_gtfs_realtime(unpacked(head)):
            return _of_snapshots([(str(path), partial(_body, stored))], "GTFS-realtime", limit)
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


def _is_xml(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<"


def _head_of_file(path: Path) -> bytes:
    """The first bytes, decompressed; none if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return unpacked(file.read(HEAD_BYTES))
    except OSError:
        return b""


def _whole(stored: Stored) -> IO[bytes]:
    """All of a file or of standard input, to be read from any place."""
    return stored.spool() if isinstance(stored, StandardInput) else stored


def _body(stored: Stored) -> bytes:
    """One snapshot as it is stored; at most as much as a snapshot may have, and one byte."""
    with _whole(stored) as file:
        return file.read(LARGEST_SNAPSHOT + 1)


def _body_of_file(path: Path) -> bytes:
    return _body(open_stored(path))


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


def _of_snapshots(bodies: Iterable[tuple[str, Callable[[], bytes]]], kind: str, limit: int) -> Observations:
    """Observations of snapshots, each with its name, until there are ``limit`` fixes. One that cannot be read is counted."""
    try:
        from stream.sources.vehicle_positions import parse_feed, vehicle_name
    except ModuleNotFoundError:
        raise InspectionError("GTFS-realtime needs its bindings; pip install 'hexveil[gtfs]'") from None
    columns: dict[str, list[Any]] = {role: [] for role in ROLES}
    arrived: list[int] = []
    unread: Counter[str] = Counter()
    for name, body in bodies:
        if len(arrived) >= limit:
            break
        try:
            message = parse_feed(decompressed(body()))
        except (SnapshotError, RecordingError, OSError) as error:
            unread["no snapshot"] += 1
            if not arrived:
                unread[f"{name}: {error}"] += 1
            continue
        header = message.header.timestamp
        for entity in message.entity:
            vehicle = entity.vehicle
            if not entity.HasField("vehicle") or not vehicle.HasField("position"):
                unread["no position"] += 1
                continue
            where = vehicle.position
            columns["user"].append(vehicle_name(vehicle.vehicle))
            columns["time"].append(vehicle.timestamp or header)
            columns["lat"].append(where.latitude)
            columns["lng"].append(where.longitude)
            columns["speed"].append(where.speed if where.HasField("speed") else None)
            arrived.append(header * 1_000_000 if EARLIEST_S <= header < LATEST_S else -1)
    if not arrived:
        raise InspectionError(f"no vehicle positions in it: {', '.join(unread) or 'it is empty'}")
    _, time_unit, _ = as_times(columns["time"])
    return Observations(
        kind=kind,
        format="canonical",
        fields=None,
        user=numbered(columns["user"]),
        time_us=np.array([min(seconds, _NO_TIME_S) for seconds in columns["time"]], dtype=np.int64) * 1_000_000,
        lat=as_numbers(columns["lat"]).round(6),
        lng=as_numbers(columns["lng"]).round(6),
        speed=as_numbers(columns["speed"]),
        arrived_us=np.array(arrived, dtype=np.int64),
        speed_unit="m/s",
        time_format=time_unit,
        unread=unread,
    )


def _of_siri(bodies: Iterable[tuple[str, Callable[[], bytes]]], kind: str, limit: int) -> Observations:
    """Observations of SIRI-VM documents, until there are ``limit`` fixes, with speeds as they are sent. Times without a zone are
    taken as UTC.
    """
    snapshots: list[Snapshot] = []
    unread: Counter[str] = Counter()
    fixes, local = 0, False
    for name, body in bodies:
        if fixes >= limit:
            break
        try:
            document = decompressed(body())
            snapshot = decode_siri(document, None, ZoneInfo("UTC"), _AS_SENT, LATEST_S * 1_000_000)
        except (SnapshotError, RecordingError, OSError) as error:
            unread["no document"] += 1
            if not fixes:
                unread[f"{name}: {error}"] += 1
            continue
        snapshots.append(snapshot)
        unread += snapshot.refused
        fixes += len(snapshot.vehicles)
        local = local or _LOCAL_TIME.search(document) is not None
    if not fixes:
        raise InspectionError(f"no vehicle positions in it: {', '.join(unread) or 'it is empty'}")
    headers = [(-1 if each.header is None else each.header, len(each.vehicles)) for each in snapshots]
    return Observations(
        kind=kind,
        format="canonical",
        fields=None,
        user=numbered([name for each in snapshots for name in each.vehicles]),
        time_us=np.concatenate([each.time for each in snapshots]),
        lat=np.concatenate([each.lat for each in snapshots]),
        lng=np.concatenate([each.lng for each in snapshots]),
        speed=np.concatenate([each.speed for each in snapshots]),
        arrived_us=np.repeat(*np.array(headers, dtype=np.int64).T),
        local=local,
        unread=unread,
    )
