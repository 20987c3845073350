"""Decodes GTFS-realtime VehiclePositions (protobuf, JSON or text) into columns, with a reason for each refused entity.

Source: GTFS Realtime Reference 2.0, messages FeedMessage, FeedEntity and VehiclePosition. Positions are float32 there,
so they are rounded to 1e-6 degree, a tenth of a metre. Speeds are in m/s; many agencies send none, or only zeros.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError
from google.transit import gtfs_realtime_pb2
from numpy.typing import NDArray

from stream.windows import EARLIEST_S, LATEST_S

LARGEST_SNAPSHOT = 32 << 20
"""Largest snapshot in bytes after decompression; a city of 10 000 vehicles publishes about 1 MB."""
LONGEST_ID = 256
"""Largest number of characters of an identifier; the service refuses longer ones as well."""
FUTURE_S = 3_600
"""A timestamp that is further after the snapshot's own time comes from a wrong clock."""
LEAST_SPEED_MS = 0.01
"""A speed above 0 and below this is a rounding error and not a measurement; it counts as missing."""


class SnapshotError(ValueError):
    """Bytes that are not a VehiclePositions feed; the message says what they look like."""


@dataclass(frozen=True)
class Snapshot:
    """Columns (n,) of the vehicles with a position. ``time``: µs UTC; ``lat``/``lng``: degrees; ``speed``: m/s, NaN = none.

    ``clock``: the snapshot's own time (µs UTC): that of its header (``header``, None if it has none), else of its arrival, else
    None. ``refused``: number of other entities by reason.
    """

    clock: int | None
    header: int | None
    vehicles: list[str]
    time: NDArray[np.int64]
    lat: NDArray[np.float64]
    lng: NDArray[np.float64]
    speed: NDArray[np.float64]
    refused: Counter[str]


def decode_snapshot(body: bytes, received_us: int | None = None) -> Snapshot:
    """The vehicles of one FeedMessage. An entity without a timestamp gets that of the header, else ``received_us``.

    The user is its :func:`vehicle_name`. An entity's own ``id`` is not used, because it may change between snapshots.
    Raises :class:`SnapshotError` for bytes that are not such a feed.
    """
    message = parse_feed(body)
    stamp: int = message.header.timestamp
    header_s = stamp if EARLIEST_S <= stamp < LATEST_S else None
    clock_s = header_s
    if clock_s is None and received_us is not None:
        clock_s = received_us // 1_000_000
    refused: Counter[str] = Counter()
    vehicles: list[str] = []
    numbers: list[tuple[int, float, float, float]] = []
    for entity in message.entity:
        if entity.is_deleted or not entity.HasField("vehicle"):
            refused["deleted" if entity.is_deleted else "no-vehicle"] += 1
            continue
        position = entity.vehicle
        reason = _read(position, clock_s, vehicles, numbers)
        if reason is not None:
            refused[reason] += 1
    columns = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    return Snapshot(
        None if clock_s is None else clock_s * 1_000_000,
        None if header_s is None else header_s * 1_000_000,
        vehicles,
        np.array([row[0] for row in numbers], dtype=np.int64) * 1_000_000,
        columns[:, 1].round(6),
        columns[:, 2].round(6),
        columns[:, 3],
        refused,
    )


def vehicle_name(descriptor: gtfs_realtime_pb2.VehicleDescriptor) -> str | None:
    """The vehicle's ``id``, else its licence plate, else its label; None if it has none of them."""
    name = descriptor.id or descriptor.license_plate or descriptor.label
    if isinstance(name, bytes):  # protobuf returns bytes for a text that is not UTF-8, like one in Shift JIS
        name = name.decode(errors="backslashreplace")
    return name or None


def _read(
    position: gtfs_realtime_pb2.VehiclePosition,
    clock_s: int | None,
    vehicles: list[str],
    numbers: list[tuple[int, float, float, float]],
) -> str | None:
    """Append one vehicle to the columns, or return why it is refused."""
    descriptor, where = position.vehicle, position.position
    name = vehicle_name(descriptor)
    if name is None:
        return "no-vehicle-id"
    if len(name) > LONGEST_ID:
        return "id-too-long"
    if not position.HasField("position"):
        return "no-position"
    lat, lng = where.latitude, where.longitude
    if not (math.isfinite(lat) and math.isfinite(lng)) or abs(lat) > 90 or abs(lng) > 180 or (lat == 0 and lng == 0):
        return "no-place"
    seconds = position.timestamp if position.HasField("timestamp") else clock_s
    if seconds is None:
        return "no-time"
    if not EARLIEST_S <= seconds < LATEST_S:
        return "time-no-epoch-seconds"
    if clock_s is not None and seconds > clock_s + FUTURE_S:
        return "time-in-future"
    speed = where.speed if where.HasField("speed") else math.nan
    if not speed >= 0 or 0 < speed < LEAST_SPEED_MS or math.isinf(speed):
        speed = math.nan
    vehicles.append(name)
    numbers.append((seconds, lat, lng, speed))
    return None


def parse_feed(body: bytes) -> gtfs_realtime_pb2.FeedMessage:
    """The decoded message, from protobuf, JSON or text. Raises :class:`SnapshotError`."""
    if len(body) > LARGEST_SNAPSHOT:
        raise SnapshotError(f"{len(body)} bytes are more than the {LARGEST_SNAPSHOT} of one snapshot")
    message = gtfs_realtime_pb2.FeedMessage()
    start = body[:64].lstrip()
    try:
        if start.startswith(b"{"):
            json_format.Parse(body, message, ignore_unknown_fields=True)
        elif start.startswith(b"header"):
            text_format.Parse(body, message, allow_unknown_field=True)
        elif start.startswith(b"<"):
            raise SnapshotError("an HTML or XML page instead of GTFS-realtime; check the address and the key")
        else:
            message.ParseFromString(body)
    except (DecodeError, json_format.ParseError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        first = " ".join(str(error).split())[:120] or type(error).__name__
        raise SnapshotError(f"not a GTFS-realtime feed in protobuf, JSON or text form ({first})") from None
    if not message.HasField("header") and not message.entity:
        raise SnapshotError("an empty message: neither header nor vehicles; cut short, or another protobuf")
    return message
