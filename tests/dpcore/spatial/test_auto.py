"""Auto chooses by public facts where they suffice, else by a DP count, and spends exactly the budget either way."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpcore.spatial
from bench.not_private import best_non_private, leaky
from dpcore.noise import Noise
from dpcore.spatial import Auto, Domain, E2EPriv, GridHistogram, PartitionHistogram, Singular, SparseHierarchy
from dpcore.spatial.hierarchy import SMALL_CELLS
from dpcore.spatial.histogram import Histogram, HistogramError
from dpcore.spatial.queries import answer, integral_image
from dpcore.spatial.release import rounded
from tests.dpcore.silence import Asked, Silence
from tests.dpcore.spatial.mechanisms import random_rectangles

SMALL, LARGE = Domain.unit_cells(16, 16), Domain.unit_cells(17, 16)


def test_only_a_choice_that_needs_the_number_of_points_pays_for_it():
    assert Auto().split(SMALL, 1_000_000).shares == (20_000, 980_000)
    assert Auto("relative").split(SMALL, 1_000_000).shares == Auto().split(LARGE, 1_000_000).shares == (1_000_000,)


@pytest.mark.parametrize(
    ("goal", "domain", "total", "points", "expected"),
    [
        ("absolute", SMALL, SMALL_CELLS, 1, Singular()),
        ("absolute", SMALL, SMALL_CELLS - 1, 1, SparseHierarchy()),
        ("absolute", SMALL, SMALL_CELLS, 2, SparseHierarchy()),
        ("absolute", LARGE, 10**9, 1, SparseHierarchy()),
        ("relative", SMALL, 10**9, 1, SparseHierarchy(goal="relative")),
        ("absolute", SMALL, 0, 1, SparseHierarchy()),
    ],
)
def test_the_choice_follows_goal_cells_and_points_per_cell(goal, domain, total, points, expected):
    assert Auto(goal).choose(domain, total, 1_000_000, points) == expected


def test_the_count_is_drawn_at_its_share_and_the_cells_at_the_rest():
    """With noise 0 the scales of the draws are recorded: each is s·10⁶/share in lowest terms."""
    noise = Asked()
    histogram = Auto().fit(np.full((16, 16), 3, dtype=np.int64), SMALL, 1_000_000, noise)
    assert isinstance(histogram, GridHistogram)
    assert list(dict.fromkeys(map(float, noise.rates))) == [pytest.approx(0.02), pytest.approx(0.98)]


def test_few_points_on_a_small_grid_are_left_to_the_hierarchy():
    assert isinstance(Auto().fit(np.zeros((16, 16), dtype=np.int64), SMALL, 1_000_000, Silence()), PartitionHistogram)


ROOT = Path(__file__).resolve().parents[3]
DOMAIN = Domain.unit_cells(32, 32)
MECHANISM = E2EPriv((1, 4, 32), random_rectangles(1, 32, 60), expected_points=5000)
COUNTS = np.random.default_rng(2).poisson(np.add.outer(np.arange(32), np.arange(32)) / 6)


def test_a_baseline_has_no_release():
    for result in (leaky(MECHANISM, COUNTS, DOMAIN, 10**6, Noise()), best_non_private(MECHANISM, COUNTS, DOMAIN)):
        assert not isinstance(result, Histogram)
        assert not hasattr(result, "to_release")
        with pytest.raises(HistogramError):
            rounded(result)


def test_neither_the_service_nor_the_public_names_reach_the_baselines():
    """Only benchmarks and research may import the module: every other source file is read."""
    importers = set()
    for path in (path for room in ("stream", "dpcore", "bench", "research") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(text)) if "not_private" in (text := path.read_text()) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", None) or ""
            if any("not_private" in name for name in [module, *names]):
                importers.add(path.relative_to(ROOT).parts[0])
    assert importers <= {"bench", "research"}
    assert not {"leaky", "best_non_private", "Unreleasable"} & set(dpcore.spatial.__all__)


def test_leaky_is_no_worse_on_its_tuning_queries_than_any_size_on_the_same_draws():
    """Recorded noise: each size alone is drawn from the same tape, after the sizes before it."""
    truth = answer(integral_image(COUNTS), MECHANISM.queries)

    def error(result: Any) -> float:
        return float((np.abs(result.answers(MECHANISM.queries) - truth) / np.maximum(truth, MECHANISM.rho)).mean())

    for seed in range(10):
        noise = Noise(np.random.default_rng(seed).bytes)
        alone = [error(leaky(replace(MECHANISM, sizes=(g,)), COUNTS, DOMAIN, 10**6, noise)) for g in (1, 4, 32)]
        noise = Noise(np.random.default_rng(seed).bytes)
        assert error(leaky(MECHANISM, COUNTS, DOMAIN, 10**6, noise)) == min(alone)


def test_best_non_private_is_the_largest_size_without_noise():
    best = best_non_private(MECHANISM, COUNTS, DOMAIN)
    assert best.size == 32
    assert best.answers(MECHANISM.queries) == pytest.approx(answer(integral_image(COUNTS), MECHANISM.queries))
    coarse = best_non_private(replace(MECHANISM, sizes=(1,)), COUNTS, DOMAIN)
    assert coarse.answers(MECHANISM.queries) == pytest.approx(COUNTS.sum() * MECHANISM.queries.areas() / DOMAIN.cells)
