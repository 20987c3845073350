"""Relation "values": shrinks the means of a window towards those of its other hexagons, from released values alone."""

from __future__ import annotations

import h3
import numpy as np

from dpcore.contributions import Counts
from dpcore.shrinkage import local_kilometres, shrink
from stream.config import Config
from stream.messages.message import cell_text
from stream.statistics.plan import Columns, Derived, Plan

MAX_CELLS = 20_000
"""Published cells up to which means are shrunk: some 3 s on one core. The number of cells is public under "values"."""


def too_costly(plan: Plan, config: Config) -> bool:
    """Whether shrinkage is configured but left out, because the window has more than :data:`MAX_CELLS` published cells."""
    return _configured(plan, config) and int(plan.published.sum()) > MAX_CELLS


def _configured(plan: Plan, config: Config) -> bool:
    return "mean" in plan.statistics and "empirical-bayes" in config.speed.post_processing


def shrink_values(plan: Plan, counts: Counts, columns: dict[str, Columns], config: Config) -> dict[str, Derived]:
    """Estimates from released values and public counts alone; they cost no budget. None where that is :func:`too_costly`."""
    published = np.flatnonzero(plan.published)
    if not _configured(plan, config) or not len(published) or too_costly(plan, config):
        return {}
    mean = columns["mean"]
    events = counts.by_cell(counts.samples)[published]
    places = np.array([h3.cell_to_latlng(cell_text(cell)) for cell in counts.cells[published].tolist()])
    shrunk = shrink(
        mean.raw[published],
        mean.scale[published],
        events,
        upper=mean.top,
        positions_km=local_kilometres(places[:, 0], places[:, 1]),
        covariates=np.log([events, events / np.diff(counts.cell_start)[published]]).T,
    )
    spread = [np.zeros(counts.n_cells) for _ in range(3)]
    for column, values in zip(spread, (shrunk.value, shrunk.low, shrunk.high), strict=True):
        column[published] = values
    return {"mean": Derived("empirical-bayes", *spread)}
