"""Measures how far HTF's cuts are from the best ones: regret of the exact choice and of the printed search, per level.

It uses true data, so it is for evaluation only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.recordings import absent
from bench.spatial import GRIDS, path_of, recorded
from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.htf import RankedCells, search, split_costs, split_sensitivity
from dpcore.spatial.partition import box_sums, image_of
from dpcore.spatial.trees import Candidates

STOP_COUNT = 20
"""Nodes of fewer points are not cut, as in HTF."""
EPSILON_MICRO = 10_000
"""ε′ = 0.01 a level: what ε = 0.5 over 15 levels gives."""


@dataclass(frozen=True)
class Sizes:
    grids: tuple[str, ...]
    depths: int


FULL = Sizes(GRIDS, depths=12)
QUICK = Sizes(GRIDS[:1], depths=4)


def chosen_regret(costs: IntArray, offsets: IntArray, choice: IntArray) -> float:
    """Mean over nodes of (cost − least)/(greatest − least) of the chosen candidates; nodes without a choice are left
    out."""
    least, greatest = (f.reduceat(costs, offsets[:-1]) for f in (np.minimum, np.maximum))
    free = greatest > least
    taken = costs[offsets[:-1] + choice]
    return float(((taken - least)[free] / (greatest - least)[free]).mean()) if free.any() else 0.0


def table(counts: npt.NDArray[np.int64], margin: float, depths: int) -> list[dict[str, Any]]:
    """One row per depth: nodes, what the best cut saves, and the regret of each way to choose, along the best cuts."""
    image, ranked, noise = image_of(counts), RankedCells.of(counts), Noise()
    boxes, rows = np.array([[0, counts.shape[0], 0, counts.shape[1]]]), []
    for depth in range(depths):
        area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
        boxes = boxes[(area > 1) & (box_sums(image, boxes) > STOP_COUNT)]
        if not len(boxes):
            break
        candidates = Candidates.of(boxes, depth % 2, margin)
        costs, offsets = split_costs(ranked, image, boxes, candidates), candidates.offsets
        best = np.array([int(np.argmin(costs[a:b])) for a, b in pairwise(offsets)])
        saves = best_cut(costs, candidates, best)
        rows.append({"depth": depth, "nodes": len(boxes), **saves, **regrets(costs, offsets, noise)})
        boxes, _ = candidates.cut(boxes, best)
    return rows


def regrets(costs: IntArray, offsets: IntArray, noise: Noise) -> dict[str, float]:
    """Regret of each way to choose."""
    sensitivity = split_sensitivity(1)
    choices = {
        "exponential": noise.exponential(costs, EPSILON_MICRO, 2 * sensitivity * MICRO, offsets=offsets),
        "search": search(costs, offsets, EPSILON_MICRO, sensitivity, noise),
        "random": noise.below(np.diff(offsets)),
    }
    return {name: chosen_regret(costs, offsets, choice) for name, choice in choices.items()}


def best_cut(costs: IntArray, candidates: Candidates, best: IntArray) -> dict[str, float]:
    """What the best cut saves, in % of the worst one's cost, and how far it lies off the rim, in % of the side; means
    over nodes."""
    offsets = candidates.offsets
    least, greatest = (f.reduceat(costs, offsets[:-1]) for f in (np.minimum, np.maximum))
    lines = candidates.k[offsets[:-1] + best]
    number = np.diff(offsets) + 2 * candidates.first - 1
    return {
        "best_saves_percent": float(100 * ((greatest - least) / np.maximum(greatest, 1)).mean()),
        "best_cut_off_rim_percent": float(100 * (np.minimum(lines, number - lines) / number).mean()),
    }


def run(quick: bool) -> dict[str, Any]:
    """grid → margin → rows."""
    sizes = QUICK if quick else FULL
    if missing := absent(*(path_of(grid) for grid in sizes.grids)):
        return {"skipped": missing}
    return {
        "grids": {
            name: {str(margin): table(counts, margin, sizes.depths) for margin in (0.0, 0.45)}
            for name, counts in shown(recorded(sizes.grids).items(), "split_regret")
        }
    }
