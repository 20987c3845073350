"""Relation "values": shrinks the means of a window towards those of its other hexagons, from released values alone."""

from __future__ import annotations

import numpy as np

from dpcore.interval_calibration import Calibration
from dpcore.shrinkage import Shrunken, local_kilometres, shrink
from dpcore.smoothing import Releases
from stream.statistics.plan import Plan

MAX_CELLS = 20_000
"""Published cells up to which means are shrunk: some 3 s on one core. The number of cells is public under "values"."""


def too_costly(plan: Plan) -> bool:
    """Whether shrinkage is configured but left out, because the window has more than :data:`MAX_CELLS` published
    cells."""
    return _configured(plan) and int(plan.published.sum()) > MAX_CELLS


def shrinks(plan: Plan) -> bool:
    """Whether the means of the window are shrunk."""
    return _configured(plan) and not too_costly(plan)


def _configured(plan: Plan) -> bool:
    return "mean" in plan.terms.speed.statistics and "empirical-bayes" in plan.terms.speed.post_processing


def shrink_releases(releases: Releases, upper: float, calibration: Calibration) -> Shrunken:
    """Estimates from released values and public counts alone; they cost no budget. ``calibration``: of earlier
    windows."""
    return shrink(
        releases.means,
        releases.scales,
        releases.events.astype(np.int64),
        upper=upper,
        positions_km=local_kilometres(releases.places[:, 0], releases.places[:, 1]),
        covariates=np.column_stack([np.log(releases.events), releases.covariates]),
        calibration=calibration,
    )
