"""``hexveil gtfs-rt``: an agency's VehiclePositions go to Kafka or a file, or are released without Kafka."""

from __future__ import annotations

from dpcore.relation import NeighbouringRelation
from stream.cli.options import stop
from stream.cli.snapshots import snapshot_command
from stream.config.feed import FeedConfig, SpeedSource
from stream.sources.snapshot_events import SnapshotEvents
from stream.windows import Slotting


def _reader(
    feed: FeedConfig, slotting: Slotting, speeds: SpeedSource, relation: NeighbouringRelation
) -> SnapshotEvents:
    try:
        from stream.sources.vehicle_positions import GtfsRealtime
    except ModuleNotFoundError as error:
        stop(f"{error.name}, which reads GTFS-realtime, is not installed: pip install 'hexveil[gtfs]'")
    return GtfsRealtime(feed, slotting, speeds, relation)


command = snapshot_command(
    _reader, "Send VehiclePositions (GTFS-realtime) to the service. Missing speeds are derived from positions."
)
