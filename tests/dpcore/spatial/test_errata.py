"""Where the spatial sources are wrong: each printed claim beside the case that refutes it, and what is used instead."""

import math

import numpy as np
import pytest

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial import HTF, Domain, E2EPriv, Rectangles
from tests.dpcore.spatial.mechanisms import path_costs, random_rectangles


def test_a_point_moves_a_deviation_by_the_larger_of_the_share_and_the_rest():
    """[E], Lemma 7.4 prints |1 − α|. One cell, α = 0.9 of it queried: a point outside the query moves it by 0.9."""
    domain = Domain.unit_cells(10, 1)
    mechanism = E2EPriv((1,), Rectangles([0], [9], [0], [1]), rho=1.0, expected_points=0)
    base = np.full((10, 1), 5, dtype=np.int64)
    moved = []
    for cell in (0, 9):
        more = base.copy()
        more[cell] += 1
        moved.append(abs(mechanism.errors(more, domain, 1.0, 0)[0][0] - mechanism.errors(base, domain, 1.0, 0)[0][0]))
    assert moved == pytest.approx([0.1, 0.9])
    stated = mechanism.errors(base, domain, 1.0, 0)[1]
    assert max(moved) <= stated == pytest.approx(0.9, rel=1e-8)


def test_the_printed_sensitivity_that_follows_the_number_of_points_breaks_the_budget_and_a_public_one_does_not():
    """[E], Cor. 7.9: Δ_r = 1/(δ(ρ + 1)) + λ‖α‖₁/(ρ(ρ + 1)) + 1/(ρ + δ), ρ = δ|D|. ε₁ = 1, |D| = 72 or 73, exact
    probabilities.

    Sizes 1 and 715, a query of .985 of the box, δ = .986, λ = .275: one point more rescales every cost. The public Δ is
    that of the smaller |D|, and its errors are divided by the public ρ.
    """
    delta, area, scale = 0.986, 0.985, 0.275
    norms = np.array([1, 715**2]) * area

    def logs(points: int, inside: int, public: bool) -> np.ndarray:
        rho = delta * (72 if public else points)
        deviations = np.array([abs(area * points - inside), 0.0])
        errors = (deviations + scale * norms) / max(inside, rho)
        if public:
            change = np.full(2, (1 + area * 73 / rho) / rho + scale * norms[1] / (rho * (rho + 1)))
        else:
            change = 1 / (delta * (rho + 1)) + scale * norms / (rho * (rho + 1)) + 1 / (rho + delta)
        return np.asarray(-errors / (2 * change) - np.logaddexp.reduce(-errors / (2 * change)))

    losses = {
        public: max(
            float(np.abs(logs(72, inside, public) - logs(73, inside + more, public)).max())
            for inside in range(73)
            for more in (0, 1)
        )
        for public in (False, True)
    }
    assert losses[True] <= 1.0 < 1.22 < losses[False]


def test_without_a_cap_one_point_moves_a_relative_error_by_hundreds_and_with_it_by_its_sensitivity():
    """[E], relative objective. Two cells in one block, 20 points in the queried one and 10⁶ beside it; ρ = 20.

    The block answers 500 010 for 20, a relative error of 24 999.5; with a point more it is 1 190 lower. κ bounds it.
    """
    domain = Domain.unit_cells(2, 1)
    changes = {}
    for cap in (1e9, 4.0):
        mechanism = E2EPriv(
            (1,), Rectangles([0], [1], [0], [1]), "relative", rho=20.0, rho_share=0.0, cap=cap, expected_points=0
        )
        errors = [mechanism.errors(np.array([[d], [10**6]]), domain, 1.0, 0) for d in (20, 21)]
        changes[cap] = abs(float(errors[0][0][0] - errors[1][0][0]))
        assert changes[cap] <= errors[0][1]
    assert changes[4.0] < 1 < 1_000 < changes[1e9]


def test_with_a_sensitivity_per_size_the_error_chosen_exceeds_the_bound_and_with_one_for_all_it_does_not():
    """[E], Theorem 7.11: an excess above 2Δ/ε₁·(ln|𝒢| + t) has probability at most exp(−t); exact probabilities.

    It needs one Δ. Errors 100·Δ_r with Δ = 1 and 2 are equal once each is divided by its own: the worse size, 100 above
    the better one, is chosen half the time, at any ε₁; the bound with the larger Δ says 0.02 at ε₁ = 1 and excess 17.
    """
    errors, own = np.array([100.0, 200.0]), np.array([1.0, 2.0])
    weights = np.exp(-errors / own / 2)
    excess, bound = 100.0, 2 * own.max() * (math.log(2) + 4)
    assert excess > 5 * bound
    assert weights[1] / weights.sum() == 0.5 > math.exp(-4)

    rng = np.random.default_rng(3)
    queries = Rectangles.of_cells(np.array([[0, 3, 0, 3], [2, 12, 5, 15], [0, 15, 0, 9]]))
    mechanism = E2EPriv((1, 2, 4, 8, 16), queries, expected_points=500)
    for _ in range(20):
        counts = rng.poisson(rng.gamma(0.2, 10, (16, 16)))
        measured, sensitivity = mechanism.errors(counts, Domain.unit_cells(16, 16), 1.0, 500)
        costs = mechanism.costs(counts, Domain.unit_cells(16, 16), 1.0, 500)
        chances = np.exp(-(costs - costs.min()) / (2 * mechanism.cost_sensitivity(1)))
        chances /= chances.sum()
        for t in (0.0, 1.0, 4.0):
            beyond = measured - measured.min() > 2 * sensitivity * 1.001 * (math.log(5) + t)
            assert chances[beyond].sum() <= math.exp(-t)


