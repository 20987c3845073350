"""Measures how often 95 % intervals of range counts contain the true number, by class of true counts, and their widths.

No part of the intervals was chosen on data; they are right by construction (``dpcore.spatial.range_noise``). Ranges
reach from one cell to the whole box, anywhere and beside points, with at most a fixed number of each class.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.recordings import absent, path_of_day, recordings
from bench.spatial import GRIDS, mechanisms, path_of, tuning_queries
from dpcore.arrays import FloatArray
from dpcore.noise import Noise
from dpcore.spatial import Domain, E2EPriv, Rectangles, SparseHierarchy, SpatialMechanism
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from dpcore.spatial.regions import Footprints, Regions
from dpcore.spatial.release import Released
from stream.config.section import BoundingBox
from stream.sources.network import Fleet, build_network

Counts = npt.NDArray[np.int64]

CLASSES = (("0", 0, 0), ("1-5", 1, 5), ("6-20", 6, 20), ("21-100", 21, 100), ("more", 101, 10**12))
"""Name, least and greatest true count."""
OFFERED = ("ag", "auto", "auto-relative", "htf", "kdtree", "privlet", "quadtree", "singular", "ug", "uniform")
AUSTIN = (30.10, -98.00, 30.60, -97.50)
"""South, west, north, east."""
REGION_CELLS = 8
EULER_UP_TO = 5_000
"""Points of the largest data set whose regions are counted: each is a polygon of its own."""


@dataclass(frozen=True)
class Sizes:
    """Days whose hours are counted, hours of a day, vehicles of generated cities, grids, ε, ranges of a class and
    draws."""

    days: tuple[str, ...]
    hours: int
    vehicles: tuple[int, ...]
    grids: tuple[str, ...]
    epsilons: tuple[float, ...]
    ranges: int
    draws: int


FULL = Sizes(
    days=("2016-11-26", "2017-03-21"),
    hours=3,
    vehicles=(100, 1500),
    grids=("cabspottingE", "Stroke"),
    epsilons=(0.1, 0.5, 1.0, 4.0),
    ranges=30,
    draws=2,
)
QUICK = Sizes(days=(), hours=0, vehicles=(50,), grids=GRIDS[:1], epsilons=(1.0,), ranges=4, draws=1)


def hours_of(day: str, number: int, cells: int = 64) -> list[Counts]:
    """The last fix of every vehicle in each of ``number`` hours of a recorded day, counted."""
    last: dict[tuple[int, str], tuple[float, float, float]] = {}
    with gzip.open(recordings() / path_of_day(day), "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if not row["latitude"] or not row["longitude"]:
                continue
            moment = datetime.fromisoformat(row["timestamp"]).timestamp()
            key = int(moment // 3600), row["vehicle_id"]
            if key not in last or last[key][0] <= moment:
                last[key] = moment, float(row["latitude"]), float(row["longitude"])
    domain, hours = Domain(*AUSTIN, cells, cells), sorted({hour for hour, _ in last})
    chosen = hours[:: max(1, len(hours) // number)][:number]
    return [
        domain.count(np.array([where[1:] for (hour, _), where in last.items() if hour == each])).counts
        for each in chosen
    ]


def city_of(vehicles: int, cells: int = 64) -> Counts:
    """The last fix of every bus of a generated city in half an hour of a morning, counted."""
    rng = np.random.default_rng(vehicles)
    box = BoundingBox(south=AUSTIN[0], west=AUSTIN[1], north=AUSTIN[2], east=AUSTIN[3])
    start = int(datetime(2026, 3, 2, 7, tzinfo=ZoneInfo("America/Chicago")).timestamp()) * 1_000_000
    network = build_network(box, max(4, vehicles // 12), rng)
    fleet = Fleet(network, vehicles, start, ZoneInfo("America/Chicago"), rng, interval=60.0, tick=10.0)
    last = np.full((vehicles, 2), np.nan)
    for _ in range(180):
        fixes = fleet.step()
        last[fixes.vehicle] = np.column_stack([fixes.lat, fixes.lng])
    return Domain(*AUSTIN, cells, cells).count(last[~np.isnan(last).any(axis=1)]).counts


def sources(sizes: Sizes) -> Iterator[tuple[str, list[Counts]]]:
    """Name and count grids of everything that is measured."""
    for day in sizes.days:
        yield f"hours of {day}", hours_of(day, sizes.hours)
    for vehicles in sizes.vehicles:
        yield f"city of {vehicles}", [city_of(vehicles)]
    for grid in sizes.grids:
        with np.load(recordings() / path_of(grid)) as archive:
            yield grid, [archive["counts"].astype(np.int64)]


def candidates(counts: Counts, rng: np.random.Generator, cells: int = 1) -> Rectangles:
    """Ranges of whole blocks of ``cells`` cells, anywhere and with their corner at or before a point."""
    size, number = counts.shape[0] // cells, 20_000
    side = np.minimum(2 ** rng.integers(0, size.bit_length(), (2, number)), size)
    anywhere, beside = rng.integers(0, size, (2, number // 2)), np.array(np.nonzero(counts)) // cells
    if beside.shape[1]:
        beside = beside[:, rng.integers(0, beside.shape[1], number // 2)] - rng.integers(0, 4, (2, number // 2))
    else:
        beside = anywhere
    low = np.clip(np.concatenate([anywhere, beside], axis=1), 0, size - side)
    inclusive = np.column_stack([low[0], low[0] + side[0] - 1, low[1], low[1] + side[1] - 1])
    return Rectangles.of_cells(inclusive)


def chosen(ranges: Rectangles, truth: FloatArray, most: int) -> Rectangles:
    """Up to ``most`` ranges of each class."""
    at = np.concatenate(
        [np.flatnonzero((truth >= least) & (truth <= greatest))[:most] for _, least, greatest in CLASSES]
    )
    return Rectangles(ranges.x0[at], ranges.x1[at], ranges.y0[at], ranges.y1[at])


def tally(histogram: Released, ranges: Rectangles, truth: FloatArray) -> dict[str, list[tuple[int, int, float]]]:
    """Class -> (ranges, held, median width); nothing for a histogram without intervals."""
    intervals = histogram.intervals(ranges)
    if intervals is None:
        return {}
    holds, width, tallies = intervals.hold(truth), intervals.high - intervals.low, {}
    for name, least, greatest in CLASSES:
        at = (truth >= least) & (truth <= greatest)
        if at.any():
            tallies[name] = [(int(at.sum()), int(holds[at].sum()), float(np.median(width[at])))]
    return tallies


def measured(cells: int) -> dict[str, SpatialMechanism]:
    """The mechanisms that the service offers, on ``cells`` × ``cells``."""
    offered = {name: mechanism for name, mechanism in mechanisms().items() if name in OFFERED}
    sizes = tuple(cells >> k for k in range(cells.bit_length()))
    return offered | {"sparse": SparseHierarchy(), "e2epriv": E2EPriv(sizes, tuning_queries(cells))}


def measure(grids: list[Counts], epsilon: float, sizes: Sizes) -> dict[str, dict[str, list[tuple[int, int, float]]]]:
    """Mechanism -> class -> tallies over draws."""
    all_of = measured(grids[0].shape[0])
    result: dict[str, dict[str, list[tuple[int, int, float]]]] = {}
    micro = round(epsilon * 1e6)
    for draw in range(sizes.draws):
        for number, counts in enumerate(grids):
            rng = np.random.default_rng([number, draw])
            domain, image = Domain.unit_cells(*counts.shape), image_of(counts)
            ranges = candidates(counts, rng)
            ranges = chosen(ranges, answer(image, ranges), sizes.ranges)
            drawn: dict[str, tuple[Released, Rectangles, FloatArray]] = {
                name: (mechanism.fit(counts, domain, micro, Noise()), ranges, answer(image, ranges))
                for name, mechanism in all_of.items()
            }
            if counts.sum() <= EULER_UP_TO:
                drawn["euler"] = regions(counts, micro, rng, sizes.ranges)
            for name, asked in drawn.items():
                for label, rows in tally(*asked).items():
                    result.setdefault(name, {}).setdefault(label, []).extend(rows)
    return result


def regions(counts: Counts, micro: int, rng: np.random.Generator, most: int) -> tuple[Released, Rectangles, FloatArray]:
    """Euler's histogram of triangles two cells wide around the points, ranges of its cells and their true answers."""
    x, y = np.repeat(np.array(np.nonzero(counts)), counts[counts > 0], axis=1).astype(float)
    corners = np.stack([x, y], axis=1)[:, None, :] + np.array([[0.0, 0.0], [1.9, 0.0], [0.0, 1.9]])
    high, wide = map(float, counts.shape)
    shapes = Regions.of_polygons(list(corners))
    domain = Domain(0.0, 0.0, high, wide, REGION_CELLS, REGION_CELLS)
    diameter = 2.7
    exact = EulerHistogram(domain, Footprints.of(shapes, domain, diameter).total(), 0.0, "covert")
    ranges = candidates(counts, rng, counts.shape[0] // REGION_CELLS)
    ranges = chosen(ranges, exact.answers(ranges), most)
    return Euler(diameter, inference="covert").fit(shapes, domain, micro, Noise()), ranges, exact.answers(ranges)


def run(quick: bool) -> dict[str, Any]:
    """source → ε → mechanism → class → ranges, share held, median width; least and greatest share per mechanism."""
    sizes = QUICK if quick else FULL
    if missing := absent(*map(path_of_day, sizes.days), *map(path_of, sizes.grids)):
        return {"skipped": missing}
    cases = [(name, grids, epsilon) for name, grids in sources(sizes) for epsilon in sizes.epsilons]
    table: dict[str, dict[str, Any]] = {}
    pooled: dict[str, dict[str, list[int]]] = {}
    for name, grids, epsilon in shown(cases, "intervals"):
        by_mechanism = measure(grids, epsilon, sizes)
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for mechanism, classes in by_mechanism.items():
            for label, tallies in classes.items():
                ranges, holding = sum(row[0] for row in tallies), sum(row[1] for row in tallies)
                width = float(np.median([row[2] for row in tallies]))
                rows.setdefault(mechanism, {})[label] = {"ranges": ranges, "held": holding / ranges, "width": width}
                total = pooled.setdefault(mechanism, {}).setdefault(label, [0, 0])
                total[0] += ranges
                total[1] += holding
        table.setdefault(name, {})[str(epsilon)] = rows
    return {
        "held": {
            mechanism: {label: round(holding / ranges, 4) for label, (ranges, holding) in classes.items()}
            for mechanism, classes in pooled.items()
        },
        "table": table,
    }
