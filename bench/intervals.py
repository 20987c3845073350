"""Measures how often 95 % intervals of modelled means contain the true mean, by class of events per cell, and their
widths.

Constants of the calibration were chosen by scores of the recorded days that are not :data:`HELD_OUT`, and of generated
cities of the other kinds with the seeds 11 and 12; the margin also by a look at the others. Rows, plans and noise are
those of the service; noise comes from a tape, so that figures repeat. NOT PRIVATE: it compares releases with true
values.

Whether 93 to 97 % can be had from releases at all is a matter of how loud they are: ``noise_to_error`` is the median
scale of their noise beside the root mean square error of the model's values, and ``cells_needed`` the number of
releases from which the factor on a model's variance can be known within 22 % (two standard errors), by the bound of
Cramér and Rao.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cities import KINDS, rows_of, timetable
from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from dpcore.arrays import FloatArray
from dpcore.interval_calibration import CLASSES, class_of
from dpcore.laplace_posterior import tilted
from dpcore.noise import Noise
from stream.config import Config
from stream.diagnosis.reading import read_recording
from stream.evaluation.evaluate import PlannedWindow, planned_windows
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.offline import split_by_slot
from stream.statistics.columns import Derived
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import post_process
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import exact_values
from stream.statistics.window_release import speed_of

Rows = npt.NDArray[np.void]
Columns = defaultdict[str, list[FloatArray]]
"""By estimator: events, width, whether covered, absolute error, scale of the noise, cell, (6, C) of each window and
draw."""

DAYS = ("2016-11-25", "2017-03-16", "2015-09-06", "2016-11-26", "2017-03-21", "2016-11-24", "2016-11-27")
FLEETS = {"fleet of 31": (31, 17), "fleet of 320": (320, 6), "fleet of 541": (541, 10)}
"""Vehicles and hours of the simulator's cities."""
HELD_OUT = ("2015-09-06", "2016-11-24", "2016-11-27", "sparse and fast", "fleet of 541")
SEED, DRAWS = 5, 2
"""Seed of generated cities, and draws of every feed: each has its own tape and its own memory."""
RESAMPLED = 400
"""Resamples of the cells of a feed, each with all its windows and draws, by which coverage gets its standard error."""
LEAST = 100
"""Cells, windows and draws in a class below which its coverage is not judged."""
AS_CLAIMED = (0.93, 0.97)
"""Coverage that is as good as 95 %."""
FACTOR_ERROR = 0.1
"""Standard error of the logarithm of the factor at which two standard errors leave coverage within 93 to 97 %."""


@dataclass(frozen=True)
class Sizes:
    """Recorded days, kinds of generated cities and fleets of the simulator."""

    days: tuple[str, ...]
    kinds: tuple[str, ...]
    fleets: tuple[str, ...]


FULL = Sizes(DAYS, tuple(KINDS), tuple(FLEETS))
QUICK = Sizes((), ("dense and slow",), ())


def path_of(day: str) -> str:
    """File of a recorded day."""
    return f"capmetro/{day}.csv.gz"


def config_of(feed: str, folder: Path) -> Config:
    """The hourly configuration with the mean alone, at ε = 2 for every hour. Its user key, in ``folder``, is always the
    same, because pseudonyms order users, and so say which of them gets which number of the tape.
    """
    upper, key = KINDS[feed].upper if feed in KINDS else 80.0, folder / "key"
    key.write_bytes(bytes(KEY_BYTES))
    key.chmod(0o600)
    settings = {"speed.statistics": ["mean"], "value.upper": upper, "privacy.user_key_file": str(key)}
    return hourly_config("bus-fleet", **settings)


def events_of(feed: str, config: Config) -> Rows:
    """All rows of a feed."""
    if feed in KINDS:
        return rows_of(feed, SEED)
    if feed in FLEETS:
        return timetable(*FLEETS[feed], SEED)
    return read_recording(config, recordings() / path_of(feed), "capmetro-2015" if feed < "2016" else "capmetro")[0]


def tape(seed: str) -> Callable[[int], bytes]:
    """Entropy that is the same in every run: SHAKE-256 of the seed and a counter."""
    counter = itertools.count()
    return lambda n: hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(n)


def judged(planned: PlannedWindow, noise: Noise, memory: Memory | None, columns: Columns) -> Memory | None:
    """Add one draw of a window to ``columns``; returns the memory after it."""
    plan, cells = planned.plan, by_planned_cells(planned.plan, planned.contributions)
    speed = speed_of(plan.terms)
    drawn = speed.draw(plan, cells, noise)
    derived, memory = post_process(plan, speed.body(plan, cells.counts, drawn), memory)
    true, events = exact_values(plan, cells)["mean"], cells.counts.by_cell(cells.counts.samples)
    numbers = plan.cells.view(np.float64)
    mean = derived["mean"]
    score = _score(mean, true, events)
    columns[mean.method].append(np.vstack([score, drawn["mean"].scale, numbers])[:, plan.published])
    return memory


