"""Spatial mechanisms spend exactly their budget, change by at most their sensitivity, and pass a black-box audit."""

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import BudgetError, ParameterError
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    E2EPriv,
    KdTree,
    Privlet,
    QuadTree,
    Rectangles,
    SparseHierarchy,
    UniformGrid,
    histogram_from_release,
)
from dpcore.spatial.domain import DomainError
from dpcore.spatial.grids import haar, inverse_haar
from dpcore.spatial.htf import QUANTUM, RankedCells, search, split_costs, split_sensitivity
from dpcore.spatial.mechanism import choose, noisy_counts
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from dpcore.spatial.trees import Candidates, height_of
from tests.dpcore.silence import Asked
from tests.dpcore.spatial.mechanisms import assert_alike, choice_loss, every_mechanism, leaves_below, path_costs
from tests.support.tapes import recorded

QUERIES = Rectangles([0, 1, 2], [8, 4, 5], [0, 2, 1], [8, 7, 3])
MECHANISMS = every_mechanism((1, 2, 8), QUERIES)
TREES = {name: mechanism for name, mechanism in MECHANISMS.items() if hasattr(mechanism, "tree")}


def some_counts(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.asarray(rng.poisson(1.5, shape) * rng.integers(0, 40, shape), dtype=np.int64)


def test_every_mechanism_answers_near_the_truth_when_noise_is_nearly_absent():
    """For the whole box and, but for "uniform", for blocks of a town that is dense in its middle. Cuts of "htf
    published" have a fixed epsilon: 4000 fits were at most 640 off; a single box for all is 2095 off."""
    for name, shape in itertools.product(MECHANISMS, [(1, 1), (1, 9), (8, 8), (13, 5), (40, 33)]):
        if name.startswith("e2epriv") and min(shape) < 8:
            continue  # its tuning queries need as many cells
        counts = some_counts(np.random.default_rng(1), shape)
        histogram = MECHANISMS[name].fit(counts, Domain.unit_cells(*shape), 10**10, Noise())
        whole = Rectangles([0], [shape[0]], [0], [shape[1]])
        assert histogram.answers(whole)[0] == pytest.approx(counts.sum(), abs=max(3.0, 0.05 * counts.sum()))
    town, blocks = np.zeros((16, 16), np.int64), Rectangles.of_cells([[0, 7, 0, 7], [8, 15, 4, 11], [2, 9, 3, 12]])
    np.add.at(town, tuple(np.clip(np.random.default_rng(1).normal(8, 2.0, (2, 4000)), 0, 15.99).astype(int)), 1)
    for name in MECHANISMS.keys() - {"uniform"}:
        answers = MECHANISMS[name].fit(town, Domain.unit_cells(16, 16), 10**10, Noise()).answers(blocks)
        most = 1200 if name == "htf published" else 100
        assert answers == pytest.approx(answer(image_of(town), blocks), abs=most), name


def test_points_empty_or_not_give_a_histogram_that_survives_its_release():
    for name, points in itertools.product(MECHANISMS, [0, 1, 300]):
        domain = Domain(30.0, -98.0, 31.0, -97.0, 16, 12)
        given = np.random.default_rng(2).random((points, 2)) + np.array([30.0, -98.0])
        histogram = MECHANISMS[name].fit(given, domain, 500_000, Noise(), points_per_user=2)
        back = histogram_from_release(json.loads(json.dumps(histogram.to_release())))
        queries = Rectangles.of_boxes(domain, [[30.1, -97.9, 30.77, -97.3], [30.0, -98.0, 31.0, -97.0]])
        assert_alike(histogram, back, queries)


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(TREES)),
    epsilon=st.integers(2_000, 20_000_000),
    shape=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    points=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_path_from_the_root_costs_exactly_the_budget(name, epsilon, shape, points, seed):
    counts = some_counts(np.random.default_rng(seed), shape) * 20
    noise = recorded(seed)
    tree = TREES[name].tree(counts, Domain.unit_cells(*shape), epsilon, noise, points)
    assert set(path_costs(tree).tolist()) == {epsilon}


