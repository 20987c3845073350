"""Grids, trees and wavelets: accurate without noise, sensitivities by brute force, budgets exact along every path."""

import numpy as np

from dpcore.spatial.domain import Domain
from dpcore.spatial.grids import haar, inverse_haar
from dpcore.spatial.htf import QUANTUM, RankedCells, split_costs, split_sensitivity
from dpcore.spatial.partition import LevelDraws, grow, image_of, split_boxes, whole
from dpcore.spatial.trees import Candidates, median_costs
from tests.dpcore.spatial.mechanisms import path_costs

DOMAIN = Domain.unit_cells(16, 16)


def city(seed: int = 1, n: int = 4000) -> np.ndarray:
    """Counts of a dense middle in an empty surrounding."""
    rng = np.random.default_rng(seed)
    x, y = np.clip(rng.normal(8, 2.0, (2, n)), 0, 15.99).astype(int)
    counts = np.zeros((16, 16), dtype=np.int64)
    np.add.at(counts, (x, y), 1)
    return counts


def test_a_tree_grows_below_the_divided_boxes_alone_and_hands_every_level_its_true_counts():
    """Without noise, every box of more than 100 points divided: each node holds its count, only crowded ones have
    children."""
    counts, seen = city(), []

    def draw(truth: np.ndarray, boxes: np.ndarray, depth: int) -> LevelDraws:
        seen.append(depth)
        crowded = (truth > 100) & (depth < 3)
        return LevelDraws(truth.astype(float), np.ones(len(boxes)), np.full(len(boxes), 10**depth), crowded)

    tree = grow(image_of(counts), DOMAIN, draw, lambda boxes, noisy, depth: split_boxes(boxes, 2))
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


def test_every_split_cost_equals_its_definition_and_moves_within_the_sensitivity_claimed():
    """Brute force over every cell of random small boxes; exact sensitivity is 2(q−1)/q < 2, plus rounding."""
    rng = np.random.default_rng(3)
    domain = Domain.unit_cells(5, 4)
    worst = 0
    for _ in range(60):
        counts = rng.integers(0, 6, (5, 4))
        boxes = whole(domain)

        def costs(of: np.ndarray, boxes: np.ndarray = boxes) -> np.ndarray:
            candidates = Candidates.of(boxes, 0)
            return split_costs(RankedCells.of(of), image_of(of), boxes, candidates)

        base = costs(counts)
        axis = 0 if len(base) == 4 else 1
        direct = []
        for k in range(1, counts.shape[axis]):
            halves = np.split(counts, [k], axis=axis)
            direct.append(sum(np.abs(half - half.mean()).sum() for half in halves) * QUANTUM)
        assert np.abs(base - np.array(direct)).max() <= 2
        for x in range(5):
            for y in range(4):
                more = counts.copy()
                more[x, y] += 1
                worst = max(worst, int(np.abs(costs(more) - base).max()))
    assert worst <= split_sensitivity(1)
    assert worst > QUANTUM, "the bound is looser than the cost explains"


def test_the_haar_transform_inverts_and_one_point_moves_it_by_its_generalised_sensitivity():
    counts = city()
    assert np.allclose(inverse_haar(haar(counts).astype(float)), counts)


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
