"""Distributions of cells under relation "values": sensitivities by brute force, counts, and what is public."""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from dpcore.allocation import allocate
from dpcore.budget import MICRO
from dpcore.cdf import bin_edges
from dpcore.contributions import Contributions
from dpcore.distribution import Distribution
from dpcore.level_tree import LevelTree
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales
from tests.dpcore.silence import Silence


def group(samples: tuple[int, ...], values: tuple[int, ...], upper: int) -> Contributions:
    """One cell in which user i has ``samples[i]`` of ``values``."""
    user = np.repeat(np.arange(len(samples)), samples).astype(np.uint64)
    return Contributions.group(
        np.zeros(len(user), np.uint64), user, np.arange(len(user)), np.array(values), upper=upper
    )


@pytest.mark.parametrize("samples", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("tree", [LevelTree(4, (2, 2)), LevelTree(4, (4,))])
def test_no_user_moves_any_level_more_than_their_sensitivity_and_one_moves_it_as_much(
    samples: tuple[int, ...], tree: LevelTree
) -> None:
    """Exhaustive over values in 4 bins."""
    distribution, owner = Distribution(3, 4), np.repeat(np.arange(len(samples)), samples)
    levels = {
        values: [level[0] for level in tree.levels(distribution.integers(group(samples, values, 3)))]
        for values in itertools.product(range(4), repeat=len(owner))
    }
    counts = group(samples, (0,) * len(owner), 3).counts
    claimed = distribution.sensitivities(counts, counts.samples)
    for user in range(len(samples)):
        alike = defaultdict(list)  # the others' values -> levels for every choice of the user's own
        for values, drawn in levels.items():
            alike[tuple(value for value, o in zip(values, owner, strict=True) if o != user)].append(drawn)
        worst = 0
        for choices in alike.values():
            for level in zip(*choices, strict=True):
                several = np.array(level)
                worst = max(worst, int(np.abs(several[:, None] - several[None, :]).sum(axis=-1).max()))
        assert worst == claimed[user] == 2 * samples[user]


def test_charges_are_the_loss_over_all_cells_and_levels_rounded_up_and_within_the_allowance() -> None:
    rng = np.random.default_rng(3)
    cell, user = rng.integers(0, 4, 200).astype(np.uint64), rng.integers(0, 9, 200).astype(np.uint64)
    counts = Contributions.group(cell, user, np.arange(200), np.zeros(200, np.int64), upper=6500).counts
    distribution = Distribution(6500, 64)
    solved = allocate(distribution.rows(counts, counts.samples), np.full(counts.n_users, MICRO))
    shape = (counts.n_cells, distribution.tree.height)
    scales = LaplaceScales(solved.numerator.reshape(shape), solved.denominator.reshape(shape))
    charges = distribution.charges(counts, counts.samples, scales)
    loss = [Fraction(0)] * counts.n_users
    for g, u, gamma in zip(counts.pair_cell, counts.pair_user, counts.samples.tolist(), strict=True):
        for t, s in zip(scales.numerator[g].tolist(), scales.denominator[g].tolist(), strict=True):
            loss[u] += Fraction(2 * gamma * s * MICRO, t)
    entries = counts.by_user(np.ones(len(counts.samples), np.int64)) * distribution.tree.height
    assert all(
        exact <= charge < exact + n for exact, charge, n in zip(loss, charges.tolist(), entries.tolist(), strict=True)
    )
    assert (charges <= MICRO).all()


def test_many_cells_at_once_have_the_counts_of_each() -> None:
    rng = np.random.default_rng(4)
    cell, user, value = rng.integers(0, 5, 300), rng.integers(0, 20, 300), rng.integers(0, 90, 300)
    ids = cell.astype(np.uint64), user.astype(np.uint64)
    counted = Distribution(80, 16).integers(Contributions.group(*ids, np.arange(300), value, upper=80))
    edges = bin_edges(80, 16)
    for c in range(5):
        clipped = np.clip(value[cell == c], 0, 80)
        assert counted[c].tolist() == np.histogram(clipped, bins=edges)[0].tolist()


def test_a_released_distribution_is_monotone_and_ends_at_the_public_total_whatever_the_noise() -> None:
    samples = (3, 2, 4)
    contributions = group(samples, (100, 200, 300, 700, 720, 10, 20, 30, 40), 800)
    distribution = Distribution(800, 64)
    scales = LaplaceScales(np.full((1, 2), 5), np.ones((1, 2), dtype=np.int64))
    _, drawn = distribution.draw(contributions, scales, Noise())
    assert drawn is not None
    assert (np.diff(drawn.prefix) >= 0).all()
    assert drawn.prefix[0, 0] == 0
    assert drawn.prefix[0, -1] == drawn.total[0] == 9
    _, quiet = distribution.draw(contributions, scales, Silence())
    assert quiet is not None
    assert quiet.prefix[0, 1:-1] == pytest.approx([(contributions.values < e).sum() for e in quiet.edges[1:-1]])
    assert quiet.percentile(50)[0][0] == pytest.approx(np.median(contributions.values), abs=800 / 64 + 1)


def test_a_cell_that_nobody_can_move_gets_no_distribution() -> None:
    contributions = group((2,), (0, 0), 0)
    cells, drawn = Distribution(0, 8).draw(
        contributions, LaplaceScales(np.zeros((1, 1), int), np.ones((1, 1), int)), Noise()
    )
    assert (len(cells), drawn) == (0, None)
