"""GTFS-realtime snapshots in protobuf and JSON."""

from __future__ import annotations

import gzip
import math
import random
from typing import Any

from google.protobuf import json_format
from google.transit import gtfs_realtime_pb2

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import NOW_US, feed_config
from bench.fuzzing.mutation import TEXTS, Mutator
from stream.ingestion.decoding import REASONS, Decoder, Reason
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT, SnapshotError
from stream.sources.vehicle_positions import GtfsRealtime

_NOW_S = NOW_US // 1_000_000
_SNAPSHOTS = 60
_FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, 3e38, 90.0, 180.0, -91.0, 30.27, -97.74)
_TIMES = (
    0,
    1,
    _NOW_S,
    _NOW_S + 240,
    _NOW_S + 3000,
    _NOW_S + 7200,
    2**31,
    2**32,
    2**63,
    2**64 - 1,
    946_684_799,
    4_102_444_800,
)
_NAMES = tuple(text for text in TEXTS if text.isprintable() and len(text) < 1000)
_MAKES_NO_SENSE = {
    Reason.NOT_JSON,
    Reason.MISSING_FIELD,
    Reason.WRONG_TYPE,
    Reason.NOT_FINITE,
    Reason.UNDECODABLE,
    Reason.ID_EMPTY,
}


class Snapshots(Target):
    """Snapshots with odd values in their fields, and with mutated bytes, plain and gzipped, one after the other into
    one source."""

    name = "gtfs-rt"
    contract = "a SnapshotError, or events of which the service can read every one; no wrong clock silences a vehicle"

    def __init__(self) -> None:
        self._config = feed_config("canonical")
        self._decoder = Decoder(self._config, bytes(KEY_BYTES))

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Sixty snapshots into a source of their own."""
        source = GtfsRealtime(self._config.feed, self._config.slotting)
        mutator = Mutator(rng, ("entity", "header", "vehicle", "timestamp", "position", "latitude", "isDeleted"))
        for number in range(_SNAPSHOTS):
            data = stored_snapshot(rng, mutator, number)
            hunt.attempt(data, lambda body: check_snapshot(source, body, self._decoder))
        hunt.attempt(b"", lambda _: _check_heard(source), mutated=())
        hunt.attempt(bomb(rng), lambda body: check_snapshot(source, body, self._decoder))


def bomb(rng: random.Random) -> bytes:
    """Some 32 kB of gzip with as many parts as a snapshot's bytes allow: entities, or what is nested in one, in each
    form."""
    header, empty = b"\x0a\x05\x0a\x032.0", b"\x12\x00"
    body = rng.choice(
        (
            lambda room: header + empty * (room // 2 - 8),
            lambda room: header + _field(2, b"\x0a\x011" + _field(3, empty * (room // 2 - 16))),
            lambda room: b'{"entity":[' + b"{}," * (room // 3 - 8) + b"{}]}",
            lambda room: (
                b'{"entity":[{"id":"1","tripUpdate":{"stopTimeUpdate":[' + b"{}," * (room // 3 - 24) + b"{}]}}]}"
            ),
        )
    )(LARGEST_SNAPSHOT)
    return gzip.compress(body, 1)


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def stored_snapshot(rng: random.Random, mutator: Mutator, number: int) -> bytes:
    """A snapshot of so many times 15 s in one of the two forms, most of them mutated, some gzipped."""
    message = _message(rng, number)
    form = rng.random()
    if form < 0.5:
        data: bytes = message.SerializeToString()
        data = mutator.octets(data) if rng.random() < 0.7 else data
    else:
        data = mutator.json(json_format.MessageToDict(message))
    if rng.random() < 0.1:
        packed = gzip.compress(data, 1)
        data = mutator.octets(packed) if rng.random() < 0.5 else packed
    return data


def _message(rng: random.Random, number: int) -> Any:
    """The last is of the time of arrival. Now and then a clock is ahead, or one field is odd."""
    moment = _NOW_S + (number + 1 - _SNAPSHOTS) * 15 + (rng.choice((240, 1500, 3000)) if rng.random() < 0.05 else 0)
    message = gtfs_realtime_pb2.FeedMessage()
    message.header.gtfs_realtime_version = "2.0"
    if rng.random() < 0.9:
        message.header.timestamp = moment if rng.random() < 0.9 else rng.choice(_TIMES)
    for vehicle in range(rng.randrange(6)):
        entity = message.entity.add(id=str(vehicle))
        odd = rng.random() < 0.3
        entity.vehicle.vehicle.id = rng.choice(_NAMES) if odd else f"bus-{vehicle}"
        place = entity.vehicle.position
        place.latitude = rng.choice(_FLOATS) if odd else 30.2 + rng.random() / 10
        place.longitude = rng.choice(_FLOATS) if odd else -97.7 - rng.random() / 10
        if rng.random() < 0.5:
            place.speed = rng.choice(_FLOATS) if odd else rng.random() * 20
        if rng.random() < 0.9:
            entity.vehicle.timestamp = rng.choice(_TIMES) if odd else moment
        entity.is_deleted = rng.random() < 0.05
    return message


def _check_heard(source: SnapshotEvents) -> None:
    """Raise :class:`AssertionError` unless a vehicle that reports twice gives an event, whatever was read before.

    Twice, because its newest timestamp may lie between its first report and what clocks may differ by.
    """
    events = 0
    for seconds in (_NOW_S + 20, _NOW_S + 40):
        message = gtfs_realtime_pb2.FeedMessage()
        message.header.gtfs_realtime_version, message.header.timestamp = "2.0", seconds
        entity = message.entity.add(id="0")
        entity.vehicle.vehicle.id, entity.vehicle.timestamp = "bus-0", seconds
        place = entity.vehicle.position
        place.latitude, place.longitude, place.speed = 30.25, -97.7, 5.0
        events += len(source.events(message.SerializeToString(), seconds * 1_000_000).values)
    assert events, "a wrong clock silences a vehicle"


def check_snapshot(source: SnapshotEvents, body: bytes, decoder: Decoder) -> None:
    """Raise :class:`AssertionError` unless ``body`` is refused, or becomes events of which the service can read every
    one."""
    try:
        events = source.events(body, NOW_US)
    except SnapshotError:
        return
    assert len(events.due) == len(events.keys) == len(events.values)
    batch = decoder.decode(events.values, NOW_US)
    for code in set(batch.reason.tolist()):
        assert REASONS[code] not in _MAKES_NO_SENSE, f"an event of ours is refused: {REASONS[code]}"
