"""Tree CDFs: black-box ε over all prefix counts at once, on worst-case neighbours, and the planted bugs it must catch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpcore.cdf
from dpcore.budget import MICRO
from dpcore.cdf import ParticipationCDF, TreeCDF, bin_edges, release_cells
from dpcore.level_tree import LevelTree, noisy_levels, split_budget
from dpcore.noise import Noise
from dpcore.scales import noise_ratio
from tests.audit.blackbox import (
    Pooled,
    assert_caught,
    assert_private,
    epsilon_lower_bound,
    half_scale,
    samples,
)

N = 20_000
"""Samples per side, as cells of one call. At ε = 1 spread over two levels, half the noise is bounded by about 1.3."""


def repeated(
    histogram: list[int], tree: LevelTree, sensitivity: int, micro: int, noise: Noise, root: bool
) -> np.ndarray:
    """``N`` releases of one cell: the consistent prefix counts, shape (N, K+1)."""
    levels = split_budget(micro, np.append(1.0, tree.shares() * 2) / 3 if root else tree.shares())
    t, s = np.array([noise_ratio(sensitivity, int(part)) for part in levels]).T
    scales = np.tile(t, (N, 1)), np.tile(s, (N, 1))
    tiled = np.tile(np.array(histogram, dtype=np.int64), (N, 1))
    edges = bin_edges(tree.bins - 1, tree.bins)
    if root:
        totals = scales[0][:, 0], scales[1][:, 0]
        return release_cells(tree, edges, tiled, (scales[0][:, 1:], scales[1][:, 1:]), noise, totals).linear
    return release_cells(tree, edges, tiled, scales, noise).linear[:, 1:-1]


@pytest.mark.parametrize("tree", [LevelTree(3, (3,)), LevelTree(4, (2, 2))])
def test_prefix_counts_are_private_and_half_the_scale_of_the_nodes_is_not(tree: LevelTree) -> None:
    """One user moves Γ = 3 samples from the first to the last bin (Δ = 2Γ at every level), ε = 1.

    Half the scale is looked for before consistency, which averages away part of the evidence.
    """
    pair = [5, *[1] * (tree.bins - 2), 2], [2, *[1] * (tree.bins - 2), 5]
    assert_private(epsilon_lower_bound(*(repeated(h, tree, 6, MICRO, Noise(), False) for h in pair)), 1.0)
    t, s = np.array([noise_ratio(6, int(part)) for part in split_budget(MICRO, tree.shares())]).T
    scales = np.tile(t, (N, 1)), np.tile(s, (N, 1))
    levels = [tree.levels(np.tile(np.array(h, dtype=np.int64), (N, 1))) for h in pair]
    for noise, check in ((Noise(), assert_private), (half_scale(), assert_caught)):
        check(epsilon_lower_bound(*(np.hstack(noisy_levels(tree, side, *scales, noise)) for side in levels)), 1.0)


def test_counting_a_change_of_values_as_one_sided_is_caught() -> None:
    """Δ = Γ instead of 2Γ under "values": the right sensitivity of "participation", where nothing enters elsewhere."""
    tree = LevelTree(3, (3,))
    one, other = [5, 1, 2], [2, 1, 5]
    assert_caught(epsilon_lower_bound(*(repeated(h, tree, 3, MICRO, Noise(), False) for h in (one, other))), 1.0)


def test_under_participation_counts_and_total_are_private_and_half_the_scale_is_not() -> None:
    """All of one user's 3 samples come or go, ε = 1 over root and level."""
    tree = LevelTree(3, (3,))
    for noise, check in ((Noise(), assert_private), (half_scale(), assert_caught)):
        check(epsilon_lower_bound(*(repeated(h, tree, 3, MICRO, noise, True) for h in ([4, 1, 1], [1, 1, 1]))), 1.0)


@pytest.mark.parametrize("weight", ["sample", "user"])
@pytest.mark.parametrize("relation", ["values", "participation"])
def test_the_mechanisms_as_used_are_private(weight: Any, relation: str) -> None:
    """n = 1600 whole releases from values, ε = 1; a quarter of the scale is refuted (half of it above, with more samples)."""
    m = np.array([3, 1])
    if relation == "values":
        mechanism: Any = TreeCDF(2, 3, weight=weight)
        plan = mechanism.plan(m, MICRO)
        sides = [
            lambda s, x=x: mechanism.release(np.array(x), plan, s).linear[0, 1:-1] for x in ([0, 0, 0, 1], [2, 2, 2, 1])
        ]
    else:
        mechanism = ParticipationCDF(2, 3, 3, weight=weight)
        plan = mechanism.plan(MICRO)
        sides = [
            lambda s: mechanism.release(np.array([0, 0, 0, 1]), m, plan, s).linear[0],
            lambda s: mechanism.release(np.array([1]), m[1:], plan, s).linear[0],
        ]
    assert_private(epsilon_lower_bound(*(samples(side, n=1600) for side in sides)), 1.0)
    assert_caught(epsilon_lower_bound(*(samples(side, Pooled(shrink=4), n=1600) for side in sides)), 1.0)


def test_samples_beyond_the_capacity_that_are_kept_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under participation a user with 6 samples and capacity 2; the planted bug keeps all six."""
    mechanism = ParticipationCDF(2, 2, 3)
    plan = mechanism.plan(MICRO)
    one, other = (np.array([0] * 6 + [1]), np.array([6, 1])), (np.array([1]), np.array([1]))

    def bound() -> Any:
        return epsilon_lower_bound(
            *(samples(lambda s, x=x: mechanism.release(*x, plan, s).linear[0], Pooled(), 2000) for x in (one, other))
        )

    assert_private(bound(), 1.0)
    monkeypatch.setattr(
        dpcore.cdf, "retained_values", lambda values, m, retained: (values, np.repeat(np.arange(len(m)), m))
    )
    assert_caught(bound(), 1.0)
