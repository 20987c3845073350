"""Measures bounds on the error of Euler histograms that are stated before any draw, of the kinds of [B], Theorems 1 and
2, Corollary 4.

*Components*: with probability 1 − δ no noise exceeds ⌈b·ln(c/δ)⌉, b the scale, c the number of components (a union
bound). *Nearest*: counts nearest to the draws in the largest deviation are within twice that of the true ones, which
are feasible. *Sum*: an answer of n components is within n times the bound on one. *Concentration*: the noise of n draws
together is at most b·max(√n, √ln(2/δ))·√(8·ln(2/δ)) (Chan, Shi and Song 2011). Beside them: the service's interval,
from the exact law. All of them hold for discrete Laplace noise, too: it exceeds a whole number m with a probability
below exp(−m/b), and its moment generating function is not above that of Laplace noise of the same scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.recordings import absences
from dpcore.budget import MICRO, to_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.euler_inference import infer, nearest_in_max_norm
from dpcore.spatial.regions import Footprints
from research.papers import euler
from research.papers.euler import SOURCE, TAXIS, WHOLE, Users, in_lines, ranges, users

FAILURE = 0.05
"""δ: most that a bound may fail."""
SHAPES = ("squares of 1 %", "squares of 25 %", "strips of 25 %", WHOLE)
"""Ranges whose answers are bounded."""
Row = dict[str, float]
"""Figures by name."""


@dataclass(frozen=True)
class Sizes:
    """``sets``: sizes of the regions' sets; ``repeats``: draws of each at ``epsilon``."""

    sets: euler.Sizes
    repeats: int
    epsilon: str


FULL = Sizes(sets=replace(euler.FULL, boxes=1, ways=(SOURCE,)), repeats=60, epsilon="1.0")
QUICK = Sizes(sets=euler.QUICK, repeats=3, epsilon="1.0")


def of_components(scale: float, components: int, failure: float = FAILURE) -> int:
    """What no noise of ``components`` draws exceeds, with probability 1 − ``failure``."""
    return math.ceil(scale * math.log(components / failure))


def of_sum(scale: float, inside: int, failure: float = FAILURE) -> float:
    """What the noise of ``inside`` draws together does not exceed, with probability 1 − ``failure``."""
    both = math.log(2 / failure)
    return scale * max(math.sqrt(inside), math.sqrt(both)) * math.sqrt(8 * both)


Forms = dict[str, EulerHistogram]
"""What is made of the same draws, by name."""


def forms_of(drawn: EulerHistogram) -> Forms:
    """The draws moved as little as makes them consistent, without negative counts, and, as Algorithm 2 of the source
    does, both: first without negative counts, then moved.
    """
    positive = infer(drawn.components, "truncated").components
    components = {
        "nearest": nearest_in_max_norm(drawn.components),
        "truncated": positive,
        "truncated, nearest": nearest_in_max_norm(positive),
    }
    return {name: replace(drawn, components=counts, drawn=drawn.components) for name, counts in components.items()}


