"""Measures what [B] reports of Euler histograms: errors of range counts by inference, violated constraints and distances.

[B], Figs. 7 to 14, in a reduced form: taxis in a box of 20 km with cells of 0.66, 1 and 2 km and B = 2 km (T-Drive), cabs on
4 × 4 cells of 0.8 km, and generated regions, many in the middle or few over the whole box. [B] sets negative counts to 0
before inference; we infer from the draws, and by default do not infer. The L∞ program is in :mod:`bench.papers.bounds`. Errors are
in percent of all regions.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.recordings import absent, recordings
from bench.spatial import synthetic_regions
from dpcore.budget import to_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.domain import IntGrid
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.euler_inference import Inference, infer
from dpcore.spatial.regions import Footprints, Regions, extract_regions

TAXIS = "tdrive/tdrive-600.csv.gz"
CENTRE = 39.9087, 116.3975
"""Middle of the box, latitude and longitude: Tiananmen."""
METRES = 111_195.0
"""Metres of a degree of latitude."""
BOX, DIAMETER = 20_000.0, 2_000.0
"""Side of the taxis' box, and the bound B of their regions, in metres."""
NEAREST = (64, 5760)
"""Fixes of a region, in the comparison of discarding with shrinking."""
WAYS = ("none", "truncated", "consistent", "covert", "truncated, then covert")
TOTAL_SHARE = 0.05
"""Share of ε that pays for the total, where one is paid for."""
SHAPES = ("1 %", "4 %", "25 %", "strips of 25 %", "100 %")


@dataclass(frozen=True)
class Sizes:
    sides: tuple[int, ...]
    epsilons: tuple[str, ...]
    repeats: int
    queries: int
    crowd: int


FULL = Sizes(sides=(10, 20, 30), epsilons=("0.1", "1.0"), repeats=16, queries=60, crowd=10_000)
QUICK = Sizes(sides=(10,), epsilons=("1.0",), repeats=1, queries=10, crowd=500)


@dataclass(frozen=True)
class Users:
    """Regions in the box of ``domain``, of diameter at most ``diameter``."""

    regions: Regions
    domain: Domain
    diameter: float


@cache
def fixes() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Taxi, x and y of each fix inside the box, in metres from its corner."""
    with gzip.open(recordings() / TAXIS, "rb") as packed, io.TextIOWrapper(packed, "utf-8", newline="") as text:
        rows = csv.reader(text)
        next(rows)
        columns = np.array([(row[0], row[2], row[3]) for row in rows], dtype=np.float64)
    x = (columns[:, 1] - CENTRE[0]) * METRES + BOX / 2
    y = (columns[:, 2] - CENTRE[1]) * METRES * np.cos(np.radians(CENTRE[0])) + BOX / 2
    inside = (x >= 0) & (x < BOX) & (y >= 0) & (y < BOX)
    return columns[inside, 0].astype(np.int64), x[inside], y[inside]


def taxis(nearest: int = 64, discard_beyond: float = math.inf) -> Regions:
    """One region per taxi, of the fixes nearest to where it mostly was."""
    return extract_regions(*fixes(), nearest=nearest, bandwidth=300.0, discard_beyond=discard_beyond)


def generated(number: int, side: int, *, even: bool, seed: int = 3) -> Regions:
    """``number`` regions about a cell wide on side × side unit cells, over the whole box or around its middle."""
    if not even:
        return synthetic_regions(number, side, seed)
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0.5, side - 0.5, (number, 1, 2)) + rng.uniform(-0.5, 0.5, (number, 12, 2))
    return Regions(np.arange(number + 1) * 12, corners[..., 0].ravel(), corners[..., 1].ravel(), np.arange(number))


def users(sizes: Sizes) -> dict[str, Users]:
    """The sets by name."""
    crowd = generated(sizes.crowd, 20, even=False)
    sets = {
        f"{sizes.crowd} in the middle, 20 × 20": Users(crowd, Domain.unit_cells(20, 20), 2.0),
        "182 evenly, 20 × 20": Users(generated(182, 20, even=True), Domain.unit_cells(20, 20), 2.0),
        "500 cabs, 4 × 4": Users(generated(500, 4, even=True), Domain.unit_cells(4, 4), 1.0),
    }
    if not absent(TAXIS):
        regions = taxis()
        for side in sizes.sides:
            name = f"{len(regions)} taxis, cells of {BOX / side / 1000:.2g} km"
            sets[name] = Users(regions, Domain(0.0, 0.0, BOX, BOX, side, side), DIAMETER)
    return sets


def ranges(domain: Domain, queries: int, seed: int = 5) -> dict[str, Rectangles]:
    """Ranges of whole cells by shape, in cells."""
    rng, side = np.random.default_rng(seed), domain.rows

    def placed(rows: int, columns: int) -> Rectangles:
        x, y = (rng.integers(0, side - length + 1, queries).astype(np.float64) for length in (rows, columns))
        return Rectangles(x, x + rows, y, y + columns)

    made = {f"{share:.0%}".replace("%", " %"): max(1, round(side * share**0.5)) for share in (0.01, 0.04, 0.25)}
    squares = {name: placed(length, length) for name, length in made.items()}
    whole = Rectangles.of_cells(np.array([[0, side - 1, 0, side - 1]]))
    return squares | {"strips of 25 %": placed(max(1, side // 4), side), "100 %": whole}


def inferred(noisy: IntGrid, way: str) -> IntGrid:
    """Components as released ``way``."""
    if way.startswith("truncated"):
        positive = np.maximum(noisy, 0)
        return infer(positive).components if "covert" in way else positive
    inference: Inference = "covert" if way == "covert" else "consistent" if way == "consistent" else "none"
    return infer(noisy, inference).components


def violated(h: npt.NDArray[np.int64]) -> float:
    """Percent of edges and vertices above one of the two components beside them: C1 and C2."""
    above = [across[1::2] > np.minimum(across[:-1:2], across[2::2]) for across in (h, h.T)]
    return 100 * float(np.concatenate([each.ravel() for each in above]).mean())


def with_total(given: Users, epsilon: str) -> dict[str, EulerHistogram]:
    """A release with a paid total, on unit cells, and its counts moved into their order."""
    paid = Euler(given.diameter, total_share=TOTAL_SHARE)
    release = paid.fit(given.regions, given.domain, to_micro(epsilon, round_up=False), Noise())
    drawn = replace(release, domain=Domain.unit_cells(*given.domain.shape))
    ordered = infer(drawn.components, "ordered").components
    return {
        "none, total": drawn,
        "ordered, total": replace(drawn, components=ordered, drawn=drawn.components, grade="ordered"),
    }


def measured(given: Users, epsilon: str, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Way → shape → mean absolute error in percent of all regions; beside them violations, and without a total L1 distance and
    seconds.
    """
    domain, cells = given.domain, Domain.unit_cells(*given.domain.shape)
    truth = EulerHistogram(cells, Footprints.of(given.regions, domain, given.diameter).total(), 0.0, "covert")
    queries = ranges(domain, sizes.queries)

    def off(release: EulerHistogram) -> dict[str, float]:
        errors = {shape: release.answers(query) - truth.answers(query) for shape, query in queries.items()}
        return {shape: 100 * float(np.abs(error).mean()) / len(given.regions) for shape, error in errors.items()}

    rows: dict[str, list[dict[str, float]]] = {}
    for _ in range(sizes.repeats):
        drawn = Euler(given.diameter).fit(given.regions, domain, to_micro(epsilon, round_up=False), Noise()).components
        for way in WAYS:
            start = time.process_time()
            components = inferred(drawn, way)
            row = {"seconds": time.process_time() - start, "violated": violated(components)}
            row["distance"] = float(np.abs(components - drawn).sum())
            release = EulerHistogram(cells, components, 0.0, "noisy")
            rows.setdefault(way, []).append(row | off(release))
        for way, release in with_total(given, epsilon).items():
            rows.setdefault(way, []).append({"violated": violated(release.components)} | off(release))
    return {way: {key: round(float(np.mean([row[key] for row in of])), 3) for key in of[0]} for way, of in rows.items()}


