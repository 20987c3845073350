"""The table "vehicles → map": the resolution and timeslot that a fleet of so many vehicles on the road can fill.

Figures are those of ``python -m research fleets``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from dpcore.relation import NeighbouringRelation

DAY_BUDGETS = {NeighbouringRelation.VALUES: 12.0, NeighbouringRelation.PARTICIPATION: 4.0}
"""The budget of a day. Under "participation" it pays for sixteen windows, four hours of driving."""
DELTA = 1e-6
PAID_WINDOWS = 16


class FleetMap(NamedTuple):
    """The live map of fleets of at least ``vehicles`` on the road: H3 resolution and timeslot, and what was measured.

    ``within``: share of events within ±5 km/h of the truth; ``half_width``: median over events of the 95 % intervals,
    km/h.
    """

    vehicles: int
    resolution: int
    slot: timedelta
    within: float
    half_width: float

    def keys(self, relation: NeighbouringRelation) -> dict[str, Any]:
        """Dotted keys of a configuration; None: the key is left out."""
        budget = DAY_BUDGETS[relation]
        shared: dict[str, Any] = {
            "window.slot": self.slot,
            "window.allowed_delay": timedelta(seconds=30),
            "privacy.budget": budget,
            "hexagons.resolution": self.resolution,
            "speed.statistics": ["mean"],
            "speed.post_processing": ["kalman"],
        }
        if relation == NeighbouringRelation.PARTICIPATION:
            return shared | {
                "window.publication_margin": timedelta(seconds=30),
                "privacy.epsilon": budget / PAID_WINDOWS,
                "speed.clipping": "none",
            }
        return shared | {
            "privacy.epsilon": None,
            "privacy.accounting": "zcdp",
            "privacy.delta": DELTA,
            "privacy.admission": "rolling",
            "hexagons.merge_until": None,
            "hexagons.coarsest_resolution": 0,
            "speed.clipping": "residual",
            "speed.sum_cap": 0.0,
        }


_QUARTER = timedelta(minutes=15)
FLEET_MAPS = {
    NeighbouringRelation.VALUES: (
        FleetMap(0, 5, _QUARTER, 0.99, 3.6),
        FleetMap(700, 6, _QUARTER, 0.97, 3.3),
        FleetMap(1_600, 7, _QUARTER, 0.94, 4.7),
        FleetMap(3_000, 8, _QUARTER, 0.90, 5.6),
    ),
    NeighbouringRelation.PARTICIPATION: (
        FleetMap(0, 5, _QUARTER, 0.89, 3.8),
        FleetMap(1_200, 6, _QUARTER, 0.93, 2.9),
        FleetMap(10_000, 8, _QUARTER, 0.83, 7.1),
    ),
}
"""The maps of each relation, in order of vehicles. Measured with 285, 736, 1 642 and 3 022 buses on the road, and with
228, 1 217 and 10 000 users (the last by ``make demo``)."""


def fleet_map(relation: NeighbouringRelation, vehicles: int) -> FleetMap:
    """The map of a fleet of ``vehicles`` on the road at a time."""
    return max(row for row in FLEET_MAPS[relation] if row.vehicles <= vehicles)
