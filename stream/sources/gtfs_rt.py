"""GTFS-realtime VehiclePositions as canonical events."""

from __future__ import annotations

from functools import partial

from stream.config.feed import FeedConfig
from stream.sources.apart import Decode
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.vehicle_positions import decode_snapshot


class GtfsRealtime(SnapshotEvents):
    """Events of VehiclePositions."""

    def decoder(self, feed: FeedConfig) -> Decode:
        """Of a FeedMessage."""
        return partial(decode_snapshot, max_future_us=self.max_future_us)
