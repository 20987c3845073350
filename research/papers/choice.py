"""Measures E2EPriv's choice of a size: by the sensitivity that it divides by, and beside the bound on its excess error.

[E], Theorem 7.11, and the sensitivities that its Figs. 5, 10 and 11 vary. The probabilities of the sizes are exact; the
errors of queries are drawn. n̂ is public here, so that the choice alone differs.

The choice by relative error is also compared with the one by weighted error on recorded and generated grids, among all
powers of two that a grid allows, which are the service's default sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.recordings import absences, absent
from bench.spatial import path_of, recorded, tuning_queries
from dpcore.arrays import FloatArray
from dpcore.budget import MICRO, to_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, E2EPriv, Rectangles
from dpcore.spatial.domain import cuts
from dpcore.spatial.e2epriv import Objective
from dpcore.spatial.grids import noisy_grid
from dpcore.spatial.queries import OverlapNorms, overlap_norms
from research.papers.e2epriv import AREAS, THINNED, sets
from research.papers.e2epriv import FULL as FULL_SETS
from research.papers.e2epriv import QUICK as QUICK_SETS
from research.papers.questions import Questions, mixed, squares
from research.papers.sets import Grid, gaussian

FAILURE = 0.05
"""exp(−t): most that the bound of the theorem may fail."""


SHARE = 0.2
"""ε₁ as a share of ε."""
NEGLIGIBLE = 1e-5
"""Sizes that both objectives choose more rarely are not drawn where the two are compared."""
RECORDED = ("BeijingTaxiE", "cabspottingE", "checkin", "Stroke")
"""Recorded grids on which the two objectives are compared."""


@dataclass(frozen=True)
class Sizes:
    """``draws`` of each size, at ``compared`` ε and on grids of ``sides`` cells a side, where the two objectives are
    compared."""

    repeats: int
    places: int
    epsilons: tuple[str, ...]
    draws: int
    compared: tuple[str, ...]
    sides: tuple[int, ...]


FULL = Sizes(
    repeats=20,
    places=100,
    epsilons=("0.2", "0.6", "1.0"),
    draws=5,
    compared=("0.05", "0.1", "0.5", "1", "4"),
    sides=(256, 64),
)
QUICK = Sizes(repeats=3, places=10, epsilons=("1.0",), draws=1, compared=("1",), sides=(64,))


@dataclass(frozen=True)
class Choice:
    """``errors`` (G,) of the sizes, what one point can change in each (G,), and the ``probability`` of each."""

    errors: FloatArray
    changes: FloatArray
    probability: FloatArray

    @classmethod
    def of(cls, errors: FloatArray, changes: FloatArray, epsilon: float) -> Choice:
        """The exponential mechanism at ``epsilon``, which divides each error by its own change."""
        cost = errors / changes
        weight = np.exp(-epsilon / 2 * (cost - cost.min()))
        return cls(errors, changes, weight / weight.sum())

    def excess(self) -> FloatArray:
        """By how much the error of each size exceeds the least, as a part of it."""
        return np.asarray(self.errors / self.errors.min() - 1)

    def usual_excess(self) -> float:
        """What the excess exceeds with a probability of at most :data:`FAILURE`."""
        order = np.argsort(self.errors)
        at = int(np.searchsorted(np.cumsum(self.probability[order]), 1 - FAILURE))
        return float(self.excess()[order][min(at, len(order) - 1)])

    def bound(self, epsilon: float) -> float:
        """Theorem 7.11: 2Δ/ε₁·(ln|𝒢| + t), with the largest Δ, as a part of the least error."""
        spread = math.log(len(self.errors)) + math.log(1 / FAILURE)
        return float(2 * self.changes.max() / epsilon * spread / self.errors.min())

    def stated(self, epsilon: float) -> dict[str, float]:
        """In %: probability of the best size, mean, usual and worst excess, and its :meth:`bound` at ``epsilon``."""
        parts = {
            "best": self.probability[np.argmin(self.errors)],
            "excess": self.probability @ self.excess(),
            "usual_excess": self.usual_excess(),
            "worst": self.excess().max(),
            "bound": self.bound(epsilon),
        }
        return {name: round(100 * float(part), 1) for name, part in parts.items()}


def norms(mechanism: E2EPriv, domain: Domain, size: int) -> OverlapNorms:
    """‖α‖₁ and ‖α‖₂² of each query in ``size`` × ``size`` blocks."""
    return overlap_norms(mechanism.queries, cuts(domain.rows, size), cuts(domain.columns, size))


def relative_changes(mechanism: E2EPriv, domain: Domain, scale: float, total: int) -> FloatArray:
    """What one point can change in the relative error of each size and query, (G, Q)."""
    rho, changes = mechanism.floor(total), []
    for size in mechanism.sizes:
        noise = norms(mechanism, domain, size).noise_term(scale)
        changes.append((1 + mechanism.cap) / rho + noise / (rho * (rho + 1)))
    return np.array(changes)


def loose_change(mechanism: E2EPriv, domain: Domain, scale: float, total: int) -> float:
    """A bound of :func:`relative_changes` that lets the noise term change by the whole of λ‖α‖₁/ρ."""
    whole = scale * max(float(norms(mechanism, domain, size).l1.max()) for size in mechanism.sizes)
    return (1 + mechanism.cap + whole) / mechanism.floor(total)


def choices(
    counts: Grid, candidates: Sequence[int], epsilon: float, share: float, queries: Rectangles | None = None
) -> dict[str, Choice]:
    """The choice with ``share`` of ε by random queries, or by ``queries``, by the name of what it divides errors by:
    what one point can change in them.

    "weighted": what one point can change by these very queries, in the worst cell for the worst size, as the service
    does. "mean": of the largest changes of the queries, the largest of all sizes; "relative" is this, too. "per size":
    of each size its own. "per query": the largest of all queries and sizes. "loose": :func:`loose_change`.
    """
    domain, total = Domain.unit_cells(*counts.shape), int(counts.sum())
    asked = tuning_queries(len(counts)) if queries is None else queries
    base = E2EPriv(tuple(candidates), asked, size_share=share, expected_points=total)
    scale = 1 / (epsilon * (1 - share))
    changes, of_cells = relative_changes(base, domain, scale, total), base.point_changes(domain, total)
    errors: dict[Objective, tuple[FloatArray, float]] = {
        objective: base.errors(counts, domain, scale, total, objective) for objective in ("weighted", "relative")
    }
    relative, one = errors["relative"][0], np.ones(len(candidates))
    divisors = {
        "weighted": of_cells.max() * one,
        "weighted, per size": of_cells,
        "weighted, mean": np.mean(1 / base.weights(domain, total)) * one,
        "weighted, per query": one / base.weights(domain, total).min(),
        "relative": errors["relative"][1] * one,
        "relative, per size": changes.mean(axis=1),
        "relative, per query": changes.max() * one,
        "relative, loose": loose_change(base, domain, scale, total) * one,
    }
    return {
        name: Choice.of(errors["weighted"][0] if "weighted" in name else relative, divisor, epsilon * share)
        for name, divisor in divisors.items()
    }


def median_errors(questions: Questions, choice: Choice, candidates: Sequence[int], micro: int, repeats: int) -> Any:
    """Median relative error in % per share of the area, of grids whose sizes are drawn by ``choice``."""
    rng, domain = np.random.default_rng(1), Domain.unit_cells(*questions.counts.shape)

    def fit(counts: Grid, domain: Domain, epsilon_micro: int) -> Any:
        size = candidates[int(rng.choice(len(candidates), p=choice.probability))]
        return noisy_grid(counts, domain, epsilon_micro, Noise(), 1, size).answers

    assert domain.cells == questions.counts.size
    draws = [questions.relative_errors(fit, str(micro / MICRO)) for _ in range(repeats)]
    return [round(100 * float(np.median(np.concatenate(errors))), 2) for errors in zip(*draws, strict=True)]


def compared_sets(quick: bool) -> dict[str, Grid]:
    """The recorded and generated grids of 256 × 256 cells on which the objectives are compared; of 64 × 64, if
    ``quick``."""
    made = sets(QUICK_SETS if quick else replace(FULL_SETS, side=256))
    generated = {name: counts for name, (counts, _) in made.items() if name != THINNED}
    side, points = (64, 20_000) if quick else (256, 1_000_000)
    generated["Gaussian, 8 centres"] = gaussian(points, side, side / 20, 8, 7)
    return recorded([name for name in RECORDED if not absent(path_of(name))]) | generated


def objectives(sizes: Sizes, grids: dict[str, Grid]) -> dict[str, Any]:
    """Set → cells a side → ε → mean relative error (divided by max(count, 20)) of the choice by relative error over
    that of the weighted one, for squares of 2 and of 10 % of the area and ranges of any shape; None where the weighted
    one takes its place.
    """
    figures: dict[str, Any] = {}
    for name, counts in shown(grids.items(), "objectives"):
        for side in sizes.sides:
            width = len(counts) // side
            coarse = counts.reshape(side, width, side, width).sum(axis=(1, 3))
            by_epsilon = {epsilon: compared(coarse, epsilon, sizes.draws) for epsilon in sizes.compared}
            figures.setdefault(name, {})[str(side)] = by_epsilon
    return figures


def compared(counts: Grid, epsilon: str, draws: int) -> list[float] | None:
    """The ratios of :func:`objectives` on one grid: probabilities of sizes are exact, and both choices have the same
    draws."""
    side, total, micro = len(counts), int(counts.sum()), to_micro(epsilon, round_up=True)
    candidates = [2**k for k in range(side.bit_length())]
    mechanism = E2EPriv(tuple(candidates), tuning_queries(side), objective="relative")
    if mechanism.effective_objective(total, round(micro * SHARE), 1) == "weighted":
        return None
    questions = Questions.of(counts, [squares(side, 0.02, 600, 2), squares(side, 0.1, 600, 3), mixed(side, 600, 4)])

    def errors(size: int) -> list[float]:
        def fit(counts: Grid, domain: Domain, epsilon_micro: int) -> Any:
            return noisy_grid(counts, domain, round(epsilon_micro * (1 - SHARE)), Noise(), 1, size).answers

        return np.mean([questions.mean_errors(fit, epsilon) for _ in range(draws)], axis=0).tolist()  # type: ignore[no-any-return]

    both = choices(counts, candidates, float(epsilon), SHARE)
    chances = np.array([both[name].probability for name in ("relative", "weighted")])
    likely = np.flatnonzero(chances.max(axis=0) > NEGLIGIBLE)
    relative, weighted = chances[:, likely] @ np.array([errors(candidates[k]) for k in likely])
    return (relative / weighted).round(2).tolist()  # type: ignore[no-any-return]


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → sensitivity → probability of the best size, excess, bound and median errors per share of the
    area; ``objectives`` as :func:`objectives`.
    """
    sizes = QUICK if quick else FULL
    figures: dict[str, Any] = {}
    for name, (counts, candidates) in sets(QUICK_SETS if quick else FULL_SETS).items():
        queries: list[Rectangles] = [squares(len(counts), area, sizes.places, 10 + k) for k, area in enumerate(AREAS)]
        questions, offered = Questions.of(counts, queries), list(candidates)
        for text in shown(sizes.epsilons, f"choice, {name}"):
            epsilon = float(text)
            micro = round(to_micro(text, round_up=True) * (1 - SHARE))
            for label, choice in choices(counts, offered, epsilon, SHARE).items():
                figures.setdefault(name, {}).setdefault(text, {})[label] = {
                    **choice.stated(epsilon * SHARE),
                    "errors": median_errors(questions, choice, offered, micro, sizes.repeats),
                }
    compared_figures = objectives(sizes, compared_sets(quick))
    return {"sets": figures, "objectives": compared_figures} | absences(*map(path_of, RECORDED))


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-choice.svg``: what the excess stays below in 95 % of choices, and its bound, by ε, a panel per set."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 3.8), layout="constrained")
    panels = sheet.subplots(1, len(sets), squeeze=False)[0]
    for axes, (name, by_epsilon) in zip(panels, sets.items(), strict=True):
        for label, colour in (("weighted", "C0"), ("relative", "C1")):
            for what, style in (("usual_excess", "-"), ("bound", "--")):
                heights = [max(row[label][what], 0.01) for row in by_epsilon.values()]
                name_of_line = f"{label}, {'bound' if what == 'bound' else '95 %'}"
                axes.plot(
                    [float(one) for one in by_epsilon], heights, style, color=colour, marker="o", label=name_of_line
                )
        axes.set(title=name, yscale="log", xlabel="ε")
    panels[0].set_ylabel("error above the least, %")
    panels[-1].legend(fontsize=7)
    sheet.savefig(folder / "papers-choice.svg")
