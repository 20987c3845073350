"""E2EPriv chooses by relative error where the budget can distinguish sizes by it, and otherwise by weighted error."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial import Domain, E2EPriv, Rectangles

DOMAIN = Domain.unit_cells(64, 64)
CORNERS = np.sort(np.random.default_rng(1).integers(0, 64, (200, 2, 2)), axis=1).transpose(0, 2, 1).reshape(-1, 4)
QUERIES = Rectangles.of_cells(CORNERS)
SIZES = (1, 2, 4, 8, 16, 32, 64)


def mechanism(**changes: object) -> E2EPriv:
    return E2EPriv(SIZES, QUERIES, objective="relative", **changes)  # type: ignore[arg-type]


def clustered(points: int) -> np.ndarray:
    """Points around four centres."""
    rng = np.random.default_rng(2)
    where = np.clip(rng.choice([12, 20, 40, 55], (points, 1)) + rng.normal(0, 3, (points, 2)), 0, 63).astype(int)
    counts = np.zeros((64, 64), dtype=np.int64)
    np.add.at(counts, (where[:, 0], where[:, 1]), 1)
    return counts


def test_rho_is_a_share_of_the_points_where_that_is_more() -> None:
    assert mechanism().floor(1_000_000) == 10_000
    assert mechanism().floor(100) == 20


@pytest.mark.parametrize(
    ("total", "size_micro", "points", "objective"),
    [
        (1_000_000, MICRO // 50, 1, "relative"),
        (1_000_000, MICRO // 50, 20, "weighted"),
        (20_000, MICRO // 50, 1, "weighted"),
        (20_000, MICRO, 1, "relative"),
    ],
)
def test_the_objective_follows_from_the_budget_and_the_noisy_total_alone(
    total: int, size_micro: int, points: int, objective: str
) -> None:
    assert mechanism().effective_objective(total, size_micro, points) == objective


def test_with_many_points_the_relative_choice_is_no_longer_random() -> None:
    """n = 60 draws on 200 000 points, ε = 1. Chance of ≥ 50 at one of the two best of seven sizes if random: below
    1e-17.

    Planted bug: ρ is 20 whatever the number of points.
    """

    def near_best(**changes: object) -> int:
        counts, chooser, noise = clustered(200_000), mechanism(**changes), Noise(np.random.default_rng(3).bytes)
        errors, _ = chooser.errors(counts, DOMAIN, 1.25, 200_000)
        best = {SIZES[index] for index in np.argsort(errors)[:2]}
        sizes = []
        for _ in range(60):
            costs = chooser.costs(counts, DOMAIN, 1.25, 200_000)
            probability = np.exp(-(costs - costs.min()) * 0.2 / (2 * chooser.cost_sensitivity(1)))
            sizes.append(
                SIZES[int(np.searchsorted(np.cumsum(probability / probability.sum()), noise.below([10**6])[0] / 1e6))]
            )
        return sum(size in best for size in sizes)

    assert near_best() >= 50
    assert near_best(rho_share=0.0) < 50


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"rho_share 1\.5"):
        mechanism(rho_share=1.5)


@pytest.mark.parametrize("whole_cells", [True, False])
def test_one_point_moves_no_error_by_more_than_stated_and_on_an_empty_grid_it_does(whole_cells: bool) -> None:
    """Every cell of grids of 16 × 12 gets one point more. Half of what is stated would not do, nor would the mean of
    1/w help."""
    rng, domain = np.random.default_rng(3), Domain.unit_cells(16, 12)
    low = rng.uniform(0, 9, (2, 60))
    high = low + rng.uniform(0.5, 3, (2, 60))
    if whole_cells:
        low, high = np.floor(low), np.ceil(high)
    chooser = E2EPriv((1, 2, 3, 5, 8), Rectangles(low[0], high[0], low[1], high[1]))
    for mean in (0.0, 0.3, 20.0):
        counts = rng.poisson(mean, (16, 12)).astype(np.int64)
        total, worst = int(counts.sum()), np.zeros(5)
        before = chooser.errors(counts, domain, 1.25, total)[0]
        for cell in np.ndindex(16, 12):
            more = counts.copy()
            more[cell] += 1
            worst = np.maximum(worst, np.abs(chooser.errors(more, domain, 1.25, total)[0] - before))
        stated = chooser.point_changes(domain, total)
        assert (worst <= stated * (1 + 1e-9)).all()
        if not total:
            assert (worst > (0.99 if whole_cells else 0.9) * stated).all()
        assert stated.max() < 0.7 * float(np.mean(1 / chooser.weights(domain, total)))


def test_the_best_size_is_drawn_much_more_often_than_by_the_mean_of_the_largest_changes() -> None:
    """20 000 points around four centres, ε₁ = 0.2; exact probabilities."""
    counts, chooser = clustered(20_000), E2EPriv((8, 16, 32, 64), QUERIES, expected_points=20_000)
    errors, change = chooser.errors(counts, DOMAIN, 1.25, 20_000)

    def best(divisor: float) -> float:
        weight = np.exp(-0.2 / 2 * (errors - errors.min()) / divisor)
        return float((weight / weight.sum()).max())

    assert best(change) > 0.9 > 0.6 > best(float(np.mean(1 / chooser.weights(DOMAIN, 20_000))))


def test_a_single_size_of_whole_cells_that_no_point_can_move_still_has_a_cost() -> None:
    alone = E2EPriv((64,), QUERIES, expected_points=100)
    assert alone.point_changes(DOMAIN, 100)[0] > 0
    assert alone.costs(clustered(100), DOMAIN, 1.0, 100).shape == (1,)
