"""[B] at its own size: median relative errors over 10 000 taxis. Ours are 345 in the box around Tiananmen, so they are
resampled.

Each of the 10 000 has the region of one of ours, moved by a normal jitter. The noise is that of one user whatever their
number, so relative errors fall with it; jitter spreads the copies, which are denser than 10 000 taxis would be without
it. Cabspotting's 500 cabs in 4 × 4 cells of 0.8 km, and 500 on each of 30 days, are resampled from our taxis where
these are densest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.recordings import absences
from dpcore.arrays import FloatArray, IntArray
from dpcore.noise import Noise
from dpcore.spatial import Domain
from dpcore.spatial.domain import IntGrid
from dpcore.spatial.euler import EulerHistogram
from dpcore.spatial.euler_inference import infer
from dpcore.spatial.queries import Rectangles
from dpcore.spatial.regions import Footprints, Regions
from research.papers.euler import DIAMETER, TAXIS, Way, boxes, generated, inside, mostly, taxis

SHAPES = ((1, 4), (2, 2), (4, 1), (3, 3), (4, 4), (6, 6), (8, 8), (10, 10), (13, 13), (16, 16), (20, 20))
"""Rows and columns of ranges, in cells of 1 km of a box of 20 × 20."""
CABS, CABS_SIDE, CABS_JITTER = (500, 15_000), 3_200.0, 400.0
"""Numbers of cabs, the side of their box and the jitter of their places, in metres."""
CABS_SHAPES = ((1, 2), (2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (4, 4))


@dataclass(frozen=True)
class Sizes:
    """``jitters`` in metres."""

    users: int
    jitters: tuple[float, ...]
    draws: int
    ranges: int


FULL = Sizes(users=10_000, jitters=(1_000.0, 3_000.0), draws=20, ranges=60)
QUICK = Sizes(users=500, jitters=(1_000.0,), draws=2, ranges=10)


def resampled(regions: Regions, number: int, jitter: float, of: IntArray | None = None) -> Regions:
    """``number`` regions, each one of ``regions``, or ``of`` some of these, moved by normal steps of ``jitter`` metres
    along both axes."""
    rng = np.random.default_rng(1)
    sizes = np.diff(regions.start)
    of = np.arange(len(sizes)) if of is None else of
    chosen = of[rng.integers(0, len(of), number)]
    corners = np.concatenate([np.arange(regions.start[k], regions.start[k + 1]) for k in chosen])
    steps = rng.normal(0, jitter, (2, number)).repeat(sizes[chosen], axis=1)
    start = np.append(0, np.cumsum(sizes[chosen])).astype(np.int64)
    return Regions(start, regions.x[corners] + steps[0], regions.y[corners] + steps[1], np.arange(number))


def cabs(number: int) -> tuple[Regions, Domain]:
    """``number`` regions, and the box of 4 × 4 cells in which most of our taxis mostly were."""
    places = mostly()
    apart = np.abs(places[:, None] - places).max(axis=2)
    densest = int((apart < CABS_SIDE / 2).sum(axis=1).argmax())
    south, west = (float(place) - CABS_SIDE / 2 for place in places[densest])
    near = np.flatnonzero(apart[densest] < CABS_SIDE / 2)
    regions = resampled(taxis(Way(64, math.inf)), number, CABS_JITTER, near)
    return regions, Domain(south, west, south + CABS_SIDE, west + CABS_SIDE, 4, 4)


def asked(domain: Domain, number: int, shapes: Sequence[tuple[int, int]]) -> dict[str, Rectangles]:
    """``number`` ranges of each shape, in cells."""
    rng, queries = np.random.default_rng(5), {}
    for rows, columns in shapes:
        x = rng.integers(0, domain.rows - rows + 1, number).astype(float)
        y = rng.integers(0, domain.columns - columns + 1, number).astype(float)
        queries[f"{rows} × {columns}"] = Rectangles(x, x + rows, y, y + columns)
    return queries


def ways_of(drawn: IntGrid) -> dict[str, IntGrid]:
    """The draws, and what inference makes of them."""
    positive = np.maximum(drawn, 0)
    return {
        "drawn": drawn,
        "truncated": positive,
        "truncated, C1 and C2": infer(positive, "consistent").components,
        "covert": infer(positive).components,
    }


def median(parts: list[FloatArray]) -> float:
    """In percent."""
    return round(100 * float(np.median(np.concatenate(parts))), 1)


def errors(
    regions: Regions, domain: Domain, sizes: Sizes, shapes: Sequence[tuple[int, int]] = SHAPES
) -> dict[str, Any]:
    """Shape → way → median relative error in % at ε = 1, over ranges and draws; L1 distance of each way to the truth,
    in % of the draws'."""
    cells, queries = Domain.unit_cells(*domain.shape), asked(domain, sizes.ranges, shapes)
    truth = EulerHistogram(cells, Footprints.of(regions, domain, DIAMETER).total(), 0.0, "covert")
    exact = truth.components
    true = {shape: np.maximum(truth.answers(ranges), 1) for shape, ranges in queries.items()}
    off: dict[str, dict[str, list[FloatArray]]] = {shape: {} for shape in queries}
    distances: dict[str, float] = {}
    for _ in shown(range(sizes.draws), "at size"):
        # That of Euler at ε = 1; the regions are counted once.
        noise = Noise().discrete_laplace(Footprints.sensitivity(domain, DIAMETER), size=exact.size)
        for way, components in ways_of(exact + noise.reshape(exact.shape)).items():
            distances[way] = distances.get(way, 0.0) + float(np.abs(components - exact).sum())
            for shape, ranges in queries.items():
                answers = EulerHistogram(cells, components, 0.0, "noisy").answers(ranges)
                off[shape].setdefault(way, []).append(np.abs(answers / true[shape] - 1))
    return {
        "median": {shape: {way: median(parts) for way, parts in by.items()} for shape, by in off.items()},
        "L1": {way: round(100 * distance / distances["drawn"]) for way, distance in distances.items()},
    }


def run(quick: bool) -> dict[str, Any]:
    """``jitter``: metres → :func:`errors` at ε = 1; ``cabs``: their number → the same of :func:`cabs`."""
    sizes, missing = QUICK if quick else FULL, absences(TAXIS)
    if missing:
        regions, domain = generated(345, 20, even=False), Domain(0, 0, 20_000, 20_000, 20, 20)
        regions = Regions(regions.start, regions.x * 1_000, regions.y * 1_000, regions.user)
    else:
        (box,) = boxes(1).values()
        regions, domain = inside(box, Way(64, math.inf)), box.of(20)
    by_jitter = {
        f"{jitter:g}": errors(resampled(regions, sizes.users, jitter), domain, sizes) for jitter in sizes.jitters
    }
    of_cabs = {} if missing else {number: errors(*cabs(number), sizes, CABS_SHAPES) for number in CABS}
    return {"jitter": by_jitter, "cabs": of_cabs} | missing


def plot(figures: dict[str, Any], folder: Path) -> None:
    """Nothing: the page has all figures as a table."""
