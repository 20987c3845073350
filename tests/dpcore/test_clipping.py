"""Clipping at dual prices: keeps every cell, never predicts worse, and its families are searched exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpcore.clipping import capped, cheapest, choose_clipping
from dpcore.contributions import Counts
from dpcore.errors import ParameterError
from dpcore.mean import Mean


def random_counts(rng: np.random.Generator, users: int = 40, cells: int = 10) -> Counts:
    matrix = rng.geometric(0.2, (users, cells)) * (rng.random((users, cells)) < 0.3)
    matrix[:, 0] = 1
    matrix[0] = 9
    cell, user = np.nonzero(matrix.T)
    return Counts(np.arange(cells, dtype=np.uint64), np.arange(users, dtype=np.uint64), cell, user, matrix[user, cell])


@pytest.mark.parametrize("bias_weight", [1.0, 0.1, 0.0])
def test_predicted_error_never_grows_and_every_cell_keeps_a_sample(bias_weight):
    improved = 0
    for seed in range(15):
        counts = random_counts(np.random.default_rng(seed))
        allowances = np.full(counts.n_users, 500_000)
        clipping = choose_clipping(
            counts, allowances, lambda s, c=counts: Mean(800).rows(c, s), bias_weight=bias_weight
        )
        assert clipping.error <= clipping.error_before
        assert np.all(counts.by_cell(clipping.samples) >= 1)
        assert np.all((clipping.samples >= 0) & (clipping.samples <= counts.samples))
        assert np.all(clipping.allocation.charges <= allowances)
        bias = bias_weight * (counts.samples.sum() - clipping.samples.sum())
        assert clipping.error == pytest.approx(clipping.allocation.objective + bias)
        improved += clipping.improvement > 0
    assert improved > 5


@pytest.mark.parametrize("by_price", [True, False])
def test_each_family_is_searched_exactly(by_price):
    rng = np.random.default_rng(1)
    for _ in range(40):
        counts = random_counts(rng, users=5, cells=3)
        price = rng.random(len(counts.samples))
        total = counts.by_cell(counts.samples)
        arguments = counts, total, price, 0.3
        kept, cost = cheapest(*arguments, 1) if by_price else capped(*arguments)
        for g in range(counts.n_cells):
            part = slice(counts.cell_start[g], counts.cell_start[g + 1])
            m, y = counts.samples[part], price[part]
            if by_price:
                families = [np.where(y <= limit, m, 0) for limit in y]
            else:
                families = [np.minimum(m, limit) for limit in range(1, m.max() + 1)]

            def error(gamma, y=y, g=g, total=total):
                n = gamma.sum()
                return 0.3 * (total[g] - n) + 2 * np.sqrt(total[g] * (y * gamma).sum() / n)

            assert cost[g] == pytest.approx(min(map(error, families)))
            assert error(kept[part]) == pytest.approx(cost[g])


def test_the_cheapest_users_are_optimal_up_to_one_user():
    rng = np.random.default_rng(2)
    for _ in range(200):
        m, y = rng.integers(1, 5, 6), rng.random(6)
        subsets = [np.array(b) for b in itertools.product((0, 1), repeat=6) if any(b)]
        order = np.argsort(y)
        for keep in subsets:
            n, cost = (m * keep).sum(), (m * y * keep).sum()
            run = np.cumsum(m[order])
            k = int(np.searchsorted(run, n, side="right"))
            prefix = (m * y)[order][:k].sum()
            assert prefix <= cost + 1e-12


def test_suppressed_pairs_and_empty_cells_stay_out_and_min_users_holds():
    for seed in range(10):
        counts = random_counts(np.random.default_rng(seed))
        samples = np.where(np.random.default_rng(seed).random(len(counts.samples)) < 0.2, 0, counts.samples)
        samples[counts.pair_cell == 3] = 0
        part = Counts(counts.cells, counts.users, counts.pair_cell, counts.pair_user, samples)
        allowances = np.full(counts.n_users, 500_000)
        clipping = choose_clipping(
            part, allowances, lambda s, c=part: Mean(800).rows(c, s), bias_weight=0.1, min_users=3
        )
        assert np.all(clipping.samples <= samples)
        before, after = (part.by_cell((x > 0).astype(np.int64)) for x in (samples, clipping.samples))
        assert np.all(after >= np.minimum(before, 3))


def test_refuses_a_negative_bias_weight():
    counts = random_counts(np.random.default_rng(3))
    with pytest.raises(ParameterError):
        choose_clipping(counts, np.full(40, 10**6), lambda s: Mean(8).rows(counts, s), bias_weight=-1)
