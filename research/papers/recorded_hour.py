"""Recorded days of buses and the busiest hour of one, for what [M] and [C] measure on recordings of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bench.hourly import hourly_config
from bench.recordings import path_of_day, recordings
from dpcore.contributions import Contributions, Counts
from stream.diagnosis.reading import read_recording
from stream.offline import split_by_slot
from stream.statistics.window_rows import contributions_of

DAY = "2017-03-21"
RECORDING = path_of_day(DAY)


@lru_cache(maxsize=1)
def recorded_hours(day: str = DAY) -> list[Contributions]:
    """The hours in which there were events: hexagons of resolution 7, speeds in quanta of 0.01 km/h up to 65 km/h."""
    config = hourly_config("bus-fleet")
    read, _ = read_recording(config, recordings() / path_of_day(day), "capmetro-2015" if day < "2016" else "capmetro")
    return [contributions_of(rows, config.value.upper_quanta) for rows in split_by_slot(read, config).values()]


def recorded_hour() -> Contributions:
    """The hour with the most events."""
    return max(recorded_hours(), key=lambda hour: len(hour.values))


def day_of(hours: Sequence[Counts]) -> Counts:
    """Counts of all ``hours`` together, as [C] has them: a cell is a hexagon in one hour, and users keep their
    names."""
    users = np.unique(np.concatenate([hour.users for hour in hours]))
    first = np.cumsum([0, *(hour.n_cells for hour in hours)])
    return Counts(
        np.arange(first[-1], dtype=np.uint64),
        users,
        np.concatenate([hour.pair_cell + start for hour, start in zip(hours, first[:-1], strict=True)]),
        np.concatenate([np.searchsorted(users, hour.users)[hour.pair_user] for hour in hours]),
        np.concatenate([hour.samples for hour in hours]),
    )


def samples_of(contributions: Contributions, cell: int) -> tuple[np.ndarray, np.ndarray]:
    """(Samples per user, values) of one cell."""
    counts = contributions.counts
    first, last = counts.cell_start[cell], counts.cell_start[cell + 1]
    start = contributions.pair_start
    return counts.samples[first:last], contributions.values[start[first] : start[last]]
