"""Relation "values": shrinks the means of a window towards those of its other hexagons, from released values alone."""

from __future__ import annotations

import h3
import numpy as np

from dpcore.contributions import Counts
from dpcore.shrinkage import local_kilometres, shrink
from stream.config import Config
from stream.messages.message import cell_text
from stream.statistics.plan import Columns, Derived, Plan


def shrink_values(plan: Plan, counts: Counts, columns: dict[str, Columns], config: Config) -> dict[str, Derived]:
    """Estimates from released values and public counts alone; they cost no budget."""
    published = np.flatnonzero(plan.published)
    if "mean" not in columns or "empirical-bayes" not in config.speed.post_processing or not len(published):
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
