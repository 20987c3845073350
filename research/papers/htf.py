"""Measures what [H] reports of HTF: mean relative error on Gaussian sets, by mechanism, height and stop count.

[H], Figs. 3 to 6: 1024 × 1024 cells, 10⁶ points around one or several centres, 2 000 squares of 2, 6 and 10 % of the
area and 2 000 ranges of any size and shape; errors divide by max(true count, 20). The paper's sets are not published:
ours have centres of their own, so each figure is a mean over several sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.spatial import Fit, private
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    KdTree,
    Privlet,
    QuadTree,
    Singular,
    SparseHierarchy,
    SpatialMechanism,
    Uniform,
    UniformGrid,
)
from research.papers.questions import Questions, mixed, squares
from research.papers.sets import gaussian

AREAS = (0.02, 0.06, 0.10)
"""Shares of the whole area that [H] queries, besides ranges of any size and shape."""
EPSILONS = ("0.1", "0.3", "0.5")
SWEPT_SIGMA = 50.0
"""Standard deviation, in cells, of the set on which heights and stop counts are swept, at the least ε."""


@dataclass(frozen=True)
class Sizes:
    """``sets``: grids per standard deviation and number of centres, each with other centres; ``repeats`` of a release
    on each; ``queries`` per family.
    """

    side: int
    points: int
    sets: int
    repeats: int
    queries: int
    sigmas: tuple[float, ...]
    heights: tuple[int, ...]
    stop_counts: tuple[float, ...]


FULL = Sizes(
    side=1024,
    points=1_000_000,
    sets=2,
    repeats=1,
    queries=2_000,
    sigmas=(20.0, 50.0, 100.0),
    heights=(6, 10, 14, 18),
    stop_counts=(0.0, 10.0, 20.0, 50.0, 100.0, 500.0),
)
QUICK = Sizes(
    side=64,
    points=20_000,
    sets=1,
    repeats=1,
    queries=50,
    sigmas=(5.0,),
    heights=(4, 6),
    stop_counts=(20.0, 100.0),
)


def questions(sizes: Sizes, sigma: float, centres: int) -> list[Questions]:
    """The grids of one standard deviation and number of centres, with their queries."""
    sets = []
    for number in range(sizes.sets):
        ranges = [squares(sizes.side, share, sizes.queries, 20 + k + 100 * number) for k, share in enumerate(AREAS)]
        ranges.append(mixed(sizes.side, sizes.queries, 30 + 100 * number))
        sets.append(Questions.of(gaussian(sizes.points, sizes.side, sigma, centres, 7 + number), ranges))
    return sets


def errors(sets: Sequence[Questions], fit: Fit, epsilon: str, repeats: int) -> list[float]:
    """Mean relative error in % of squares of 2, 6 and 10 % and of mixed ranges, over ``sets`` and ``repeats``."""
    drawn = [each.mean_errors(fit, epsilon) for each in sets for _ in range(repeats)]
    return np.mean(drawn, axis=0).round(1).tolist()  # type: ignore[no-any-return]


def mechanisms() -> dict[str, SpatialMechanism]:
    """HTF as we release it and as published, beside [H]'s baselines and what we recommend."""
    published = HTF.published()
    return {
        "htf": HTF(),
        "htf relative": HTF(goal="relative"),
        "htf published": published,
        "htf published, exact cuts": replace(published, split="exponential", rounds=0),
        "ag": AdaptiveGrid(),
        "ug": UniformGrid(),
        "htf published, 10⁻³ a level": replace(published, level_epsilon_micro=1_000),
        "kdtree": KdTree(),
        "kdtree, 15 % for medians": KdTree(split_share=0.15),
        "quadtree": QuadTree(),
        "privlet": Privlet(),
        "singular": Singular(),
        "uniform": Uniform(),
        "auto": Auto(),
        "sparse relative": SparseHierarchy(goal="relative"),
    }


def of_height(height: int) -> dict[str, SpatialMechanism]:
    """Trees of at most ``height`` levels; a level of a quadtree is two of a binary tree."""
    return {
        "htf": HTF(extra_levels=height, max_height=height),
        "htf published": replace(HTF.published(), extra_levels=height, max_height=height),
        "kdtree": KdTree(max_height=height),
        "quadtree": QuadTree(height=height // 2),
        "quadtree uniform": QuadTree("uniform", height=height // 2),
    }


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → ε → mechanism → errors; ``heights``: mechanism → height → errors; ``stop_counts`` alike."""
    sizes = QUICK if quick else FULL
    by_set: dict[str, Any] = {}
    for centres in (1, 8):
        for sigma in sizes.sigmas:
            name = f"sigma {sigma:g}, {centres} centre{'s' * (centres > 1)}"
            sets = questions(sizes, sigma, centres)
            by_set[name] = {
                epsilon: {
                    label: errors(sets, private(mechanism), epsilon, sizes.repeats)
                    for label, mechanism in shown(mechanisms().items(), f"{name}, ε = {epsilon}")
                }
                for epsilon in EPSILONS
            }
    sets = questions(sizes, SWEPT_SIGMA if SWEPT_SIGMA in sizes.sigmas else sizes.sigmas[0], 1)
    return {"sets": by_set, **sweeps(sets, sizes)}


def sweeps(sets: Sequence[Questions], sizes: Sizes) -> dict[str, Any]:
    """Errors by height of the trees and by HTF's stop count, at the least ε."""
    heights: dict[str, dict[int, list[float]]] = {}
    for height in shown(sizes.heights, "heights"):
        for label, mechanism in of_height(height).items():
            by_height = heights.setdefault(label, {})
            by_height[height] = errors(sets, private(mechanism), EPSILONS[0], sizes.repeats)
    counts: dict[str, dict[float, list[float]]] = {}
    for count in shown(sizes.stop_counts, "stop counts"):
        for label, mechanism in {"htf": HTF(), "htf published": HTF.published()}.items():
            stopping = private(replace(mechanism, stop_count=count))
            counts.setdefault(label, {})[count] = errors(sets, stopping, EPSILONS[0], sizes.repeats)
    return {"heights": heights, "stop_counts": counts}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-htf.svg``: error by query size, a panel per set at the least ε; ``papers-htf-trees.svg``: error of 2 %
    squares by height and by stop count.
    """
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 4.2), layout="constrained")
    panels = sheet.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, (title, by_epsilon) in zip(panels, sets.items(), strict=True):
        for label, row in by_epsilon[EPSILONS[0]].items():
            axes.plot(range(len(row)), row, marker="o", markersize=3, label=label)
        axes.set(title=f"{title}, ε = {EPSILONS[0]}", yscale="log", xticks=range(len(AREAS) + 1))
        axes.set_xticklabels(["2 %", "6 %", "10 %", "mixed"])
    panels[0].set_ylabel("mean relative error, %")
    panels[-1].legend(fontsize=6)
    sheet.savefig(folder / "papers-htf.svg")
    sheet = Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(sheet.subplots(1, 2), ("heights", "stop_counts"), strict=True):
        for label, by_value in figures[name].items():
            axes.plot(list(map(float, by_value)), [row[0] for row in by_value.values()], marker="o", label=label)
        axes.set(yscale="log", xlabel=name.replace("_", " "), ylabel="mean relative error of 2 % squares, %")
        axes.legend(fontsize=7)
    sheet.savefig(folder / "papers-htf-trees.svg")