def test_stop_tests_grow_by_the_cube_root_of_two_per_level():
    """[H], Equation 16 lacks the root: 2^((h−i)/3) minimises the variance Σ 2^(h−i)/ε_i² of all nodes, 2^(h−i) does
    not."""
    stops = np.array(HTF().path_budget(1_000_000, 8).stops[:-1], dtype=float)
    nodes = 2.0 ** np.arange(8)

    def variance(shares: np.ndarray) -> float:
        return float((nodes / (shares / shares.sum()) ** 2).sum())

    ours = variance(stops)
    assert ours < 0.6 * variance(nodes), "planted: the printed exponent"
    least = np.cbrt(nodes).sum() ** 3  # by Hölder's inequality no shares have less
    assert least * (1 - 1e-12) <= ours <= least * (1 + 1e-6)


def test_a_root_that_stops_at_once_spends_everything_and_divides_by_nothing():
    """[H] gives a leaf ε_remain, which is 0 where the levels above spent everything: a noise scale of 1/0."""
    for shape in ((1, 1), (1, 2), (2, 2)):
        counts = np.zeros(shape, dtype=np.int64)
        tree = HTF().tree(counts, Domain.unit_cells(*shape), 1_000_000, Noise(), 1)
        assert set(path_costs(tree).tolist()) == {1_000_000}
        assert np.isfinite(tree.counts[tree.leaves]).all()


DOMAIN = Domain.unit_cells(64, 64)
QUERIES = random_rectangles(1, 64, 200)
SIZES = (1, 2, 4, 8, 16, 32, 64)


def mechanism(**changes: object) -> E2EPriv:
    return E2EPriv(SIZES, QUERIES, objective="relative", **changes)


def clustered(points: int) -> np.ndarray:
    """Points around four centres."""
    rng = np.random.default_rng(2)
    where = np.clip(rng.choice([12, 20, 40, 55], (points, 1)) + rng.normal(0, 3, (points, 2)), 0, 63).astype(int)
    counts = np.zeros((64, 64), dtype=np.int64)
    np.add.at(counts, (where[:, 0], where[:, 1]), 1)
    return counts


def test_rho_is_a_share_of_the_points_where_that_is_more():
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
def test_the_objective_follows_from_the_budget_and_the_noisy_total_alone(total, size_micro, points, objective):
    assert mechanism().effective_objective(total, size_micro, points) == objective


def test_with_many_points_the_relative_choice_is_no_longer_random():
    """200 000 points, ε = 1, exact probabilities. Planted bug: ρ is 20 whatever the number of points."""
    counts = clustered(200_000)

    def near_best(**changes: object) -> float:
        """P that one of the two best of seven sizes is chosen."""
        chooser = mechanism(**changes)
        errors, costs = (of(counts, DOMAIN, 1.25, 200_000) for of in (chooser.errors, chooser.costs))
        weight = np.exp(-(costs - costs.min()) * 0.2 / (2 * chooser.cost_sensitivity(1)))
        return float(weight[np.argsort(errors[0])[:2]].sum() / weight.sum())

    assert near_best() > 0.95
    assert near_best(rho_share=0.0) < 0.5


@pytest.mark.parametrize("whole_cells", [True, False])
def test_one_point_moves_no_error_by_more_than_stated_and_on_an_empty_grid_it_does(whole_cells):
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


def test_the_best_size_is_drawn_much_more_often_than_by_the_mean_of_the_largest_changes():
    """20 000 points around four centres, ε₁ = 0.2; exact probabilities."""
    counts, chooser = clustered(20_000), E2EPriv((8, 16, 32, 64), QUERIES, expected_points=20_000)
    errors, change = chooser.errors(counts, DOMAIN, 1.25, 20_000)

    def best(divisor: float) -> float:
        weight = np.exp(-0.2 / 2 * (errors - errors.min()) / divisor)
        return float((weight / weight.sum()).max())

    assert best(change) > 0.9 > 0.6 > best(float(np.mean(1 / chooser.weights(DOMAIN, 20_000))))


def test_a_single_size_of_whole_cells_that_no_point_can_move_still_has_a_cost():
    alone = E2EPriv((64,), QUERIES, expected_points=100)
    assert alone.point_changes(DOMAIN, 100)[0] > 0
    assert alone.costs(clustered(100), DOMAIN, 1.0, 100).shape == (1,)
