"""GTFS-realtime VehiclePositions as canonical events."""

from __future__ import annotations

from dpcore.relation import NeighbouringRelation
from stream.config.feed import FeedConfig, SpeedSource
from stream.sources.derived_speed import DerivationLimits
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.vehicle_positions import decode_snapshot
from stream.windows import Slotting


class GtfsRealtime(SnapshotEvents):
    """Events of VehiclePositions."""

    def __init__(
        self,
        feed: FeedConfig,
        slotting: Slotting,
        speeds: SpeedSource = "missing",
        relation: NeighbouringRelation = NeighbouringRelation.VALUES,
        limits: DerivationLimits | None = None,
    ) -> None:
        super().__init__(decode_snapshot, feed, slotting, speeds, relation, limits)
