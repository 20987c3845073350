"""Adaptive resolution keeps every event in exactly one region, and is as fine as the target allows."""

import numpy as np
import pytest

from dpcore.allocation import allocate
from dpcore.contributions import Counts
from dpcore.mean import Mean
from dpcore.resolution import choose_resolution, regroup
from tests.dpcore.programs import counts_of

UPPER = 800


def random_counts(seed: int, users: int = 60, cells: int = 28) -> Counts:
    rng = np.random.default_rng(seed)
    matrix = rng.geometric(0.3, (users, cells)) * (rng.random((users, cells)) < rng.beta(0.5, 3, cells))
    matrix[0] = 1
    matrix[:, 0] += 1
    return counts_of(matrix)


def parents(counts: Counts) -> list[np.ndarray]:
    return [counts.cells // np.uint64(7) + np.uint64(1000), np.full(counts.n_cells, 2000, dtype=np.uint64)]


def half_width(counts: Counts) -> np.ndarray:
    scales = allocate(Mean(UPPER).rows(counts, counts.samples), np.full(counts.n_users, 2_000_000)).scales
    return np.log(20) * scales / counts.by_cell(counts.samples) / 10


@pytest.mark.parametrize("target", [1.0, 10.0, 30.0, 100.0, 1e9])
def test_every_event_is_in_one_region_and_only_the_coarsest_misses_the_target(target):
    for seed in range(5):
        counts = random_counts(seed)
        resolution = choose_resolution(counts, parents(counts), half_width, target=target)
        assert resolution.counts.samples.sum() == counts.samples.sum()
        assert np.array_equal(resolution.counts.cells, np.unique(resolution.region))
        assert np.array_equal(resolution.counts.by_user(resolution.counts.samples), counts.by_user(counts.samples))
        wide = resolution.half_width > target
        assert np.all(resolution.level[np.isin(resolution.region, resolution.counts.cells[wide])] == 2)


def test_a_generous_target_changes_nothing_and_an_impossible_one_pools_all():
    counts = random_counts(1)
    fine = choose_resolution(counts, parents(counts), half_width, target=1e9)
    assert np.array_equal(fine.region, counts.cells)
    coarse = choose_resolution(counts, parents(counts), half_width, target=1e-9)
    assert set(coarse.region.tolist()) == {2000}


def test_regrouping_adds_a_users_samples():
    pooled = regroup(counts_of([[3, 5], [4, 0]]), np.array([9, 9], dtype=np.uint64))
    assert pooled.cells.tolist() == [9]
    assert pooled.samples.tolist() == [8, 4]


def test_pooling_narrows_what_remains():
    counts = random_counts(2)
    before = half_width(counts)
    resolution = choose_resolution(counts, parents(counts), half_width, target=20.0)
    events = resolution.counts.by_cell(resolution.counts.samples)
    assert (resolution.half_width * events).sum() < (before * counts.by_cell(counts.samples)).sum()