def _score(estimate: Derived, true: FloatArray, events: npt.NDArray[np.int64]) -> FloatArray:
    assert estimate.interval is not None, "modelled means have intervals"
    low, high = estimate.interval
    return np.array([events, high - low, (low <= true) & (true <= high), np.abs(estimate.value - true)])


def table(feed: str, estimator: str, columns: list[FloatArray]) -> dict[str, Any]:
    """Coverage and widths of all cells and of each class, and the error weighted by events."""
    whole = np.concatenate(columns, axis=1)
    classes = class_of(whole[0])
    return {
        "feed": feed,
        "seen": feed not in HELD_OUT,
        "estimator": estimator,
        **_row(whole),
        "mae_km_h": round(float(np.average(whole[3], weights=whole[0])), 2),
        "classes": {_name(c): _row(whole[:, classes == c]) for c in np.unique(classes).tolist()},
    }


def _row(columns: FloatArray) -> dict[str, Any]:
    """What some cells, (6, C), say together."""
    _, width, covered, error, scale, cell = columns
    share, off, rms = float(covered.mean()), _standard_error(covered, cell), float(np.sqrt(np.mean(np.square(error))))
    released = scale[np.isfinite(scale)]
    noise = float(np.median(released)) / rms if len(released) and rms > 0 else 0.0
    return {
        "cells": len(width),
        "places": len(np.unique(cell)),
        "covers_percent": round(100 * share, 1),
        "standard_error": round(100 * off, 1),
        "verdict": _verdict(share, off, len(width)),
        "width_km_h": round(float(np.median(width)), 1),
        "half_width_km_h": round(float(np.mean(width)) / 2, 1),
        "raw_half_width_km_h": round(float(np.mean(released)) * float(np.log(20)), 1) if len(released) else None,
        "rms_km_h": round(rms, 2),
        "noise_to_error": round(noise, 2),
        "cells_needed": int(np.ceil(1 / (FACTOR_ERROR**2 * information(noise)))),
    }


def _verdict(share: float, off: float, cells: int) -> str:
    """Whether coverage is as claimed: "within" 93 to 97 %, "by chance" outside, "below", "above", or "few" cells."""
    low, high = AS_CLAIMED
    if cells < LEAST:
        return "few"
    if low <= share <= high:
        return "within"
    if low <= share + 1.96 * off and share - 1.96 * off <= high:
        return "by chance"
    return "below" if share < low else "above"


def _standard_error(covered: FloatArray, cell: FloatArray) -> float:
    """Of the share of what is ``covered``, (C,), by resampling cells with all their windows and draws."""
    number = np.unique(cell.view(np.uint64), return_inverse=True)[1]
    of_place, all_of = np.bincount(number, weights=covered), np.bincount(number)
    drawn = np.random.default_rng(SEED).integers(len(all_of), size=(RESAMPLED, len(all_of)))
    return float(np.std(of_place[drawn].sum(axis=1) / all_of[drawn].sum(axis=1)))


def information(ratio: float) -> float:
    """Fisher information of one release about the logarithm of the variance of a normal error of standard deviation 1,
    beside Laplace noise of scale ``ratio``: the integral of (∂ log p)² p, by the difference of two densities.
    """
    y, step = np.linspace(-12 * ratio - 8, 12 * ratio + 8, 40_001, retstep=True)
    scale = np.full_like(y, max(ratio, 1e-3))

    def density(log_variance: float) -> FloatArray:
        return np.exp(tilted(np.zeros_like(y), np.full_like(y, np.exp(log_variance)), y, scale)[0])

    slope = (density(0.02) - density(-0.02)) / 0.04
    return float(np.sum(np.square(slope) / np.maximum(density(0.0), 1e-300)) * step)


def _name(c: int) -> str:
    return f"{CLASSES[c]}-{CLASSES[c + 1] - 1}" if c + 1 < len(CLASSES) else f"{CLASSES[c]}-"


def measured(feed: str) -> Iterator[dict[str, Any]]:
    """The tables of one feed, over all draws."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(feed, Path(folder))
        windows = list(planned_windows(config, split_by_slot(events_of(feed, config), config)))
        columns: Columns = defaultdict(list)
        for drawing in range(1, DRAWS + 1):
            memory: Memory | None = None
            for planned in windows:
                noise = Noise(tape(f"{feed}/{planned.plan.window.start}/{drawing}"))
                memory = judged(planned, noise, memory, columns)
    for estimator, each in columns.items():
        yield table(feed, estimator, each)


def run(quick: bool) -> dict[str, Any]:
    """Coverage and width per feed, estimator and class of events per cell."""
    sizes = QUICK if quick else FULL
    if missing := absent(*(path_of(day) for day in sizes.days)):
        return {"skipped": missing}
    feeds = [*sizes.days, *sizes.kinds, *sizes.fleets]
    return {"epsilon": 2.0, "intervals": [row for feed in shown(feeds, "intervals") for row in measured(feed)]}
