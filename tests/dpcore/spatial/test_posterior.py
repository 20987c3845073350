"""Sparse readings: exact posteriors, counts that are zero where space is empty, and no more than post-processing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from dpcore.noise import Noise
from dpcore.spatial import HTF, Domain, Rectangles, SparseHierarchy, histogram_from_release
from dpcore.spatial.histogram import HistogramError, PartitionHistogram, SparseReading
from dpcore.spatial.partition import image_of
from dpcore.spatial.posterior import TRUSTED, _gaussian_parts, _laplace_parts, sparse_counts
from dpcore.spatial.queries import answer
from dpcore.spatial.release import rounded

DOMAIN = Domain.unit_cells(64, 64)


def town(seed: int = 1, points: int = 60_000) -> np.ndarray:
    """A dense quarter in one corner; three quarters of the box are empty."""
    rng = np.random.default_rng(seed)
    x, y = np.clip(rng.normal(12, 4, (2, points)), 0, 24).astype(int)
    counts = np.zeros(DOMAIN.shape, dtype=np.int64)
    np.add.at(counts, (x, y), 1)
    return counts


def tape(seed: int) -> Noise:
    """Recorded noise."""
    return Noise(np.random.default_rng(seed).bytes)


@pytest.mark.parametrize("y", [-3.0, -0.2, 0.7, 4.0])
@pytest.mark.parametrize("scale", [0.2, 1 / np.sqrt(2), 0.71, 3.0, 40.0])
@pytest.mark.parametrize(
    ("parts", "density"),
    [(_laplace_parts, stats.laplace(scale=1 / np.sqrt(2)).pdf), (_gaussian_parts, stats.norm.pdf)],
)
def test_evidence_and_moments_equal_numerical_integration(parts: Any, density: Any, y: float, scale: float) -> None:
    evidence, first, second = parts(np.array([[y]]), np.array([[scale]]))
    pieces = [
        [
            integrate.quad(lambda x, p=p: x**p * np.exp(-x / scale) / scale * density(y - x), a, b, epsabs=1e-13)[0]
            for a, b in ((0.0, max(y, 0.0)), (max(y, 0.0), max(y, 0.0) + 60.0))
        ]
        for p in range(3)
    ]
    total, one, two = (sum(piece) for piece in pieces)
    assert evidence[0] == pytest.approx([density(y), total], rel=1e-2)
    assert first[0, 0] == pytest.approx(one / total, rel=1e-2)
    assert second[0, 0] == pytest.approx(two / total, rel=1e-2)


@pytest.mark.parametrize("mechanism", [SparseHierarchy(), HTF()], ids=["sparse", "htf"])
@pytest.mark.parametrize("points", [0, 1, 60_000])
def test_sparse_counts_are_not_negative_and_add_up_along_the_tree(mechanism: Any, points: int) -> None:
    tree = mechanism.tree(town(2, points), DOMAIN, 200_000, tape(3), 1)
    counts = sparse_counts(tree)
    assert np.isfinite(counts).all()
    assert counts.min() >= 0
    sums = np.bincount(tree.parent[1:], weights=counts[1:], minlength=len(counts))
    something = np.flatnonzero(tree.parents & (sums > 0))
    assert np.allclose(sums[something], counts[something], rtol=1e-3, atol=1e-6)


def test_empty_space_is_exactly_zero_under_the_relative_goal_and_noise_under_the_absolute_one() -> None:
    """Recorded noise, ε = 0.1: 20 releases, queries in the empty three quarters of the box."""
    corners = np.random.default_rng(4).integers(32, 57, (200, 2))
    queries = Rectangles.of_cells(np.column_stack([corners[:, 0], corners[:, 0] + 7, corners[:, 1], corners[:, 1] + 7]))
    zeros, noisy = 0, 0
    for seed in range(20):
        relative = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 100_000, tape(seed)).answers(queries)
        absolute = SparseHierarchy().fit(town(), DOMAIN, 100_000, tape(seed)).answers(queries)
        zeros += int((relative == 0).sum())
        noisy += int((np.abs(absolute) < 1e-9).sum())
    assert zeros >= 0.95 * 20 * 200
    assert noisy <= 0.05 * 20 * 200


def test_the_relative_goal_lowers_the_relative_error_of_the_same_draws() -> None:
    """Recorded noise: the tree is the same under both goals, only the reading differs."""
    corners = np.sort(np.random.default_rng(5).integers(0, 64, (500, 2, 2)), axis=1)
    queries = Rectangles.of_cells(corners.transpose(0, 2, 1).reshape(-1, 4))
    truth = answer(image_of(town()), queries)
    for mechanism in (SparseHierarchy, HTF):
        found = {}
        for goal in ("absolute", "relative"):
            answers = mechanism(goal=goal).fit(town(), DOMAIN, 100_000, tape(6)).answers(queries)
            found[goal] = (np.abs(answers - truth) / np.maximum(truth, 20)).mean()
        assert found["relative"] < 0.8 * found["absolute"]


def test_large_answers_for_relative_error_are_means_of_both_readings_and_all_are_whole() -> None:
    histogram = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 1_000_000, tape(7))
    assert histogram.sparse is not None
    queries = Rectangles([0, 0, 30], [64, 63, 31], [0, 0, 5], [64, 64, 6])
    unbiased, sparse = (
        replace(histogram, counts=counts, sparse=None).answers(queries)
        for counts in (histogram.counts, histogram.sparse.counts)
    )
    answers = histogram.answers(queries)
    large = np.minimum(unbiased, sparse) >= TRUSTED
    assert list(large) == [True, True, False]
    assert np.array_equal(answers[large], np.rint((unbiased + sparse)[large] / 2))
    assert np.array_equal(answers[~large], np.rint(sparse[~large]))


def test_a_sparse_reading_survives_its_release_and_a_broken_one_is_refused() -> None:
    histogram = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 100_000, tape(8), points_per_user=3)
    assert histogram.sparse is not None
    assert histogram.sparse.below == TRUSTED * 3 / 0.1
    published = rounded(histogram)
    back = histogram_from_release(json.loads(json.dumps(published.to_release())))
    queries = Rectangles([0, 10, 40.5], [64, 20, 50], [0, 3, 40], [64, 9.25, 60])
    for ours, theirs in zip(published.query(queries), back.query(queries), strict=True):
        assert np.allclose(ours, theirs)
    with pytest.raises(HistogramError):
        SparseReading(np.array([-1.0]), 10.0)
    with pytest.raises(HistogramError):
        PartitionHistogram(
            Domain.unit_cells(2, 2),
            np.array([[0, 2, 0, 2]]),
            np.ones(1),
            np.ones(1),
            SparseReading(np.ones(2), 1.0),
        )
