"""Measures by which queries E2EPriv's size is best chosen: random ranges, as by default, or squares like those that are
asked.

[E] tunes by squares of 1 to 64 % of the area, by errors relative to the true counts and ρ = δ·n̂ at least, with a δ of
its own for each of its sets. n̂ is public here, and the probabilities of the sizes are exact: the errors of all sizes
are drawn and weighted by them, so all ways of tuning have the same draws. Whatever Δ the exponential mechanism divides
by, its choice lies between an even one (Δ without bound) and always the size of least error (Δ = 0); both are measured,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.recordings import absences
from bench.spatial import tuning_queries
from dpcore.arrays import FloatArray
from dpcore.noise import Noise
from dpcore.spatial import Domain, E2EPriv, Rectangles
from dpcore.spatial.e2epriv import Objective
from dpcore.spatial.grids import noisy_grid
from research.papers.choice import SHARE, Choice
from research.papers.e2epriv import AREAS, STROKE, sets
from research.papers.e2epriv import FULL as FULL_SETS
from research.papers.e2epriv import QUICK as QUICK_SETS
from research.papers.questions import Questions, squares
from research.papers.sets import Grid

FLOORS = (0.1, 0.01, 0.001)
"""[E]'s δ for its sets of 8 938, 869 976 and 6 442 841 points."""


@dataclass(frozen=True)
class Sizes:
    """``places``: squares of each area, that are asked and by which sizes are chosen; ``draws`` of each size."""

    places: int
    draws: int
    epsilons: tuple[str, ...]


FULL = Sizes(places=100, draws=20, epsilons=("0.2", "0.6", "1.0"))
QUICK = Sizes(places=10, draws=1, epsilons=("1.0",))


@dataclass(frozen=True)
class Candidates:
    """A grid, the grid sizes to choose from, and the δ of its relative objective."""

    counts: Grid
    sizes: tuple[int, ...]
    floor: float

    def choice(self, queries: Rectangles, objective: Objective, epsilon: float) -> Choice:
        """The choice by ``queries`` with :data:`SHARE` of ε; "relative" even where it can hardly tell sizes apart."""
        domain, total = Domain.unit_cells(*self.counts.shape), int(self.counts.sum())
        mechanism = E2EPriv(self.sizes, queries, rho_share=self.floor, expected_points=total)
        errors, change = mechanism.errors(self.counts, domain, 1 / (epsilon * (1 - SHARE)), total, objective)
        return Choice.of(errors, np.full(len(errors), change), epsilon * SHARE)

    def drawn(self, questions: Questions, epsilon: str, draws: int) -> list[list[FloatArray]]:
        """Relative errors of the queries of each area, (areas, sizes, draws · queries), of grids of each size."""
        by_size = []
        for size in self.sizes:

            def fit(counts: Grid, domain: Domain, micro: int, size: int = size) -> Any:
                return noisy_grid(counts, domain, round(micro * (1 - SHARE)), Noise(), 1, size).answers

            releases = [questions.relative_errors(fit, epsilon) for _ in range(draws)]
            by_size.append([np.concatenate(errors) for errors in zip(*releases, strict=True)])
        return [list(errors) for errors in zip(*by_size, strict=True)]


def weighted_median(groups: Sequence[FloatArray], probability: FloatArray) -> float:
    """The median of what is drawn from a group chosen by ``probability``, and of that group evenly."""
    values = np.concatenate(groups)
    weights = np.repeat(probability / [len(group) for group in groups], [len(group) for group in groups])
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())])


def together(parts: Sequence[Rectangles]) -> Rectangles:
    """The queries of all ``parts``."""
    columns = [(part.x0, part.x1, part.y0, part.y1) for part in parts]
    return Rectangles(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def tunings(side: int, places: int) -> dict[str, list[Rectangles]]:
    """Way of tuning → its queries for each area that is asked; none of them is asked."""
    by_area = [squares(side, area, places, 40 + k) for k, area in enumerate(AREAS)]
    return {
        "random ranges": [tuning_queries(side)] * len(AREAS),
        "squares of all areas": [together(by_area)] * len(AREAS),
        "squares of the area asked": by_area,
    }


def of_set(candidates: Candidates, sizes: Sizes) -> dict[str, dict[str, list[float]]]:
    """ε → way of tuning and objective → median relative error in % per area; besides, of a size that is drawn evenly
    ("even"), and of the size that has the least ("best").
    """
    side = len(candidates.counts)
    asked = [squares(side, area, sizes.places, 10 + k) for k, area in enumerate(AREAS)]
    questions = Questions.of(candidates.counts, asked)
    figures: dict[str, dict[str, list[float]]] = {}
    for epsilon in sizes.epsilons:
        drawn = candidates.drawn(questions, epsilon, sizes.draws)
        of: dict[str, list[float]] = {}
        objectives: tuple[Objective, ...] = ("weighted", "relative")
        for way, queries in tunings(side, sizes.places).items():
            for objective in objectives:
                of[f"{way}, {objective}"] = [
                    weighted_median(errors, candidates.choice(query, objective, float(epsilon)).probability)
                    for query, errors in zip(queries, drawn, strict=True)
                ]
        even = np.full(len(candidates.sizes), 1 / len(candidates.sizes))
        of["even"] = [weighted_median(errors, even) for errors in drawn]
        of["best"] = [min(float(np.median(of_size)) for of_size in errors) for errors in drawn]
        figures[epsilon] = {way: [round(100 * error, 2) for error in errors] for way, errors in of.items()}
    return figures


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → way of tuning → median relative errors in % per share of the area."""
    made = sets(QUICK_SETS if quick else FULL_SETS)
    floors = FLOORS[-len(made) :]
    figures = {
        name: of_set(Candidates(counts, tuple(candidates), floor), QUICK if quick else FULL)
        for (name, (counts, candidates)), floor in shown(tuple(zip(made.items(), floors, strict=True)), "tuning")
    }
    return {"sets": figures} | absences(STROKE)


def plot(figures: Mapping[str, Any], folder: Path) -> None:
    """``papers-tuning.svg``: error by area of a query, a panel per set, at the least ε."""
    from matplotlib.figure import Figure

    by_set = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(by_set), 3.8), layout="constrained")
    for axes, (name, by_epsilon) in zip(sheet.subplots(1, len(by_set), squeeze=False)[0], by_set.items(), strict=True):
        epsilon = min(by_epsilon, key=float)
        for way, errors in by_epsilon[epsilon].items():
            axes.plot(range(len(AREAS)), errors, marker="o", markersize=3, label=way)
        axes.set(title=f"{name}\nε = {epsilon}", yscale="log", xticks=range(len(AREAS)), xlabel="area of a query")
        axes.set_xticklabels([f"{area:.0%}" for area in AREAS])
    sheet.axes[0].set_ylabel("median relative error, %")
    sheet.axes[-1].legend(fontsize=6)
    sheet.savefig(folder / "papers-tuning.svg")
