"""GTFS-realtime VehiclePositions as canonical events."""

from __future__ import annotations

from functools import partial
from zoneinfo import ZoneInfo

from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.sources.apart import Decode
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.vehicle_positions import decode_snapshot


class GtfsRealtime(SnapshotEvents):
    """Events of VehiclePositions, whose speeds are in m/s, as the format prescribes, or in ``feed.speed_unit``."""

    unit_of_format = "m/s"

    def decoder(self, feed: FeedConfig) -> Decode:
        """The snapshot in the bytes of a FeedMessage."""
        zone = None if feed.times_zone is None else ZoneInfo(feed.times_zone)
        kmh = SPEED_TO_KMH[self.unit]
        return partial(decode_snapshot, max_future_us=self.max_future_us, kmh=kmh, times_zone=zone)
