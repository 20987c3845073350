"""Reads snapshots of positions for an inspection: GTFS-realtime or SIRI-VM, one of them or a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np

from stream.diagnosis.columns import ROLES
from stream.diagnosis.observations import InspectionError, Observations, as_numbers, as_times, numbered
from stream.sources.file_kinds import head_of, is_gtfs_realtime, is_html
from stream.sources.lines import RecordingError, Stored, open_stored
from stream.sources.refused_vehicles import REMEDIES
from stream.sources.siri import decode_siri
from stream.sources.snapshots import LARGEST_SNAPSHOT, Snapshot, SnapshotError, decompressed
from stream.sources.standard_input import StandardInput
from stream.windows import EARLIEST_S, LATEST_S

Form = Literal["GTFS-realtime", "SIRI-VM"]
Bodies = Iterable[tuple[str, Callable[[], bytes]]]
"""Snapshots by name, which are read when they are called."""

_NO_TIME_S = 1 << 42
"""Seconds since 1970 that are no time, and as microseconds an integer of 64 bits; larger ones of a feed count as this."""
_AS_SENT = 3.6
"""As km/h of a unit, it leaves the numbers of SIRI as they are, because snapshots have m/s."""
_LOCAL_TIME = re.compile(rb"RecordedAtTime>\s*[0-9-]{10}T\d\d:\d\d(:\d\d(\.\d+)?)?\s*<")
"""A time without a zone."""


def form_of(head: bytes) -> Form | None:
    """The form of a snapshot by its first bytes, decompressed; None if it seems to be none."""
    if _without_marks(head).lstrip()[:1] == b"<":
        return "SIRI-VM"
    return "GTFS-realtime" if is_gtfs_realtime(head) else None


def _without_marks(text: bytes) -> bytes:
    """ASCII of UTF-8 or UTF-16, without a mark of its order of bytes."""
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return text[2:].replace(b"\0", b"")
    return text.removeprefix(b"\xef\xbb\xbf")


def observe_snapshot(path: Path, stored: Stored, form: Form, limit: int) -> Observations:
    """Observations of one snapshot. Raises :class:`InspectionError`."""
    return _OBSERVE[form]([(str(path), partial(_body, stored))], form, limit)


def observe_folder(path: Path, limit: int) -> Observations:
    """Observations of a folder of snapshots, in order of their names. Raises :class:`InspectionError`.

    Its form is that of most of its files, so notes and pages of errors among them do not matter.
    """
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    heads = [head for file in files if not is_html(head := head_of(file))]
    forms = Counter(known for head in heads if (known := form_of(head)) is not None)
    form: Form = "SIRI-VM" if forms["SIRI-VM"] > forms["GTFS-realtime"] else "GTFS-realtime"
    bodies = ((str(file), partial(_body_of_file, file)) for file in files)
    try:
        return _OBSERVE[form](bodies, "a folder of SIRI-VM" if form == "SIRI-VM" else "a folder of snapshots", limit)
    except InspectionError as error:
        if forms or not files:
            raise
        remedy = "Files of a folder are read as snapshots, GTFS-realtime or SIRI-VM: if they are recordings, inspect one of them."
        raise InspectionError(f"{error}. {remedy}") from None


def _body(stored: Stored) -> bytes:
    """One snapshot as it is stored; at most as much as a snapshot may have, and one byte."""
    if isinstance(stored, StandardInput):
        return stored.read_whole(LARGEST_SNAPSHOT + 1)
    with stored:
        return stored.read(LARGEST_SNAPSHOT + 1)


def _body_of_file(path: Path) -> bytes:
    return _body(open_stored(path))


def _of_gtfs_realtime(bodies: Bodies, kind: str, limit: int) -> Observations:
    """Observations of snapshots until there are ``limit`` fixes. One that cannot be read is counted."""
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
            if entity.is_deleted or not entity.HasField("vehicle"):
                unread["deleted" if entity.is_deleted else "no-vehicle"] += 1
                continue
            if not vehicle.HasField("position"):
                unread["no-position"] += 1
                continue
            where = vehicle.position
            columns["user"].append(vehicle_name(vehicle.vehicle))
            columns["time"].append(vehicle.timestamp or header)
            columns["lat"].append(where.latitude)
            columns["lng"].append(where.longitude)
            columns["speed"].append(where.speed if where.HasField("speed") else None)
            arrived.append(header * 1_000_000 if EARLIEST_S <= header < LATEST_S else -1)
    if not arrived:
        raise _nothing(unread)
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


def _of_siri(bodies: Bodies, kind: str, limit: int) -> Observations:
    """The same of SIRI-VM documents, with speeds as they are sent. Times without a zone are taken as UTC."""
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
        local = local or _LOCAL_TIME.search(_without_marks(document)) is not None
    if not fixes:
        raise _nothing(unread)
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


def _nothing(unread: Counter[str]) -> InspectionError:
    """Says why no fix was found, and what to do if most of what was found is refused for one reason."""
    remedy = next((REMEDIES[reason] for reason, _ in unread.most_common(1) if reason in REMEDIES), None)
    why = ", ".join(list(unread)[:_NAMED]) or "it is empty"
    return InspectionError(f"no vehicle positions in it: {why}" + ("" if remedy is None else f". Likely {remedy}"))


_NAMED = 4
"""Reasons that are named where nothing could be read."""
_OBSERVE: dict[Form, Callable[[Bodies, str, int], Observations]] = {
    "GTFS-realtime": _of_gtfs_realtime,
    "SIRI-VM": _of_siri,
}
