"""Measures with this implementation what the papers on E2EPriv and HTF report.

[E]: median relative error of square queries at random places, without a least divisor. [H]: mean relative error with 20 as
the least divisor. The point sets are generated like those of the papers, or thinned from a public grid.
docs/reproductions.md holds the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.paper_sets import Grid, gaussian, population, thinned
from bench.progress import shown
from bench.recordings import absent
from bench.spatial import Fit, path_of, private, recorded, tuning_queries
from dpcore.budget import to_micro
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    E2EPriv,
    KdTree,
    QuadTree,
    Rectangles,
    SparseHierarchy,
    UniformGrid,
)
from dpcore.spatial.not_private import best_non_private, leaky
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer

FloatArray = npt.NDArray[np.float64]

STROKE = path_of("Stroke")
AREAS = (0.01, 0.04, 0.09, 0.16, 0.25, 0.64)
"""Shares of the whole area that [E] queries."""
SMOOTHING = 20.0
"""[H] divides by max(true count, 20)."""


@dataclass(frozen=True)
class Sizes:
    """``places``: queries per share of the area; ``repeats`` of each mechanism; ``side`` of the made-up grids."""

    places: int
    repeats: int
    epsilons: tuple[str, ...]
    shares: tuple[float, ...]
    side: int
    points: tuple[int, int]
    htf_points: int
    htf_repeats: int
    htf_queries: int
    sigmas: tuple[float, ...]


FULL = Sizes(
    places=100,
    repeats=8,
    epsilons=("0.2", "0.6", "1.0"),
    shares=(0.2, 0.25, 0.5, 0.75),
    side=1024,
    points=(869_976, 6_442_841),
    htf_points=1_000_000,
    htf_repeats=3,
    htf_queries=2_000,
    sigmas=(20.0, 50.0, 100.0),
)
QUICK = Sizes(
    places=20,
    repeats=2,
    epsilons=("1.0",),
    shares=(0.2, 0.5),
    side=64,
    points=(20_000, 60_000),
    htf_points=20_000,
    htf_repeats=1,
    htf_queries=50,
    sigmas=(5.0,),
)


def squares(side: int, share: float, number: int, seed: int) -> Rectangles:
    """Squares of ``share`` of the area at random places inside side × side cells, half-open."""
    rng, length = np.random.default_rng(seed), side * share**0.5
    x, y = rng.uniform(0, side - length, (2, number))
    return Rectangles(x, x + length, y, y + length)


def end_to_end(sizes: Sequence[int], side: int, shares: Sequence[float]) -> dict[str, Fit]:
    """[E]'s mechanism by the share of ε that chooses the size, its baselines, and ours."""
    queries = tuning_queries(side)
    base = E2EPriv(tuple(sizes), queries)
    return {
        **{f"e2epriv {share:.0%}": private(E2EPriv(tuple(sizes), queries, size_share=share)) for share in shares},
        "e2epriv relative": private(E2EPriv(tuple(sizes), queries, objective="relative")),
        "heuristic (UG)": private(UniformGrid()),
        "NOT-PRIVATE leaky": lambda counts, domain, micro: leaky(base, counts, domain, micro, Noise()).answers,
        "NOT-PRIVATE best": lambda counts, domain, micro: best_non_private(base, counts, domain).answers,
        "auto": private(Auto()),
        "sparse": private(SparseHierarchy(goal="relative")),
    }


@dataclass(frozen=True)
class Questions:
    """Families of ranges of one count grid, and their true answers."""

    counts: Grid
    queries: list[Rectangles]
    truths: list[FloatArray]

    @classmethod
    def of(cls, counts: Grid, queries: list[Rectangles]) -> Questions:
        return cls(counts, queries, [answer(image_of(counts), query) for query in queries])

    def _answers(self, fit: Fit, epsilon: str) -> Iterator[tuple[FloatArray, FloatArray]]:
        """(Answers, truth) of each family, by one release."""
        release = fit(self.counts, Domain.unit_cells(*self.counts.shape), to_micro(epsilon, round_up=False))
        for query, truth in zip(self.queries, self.truths, strict=True):
            yield release(query), truth

    def relative_errors(self, fit: Fit, epsilon: str) -> list[FloatArray]:
        """[E]: |error| / truth of each family's ranges that hold points, by one release."""
        return [
            np.abs(estimate - truth)[truth > 0] / truth[truth > 0] for estimate, truth in self._answers(fit, epsilon)
        ]

    def mean_errors(self, fit: Fit, epsilon: str) -> list[float]:
        """[H]: mean of |error| / max(truth, 20) of each family in %, and the mean of those, by one release."""
        means = [
            100 * float(np.mean(np.abs(estimate - truth) / np.maximum(truth, SMOOTHING)))
            for estimate, truth in self._answers(fit, epsilon)
        ]
        return [*means, float(np.mean(means))]