@given(total=st.integers(100, 10**12), weights=st.lists(st.floats(0.02, 50), min_size=1, max_size=8))
def test_shares_by_weights_add_up_exactly(total, weights):
    try:
        split = BudgetSplit.by_weights(total, weights)
    except BudgetError:
        assert total * min(weights) < 1.001 * sum(weights), "only a share that rounds to 0 µε may be refused"
        return
    assert sum(split.shares) == total
    assert min(split.shares) >= 1
    with pytest.raises(BudgetError):
        BudgetSplit(total, (1, *split.shares))


def test_tree_least_squares_equals_the_dense_solution_adds_up_and_has_no_larger_variance():
    raw = QuadTree(height=2).tree(
        some_counts(np.random.default_rng(5), (4, 3)), Domain.unit_cells(4, 3), 10**6, Noise(), 1
    )
    tree, leaves, design = raw.least_squares(), raw.leaves, leaves_below(raw)
    precision = design.T / raw.variances
    covariance = np.linalg.inv(precision @ design)
    assert np.allclose(tree.counts, design @ covariance @ precision @ raw.counts)
    assert np.allclose(tree.variances[leaves], np.diag(covariance))
    assert np.all(tree.variances <= raw.variances + 1e-9)


def exact_split_cost(cells: np.ndarray, k: int) -> list[Fraction]:
    """Σ|c − μ| of both sides in rational numbers."""
    sides = []
    for side in (cells[:k], cells[k:]):
        mean = Fraction(int(side.sum()), side.size)
        sides.append(sum((abs(Fraction(int(cell)) - mean) for cell in side.ravel()), Fraction(0)))
    return sides


def test_split_costs_of_boxes_with_other_cells_between_them_are_those_of_each_alone():
    """Two of three boxes that reach from edge to edge at random lines, at any axis and margin."""
    for parity, margin, seed in itertools.product([0, 1], [0.0, 0.45], range(5)):
        rng = np.random.default_rng(seed)
        counts = some_counts(rng, (31, 23))
        x, y = np.sort(rng.choice(np.arange(2, 30, 2), 2, False)), np.sort(rng.choice(np.arange(2, 22, 2), 2, False))
        boxes = np.array([[0, x[0], 0, y[0]], [0, x[0], y[1], 23], [x[1], 31, 0, 23]])[rng.permutation(3)[:2]]
        candidates, ranked = Candidates.of(boxes, parity, margin), RankedCells.of(counts)
        together = split_costs(ranked, image_of(counts), boxes, candidates)
        for i, (x0, x1, y0, y1) in enumerate(boxes):
            own = counts[x0:x1, y0:y1] if candidates.axis[i] == 0 else counts[x0:x1, y0:y1].T
            part = slice(candidates.offsets[i], candidates.offsets[i + 1])
            brute = [
                sum(math.floor(QUANTUM * o) for o in exact_split_cost(own, k)) for k in candidates.k[part].tolist()
            ]
            assert together[part].tolist() == brute


def test_the_split_sensitivity_is_2_times_q_minus_1_over_q_and_attained():
    worst: dict[int, Fraction] = {}
    for flat in np.ndindex(3, 3, 3, 3):
        cells = np.array(flat)
        for cell in range(4):
            more = cells.copy()
            more[cell] += 1
            for q in (1, 2, 3):
                before, after = exact_split_cost(cells, q), exact_split_cost(more, q)
                side, size = (0, q) if cell < q else (1, 4 - q)
                worst[size] = max(worst.get(size, Fraction(0)), abs(after[side] - before[side]))
    assert worst == {q: Fraction(2 * (q - 1), q) for q in (1, 2, 3)}


@pytest.mark.parametrize(("epsilon", "height"), [(100_000, 15), (300_000, 16), (500_000, 17)])
def test_floor_gives_the_reported_heights_where_rounding_does_not(epsilon, height):
    """[H], Eq. 10 prints log₂(|D|ε/10) without rounding, and reports 15, 16 and 17 for ε = 0.1, 0.3 and 0.5."""
    assert height_of(3_500_000, epsilon, 1, 26) == height
    rounded = [round(math.log2(3_500_000 * e / 10)) for e in (0.1, 0.3, 0.5)]
    assert rounded != [15, 16, 17]


