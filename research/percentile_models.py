"""How well percentiles are modelled by released moments under "participation", and any smooth model could. NOT PRIVATE.

For p15, p50 and p85: the error of what is released for a share of ε; of what post-processing "clipped-normal" makes of
released mean and variance, on which all of ε is spent; and of the best smooth model in hindsight that is fed by the
same: a combination of powers of these moments that is fitted to the true percentiles of the same cells, by least
absolute errors weighted by events. No model of this form that knows less does better on that day. For p50 it is also
fed exact moments, means alone, or released moments and what a district around the cell shows in the same window: exact
percentiles, mean and share of vehicles that stand, for which nothing is paid.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import h3.api.numpy_int as h3
import numpy as np

from bench.cities import KINDS, rows_of
from bench.defaults import CITY_SEED, path_of
from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from dpcore.arrays import FloatArray, IntArray
from dpcore.noise import Noise
from stream.config import Config
from stream.config.speed import CLIPPED_NORMAL
from stream.config.value import QUANTUM
from stream.diagnosis.reading import read_recording
from stream.evaluation.evaluate import PlannedWindow, planned_windows
from stream.evaluation.tuning import Recording
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.statistics.columns import PERCENTS
from stream.statistics.pipeline import area_body, post_process
from stream.statistics.residual_clipping import with_ranges
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import exact_values
from stream.statistics.window_release import speed_of

DAYS = ("2017-03-21", "2016-11-26", "2016-11-24")
HELD_OUT = ("2016-11-26", "2016-11-24")
"""Days that were not looked at while the model was chosen; the cities were."""
DRAWS = 2
MOMENTS, ALL = ("mean", "variance"), ("mean", "variance", *PERCENTS)
"""Statistics that share ε: without a distribution, and with it."""
DISTRICTS = (5, 4)
"""H3 resolutions of districts: 7 and 49 of the cells."""
STANDING = 100
"""Quanta of speed (0.01 km/h) below which a vehicle stands."""
_ROUNDS = 40
"""Rounds of reweighted least squares, which end in least absolute errors."""
_LEAST_OFF = 0.2


def config_of(statistics: tuple[str, ...], folder: Path) -> Config:
    """Hourly riders at resolution 6; the user key, in ``folder``, is always the same."""
    key = folder / "key"
    if not key.exists():
        key.write_bytes(bytes(KEY_BYTES))
        key.chmod(0o600)
    settings = {
        "privacy.user_key_file": str(key),
        "privacy.budget": 48.0,
        "speed.statistics": statistics,
        "speed.post_processing": ["kalman", CLIPPED_NORMAL],
    }
    return hourly_config("riders", **settings)


def windows_of(feed: str, config: Config) -> list[PlannedWindow]:
    """The planned windows of a generated city or a recorded day."""
    if feed in KINDS:
        rows = rows_of(feed, CITY_SEED)
    else:
        rows = read_recording(config, recordings() / path_of(feed), "capmetro")[0]
    return list(planned_windows(config, Recording(rows).windows(config)))


def powers(mean: FloatArray, variance: FloatArray | None) -> FloatArray:
    """What a model combines, (n, 3) from means or (n, 6) with variances."""
    of_mean = [np.ones(len(mean)), mean, mean**2]
    if variance is None:
        return np.column_stack(of_mean)
    return np.column_stack([*of_mean, variance, np.sqrt(variance), variance / np.maximum(mean, 2.0)])


def districts(planned: list[PlannedWindow], resolution: int, draws: int) -> FloatArray:
    """Exact p15, p50, p85, mean (km/h) and share that stands in the district of each visited cell in its window, (n,
    5)."""
    parts = []
    for each in planned:
        counts = each.contributions.counts
        parents = np.array([h3.cell_to_parent(cell, resolution) for cell in counts.cells.tolist()], dtype=np.uint64)
        district, values = np.repeat(parents[counts.pair_cell], counts.samples), each.contributions.values
        shapes = {name: _shape(values[district == name]) for name in np.unique(parents).tolist()}
        parts += [[shapes[name] for name in parents[np.isin(counts.cells, each.plan.cells)].tolist()]] * draws
    return np.concatenate(parts)


def _shape(values: IntArray) -> list[float]:
    return [
        *(np.percentile(values, [15, 50, 85]) * QUANTUM),
        values.mean() * QUANTUM,
        (values < STANDING).mean(),
    ]


def scaled(mean: FloatArray, district: FloatArray) -> FloatArray:
    """What a model combines of a ``district``'s shape (n, 5), (n, 9): as it is, and in proportion to the cell's
    ``mean`` (n,)."""
    ratio = mean / np.maximum(district[:, 3], 2.0)
    return np.column_stack([district, district[:, :3] * ratio[:, None], district[:, 4] * mean])


def best_error(inputs: FloatArray, truth: FloatArray, weight: FloatArray) -> float:
    """Mean absolute error, by ``weight`` (n,), of the combination of ``inputs`` (n, d) that is nearest to ``truth``
    (n,)."""
    share = weight / weight.sum()
    off = np.ones(len(truth))
    for _ in range(_ROUNDS):
        root = np.sqrt(share / np.maximum(np.abs(off), _LEAST_OFF))
        combination = np.linalg.lstsq(inputs * root[:, None], truth * root, rcond=None)[0]
        off = inputs @ combination - truth
    return round(float(share @ np.abs(off)), 2)


def released(planned: list[PlannedWindow], draws: int) -> dict[str, FloatArray]:
    """Smoothed mean, variance, percentiles as far as they are released, and modelled ones ("modelled p50") of the
    visited cells, (n,) each, of all windows and draws.
    """
    memories: list[Memory | None] = [None] * draws
    parts: list[dict[str, FloatArray]] = []
    for each in planned:
        counts = each.contributions.counts
        for number, memory in enumerate(memories):
            plan = with_ranges(each.plan, memory)
            noise = Noise(np.random.default_rng([number, plan.window.start]).bytes)
            speed = speed_of(plan.terms)
            columns = speed.draw(plan, each.contributions, noise)
            bodies = speed.body(plan, counts, columns)
            derived, memories[number] = post_process(plan, bodies, memory, area_body(columns, plan.terms.value))
            at = np.searchsorted(plan.cells, counts.cells[np.isin(counts.cells, plan.cells)])
            names = [name for name in ALL[1:] if name in columns]
            parts.append(
                {"mean": derived["mean"].value[at]}
                | {name: columns[name].value[at] for name in names}
                | {f"modelled {name}": derived[name].value[at] for name in PERCENTS}
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def exact(planned: list[PlannedWindow], draws: int) -> dict[str, FloatArray]:
    """Events and exact statistics of the visited cells, each window ``draws`` times."""
    parts = []
    for each in planned:
        counts = each.contributions.counts
        listed = np.isin(counts.cells, each.plan.cells)
        columns = {name: column[listed] for name, column in exact_values(each.plan, each.contributions).items()}
        parts += [columns | {"events": counts.by_cell(counts.samples)[listed].astype(np.float64)}] * draws
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def measured(feed: str, draws: int) -> dict[str, Any]:
    """Errors on one day, in km/h."""
    with tempfile.TemporaryDirectory() as folder:
        moments, everything = (config_of(statistics, Path(folder)) for statistics in (MOMENTS, ALL))
        planned, with_median = windows_of(feed, moments), windows_of(feed, everything)
    true = exact(with_median, draws)
    noisy, today = released(planned, draws), released(with_median, draws)
    truth, weight = true["p50"], true["events"]
    share = weight / weight.sum()
    moments_released = powers(noisy["mean"], noisy["variance"])
    percentiles = {
        name: {
            "released_km_h": _error(today[name], true[name], share),
            "modelled_km_h": _error(noisy[f"modelled {name}"], true[name], share),
            "best_model_km_h": best_error(moments_released, true[name], weight),
        }
        for name in PERCENTS
    }
    with_district = {
        f"released_mean_variance_district_{resolution}_km_h": best_error(
            np.column_stack([moments_released, scaled(noisy["mean"], districts(planned, resolution, draws))]),
            truth,
            weight,
        )
        for resolution in DISTRICTS
    }
    return {
        "feed": feed,
        "seen": feed not in HELD_OUT,
        "percentiles": percentiles,
        "released_km_h": percentiles["p50"]["released_km_h"],
        "exact_mean_km_h": best_error(powers(true["mean"], None), truth, weight),
        "exact_mean_variance_km_h": best_error(powers(true["mean"], true["variance"]), truth, weight),
        "released_mean_km_h": best_error(powers(noisy["mean"], None), truth, weight),
        "released_mean_variance_km_h": best_error(moments_released, truth, weight),
        **with_district,
    }


def _error(estimate: FloatArray, truth: FloatArray, share: FloatArray) -> float:
    return round(float(share @ np.abs(estimate - truth)), 2)


def run(quick: bool) -> dict[str, Any]:
    """Errors of the percentiles of every day and of every generated city."""
    feeds, draws = (("dense and slow",), 1) if quick else ((*DAYS, *KINDS), DRAWS)
    if missing := absent(*(path_of(feed) for feed in feeds if feed[0].isdigit())):
        return {"skipped": missing}
    return {"draws": draws, "days": [measured(feed, draws) for feed in shown(feeds, "percentile models")]}
