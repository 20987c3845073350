"""Every spatial mechanism in every form that tests hold to the same claims, and when two releases say the same."""

from dataclasses import replace

import numpy as np

from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    E2EPriv,
    KdTree,
    Privlet,
    QuadTree,
    Rectangles,
    Singular,
    SparseHierarchy,
    SpatialMechanism,
    Uniform,
    UniformGrid,
)
from dpcore.spatial.partition import Tree
from dpcore.spatial.release import Released


def every_mechanism(sizes: tuple[int, ...], queries: Rectangles) -> dict[str, SpatialMechanism]:
    """All of them by name; "e2epriv" chooses among ``sizes`` by ``queries``."""
    return {
        "uniform": Uniform(),
        "singular": Singular(),
        "ug": UniformGrid(),
        "ag": AdaptiveGrid(),
        "quadtree": QuadTree(),
        "quadtree uniform": QuadTree("uniform"),
        "kdtree": KdTree(),
        "kdtree uniform": KdTree("uniform"),
        "kdtree as drawn": KdTree(split_share=0.6, total_share=0.1, consistency=False),
        "htf": HTF(),
        "htf published": replace(HTF.published(), level_epsilon_micro=20),  # fits the least budgets of tests
        "htf search": HTF("search"),
        "htf with its search": HTF("search", margin=0.0, extra_levels=0),
        "privlet": Privlet(),
        "e2epriv": E2EPriv(sizes, queries),
        "e2epriv relative": E2EPriv(sizes, queries, objective="relative"),
        "sparse": SparseHierarchy(),
        "sparse relative": SparseHierarchy(goal="relative"),
        "htf relative": HTF(goal="relative"),
        "auto": Auto(),
        "auto relative": Auto("relative"),
    }


def path_costs(tree: Tree) -> np.ndarray:
    """µε spent on the way from the root to each leaf, shape (leaves,)."""
    cost = tree.spent.copy()
    for here in tree.levels[1:]:
        cost[here] += cost[tree.parent[here]]
    return cost[tree.leaves]


def leaves_below(tree: Tree) -> np.ndarray:
    """Which leaves lie below each node, (M, leaves) of 0 and 1."""
    members = np.zeros((len(tree.parent), len(tree.leaves)))
    for column, leaf in enumerate(tree.leaves):
        node = leaf
        while node >= 0:
            members[node, column] = 1
            node = tree.parent[node]
    return members


def choice_loss(costs: np.ndarray, others: np.ndarray, rate: float) -> float:
    """Largest |ln P(i)/P′(i)| of two exponential mechanisms with P ∝ exp(−rate·cost)."""
    first, second = (-c * rate - np.logaddexp.reduce(-c * rate) for c in (costs, others))
    return float(np.abs(first - second).max())


def random_rectangles(seed: int, cells: int, n: int) -> Rectangles:
    """``n`` of whole cells of a square grid, between two uniform corners."""
    corners = np.sort(np.random.default_rng(seed).integers(0, cells, (n, 2, 2)), axis=1)
    return Rectangles.of_cells(corners.transpose(0, 2, 1).reshape(-1, 4))


def assert_alike(one: Released, other: Released, ranges: Rectangles, *, answers: bool = True) -> None:
    """Both answer ``ranges`` with the same intervals and, if ``answers``, with the same numbers."""
    assert not answers or np.allclose(one.answers(ranges), other.answers(ranges), rtol=1e-9, atol=1e-9)
    ours, theirs = one.intervals(ranges), other.intervals(ranges)
    assert (ours.low.tolist(), ours.high.tolist()) == (theirs.low.tolist(), theirs.high.tolist())
