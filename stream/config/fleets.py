"""The table "vehicles → map": the resolution and timeslot that a fleet of so many vehicles on the road can fill.

Figures are those of ``python -m research fleets``.
"""

from datetime import timedelta
from typing import Any, NamedTuple

from dpcore.relation import NeighbouringRelation
from stream.config.servers import MapKind

DAY_BUDGETS = {NeighbouringRelation.VALUES: 12.0, NeighbouringRelation.PARTICIPATION: 4.0}
"""The budget of a day, with :data:`DELTA`."""
DELTA = 1e-6


class FleetMap(NamedTuple):
    """The map of fleets of at least ``vehicles`` on the road: H3 resolution and timeslot, and what was measured.

    ``within``: share of events within ±5 km/h of the truth; ``half_width``: median over events of the 95 % intervals,
    km/h. ``windows``: under "participation", how many the budget of a day pays for of a user who stays in one hexagon.
    Whoever divides a window over n hexagons pays 1/n of that, so that finer hexagons let it pay for fewer. ``kind``:
    what it shows; of a typical map the truth is the mean of the cell at this hour over all days.
    """

    vehicles: int
    resolution: int
    slot: timedelta
    within: float
    half_width: float
    windows: int = 0
    clipping: str = "residual"
    kind: MapKind = "live"

    def keys(self, relation: NeighbouringRelation) -> dict[str, Any]:
        """Dotted keys of a configuration; None: the key is left out."""
        shared: dict[str, Any] = {
            "window.slot": self.slot,
            "window.allowed_delay": timedelta(seconds=30),
            "privacy.epsilon": None,
            "privacy.accounting": "zcdp",
            "privacy.delta": DELTA,
            "privacy.budget": DAY_BUDGETS[relation],
            "hexagons.resolution": self.resolution,
            "speed.statistics": ["mean"],
            "speed.clipping": self.clipping,
            "speed.post_processing": ["kalman"],
            **({} if self.kind == "live" else {"public.map": self.kind}),
        }
        if relation == NeighbouringRelation.PARTICIPATION:
            margin = timedelta(seconds=30)
            return shared | {"window.publication_margin": margin, "privacy.windows": self.windows}
        return shared | {
            "privacy.admission": "rolling",
            "hexagons.merge_until": None,
            "hexagons.coarsest_resolution": 0,
            "speed.sum_cap": 0.0,
        }


_QUARTER = timedelta(minutes=15)
FLEET_MAPS = {
    NeighbouringRelation.VALUES: (
        FleetMap(0, 5, _QUARTER, 0.98, 3.5),
        FleetMap(0, 7, timedelta(hours=1), 0.95, 5.4, kind="typical"),
        FleetMap(700, 6, _QUARTER, 0.96, 3.2),
        FleetMap(1_600, 7, _QUARTER, 0.94, 4.2),
        FleetMap(3_000, 8, _QUARTER, 0.89, 5.3),
    ),
    NeighbouringRelation.PARTICIPATION: (
        FleetMap(0, 5, _QUARTER, 0.98, 3.1, 16),
        FleetMap(1_200, 6, _QUARTER, 0.98, 2.8, 12),
        FleetMap(4_000, 7, _QUARTER, 0.96, 3.5, 8),
        FleetMap(10_000, 8, _QUARTER, 0.90, 4.9, 6, "none"),
    ),
}
"""The maps of each relation, in order of vehicles. Live ones measured with 285, 736, 1 642 and 3 022 buses on the road,
and with 318, 1 270, 4 235 and 10 575 users; the typical one with 297 buses, on the fifth day."""


def fleet_map(relation: NeighbouringRelation, vehicles: int, kind: MapKind = "live") -> FleetMap:
    """The map of a fleet of ``vehicles`` on the road at a time. Raises :class:`ValueError` where none is measured."""
    return max(row for row in FLEET_MAPS[relation] if row.vehicles <= vehicles and row.kind == kind)
