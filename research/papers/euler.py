"""Measures what [B] reports of Euler histograms: errors of range counts by inference, violated constraints and
distances.

[B], Figs. 7 to 14: taxis in boxes of 20 km with cells of 0.66, 1 and 2 km and B = 2 km (T-Drive), cabs on 4 × 4 cells
of 0.8 km, and generated regions, many in the middle or few over the whole box; ranges of 1 to 100 % of the box in
several shapes; ε from 0.1 to 1. [B] sets negative counts to 0 before inference; we infer from the draws, and by default
do not infer. The L∞ program is in :mod:`bench.papers.bounds`. Errors are in percent of all regions.
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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.recordings import absences, absent, recordings
from bench.spatial import synthetic_regions
from dpcore.budget import to_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.domain import IntGrid
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.euler_inference import Inference, infer
from dpcore.spatial.regions import MAX_NEAREST, Footprints, Regions, extract_regions

TAXIS = "tdrive/tdrive-600.csv.gz"
CENTRE = 39.9087, 116.3975
"""Middle of the first box, latitude and longitude: Tiananmen. Places are in metres north and east of it."""
METRES = 111_195.0
"""Metres of a degree of latitude."""
RECORDED = (39.7, 40.1), (116.1, 116.7)
"""Latitudes and longitudes that were recorded."""
BOX, DIAMETER = 20_000.0, 2_000.0
"""Side of the taxis' boxes, and the bound B of their regions, in metres."""
STEP, SHARED = 1_000.0, 0.25
"""Boxes are looked for in steps of this many metres, and have at most this share of their area in common with one
another."""
BANDWIDTH = 300.0
"""Of the density of a taxi's fixes, in metres."""
WAYS = ("none", "truncated", "consistent", "covert", "truncated, then covert")
TOTAL_SHARE = 0.05
"""Share of ε that pays for the total, where one is paid for."""
AREAS = (1, 4, 9, 16, 25, 49, 64)
"""Areas of ranges in percent of the box, besides the whole box."""
SHAPES = ("squares", "strips", "rectangles")
"""Of each area: a square, the thinnest rectangle, and one of any sides."""
WHOLE, ANY = "100 %", "any"
"""Names of the whole box, and of ranges between any two corners."""


class Way(NamedTuple):
    """How a taxi's region follows from its fixes: of the ``nearest`` to where it mostly was, those farther than
    ``discard_beyond``/2 are left out.
    """

    nearest: int
    discard_beyond: float

    def __str__(self) -> str:
        kept = "all" if math.isinf(self.discard_beyond) else f"within {self.discard_beyond / 2000:g} km"
        return f"{self.nearest} nearest, {kept}"


OURS, SOURCE = Way(64, math.inf), Way(MAX_NEAREST, DIAMETER)


@dataclass(frozen=True)
class Sizes:
    """``boxes``: how many boxes of taxis; ``ways``: how their regions are made; ``sides``: cells along a side of a box;
    ``nearest``: fixes of a region in the comparison of discarding with shrinking; ``fixes``: of a user, where
    extraction is timed.
    """

    boxes: int
    ways: tuple[Way, ...]
    sides: tuple[int, ...]
    epsilons: tuple[str, ...]
    repeats: int
    queries: int
    crowd: int
    nearest: tuple[int, ...]
    fixes: tuple[int, ...]


FULL = Sizes(
    boxes=3,
    ways=(OURS, SOURCE),
    sides=(10, 20, 30),
    epsilons=("0.1", "0.3", "0.5", "1.0"),
    repeats=16,
    queries=60,
    crowd=10_000,
    nearest=(64, 360, 1440, MAX_NEAREST),
    fixes=(2_000, 8_000, 32_000, 128_000),
)
QUICK = Sizes(
    boxes=1,
    ways=(SOURCE,),
    sides=(10,),
    epsilons=("1.0",),
    repeats=1,
    queries=10,
    crowd=500,
    nearest=(MAX_NEAREST,),
    fixes=(500, 2_000),
)


@dataclass(frozen=True)
class Users:
    """Regions in the box of ``domain``, of diameter at most ``diameter``."""

    regions: Regions
    domain: Domain
    diameter: float


