"""The busiest recorded hour of buses, for what [M] and [C] measure on recordings of their own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bench.hourly import hourly_config
from bench.recordings import recordings
from dpcore.contributions import Contributions
from stream.offline import read_recording, split_by_slot
from stream.statistics.pipeline import contributions_of

RECORDING = "capmetro/2017-03-21.csv.gz"


@lru_cache(maxsize=1)
def recorded_hour() -> Contributions:
    """The hour with the most events: hexagons of resolution 7, speeds in quanta of 0.01 km/h up to 65 km/h."""
    config = hourly_config("bus-fleet")
    windows = split_by_slot(read_recording(config, recordings() / RECORDING, "capmetro")[0], config)
    return contributions_of(max(windows.values(), key=len), config)


def samples_of(contributions: Contributions, cell: int) -> tuple[np.ndarray, np.ndarray]:
    """(Samples per user, values) of one cell."""
    counts = contributions.counts
    first, last = counts.cell_start[cell], counts.cell_start[cell + 1]
    start = contributions.pair_start
    return counts.samples[first:last], contributions.values[start[first] : start[last]]
