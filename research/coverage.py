"""How often 95 % intervals of leading means hold the truth, and how far those means are off. NOT PRIVATE: it knows the
truth.

``python -m research coverage``: recorded days and made cities (:data:`CITIES`) under the three shipped files,
:data:`DRAWS` draws of each. Rows, plans, noise and models are the product's own. Of each: coverage by cells and by
events with its standard error, coverage of sparse and of jammed cells, MAE and bias by events. :data:`HELD_OUT` were
not looked at while constants were chosen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from bench.cities import KM_PER_DEGREE, SOUTH, TIMEZONE, WEST
from bench.progress import shown
from bench.recordings import absent, path_of_day, recordings
from dpcore.arrays import FloatArray
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from research.live_feeds import told
from stream.config import Config, load_config
from stream.config.fleets import fleet_map
from stream.diagnosis.reading import read_recording
from stream.evaluation.evaluate import PlannedWindow, planned_windows
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT
from stream.offline import split_by_slot
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import area_body, post_process
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import exact_values
from stream.statistics.window_release import speed_of
from stream.storage.row_store import ROW
from stream.terms import QUANTUM

Rows = npt.NDArray[np.void]
Windows = dict[int, Rows]

DAYS = ("2015-09-06", "2016-11-24", "2016-11-25", "2016-11-26", "2016-11-27", "2017-03-16", "2017-03-21")
START = int(datetime(2026, 3, 3, tzinfo=TIMEZONE).timestamp())
"""A Tuesday, 00:00 in Austin."""
RESOLUTION = 8
"""Of the cells of a made city's rows; configurations read coarser ones."""


@dataclass(frozen=True)
class City:
    """``vehicles`` on the road in a square of ``side_km`` for ``hours`` from 05:00, a fix every minute. ``usual``:
    speed in km/h by the distance to the middle in km and the hour; ``spread`` of one speed and of a street, as shares;
    ``stops``: share at rest.
    """

    vehicles: int
    hours: int
    side_km: float
    usual: Callable[[FloatArray, float], FloatArray]
    spread: float = 0.35
    streets: float = 0.25
    stops: float = 0.2


CITIES: Mapping[str, City] = {
    "few vehicles": City(40, 15, 20.0, lambda km, hour: 26.0 + 0 * km),
    "slow city": City(150, 10, 14.0, lambda km, hour: 9.0 + 0 * km, stops=0.35),
    "fast outskirts": City(200, 10, 36.0, lambda km, hour: 16 + 40 / (1 + np.exp(8 - km))),
    "one peak": City(250, 12, 20.0, lambda km, hour: 34 - 20 * np.exp(-(((hour - 8) / 1.2) ** 2)) + 0 * km),
    "few and slow": City(30, 12, 14.0, lambda km, hour: 11.0 + 0 * km, stops=0.4),
    "few and fast": City(60, 12, 30.0, lambda km, hour: 24 + 30 / (1 + np.exp(7 - km)), stops=0.1),
    "evening peak": City(200, 15, 24.0, lambda km, hour: 28 - 15 * np.exp(-(((hour - 17.5) / 1.5) ** 2)) + 0 * km),
}
HELD_OUT = ("2016-11-24", "2016-11-27", "few and slow", "evening peak")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "bus-fleet": {},
    "bus-live": {},
    "riders-live": fleet_map(NeighbouringRelation.PARTICIPATION, 300).keys(NeighbouringRelation.PARTICIPATION),
}
"""Shipped files, and what replaces their values: riders have the map that ``hexveil init`` writes for a fleet of this
size."""
DRAWS, MOST_WINDOWS = 24, 16
"""Draws of each feed, and the most windows that are drawn, those in the middle of the feed; the windows before them are
planned and paid for."""
RESAMPLED = 400
"""Resamples of the hexagons of a feed, each with all its windows and draws, by which coverage gets its standard
error."""
SPARSE, JAMMED = 12, 0.5
"""Cells of fewer events are sparse; others are jammed if their mean is below this share of the feed's."""


def config_of(setting: str, folder: Path) -> Config:
    """A configuration; its user key, in ``folder``, is always the same."""
    key = folder / "key"
    if not key.exists():
        key.write_bytes(bytes(KEY_BYTES))
        key.chmod(0o600)
    wanted = {"privacy.user_key_file": str(key), **SETTINGS[setting]}
    return load_config(REPO_ROOT / "config" / f"{setting}.toml", **wanted)


@cache
def made(name: str, seed: int) -> Rows:
    """All fixes of a made city, in cells of :data:`RESOLUTION`. Streets are squares of 700 m."""
    city, rng = CITIES[name], np.random.default_rng(seed)
    blocks = rng.normal(0, city.streets, (int(city.side_km / 0.7) + 1,) * 2)
    at, heading = rng.uniform(0, city.side_km, (city.vehicles, 2)), rng.uniform(0, 2 * np.pi, city.vehicles)
    driver, parts = rng.normal(0, 0.08, city.vehicles), []
    for minute in range(60 * city.hours):
        usual = city.usual(np.hypot(*(at - city.side_km / 2).T), 5 + minute / 60)
        street = blocks[tuple((at / 0.7).astype(int).T)]
        moving = usual * np.maximum(1 + street + driver + city.spread * rng.normal(size=city.vehicles), 0.05)
        speed = np.where(rng.random(city.vehicles) < city.stops, 0.0, moving)
        parts.append((np.arange(city.vehicles), np.full(city.vehicles, START + 5 * 3600 + 60 * minute), at, speed))
        heading = np.where(rng.random(city.vehicles) < 0.15, heading + rng.normal(0, 1.2, city.vehicles), heading)
        at = at + (speed / 60)[:, None] * np.column_stack([np.cos(heading), np.sin(heading)])
        outside = np.any((at < 0) | (at > city.side_km), axis=1)
        at, heading = np.clip(at, 0, city.side_km), np.where(outside, heading + np.pi, heading)
    vehicle, time, where, speed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    lat = SOUTH + where[:, 1] / KM_PER_DEGREE
    lng = WEST + where[:, 0] / KM_PER_DEGREE / np.cos(np.radians(SOUTH))
    rows = np.zeros(len(vehicle), dtype=ROW)
    rows["cell"] = [h3.latlng_to_cell(*place, RESOLUTION) for place in zip(lat.tolist(), lng.tolist(), strict=True)]
    rows["user"], rows["time"] = vehicle + 1, time * 1_000_000
    rows["lat"], rows["lng"] = np.round(lat * 1e7), np.round(lng * 1e7)
    rows["value"] = np.round(speed / QUANTUM)
    return rows


