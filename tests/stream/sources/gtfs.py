"""GTFS-realtime feeds that tests make: a vehicle is (id, seconds, lat, lng, speed m/s or None)."""

from collections.abc import Iterable

from google.transit import gtfs_realtime_pb2

START = 1_757_583_600
Vehicle = tuple[str, int | None, float, float, float | None]


def feed_message(vehicles: Iterable[Vehicle], header_s: int | None = START) -> gtfs_realtime_pb2.FeedMessage:
    message = gtfs_realtime_pb2.FeedMessage()
    message.header.gtfs_realtime_version = "2.0"
    if header_s is not None:
        message.header.timestamp = header_s
    for number, (name, seconds, lat, lng, speed) in enumerate(vehicles):
        entity = message.entity.add(id=str(number))
        entity.vehicle.vehicle.id = name
        entity.vehicle.position.latitude, entity.vehicle.position.longitude = lat, lng
        if speed is not None:
            entity.vehicle.position.speed = speed
        if seconds is not None:
            entity.vehicle.timestamp = seconds
    return message


def snapshot_bytes(vehicles: Iterable[Vehicle], header_s: int | None = START) -> bytes:
    data: bytes = feed_message(vehicles, header_s).SerializeToString()
    return data
