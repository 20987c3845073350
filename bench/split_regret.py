"""How far HTF's cuts are from the best ones: regret of the exact choice and of the printed search, level by level.

Looks at the data: for evaluation only.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.spatial import folder_of_grids, grids
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.htf import RankedCells, search, split_costs, split_sensitivity
from dpcore.spatial.partition import IntArray, box_sums, image_of
from dpcore.spatial.trees import Candidates

STOP_COUNT = 20
"""Nodes of fewer points are not cut, as in HTF."""


def chosen_regret(costs: IntArray, offsets: IntArray, choice: IntArray) -> float:
    """Mean over nodes of (cost − least)/(greatest − least) of the chosen candidates; nodes without a choice are left out."""
    least, greatest = (f.reduceat(costs, offsets[:-1]) for f in (np.minimum, np.maximum))
    free = greatest > least
    taken = costs[offsets[:-1] + choice]
    return float(((taken - least)[free] / (greatest - least)[free]).mean()) if free.any() else 0.0


def table(counts: npt.NDArray[np.int64], epsilon_micro: int, margin: float, depths: int = 12) -> list[dict[str, Any]]:
    """One row per depth: nodes, what the best cut saves, and the regret of each way to choose, along the best cuts."""
    image, ranked, noise = image_of(counts), RankedCells.of(counts), Noise()
    sensitivity = split_sensitivity(1)
    boxes, rows = np.array([[0, counts.shape[0], 0, counts.shape[1]]]), []
    for depth in range(depths):
        area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
        boxes = boxes[(area > 1) & (box_sums(image, boxes) > STOP_COUNT)]
        if not len(boxes):
            break
        candidates = Candidates.of(boxes, depth % 2, margin)
        costs, offsets = split_costs(ranked, image, boxes, candidates), candidates.offsets
        best = np.array([int(np.argmin(costs[a:b])) for a, b in pairwise(offsets)])
        least, greatest = (f.reduceat(costs, offsets[:-1]) for f in (np.minimum, np.maximum))
        lines = candidates.k[offsets[:-1] + best]
        number = np.diff(offsets) + 2 * candidates.first - 1
        choices = {
            "exponential": noise.exponential(costs, epsilon_micro, 2 * sensitivity * MICRO, offsets=offsets),
            "search": search(costs, offsets, epsilon_micro, sensitivity, noise),
            "random": noise.below(np.diff(offsets)),
        }
        rows.append(
            {
                "depth": depth,
                "nodes": len(boxes),
                "best_saves_percent": float(100 * ((greatest - least) / np.maximum(greatest, 1)).mean()),
                "best_cut_off_rim_percent": float(100 * (np.minimum(lines, number - lines) / number).mean()),
                **{name: chosen_regret(costs, offsets, choice) for name, choice in choices.items()},
            }
        )
        boxes, _ = candidates.cut(boxes, best)
    return rows


def run(epsilon_micro: int = 10_000) -> dict[str, Any]:
    """grid → margin → rows, at ε′ = 0.01 a level."""
    return {
        name: {str(margin): table(counts, epsilon_micro, margin) for margin in (0.0, 0.45)}
        for name, counts in grids(folder_of_grids()).items()
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
