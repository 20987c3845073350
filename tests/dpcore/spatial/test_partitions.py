"""Grids, trees and wavelets: accurate without noise, sensitivities by brute force, budgets exact along every path."""

import numpy as np

from dpcore.spatial.domain import Domain
from dpcore.spatial.partition import LevelDraws, grow, image_of, split_boxes
from dpcore.spatial.trees import Candidates, median_costs
from tests.dpcore.spatial.mechanisms import path_costs


def test_a_tree_grows_below_the_divided_boxes_alone_and_hands_every_level_its_true_counts():
    """A dense middle in an empty surrounding, every box of more than 100 points divided, without noise: each node holds
    its count, only crowded ones have children."""
    counts, seen = np.zeros((16, 16), dtype=np.int64), []
    np.add.at(counts, tuple(np.clip(np.random.default_rng(1).normal(8, 2.0, (2, 4000)), 0, 15.99).astype(int)), 1)

    def draw(truth: np.ndarray, boxes: np.ndarray, depth: int) -> LevelDraws:
        seen.append(depth)
        crowded = (truth > 100) & (depth < 3)
        return LevelDraws(truth.astype(float), np.ones(len(boxes)), np.full(len(boxes), 10**depth), crowded)

    tree = grow(image_of(counts), Domain.unit_cells(16, 16), draw, lambda boxes, noisy, depth: split_boxes(boxes, 2))
    assert seen == [0, 1, 2, 3]
    for (x0, x1, y0, y1), noisy in zip(tree.boxes, tree.counts, strict=True):
        assert counts[x0:x1, y0:y1].sum() == noisy
    assert np.array_equal(tree.parents[: tree.starts[3]], tree.counts[: tree.starts[3]] > 100)
    assert tree.counts[tree.leaves].sum() == counts.sum()
    assert path_costs(tree).max() == 1111


def test_the_cost_of_a_median_is_its_definition_and_a_point_moves_it_by_one():
    counts = np.random.default_rng(2).integers(0, 5, (6, 4))
    boxes = np.array([[0, 6, 0, 2], [0, 6, 2, 4]])
    candidates = Candidates.of(boxes, 0)
    base = median_costs(image_of(counts), boxes, candidates)
    direct = [abs(2 * int(half[:k].sum()) - int(half.sum())) for half in np.hsplit(counts, 2) for k in range(1, 6)]
    assert base.tolist() == direct
    for x, y in np.ndindex(6, 4):
        more = counts.copy()
        more[x, y] += 1
        moved = np.abs(median_costs(image_of(more), boxes, candidates) - base)
        assert moved.max() == 1
        assert np.all(moved[5:] == 0) if y < 2 else np.all(moved[:5] == 0)


def test_cuts_leave_the_margin_on_both_sides_and_every_box_a_cut():
    boxes = np.array([[0, n, 0, 3] for n in range(2, 40)])
    for margin in (0.0, 0.25, 0.5):
        candidates = Candidates.of(boxes, 0, margin)
        lines = (boxes[:, 1] - boxes[:, 0])[candidates.box]
        assert np.diff(candidates.offsets).min() >= 1
        assert np.minimum(candidates.k, lines - candidates.k).min() >= 1
        assert (np.minimum(candidates.k, lines - candidates.k) >= np.floor(lines * margin)).all()
        last = np.diff(candidates.offsets) - 1
        children, parent = candidates.cut(boxes, last)
        sides = (children[:, 1] - children[:, 0]).reshape(-1, 2)
        assert np.array_equal(sides[:, 0], candidates.k[candidates.offsets[1:] - 1])
        assert np.array_equal(sides.sum(axis=1), boxes[:, 1])
        assert np.array_equal(parent, np.repeat(np.arange(len(boxes)), 2))
