"""Measures what [E] reports of E2EPriv: median relative error of square queries, without a least divisor.

[E], Figs. 10 and 11. Its sets are not published: ours are thinned from a public grid, or generated. n̂ is public, as in
[E], so the costs of the sizes are computed once for all draws; UG pays for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.not_private import best_non_private, leaky
from bench.progress import shown
from bench.recordings import absences, absent
from bench.spatial import Fit, path_of, private, recorded, tuning_queries
from dpcore.budget import MICRO, to_micro
from dpcore.noise import Noise
from dpcore.spatial import Auto, Domain, E2EPriv, UniformGrid
from dpcore.spatial.grids import noisy_grid
from dpcore.spatial.mechanism import choose
from research.papers.questions import Questions, squares
from research.papers.sets import Grid, population, thinned

STROKE = path_of("Stroke")
THINNED = "Stroke, 8938 points"
"""The set that is recorded, and thinned to the number of points of the source's."""
AREAS = (0.01, 0.04, 0.09, 0.16, 0.25, 0.64)
"""Shares of the whole area that [E] queries."""
FLOORS = (0.002, 0.01, 0.03, 0.1)
"""δ: errors are relative to δ·n̂ points at least."""


@dataclass(frozen=True)
class Sizes:
    """``places``: queries per share of the area; ``repeats`` of each mechanism on the recorded grid and on the made-up
    ones, of ``side`` cells a side."""

    places: int
    repeats: tuple[int, int]
    epsilons: tuple[str, ...]
    shares: tuple[float, ...]
    side: int
    points: tuple[int, int]


FULL = Sizes(
    places=100,
    repeats=(30, 6),
    epsilons=("0.2", "0.4", "0.6", "0.8", "1.0"),
    shares=(0.2, 0.25, 0.5, 0.75),
    side=1024,
    points=(869_976, 6_442_841),
)
QUICK = Sizes(
    places=20,
    repeats=(2, 2),
    epsilons=("1.0",),
    shares=(0.2, 0.5),
    side=64,
    points=(20_000, 60_000),
)


def drawn_by(mechanism: E2EPriv, counts: Grid, epsilon: str) -> Fit:
    """Draws of ``mechanism``, whose n̂ is public, by costs that are computed once."""
    domain, points = Domain.unit_cells(*counts.shape), int(counts.sum())
    size_micro, data_micro = mechanism.split(to_micro(epsilon, round_up=False)).shares
    objective = mechanism.effective_objective(points, size_micro, 1)
    costs = mechanism.costs(counts, domain, MICRO / data_micro, points, objective)

    def fit(counts: Grid, domain: Domain, micro: int) -> Any:
        chosen = choose(costs, size_micro, mechanism.cost_sensitivity(1), Noise())
        return noisy_grid(counts, domain, data_micro, Noise(), 1, mechanism.sizes[chosen]).answers

    return fit


def end_to_end(base: E2EPriv, counts: Grid, epsilon: str, shares: Sequence[float]) -> dict[str, Fit]:
    """[E]'s mechanism by the share of ε that chooses the size, its baselines, and ours."""
    chosen = {f"e2epriv {share:.0%}": replace(base, size_share=share) for share in shares}
    chosen["e2epriv relative"] = replace(base, objective="relative")
    return {
        **{label: drawn_by(mechanism, counts, epsilon) for label, mechanism in chosen.items()},
        "heuristic (UG)": private(UniformGrid()),
        "NOT-PRIVATE leaky": lambda counts, domain, micro: leaky(base, counts, domain, micro, Noise()).answers,
        "NOT-PRIVATE best": lambda counts, domain, micro: best_non_private(base, counts, domain).answers,
        "auto": private(Auto()),
    }


def sets(sizes: Sizes) -> dict[str, tuple[Grid, Sequence[int]]]:
    """Set → its counts and the grid sizes to choose from."""
    medium, large = sizes.points
    generated: dict[str, tuple[Grid, Sequence[int]]] = {
        f"population-like, {medium} points": (population(medium, sizes.side, 1), _between(sizes.side, 200, 400)),
        f"concentrated, {large} points": (
            population(large, sizes.side, 2, towns=80, concentration=1.6),
            _between(sizes.side, 300, 800),
        ),
    }
    if absent(STROKE):
        return generated
    return {THINNED: (thinned(recorded(("Stroke",))["Stroke"], 8938, 3), range(30, 81, 10))} | generated


def median_errors(questions: Questions, fit: Fit, epsilon: str, repeats: int) -> list[float]:
    """Median relative error in % per share of the area, over places and ``repeats``, to four digits."""
    draws = [questions.relative_errors(fit, epsilon) for _ in range(repeats)]
    of_areas = [np.concatenate(errors) for errors in zip(*draws, strict=True)]
    return [float(f"{100 * np.median(errors):.4g}") for errors in of_areas]


def measured(sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Median relative errors in % per share of the area ([E], Figs. 5, 10 and 11): set → ε → mechanism → errors, and
    set → δ → errors of the choice by relative error with ρ = δ·n̂, at the largest ε.
    """
    figures: dict[str, Any] = {}
    by_floor: dict[str, Any] = {}
    for name, (counts, candidates) in sets(sizes).items():
        side, repeats = len(counts), sizes.repeats[name != THINNED]
        questions = Questions.of(counts, [squares(side, share, sizes.places, 10 + k) for k, share in enumerate(AREAS)])
        base = E2EPriv(tuple(candidates), tuning_queries(side), expected_points=int(counts.sum()))
        figures[name] = {
            epsilon: {
                label: median_errors(questions, fit, epsilon, repeats)
                for label, fit in shown(
                    end_to_end(base, counts, epsilon, sizes.shares).items(), f"{name}, ε = {epsilon}"
                )
            }
            for epsilon in sizes.epsilons
        }
        relative, largest = replace(base, objective="relative"), sizes.epsilons[-1]
        by_floor[name] = {
            str(share): median_errors(
                questions, drawn_by(replace(relative, rho_share=share), counts, largest), largest, repeats
            )
            for share in shown(FLOORS, f"{name}, δ")
        }
    return figures, by_floor


def _between(side: int, low: int, high: int) -> list[int]:
    """Five grid sizes from ``low`` to ``high`` on 1024 cells a side, fewer on smaller grids."""
    return sorted({max(1, round(size * side / 1024)) for size in np.linspace(low, high, 5)})


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → mechanism → errors; ``floors``: set → δ → errors; and which recordings are absent."""
    by_set, by_floor = measured(QUICK if quick else FULL)
    return {"sets": by_set, "floors": by_floor} | absences(STROKE)


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-e2epriv.svg``: error by query size, a panel per set at the largest ε."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 3.8), layout="constrained")
    panels = sheet.subplots(1, len(sets), squeeze=False)[0]
    for axes, (title, by_epsilon) in zip(panels, sets.items(), strict=True):
        epsilon = max(by_epsilon, key=float)
        for label, errors in by_epsilon[epsilon].items():
            axes.plot(range(len(AREAS)), errors, marker="o", markersize=3, label=label)
        axes.set(title=f"{title}\nε = {epsilon}", yscale="log", xticks=range(len(AREAS)), xlabel="area of a query")
        axes.set_xticklabels([f"{share:.0%}" for share in AREAS])
    panels[0].set_ylabel("median relative error, %")
    sheet.legend(*panels[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    sheet.savefig(folder / "papers-e2epriv.svg")
