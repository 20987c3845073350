"""Adaptive resolution, two ways and several targets, on a recording: every hexagon judged by its own true mean. NOT PRIVATE.

Remainder: a parent answers for those of its hexagons that cannot stand alone. Whole: one hexagon too sparse takes its
sisters along, so that cells tile the area.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt

from dpcore.contributions import Counts
from dpcore.resolution import Resolution, choose_resolution, regroup
from stream import merging
from stream.config import Config, load_config
from stream.evaluate import evaluate
from stream.offline import read_recording, split_by_slot

FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]
Chooser = Callable[..., Resolution]

TARGETS = (5.0, 10.0, 20.0, 40.0)
COARSEST = 4


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


def scored(config: Config, windows: dict[int, npt.NDArray[np.void]], trials: int, name: str, chooser: Chooser) -> None:
    """One JSON line for each estimator of the mean."""
    with mock.patch.object(merging, "choose_resolution", chooser):
        for score in evaluate(config, windows, trials, name):
            print(
                json.dumps(
                    {
                        "merging": name,
                        "estimator": score.estimator,
                        "mae": round(score.mae, 3),
                        "useful_coverage": score.useful_coverage and round(score.useful_coverage, 3),
                    }
                ),
                flush=True,
            )


def main(config_path: str, recording: str, file_format: str, trials: int) -> None:
    """Mean absolute error and useful coverage per hexagon, weighted by events, for every target and both ways."""
    plain = load_config(config_path)
    windows = split_by_slot(read_recording(plain, Path(recording), file_format)[0], plain)
    scored(plain, windows, trials, "none", choose_resolution)
    for target in TARGETS:
        changes = {"hexagons.merge_until_km_h": target, "hexagons.coarsest_resolution": COARSEST}
        config = load_config(config_path, **changes)
        scored(config, windows, trials, f"remainder until {target:g} km/h", choose_resolution)
        scored(config, windows, trials, f"whole until {target:g} km/h", choose_whole)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python -m bench.resolution CONFIG RECORDING FORMAT TRIALS")
    main(*sys.argv[1:4], int(sys.argv[4]))