def windows_of(feed: str, config: Config, seed: int) -> Windows:
    """The rows of a feed by window."""
    if feed in CITIES:
        rows, resolution = made(feed, seed).copy(), config.hexagons.resolution
        parents = {cell: h3.cell_to_parent(cell, resolution) for cell in np.unique(rows["cell"]).tolist()}
        rows["cell"] = [parents[cell] for cell in rows["cell"].tolist()]
    else:
        file_format = "capmetro-2015" if feed < "2016" else "capmetro"
        rows = read_recording(config, recordings() / path_of_day(feed), file_format)[0]
    rows["value"] = np.minimum(rows["value"], round(config.value.upper / QUANTUM))
    return split_by_slot(rows, config)


class Judged(list[FloatArray]):
    """Columns (6, C) of each window and draw: number of the cell, events, true mean, error, whether covered, reach."""


def judge(planned: PlannedWindow, memory: Memory | None, noise: Noise, judged: Judged) -> Memory | None:
    """Add one draw of a window; returns the memory after it."""
    plan = planned.remembering(memory)
    samples, speed = by_planned_cells(plan, planned.contributions), speed_of(plan.terms)
    columns = speed.draw(plan, samples, noise)
    bodies = speed.body(plan, samples.counts, columns)
    derived, memory = post_process(plan, bodies, memory, area_body(columns, plan.terms.value))
    counts = samples.counts
    at = np.minimum(np.searchsorted(plan.cells, counts.cells), len(plan.cells) - 1)
    shown_ = np.flatnonzero((plan.cells[at] == counts.cells) & plan.published[at])
    truth, at = exact_values(plan, samples)["mean"][shown_], at[shown_]
    events = counts.by_cell(counts.samples)[shown_].astype(float)
    leading = derived["mean"]
    assert leading.interval is not None, "means have intervals"
    low, high = (end[at] for end in leading.interval)
    covered = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    cells = plan.cells[at].view(np.float64)
    judged.append(np.vstack([cells, events, truth, leading.value[at] - truth, covered, (high - low) / 2]))
    return memory


def measured(setting: str, feed: str, draws: int, seed: int = 7) -> dict[str, Any]:
    """Figures of one configuration on one feed."""
    judged = Judged()
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(setting, Path(folder))
        memories: list[Memory | None] = [None] * draws
        generators = [np.random.default_rng([seed, number]) for number in range(draws)]
        windows = windows_of(feed, config, seed)
        first = max(len(windows) - MOST_WINDOWS, 0) // 2
        for planned in islice(planned_windows(config, windows), first, first + MOST_WINDOWS):
            for number, memory in enumerate(memories):
                memories[number] = judge(planned, memory, Noise(generators[number].bytes), judged)
    cells, events, truth, error, covered, reach = np.concatenate(judged, axis=1)
    share, sparse = events / events.sum(), events < SPARSE
    jammed = ~sparse & (truth < JAMMED * (share @ truth))
    return {
        "configuration": setting,
        "feed": feed,
        "held_out": feed in HELD_OUT,
        "draws": draws,
        "cells_percent": _percent(cells, covered, np.ones_like(events)),
        "events_percent": _percent(cells, covered, events),
        "sparse_cells_percent": _percent(cells[sparse], covered[sparse], np.ones(sparse.sum())),
        "jammed_cells_percent": _percent(cells[jammed], covered[jammed], np.ones(jammed.sum())),
        "mae_km_h": round(float(share @ np.abs(error)), 2),
        "bias_km_h": round(float(share @ error), 2),
        "half_width_km_h": round(float(np.median(np.repeat(reach, events.astype(np.int64)))), 1),
    }


def _percent(cells: FloatArray, covered: FloatArray, weights: FloatArray) -> tuple[float, float] | None:
    """(Share that is covered, its standard error) in percent, by resampling ``cells``; None without any."""
    if not len(cells):
        return None
    number = np.unique(cells.view(np.uint64), return_inverse=True)[1]
    inside, all_of = np.bincount(number, weights=weights * covered), np.bincount(number, weights=weights)
    drawn = np.random.default_rng(0).integers(len(all_of), size=(RESAMPLED, len(all_of)))
    error = np.std(inside[drawn].sum(axis=1) / all_of[drawn].sum(axis=1))
    return round(100 * float(inside.sum() / all_of.sum()), 1), round(100 * float(error), 1)


def run(quick: bool) -> dict[str, Any]:
    """The table."""
    feeds = [*CITIES] if quick else [*DAYS, *CITIES]
    if missing := absent(*(path_of_day(feed) for feed in feeds if feed in DAYS)):
        return {"skipped": missing}
    cases = [(setting, feed) for setting in SETTINGS for feed in feeds]
    rows = (measured(*case, 1 if quick else DRAWS) for case in shown(cases, "coverage"))
    return {"coverage": [told(f"{row['configuration']}, {row['feed']}", row) for row in rows]}