def outliers(sizes: Sizes) -> dict[str, dict[str, float]]:
    """What discarding fixes outside B does instead of shrinking, without noise: the share of regions that are wider than B, how
    many components of cells of 1 km a region meets, and by how many percent of all regions answers differ.
    """
    domain, figures = Domain(0.0, 0.0, BOX, BOX, 20, 20), {}
    cells = Domain.unit_cells(20, 20)
    for nearest in NEAREST:
        shrunk, discarded = taxis(nearest), taxis(nearest, DIAMETER)
        counts = [Footprints.of(regions, domain, DIAMETER).total() for regions in (shrunk, discarded)]
        ours, theirs = (EulerHistogram(cells, components, 0.0, "covert") for components in counts)
        figures[f"{nearest} nearest"] = {
            "wider than B": 100 * float((shrunk.diameters() > DIAMETER).mean()),
            "components, shrunk": counts[0].sum() / len(shrunk),
            "components, discarded": counts[1].sum() / len(discarded),
            **{
                f"difference, {shape}": 100
                * float(np.abs(ours.answers(query) - theirs.answers(query)).mean())
                / len(shrunk)
                for shape, query in ranges(domain, sizes.queries).items()
            },
        }
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in figures.items()}


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → way → figures; ``outliers``: discarding fixes against shrinking regions, of the taxis."""
    sizes = QUICK if quick else FULL
    figures = {
        name: {epsilon: measured(given, epsilon, sizes) for epsilon in sizes.epsilons}
        for name, given in shown(users(sizes).items(), "regions")
    }
    without = absent(TAXIS)
    return {"sets": figures} | ({"without": without} if without else {"outliers": outliers(sizes)})


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-euler.svg``: error by shape of a range, a panel per set, at the largest ε."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 4.2), layout="constrained")
    for axes, (name, by_epsilon) in zip(sheet.subplots(1, len(sets), squeeze=False)[0], sets.items(), strict=True):
        epsilon = max(by_epsilon, key=float)
        for way, row in by_epsilon[epsilon].items():
            axes.plot(range(len(SHAPES)), [row[shape] for shape in SHAPES], marker="o", markersize=3, label=way)
        axes.set(title=f"{name}\nε = {epsilon}", yscale="log", xticks=range(len(SHAPES)))
        axes.set_xticklabels(SHAPES, rotation=30)
    sheet.axes[0].set_ylabel("error, % of all regions")
    sheet.axes[0].legend(fontsize=7)
    sheet.savefig(folder / "papers-euler.svg")