class Box(NamedTuple):
    """Its middle in metres north and east of :data:`CENTRE`."""

    north: float
    east: float

    def holds(self, points: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of ``points`` (N, 2) it holds."""
        return np.asarray((np.abs(points - np.array(self)) < BOX / 2).all(axis=1))

    def shared(self, other: Box) -> float:
        """Share of its area that is also in the ``other`` one."""
        return math.prod(max(0.0, BOX - abs(a - b)) / BOX for a, b in zip(self, other, strict=True))

    def of(self, side: int) -> Domain:
        """Its side × side cells."""
        return Domain(self.north - BOX / 2, self.east - BOX / 2, self.north + BOX / 2, self.east + BOX / 2, side, side)


def metres(latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Metres north and east of :data:`CENTRE`, shape (N, 2)."""
    north = (np.asarray(latitude, dtype=np.float64) - CENTRE[0]) * METRES
    east = (np.asarray(longitude, dtype=np.float64) - CENTRE[1]) * METRES * np.cos(np.radians(CENTRE[0]))
    return np.column_stack([north, east])


@cache
def fixes() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Taxi of each fix, and where it was in metres, shape (N, 2)."""
    with gzip.open(recordings() / TAXIS, "rb") as packed, io.TextIOWrapper(packed, "utf-8", newline="") as text:
        rows = csv.reader(text)
        next(rows)
        columns = np.array([(row[0], row[2], row[3]) for row in rows], dtype=np.float64)
    return columns[:, 0].astype(np.int64), metres(columns[:, 1], columns[:, 2])


@cache
def taxis(way: Way) -> Regions:
    """One region per taxi."""
    taxi, points = fixes()
    return extract_regions(taxi, *points.T, bandwidth=BANDWIDTH, **way._asdict())


def mostly() -> npt.NDArray[np.float64]:
    """Where each taxi mostly was: the fix of highest density, shape (taxis, 2)."""
    nearest = taxis(Way(1, math.inf))
    return np.column_stack([nearest.x, nearest.y])


def boxes(number: int) -> dict[str, Box]:
    """The box around Tiananmen, and further ones inside the recorded area: each time the one where most taxis mostly
    were, of those that have at most a quarter of their area in common with every earlier one.
    """
    low, high = metres(*RECORDED)
    steps = [
        np.arange(math.ceil(a / STEP), math.floor(b / STEP) + 1) * STEP
        for a, b in zip(low + BOX / 2, high - BOX / 2, strict=True)
    ]
    candidates = [Box(float(north), float(east)) for north in steps[0] for east in steps[1]]
    chosen, places = [Box(0.0, 0.0)], mostly()
    while len(chosen) < number:
        apart = [box for box in candidates if all(box.shared(other) <= SHARED for other in chosen)]
        chosen.append(max(apart, key=lambda box: int(box.holds(places).sum())))
    return {_name(box): box for box in chosen}


def _name(box: Box) -> str:
    """ "centre", or in which direction the box lies from it."""
    north, east = (
        ("" if abs(x) < BOX / 8 else names[x > 0])
        for x, names in zip(box, (("south", "north"), ("west", "east")), strict=True)
    )
    return "-".join(filter(None, (north, east))) or "centre"


def inside(box: Box, way: Way) -> Regions:
    """The regions of the taxis that mostly were in the ``box``."""
    regions, chosen = taxis(way), box.holds(mostly())
    sizes = np.diff(regions.start)
    corner = np.repeat(chosen, sizes)
    start = np.append(0, np.cumsum(sizes[chosen])).astype(np.int64)
    return Regions(start, regions.x[corner], regions.y[corner], regions.user[chosen])


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
        for name, box in boxes(sizes.boxes).items():
            for way in sizes.ways:
                regions = inside(box, way)
                for side in sizes.sides:
                    key = f"{len(regions)} taxis, {name}, {way}, cells of {BOX / side / 1000:.2g} km"
                    sets[key] = Users(regions, box.of(side), DIAMETER)
    return sets


def ranges(domain: Domain, queries: int, seed: int = 5) -> dict[str, Rectangles]:
    """Ranges of whole cells by name, in cells: ``queries`` of each shape and area, of any two corners, and the whole
    box."""
    rng, side = np.random.default_rng(seed), domain.rows

    def placed(rows: npt.ArrayLike, columns: npt.ArrayLike) -> Rectangles:
        lengths = [np.broadcast_to(np.asarray(length, dtype=np.int64), queries) for length in (rows, columns)]
        x, y = (rng.integers(0, side - length + 1).astype(np.float64) for length in lengths)
        return Rectangles(x, x + lengths[0], y, y + lengths[1])

    made = {}
    for area in AREAS:
        cells = area / 100 * side**2
        length, rows = max(1, round(cells**0.5)), math.ceil(area / 100 * side)
        made[f"squares of {area} %"] = placed(length, length)
        made[f"strips of {area} %"] = placed(rows, max(1, round(cells / rows)))
        made[f"rectangles of {area} %"] = placed(*rng.choice(_sides(side, cells), queries).T)
    corners = np.sort(rng.integers(0, side, (2, queries, 2)), axis=2)
    any_two = np.column_stack([corners[0], corners[1]])
    return made | {
        ANY: Rectangles.of_cells(any_two),
        WHOLE: Rectangles.of_cells(np.array([[0, side - 1, 0, side - 1]])),
    }


def _sides(side: int, cells: float) -> npt.NDArray[np.int64]:
    """Rows and columns of all rectangles whose area is within a fifth of ``cells``, or as near as can be; shape (N,
    2)."""
    pairs = np.array([(rows, columns) for rows in range(1, side + 1) for columns in range(1, side + 1)])
    off = np.abs(pairs.prod(axis=1) - cells)
    return np.asarray(pairs[off <= max(0.2 * cells, off.min())])


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
    """Way → shape → mean absolute error in percent of all regions; beside them violations, and without a total L1
    distance and seconds.
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
    """What discarding fixes outside B does instead of shrinking, without noise, in the first box: the share of regions
    that are wider than B, how many components of cells of 1 km a region meets, and by how many percent of all regions
    answers differ.
    """
    (box,), figures = boxes(1).values(), {}
    domain, cells = box.of(20), Domain.unit_cells(20, 20)
    for nearest in sizes.nearest:
        shrunk, discarded = (inside(box, Way(nearest, beyond)) for beyond in (math.inf, DIAMETER))
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


def extraction(sizes: Sizes) -> dict[str, Any]:
    """Seconds of processor time, the best of three, to make regions of up to 5 760 nearest fixes of ten users, by their
    fixes; and the exponent of the growth from the least to the most.
    """
    rng, seconds = np.random.default_rng(7), []
    for number in sizes.fixes:
        taxi, points = np.repeat(np.arange(10), number), rng.normal(0, 5_000, (10 * number, 2))
        runs = []
        for _ in range(3):
            start = time.process_time()
            extract_regions(taxi, *points.T, bandwidth=BANDWIDTH, **SOURCE._asdict())
            runs.append(time.process_time() - start)
        seconds.append(min(runs))
    exponent = math.log(seconds[-1] / seconds[0]) / math.log(sizes.fixes[-1] / sizes.fixes[0])
    by_fixes = {str(number): round(best, 3) for number, best in zip(sizes.fixes, seconds, strict=True)}
    return {"seconds": by_fixes, "exponent": round(exponent, 2)}


def compared(sets: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Form → range → its error as a multiple of that of the draws, over all sets and ε: the median, the largest, and
    how often it is smaller and larger.
    """
    rows = [row for by_epsilon in sets.values() for row in by_epsilon.values()]
    names = [name for name in rows[0]["none"] if name not in ("seconds", "violated", "distance")]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for form in [form for form in rows[0] if form != "none"]:
        for name in names:
            pairs = np.array([(row[form][name], row["none"][name]) for row in rows if row["none"][name] > 0])
            ratios = pairs[:, 0] / pairs[:, 1]
            figures.setdefault(form, {})[name] = {
                "median": round(float(np.median(ratios)), 3),
                "most": round(float(ratios.max()), 2),
                "better": int((ratios < 1).sum()),
                "worse": int((ratios > 1).sum()),
                "of": len(ratios),
            }
    return figures


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → form → figures; ``compared``: forms with the draws, over all sets; ``extraction``: what
    regions cost; ``boxes``: their middles in km; ``outliers``: discarding fixes against shrinking regions, of the
    taxis.
    """
    sizes = QUICK if quick else FULL
    figures = {
        name: {epsilon: measured(given, epsilon, sizes) for epsilon in sizes.epsilons}
        for name, given in shown(users(sizes).items(), "regions")
    }
    report = {"sets": figures, "compared": compared(figures), "extraction": extraction(sizes)}
    if without := absences(TAXIS):
        return report | without
    middles = {name: [box.north / 1000, box.east / 1000] for name, box in boxes(sizes.boxes).items()}
    return report | {"boxes": middles, "outliers": outliers(sizes)}


def in_lines(name: str) -> str:
    """The name of a set as a title that is no wider than a panel."""
    return name.replace(", ", ",\n") if "taxis" in name else name


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-euler.svg``: error by ε of squares of a quarter of the box, and error by area of squares at the largest
    ε; a panel per set of the source's regions with cells of 1 km, and of generated ones.
    """
    from matplotlib.figure import Figure

    sets = {
        name: by_epsilon
        for name, by_epsilon in figures["sets"].items()
        if "taxis" not in name or (str(SOURCE) in name and name.endswith(" 1 km"))
    }
    sheet = Figure(figsize=(3.6 * len(sets), 6.6), layout="constrained")
    panels = sheet.subplots(2, len(sets), squeeze=False)
    areas = [*(f"squares of {area} %" for area in AREAS), WHOLE]
    for (above, below), (name, by_epsilon) in zip(panels.T, sets.items(), strict=True):
        epsilons, largest = list(by_epsilon), max(by_epsilon, key=float)
        for form in by_epsilon[largest]:
            quarter = [by_epsilon[epsilon][form]["squares of 25 %"] for epsilon in epsilons]
            above.plot([float(epsilon) for epsilon in epsilons], quarter, marker="o", markersize=3, label=form)
            errors = [by_epsilon[largest][form][area] for area in areas]
            below.plot([*AREAS, 100], errors, marker="o", markersize=3, label=form)
        above.set(title=in_lines(name), yscale="log", xscale="log", xlabel="ε")
        below.set(title=f"ε = {largest}", yscale="log", xscale="log", xlabel="area of a square, % of the box")
    panels[0, 0].set_ylabel("squares of 25 %: error, % of all regions")
    panels[1, 0].set_ylabel("error, % of all regions")
    panels[0, 0].legend(fontsize=7)
    sheet.savefig(folder / "papers-euler.svg")