def e2epriv_figures(sizes: Sizes) -> dict[str, Any]:
    """Set → ε → mechanism → median relative error in % per share of the area ([E], Figs. 5, 10 and 11)."""
    medium, large = sizes.points
    sets: dict[str, tuple[Grid, Sequence[int]]] = {
        f"population-like, {medium} points": (population(medium, sizes.side, 1), _between(sizes.side, 200, 400)),
        f"concentrated, {large} points": (
            population(large, sizes.side, 2, towns=80, concentration=1.6),
            _between(sizes.side, 300, 800),
        ),
    }
    if not absent(STROKE):
        sets = {"Stroke, 8938 points": (thinned(recorded(("Stroke",))["Stroke"], 8938, 3), range(30, 81, 10))} | sets
    figures: dict[str, Any] = {}
    for name, (counts, candidates) in sets.items():
        side = len(counts)
        questions = Questions.of(counts, [squares(side, share, sizes.places, 10 + k) for k, share in enumerate(AREAS)])
        figures[name] = {epsilon: {} for epsilon in sizes.epsilons}
        for epsilon in sizes.epsilons:
            for label, fit in shown(end_to_end(candidates, side, sizes.shares).items(), f"{name}, ε = {epsilon}"):
                draws = [questions.relative_errors(fit, epsilon) for _ in range(sizes.repeats)]
                of_areas = [np.concatenate(errors) for errors in zip(*draws, strict=True)]
                figures[name][epsilon][label] = [round(100 * float(np.median(errors)), 2) for errors in of_areas]
    return figures


def _between(side: int, low: int, high: int) -> list[int]:
    """Five grid sizes from ``low`` to ``high`` on 1024 cells a side, fewer on smaller grids."""
    return sorted({max(1, round(size * side / 1024)) for size in np.linspace(low, high, 5)})


def htf_figures(sizes: Sizes) -> dict[str, Any]:
    """Set → ε → mechanism → mean relative error in % for queries of 2, 6 and 10 % and a mixture ([H], Figs. 3 to 6)."""
    sets = {
        f"sigma {sigma:g}, {centres} centre{'s' * (centres > 1)}": gaussian(
            sizes.htf_points, sizes.side, sigma, centres, 7
        )
        for centres in (1, 8)
        for sigma in sizes.sigmas
    }
    fits = {
        "htf": private(HTF()),
        "htf relative": private(HTF(goal="relative")),
        "htf published": private(HTF.published()),
        "htf published, exact cuts": private(_exact_cuts(HTF.published())),
        "ag": private(AdaptiveGrid()),
        "ug": private(UniformGrid()),
        "quadtree": private(QuadTree()),
        "kdtree": private(KdTree()),
        "auto": private(Auto()),
    }
    ranges = [squares(sizes.side, share, sizes.htf_queries, 20 + k) for k, share in enumerate((0.02, 0.06, 0.10))]
    figures: dict[str, Any] = {name: {} for name in sets}
    for name, counts in sets.items():
        questions = Questions.of(counts, ranges)
        for epsilon in ("0.1", "0.3", "0.5"):
            by_mechanism: dict[str, list[float]] = {}
            for label, fit in shown(fits.items(), f"{name}, ε = {epsilon}"):
                draws = [questions.mean_errors(fit, epsilon) for _ in range(sizes.htf_repeats)]
                by_mechanism[label] = np.mean(draws, axis=0).round(2).tolist()
            figures[name][epsilon] = by_mechanism
    return figures


def _exact_cuts(mechanism: HTF) -> HTF:
    """The same tree, its cuts by the exact exponential mechanism."""
    return replace(mechanism, split="exponential", rounds=0)


def run(quick: bool) -> dict[str, Any]:
    """The figures of [E] and [H]."""
    sizes = QUICK if quick else FULL
    figures: dict[str, Any] = {"e2epriv": e2epriv_figures(sizes), "htf": htf_figures(sizes)}
    return figures | ({"without": missing} if (missing := absent(STROKE)) else {})


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-e2epriv.svg`` and ``papers-htf.svg``: error per query size, one panel per set."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    for name, positions, ticks in (
        ("e2epriv", range(len(AREAS)), [f"{share:.0%}" for share in AREAS]),
        ("htf", range(4), ["2 %", "6 %", "10 %", "all"]),
    ):
        sets = figures[name]
        pictures, axes = plt.subplots(1, len(sets), figsize=(4.2 * len(sets), 3.8), squeeze=False)
        for axis, (title, by_epsilon) in zip(axes[0], sets.items(), strict=True):
            epsilon = max(by_epsilon, key=float) if name == "e2epriv" else min(by_epsilon, key=float)
            for label, errors in by_epsilon[epsilon].items():
                axis.plot(list(positions), errors, marker="o", markersize=3, label=label)
            axis.set(title=f"{title}\nε = {epsilon}", yscale="log", xticks=list(positions), xlabel="area of a query")
            axis.set_xticklabels(ticks)
        axes[0][0].set_ylabel("relative error, %")
        axes[0][-1].legend(fontsize=7)
        pictures.tight_layout()
        pictures.savefig(folder / f"papers-{name}.svg")
        plt.close(pictures)