@dataclass(frozen=True)
class Setting:
    """One set at one ε: true components on unit cells, the ``scale`` of their noise, and the bound on one of them."""

    given: Users
    micro: int
    true: EulerHistogram
    scale: float

    @classmethod
    def of(cls, given: Users, epsilon: str) -> Setting:
        cells = Domain.unit_cells(*given.domain.shape)
        true = Footprints.of(given.regions, given.domain, given.diameter).total()
        micro = to_micro(epsilon, round_up=False)
        scale = Euler(given.diameter).sensitivity(given.domain) * MICRO / micro
        return cls(given, micro, EulerHistogram(cells, true, 0.0, "covert"), scale)

    @property
    def most(self) -> int:
        """The bound on every component."""
        return of_components(self.scale, self.true.components.size)

    def drawn(self) -> EulerHistogram:
        """A release, on unit cells."""
        release = Euler(self.given.diameter).fit(self.given.regions, self.given.domain, self.micro, Noise())
        return replace(release, domain=self.true.domain)

    def off(self, release: EulerHistogram) -> float:
        """Largest deviation of a component."""
        return float(np.abs(release.components - self.true.components).max())

    def of_ranges(self, drawn: EulerHistogram, forms: Forms, query: Rectangles) -> Row:
        """Whether each bound holds, half widths and errors, as means over ``query``; lengths in regions."""
        exact, interval = self.true.answers(query), drawn.intervals(query)
        assert interval is not None
        # The components strictly inside each block of cells.
        inside = (2 * (query.x1 - query.x0) - 1) * (2 * (query.y1 - query.y0) - 1)
        together = np.array([of_sum(self.scale, int(n)) for n in inside])
        off = {name: np.abs(form.answers(query) - exact) for name, form in {"drawn": drawn, **forms}.items()}
        row = {
            "sum": off["drawn"] <= inside * self.most,
            "sum, nearest": off["nearest"] <= 2 * inside * self.most,
            "concentration": off["drawn"] <= together,
            "interval": (interval.low <= exact) & (exact <= interval.high),
            "sum, width": inside * self.most,
            "concentration, width": together,
            "interval, width": (interval.high - interval.low) / 2,
        }
        row |= {f"error, {name}": error for name, error in off.items()}
        return {name: float(column.mean()) for name, column in row.items()}


def measured(given: Users, sizes: Sizes) -> dict[str, Any]:
    """Percent of draws, or of answers by shape of a range, in which each bound holds; half widths in percent of all
    regions."""
    setting = Setting.of(given, sizes.epsilon)
    placed = ranges(given.domain, 60)
    queries = {shape: placed[shape] for shape in SHAPES}
    of_draws: list[Row] = []
    by_shape: dict[str, list[Row]] = {shape: [] for shape in queries}
    for _ in range(sizes.repeats):
        drawn = setting.drawn()
        forms = forms_of(drawn)
        components, moved = setting.off(drawn) <= setting.most, setting.off(forms["nearest"]) <= 2 * setting.most
        of_draws.append({"components": float(components), "nearest": float(moved)})
        for shape, query in queries.items():
            by_shape[shape].append(setting.of_ranges(drawn, forms, query))
    shapes = {shape: in_percent(rows, len(given.regions)) for shape, rows in by_shape.items()}
    return {**in_percent(of_draws, 1), "shapes": shapes}


def in_percent(rows: list[Row], regions: int) -> Row:
    """Means over draws in percent, of all ``regions`` where they are widths or errors."""
    means = {name: 100 * float(np.mean([row[name] for row in rows])) for name in rows[0]}
    lengths = [name for name in means if "width" in name or "error" in name]
    return {name: round(mean / regions if name in lengths else mean, 1) for name, mean in means.items()}


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → coverage and widths of each bound."""
    sizes = QUICK if quick else FULL
    figures = {name: measured(given, sizes) for name, given in shown(users(sizes.sets).items(), "bounds")}
    return {"sets": figures} | absences(TAXIS)


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-bounds.svg``: half width by shape of a range, a panel per set."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 3.8), layout="constrained")
    panels = sheet.subplots(1, len(sets), squeeze=False)[0]
    for axes, (name, figure) in zip(panels, sets.items(), strict=True):
        shapes = figure["shapes"]
        for bound in ("sum", "concentration", "interval"):
            widths = [row[f"{bound}, width"] for row in shapes.values()]
            axes.plot(range(len(shapes)), widths, marker="o", markersize=3, label=bound)
        axes.set(title=in_lines(name), yscale="log", xticks=range(len(shapes)))
        axes.set_xticklabels(shapes, rotation=30)
    panels[0].set_ylabel("half width, % of all regions")
    panels[0].legend(fontsize=7)
    sheet.savefig(folder / "papers-bounds.svg")
