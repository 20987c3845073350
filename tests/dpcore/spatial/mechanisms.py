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


def assert_alike(one: Released, other: Released, ranges: Rectangles, *, answers: bool = True) -> None:
    """Both answer ``ranges`` with the same intervals and, if ``answers``, with the same numbers."""
    assert not answers or np.allclose(one.answers(ranges), other.answers(ranges), rtol=1e-9, atol=1e-9)
    ours, theirs = one.intervals(ranges), other.intervals(ranges)
    assert (ours.low.tolist(), ours.high.tolist()) == (theirs.low.tolist(), theirs.high.tolist())