def test_the_search_finds_the_least_cost_on_either_side():
    """The printed index arithmetic cannot move right; without noise the corrected one finds every minimum."""
    for best in range(40):
        costs = np.abs(np.arange(40) - best) * 10**6
        assert search(costs, np.array([0, 40]), 10**12, 1, Noise()).tolist() == [best]


class Told(Asked):
    """Chooses what costs least, and keeps what a choice asks for, and the factor of costs in each exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Fraction] = []

    def exponential(self, costs: Any, numerator: int, denominator: int, *, offsets: Any = None, **_: Any) -> Any:
        self.asked = costs, numerator, denominator
        groups = [costs] if offsets is None else np.split(costs, offsets[1:-1])
        self.choices += [Fraction(int(numerator), int(denominator))] * len(groups)
        return np.array([each.argmin() for each in groups])


def test_the_points_of_a_user_cost_each_draw_and_choice_as_much_as_that_many_times_less_epsilon():
    """Silent noise and least costs give the same tree. "htf published" is left out, because ε of its cuts is fixed."""
    counts = 5 * some_counts(np.random.default_rng(1), (16, 16))
    for name in MECHANISMS.keys() - {"htf published"}:
        one, four = Told(), Told()
        for points, noise in ((1, one), (4, four)):
            MECHANISMS[name].fit(counts, Domain.unit_cells(16, 16), points * MICRO, noise, points)
        for of_four, of_one in ((four.rates, one.rates), (four.choices, one.choices)):
            assert list(map(float, of_four)) == pytest.approx(list(map(float, of_one)), rel=0.01, abs=0), name


def test_all_draws_and_choices_of_a_fit_cost_together_what_its_boxes_have_spent():
    """Of one point: a choice costs twice its sensitivity times the factor of its exponent."""
    counts, domain = 5 * some_counts(np.random.default_rng(1), (16, 16)), Domain.unit_cells(16, 16)
    for name, sensitivity in {"ag": 0, "quadtree": 0, "sparse": 0, "kdtree": 1, "htf": split_sensitivity(1)}.items():
        noise = Told()
        spent = MECHANISMS[name].tree(counts, domain, MICRO, noise, 1).spent
        assert sum(noise.rates) + 2 * sensitivity * sum(noise.choices) == Fraction(int(spent.sum()), MICRO), name
    for name in ("e2epriv", "e2epriv relative"):
        noise = Told()
        MECHANISMS[name].fit(counts, domain, MICRO, noise, 1)
        (total, *_, of_block), (choice,) = noise.rates, noise.choices
        assert total + 2 * E2EPriv.cost_sensitivity(1) * choice + of_block == 1
    looks = Told()
    search(np.arange(12), np.array([0, 5, 12]), MICRO, 7, looks)
    assert 7 * sum(looks.rates) == 2, "both groups pay the whole epsilon"


def test_a_choice_of_any_sensitivity_can_be_drawn_and_costs_move_by_what_its_exponent_says():
    """Up to 8 points per user the costs of "e2epriv" are drawn by as they are. Beyond, a coarser unit attains its
    sensitivity."""
    for points, epsilon_micro in itertools.product([1, 8, 9, 10, 100, 10**6], [1, MICRO, 1000 * MICRO]):
        sensitivity = E2EPriv.cost_sensitivity(points) + points % 2
        before = np.random.default_rng(points).integers(0, 10**12, 2000)
        after = before + sensitivity
        noise = Told()
        choose(before, epsilon_micro, sensitivity, noise)
        costs, numerator, denominator = noise.asked
        choose(after, epsilon_micro, sensitivity, noise)
        assert numerator == epsilon_micro
        assert denominator == 2 * MICRO * np.abs(noise.asked[0] - costs).max()
        assert (denominator == 2 * MICRO * sensitivity) == (points <= 8) == bool((costs == before).all())


def test_a_choice_by_costs_that_nobody_can_move_is_refused():
    with pytest.raises(ParameterError, match="sensitivity 0"):
        choose(np.array([0, 1]), MICRO, 0, Noise())


def test_leaving_the_noise_term_out_of_the_relative_sensitivity_breaks_the_budget_and_the_fixed_one_does_not():
    """20 points or so, one query of 0.9 of the box, sizes 1 and 100, ε₁ = 1; exact probabilities of the choice."""
    domain = Domain.unit_cells(100, 100)
    mechanism = E2EPriv((1, 100), Rectangles([0], [90], [0], [100]), objective="relative", rho=5.0)
    fixed = planted = 0.0
    for inside in range(21):
        counts = np.zeros((100, 100), dtype=np.int64)
        counts[0, 0], counts[99, 0] = inside, 20 - inside
        for cell in ((0, 0), (99, 0)):
            more = counts.copy()
            more[cell] += 1
            integer = [mechanism.costs(c, domain, 1.0, 0) for c in (counts, more)]
            rate = 1 / (2 * mechanism.cost_sensitivity(1))
            fixed = max(fixed, choice_loss(*integer, rate))
            errors = [mechanism.errors(c, domain, 1.0, 0)[0] for c in (counts, more)]
            rate = mechanism.rho / (2 * (1 + mechanism.cap))
            planted = max(planted, choice_loss(*errors, rate))
    assert fixed <= 1.0 < planted


def test_one_point_moves_exactly_the_stated_number_of_haar_coefficients_by_one():
    rng = np.random.default_rng(9)
    for shape in ((8, 8), (5, 3), (1, 16)):
        counts = some_counts(rng, shape)
        assert np.array_equal(inverse_haar(haar(counts).astype(float))[: shape[0], : shape[1]], counts)
        more = counts.copy()
        more[rng.integers(0, shape[0]), rng.integers(0, shape[1])] += 1
        change = np.abs(haar(more) - haar(counts))
        assert change.max() == 1
        assert change.sum() == Privlet.sensitivity(Domain.unit_cells(*shape))


def test_noisy_counts_are_integers_and_scale_with_points_per_user():
    """n = 40 000: the standard error of the mean size is 0.6 %, the tolerance 5 %."""
    one, three = (noisy_counts(np.zeros(40_000, np.int64), 100_000, s, Noise()) for s in (1, 3))
    assert one.dtype == np.int64
    assert np.abs(three).mean() / np.abs(one).mean() == pytest.approx(3.0, rel=0.05)


def test_bad_input_is_refused():
    for name in MECHANISMS:
        mechanism, domain = MECHANISMS[name], Domain.unit_cells(8, 8)
        good = np.zeros((8, 8), dtype=np.int64)
        for bad in (np.array([[np.nan, 1.0]]), np.zeros((3, 3), dtype=np.int64), good - 1):
            with pytest.raises(DomainError):
                mechanism.fit(bad, domain, 10**6, Noise())
        with pytest.raises(BudgetError):
            mechanism.fit(good, domain, 0, Noise())
        with pytest.raises(ParameterError):
            mechanism.fit(good, domain, 10**6, Noise(), 0)


def test_parameters_out_of_range_are_refused():
    for make in [
        lambda: HTF(split_share=1.0),
        lambda: HTF("median"),
        lambda: KdTree(max_height=0),
        lambda: QuadTree(height=-1),
        lambda: QuadTree("linear"),
        lambda: UniformGrid(total_share=0.0),
        lambda: AdaptiveGrid(alpha=1.0),
        lambda: E2EPriv((0,), QUERIES),
        lambda: E2EPriv((1,), QUERIES, rho=0.0),
        lambda: E2EPriv((1,), QUERIES, rho_share=1.5),
        lambda: SparseHierarchy(parts=1),
        lambda: SparseHierarchy(growth=math.nan),
        lambda: SparseHierarchy(goal="both"),
        lambda: HTF(goal="both"),
        lambda: HTF(margin=0.6),
        lambda: HTF(extra_levels=-1),
        lambda: Auto(total_share=0.0),
    ]:
        with pytest.raises(ParameterError):
            make()
