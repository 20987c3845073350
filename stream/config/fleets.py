"""The table "vehicles → map": the resolution and timeslot that a fleet of so many vehicles on the road can fill."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

DAY_BUDGET = 12.0
"""The budget of a day in the shipped configurations."""


class FleetMap(NamedTuple):
    """The map of fleets of at least ``vehicles`` on the road: H3 resolution and timeslot."""

    vehicles: int
    resolution: int
    slot: timedelta

    @property
    def epsilon(self) -> float:
        """The share of one window in :data:`DAY_BUDGET`."""
        return DAY_BUDGET * (self.slot / timedelta(days=1))


FLEET_MAPS = (
    FleetMap(0, 6, timedelta(hours=3)),
    FleetMap(600, 6, timedelta(minutes=30)),
    FleetMap(1_600, 7, timedelta(minutes=15)),
    FleetMap(10_000, 8, timedelta(minutes=15)),
)
"""By vehicles, ascending."""


def fleet_map(vehicles: int) -> FleetMap:
    """The map of a fleet of ``vehicles`` on the road at a time."""
    return max(row for row in FLEET_MAPS if row.vehicles <= vehicles)
