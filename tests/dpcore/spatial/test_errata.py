"""Where the spatial sources are wrong: each printed claim beside the case that refutes it, and what is used instead."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcore.noise import Noise
from dpcore.spatial import HTF, Domain, E2EPriv, Rectangles
from dpcore.spatial.queries import overlap_norms
from dpcore.spatial.regions import Footprints, Regions


def test_a_point_moves_a_deviation_by_the_larger_of_the_share_and_the_rest() -> None:
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
    assert mechanism.errors(base, domain, 1.0, 0)[1] == 1.0 >= max(moved)


def test_a_sensitivity_that_follows_the_number_of_points_breaks_the_budget_and_a_public_one_does_not() -> None:
    """[E], Corollary 7.9. |D| = 20 or 21, one query of 0.9 of the box, sizes 1 and 100, ε₁ = 1; exact probabilities.

    A Δ ∝ 1/(0.9·|D|) rescales every cost when a user comes, the noise term of 134 included.
    """
    domain = Domain.unit_cells(100, 100)
    mechanism = E2EPriv((1, 100), Rectangles([0], [90], [0], [100]), rho=18.0, expected_points=20)
    losses = {}
    for name in ("follows |D|", "public"):
        worst = 0.0
        for inside in range(21):
            counts = np.zeros((100, 100), dtype=np.int64)
            counts[0, 0], counts[99, 0] = inside, 20 - inside
            for cell in ((0, 0), (99, 0)):
                more = counts.copy()
                more[cell] += 1
                logs = []
                for given in (counts, more):
                    errors, sensitivity = mechanism.errors(given, domain, 1.0, 20)
                    rate = 0.9 * given.sum() / 2 if name == "follows |D|" else 1 / (2 * sensitivity)
                    logs.append(-errors * rate - np.logaddexp.reduce(-errors * rate))
                worst = max(worst, float(np.abs(logs[0] - logs[1]).max()))
        losses[name] = worst
    assert losses["public"] <= 1.0 < losses["follows |D|"]


def test_the_noise_of_a_query_grows_with_the_root_of_its_cells() -> None:
    """[E] bounds it by λ‖α‖₁, loose by √cells. Recorded noise, 400 draws of 256 cells: the mean is near √(2·256)·λ·0.8."""
    edges = np.arange(17)
    norms = overlap_norms(Rectangles([0], [16], [0], [16]), edges, edges)
    drawn = Noise(np.random.default_rng(1).bytes).discrete_laplace(10, 1, size=400 * 256).reshape(400, 256)
    mean = np.abs(drawn.sum(axis=1)).mean()
    assert norms.l1[0] / math.sqrt(norms.l2_squared[0]) == 16
    assert mean <= math.sqrt(2) * 10 * math.sqrt(norms.l2_squared[0])
    assert mean < 10 * norms.l1[0] / 10


def test_stop_tests_grow_by_the_cube_root_of_two_per_level() -> None:
    """[H], Equation 16 lacks the root: 2^((h−i)/3) minimises the variance Σ 2^(h−i)/ε_i² of all nodes, 2^(h−i) does not."""
    stops = np.array(HTF().path_budget(1_000_000, 8).stops, dtype=float)
    nodes = 2.0 ** np.arange(8)

    def variance(shares: np.ndarray) -> float:
        return float((nodes / (shares / shares.sum()) ** 2).sum())

    ours = variance(stops)
    assert ours < 0.6 * variance(nodes), "planted: the printed exponent"
    least = np.cbrt(nodes).sum() ** 3  # by Hölder's inequality no shares have less
    assert least * (1 - 1e-12) <= ours <= least * (1 + 1e-6)


@pytest.mark.parametrize("height", [1, 2, 9])
def test_a_path_spends_the_same_wherever_it_ends(height: int) -> None:
    budget = HTF().path_budget(1_000_003, height)
    before = [sum(budget.stops[:depth]) + sum(budget.splits[:depth]) for depth in range(height + 1)]
    assert {spent + budget.left(depth) for depth, spent in enumerate(before)} == {1_000_003}


def test_a_root_that_stops_at_once_spends_everything_and_divides_by_nothing() -> None:
    """[H] divides the counts' budget by the heights below a leaf, which is 0 there."""
    for shape in ((1, 1), (1, 2), (2, 2)):
        counts = np.zeros(shape, dtype=np.int64)
        tree = HTF().tree(counts, Domain.unit_cells(*shape), 1_000_000, Noise(), 1)
        assert set(tree.path_costs().tolist()) == {1_000_000}
        assert np.isfinite(tree.counts[tree.leaves]).all()


def test_replacing_a_region_moves_twice_what_removing_it_does() -> None:
    """[B], Definition 3 (replace) with the sensitivity of Lemma 2 (remove): 18 components, not 9, at k = 1."""
    domain = Domain.unit_cells(8, 8)

    def components(x: float, y: float) -> np.ndarray:
        diamond = [(x - 0.3, y), (x + 0.3, y), (x, y - 0.3), (x, y + 0.3)]
        return Footprints.of(Regions.of_polygons([diamond]), domain, 1.0).total()

    removed = int(components(2.0, 2.0).sum())
    replaced = int(np.abs(components(2.0, 2.0) - components(6.0, 6.0)).sum())
    assert removed == Footprints.sensitivity(domain, 1.0) == 9
    assert replaced == 2 * removed


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_printed_bound_of_components_is_not_the_attained_one(k: int) -> None:
    """[B] prints 4.5(k+1)k; a region of diameter B = k·d meets at most (2k+1)² components, and some meets all of them."""
    assert Footprints.sensitivity(Domain.unit_cells(20, 20), float(k)) == (2 * k + 1) ** 2 < 4.5 * (k + 1) * k
