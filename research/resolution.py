"""Measures two ways of merging sparse hexagons on a recorded day, against each hexagon's own true mean. NOT PRIVATE.

Remainder: a parent gives the value of its sparse hexagons only. Whole: one sparse hexagon makes its parent give the
value of all its children, so that cells tile the area.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from dpcore.arrays import FloatArray, IdArray
from dpcore.contributions import Counts
from dpcore.resolution import Resolution, choose_resolution, regroup
from stream.diagnosis.reading import read_recording
from stream.evaluation.evaluate import evaluate
from stream.offline import split_by_slot
from stream.statistics import merging

Chooser = Callable[..., Resolution]

RECORDING = "capmetro/2017-03-21.csv.gz"
MEAN_ALONE = {"speed.statistics": ["mean"], "value.upper": 80.0}
COARSEST = 4


@dataclass(frozen=True)
class Sizes:
    windows: int | None
    """The number of windows, counted from the end of the day; None for all."""
    targets: tuple[float, ...]
    trials: int


FULL = Sizes(windows=None, targets=(5.0, 10.0, 20.0, 40.0), trials=3)
QUICK = Sizes(windows=2, targets=(10.0,), trials=1)


def choose_whole(
    counts: Counts, parents: Sequence[IdArray], predict: Callable[[Counts], FloatArray], *, target: float
) -> Resolution:
    """As :func:`choose_resolution`, but all cells of a parent go into it once one of them is too wide."""
    region, level = counts.cells.copy(), np.zeros(counts.n_cells, dtype=np.int64)
    pooled, half_width = counts, predict(counts)
    for height, parent in enumerate(parents, start=1):
        wide = (half_width > target)[np.searchsorted(pooled.cells, region)]
        taken = np.isin(parent, parent[wide])
        region, level = np.where(taken, parent, region), np.where(taken, height, level)
        pooled = regroup(counts, region)
        half_width = predict(pooled)
    return Resolution(region, level, pooled, half_width)


def run(quick: bool) -> dict[str, Any]:
    """Mean absolute error and useful coverage per hexagon, weighted by events, for every target and both ways."""
    if missing := absent(RECORDING):
        return {"skipped": missing}
    sizes = QUICK if quick else FULL
    plain = hourly_config("bus-fleet", **MEAN_ALONE)
    windows = split_by_slot(read_recording(plain, recordings() / RECORDING, "capmetro")[0], plain)
    chosen = {slot: windows[slot] for slot in sorted(windows)[-(sizes.windows or 0) :]}
    ways: list[tuple[str, float | None, Chooser]] = [("none", None, choose_resolution)]
    for target in sizes.targets:
        ways += [("remainder", target, choose_resolution), ("whole", target, choose_whole)]
    rows = []
    for way, until, chooser in shown(ways, "resolution"):
        merged = {} if until is None else {"merge_until": until, "coarsest_resolution": COARSEST}
        config = hourly_config("bus-fleet", **MEAN_ALONE, **{f"hexagons.{key}": value for key, value in merged.items()})
        with mock.patch.object(merging, "choose_resolution", chooser):
            rows += [
                {
                    "merging": way,
                    "until_km_h": until,
                    "estimator": score.estimator,
                    "mae": score.mae,
                    "useful_coverage": score.useful_coverage,
                }
                for score in evaluate(config, chosen, sizes.trials, way)
            ]
    return {"recording": RECORDING, "windows": len(chosen), "trials": sizes.trials, "errors": rows}
