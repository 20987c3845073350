"""Charges hold exactly for every user, whatever the solver did; the scales are close to the optimum. Results that were
asked for last are kept within bounds, and never given for another question."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpcore import allocation as module
from dpcore._allocation_program import Program
from dpcore.allocation import Sensitivities, allocate, stack, uniform_allocation
from dpcore.contributions import Counts
from dpcore.distribution import Distribution
from dpcore.mean import Mean
from dpcore.variance import Variance
from tests.dpcore.programs import counts_of, from_dense, matrices, optimum, overcharged
from tests.support.counting_calls import calls_in


@given(matrices, st.integers(0, 2**32), st.sampled_from([20, 1000, 10**6, 10**7]))
def test_no_user_ever_loses_more_than_their_charge_nor_is_charged_more_than_their_allowance(matrix, seed, most):
    rng = np.random.default_rng(seed)
    allowances = rng.integers(10, most, matrix.shape[1])
    sensitivities = from_dense(matrix, rng.uniform(0.01, 100, len(matrix)))
    for allocation in (
        allocate(sensitivities, allowances),
        allocate(sensitivities, allowances, max_iterations=0),
        uniform_allocation(sensitivities, allowances),
    ):
        assert np.all(allocation.charges <= allowances)
        assert not overcharged(matrix, allocation)
        assert np.all(allocation.numerator[matrix.any(axis=1)] > 0)
        assert np.all(allocation.numerator[~matrix.any(axis=1)] == 0)


def test_any_prices_bound_the_optimum_from_below_and_their_scales_reach_it_from_above():
    """Twelve random programs at ten random prices each: after a restricted step the bound is still below the optimum,
    and the scales are still feasible.
    """
    rng = np.random.default_rng(9)
    for _ in range(12):
        matrix = rng.integers(0, 30, (3, 6))
        matrix[:, 0] = 1 + matrix[:, 0]
        beta, weight = rng.uniform(0.5, 3, 6), rng.uniform(1, 5, 3)
        program = Program.of(sparse.csr_matrix(matrix / beta), weight)
        least = optimum(matrix, weight, beta)
        price = rng.random(6)
        for _ in range(10):
            point = program.at(price)
            assert point.bound <= least * (1 + 1e-6)
            assert point.objective >= least * (1 - 1e-6)
            assert np.all((matrix / point.scales[:, None]).sum(axis=0) <= beta * (1 + 1e-9)), "the scales are feasible"
            assert program.at(7 * price).bound == pytest.approx(point.bound), "the bound knows the best multiple"
            price = program.ascend_binding(price, point.loss, 3)


def test_steps_over_the_few_who_can_bind_end_where_steps_over_all_users_do():
    """60 rows, 900 users of whom few bind: the restricted program forgets nobody who matters."""
    rng = np.random.default_rng(13)
    matrix = rng.uniform(0.1, 3, (60, 900)) * (rng.random((60, 900)) < 0.2)
    program = Program.of(sparse.csr_matrix(matrix), rng.uniform(0.5, 20, 60))
    price = program.ascend(program.first_prices(), 30)
    few = program.ascend_binding(price, program.at(price).loss, 400)
    assert 0 < np.count_nonzero(few) < 450
    ours, all_users = program.at(few), program.at(program.ascend(price, 400))
    assert ours.objective == pytest.approx(all_users.objective, rel=1e-6)
    assert ours.bound == pytest.approx(all_users.bound, rel=1e-6)


def test_reaches_the_optimum_of_an_independent_solver():
    rng = np.random.default_rng(6)
    for _ in range(25):
        matrix = rng.integers(1, 20, (rng.integers(2, 7), rng.integers(2, 12)))
        matrix = matrix * (rng.random(matrix.shape) < 0.6)
        matrix = matrix[matrix.any(axis=1)]
        weight, beta = rng.uniform(0.1, 10, len(matrix)), rng.integers(500_000, 4_000_000, matrix.shape[1])
        if not len(matrix):
            continue
        allocation = allocate(from_dense(matrix, weight), beta, tolerance=1e-6, max_iterations=5000)
        expected = optimum(matrix, weight, beta / 1e6)
        assert allocation.objective == pytest.approx(expected, rel=1e-3)
        assert allocation.bound <= expected * (1 + 1e-6)
        assert 0 <= allocation.gap + 1e-9 < 1e-3


def with_lone_users(rng: np.random.Generator) -> Sensitivities:
    """20 to 200 cells that a tenth of the users visit each, and five that weigh 10⁻⁶ of these, of one user each. Those
    five users visit the others, too, and move little there.
    """
    cells, users, lone = rng.integers(20, 200), rng.integers(20, 200), 5
    matrix = np.zeros((cells + lone, users + lone), dtype=np.int64)
    matrix[:cells, :users] = rng.integers(1, 40, (cells, users))
    matrix[:cells, users:] = rng.integers(1, 3, (cells, lone))
    matrix *= rng.random(matrix.shape) < 0.1
    matrix[np.arange(cells), rng.integers(0, users, cells)] = 1
    matrix[cells:, users:] = np.eye(lone)
    return from_dense(matrix, np.append(rng.uniform(0.5, 2, cells), np.full(lone, 1e-6)))


def test_a_row_whose_users_have_next_to_no_price_keeps_a_finite_scale_and_its_plan_the_promised_gap():
    """Without those users in the restricted program their row would have no price, and every such point would be
    lost."""
    rng = np.random.default_rng(14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            sensitivities = with_lone_users(rng)
            allocation = allocate(sensitivities, np.full(sensitivities.n_users, 2_000_000))
            assert allocation.gap < 1.2e-4, "the tolerance of 10⁻⁴, and rounding"


def random_counts(rng: np.random.Generator) -> Counts:
    matrix = rng.integers(1, 9, (30, 12)) * (rng.random((30, 12)) < 0.3)
    matrix[:, 0] = 1
    matrix[0] = 2
    return counts_of(matrix)


def test_rows_lowered_at_once_get_the_scales_that_they_get_one_by_one(monkeypatch):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shape = rows, users = int(rng.integers(40, 150)), int(rng.integers(60, 200))
        matrix = np.where(rng.random(shape) < 2 / rows, rng.integers(1, 7000, shape), 0)
        sensitivities = from_dense(matrix, rng.choice([1.0, 2.0, 5.0], rows))
        assert len(sensitivities.row) < module.SHORT_ROW * rows
        allowances = rng.integers(10**5, 10**6, users)
        at_once = allocate(sensitivities, allowances)
        with monkeypatch.context() as patch:
            patch.setattr(module, "SHORT_ROW", 0)
            assert np.array_equal(allocate(sensitivities, allowances).numerator, at_once.numerator)


def test_mean_variance_and_histogram_rows_share_one_program():
    counts = random_counts(np.random.default_rng(10))
    parts = [
        Mean(100).rows(counts, counts.samples),
        Variance(100, 10).rows(counts, counts.samples),
        Distribution(63, 64).rows(counts, counts.samples),
    ]
    joint = stack(parts)
    assert joint.n_rows == 4 * counts.n_cells
    allowances = np.full(counts.n_users, 2_000_000)
    allocation = allocate(joint, allowances)
    assert np.all(allocation.charges <= allowances)
    assert allocation.gap < 1e-3
    assert allocation.objective < uniform_allocation(joint, allowances).objective


def test_uniform_allocation_is_the_papers_when_allowances_are_equal():
    counts = random_counts(np.random.default_rng(11))
    s = Mean(100).rows(counts, counts.samples)
    most = int(s.entries_per_user.max())
    allocation = uniform_allocation(s, np.full(counts.n_users, 2_000_000))
    assert allocation.scales == pytest.approx(counts.max_by_cell(counts.samples) * 100 * most / 2, rel=1e-4)


def made(weight: float) -> Sensitivities:
    return Sensitivities(np.array([0]), np.array([0]), np.array([4]), np.array([weight]), 1)


def test_what_was_asked_for_lately_is_given_again_and_what_was_longest_ago_is_forgotten():
    """Eight are kept; whoever writes to what they were given changes nothing for others."""

    def is_solved(weight: float, tolerance: float = 1e-4) -> bool:
        return calls_in(lambda: allocate(made(weight), np.array([10**6]), tolerance=tolerance)) > 1000

    assert all(map(is_solved, range(1, 9)))
    assert not is_solved(1)
    assert is_solved(1, 1e-3), "another tolerance; it makes the second one forgotten"
    assert not is_solved(1)
    assert is_solved(2)
    one, other = (allocate(made(1), np.array([10**6])) for _ in range(2))
    one.scales[0] = 0
    assert other.scales[0] == allocate(made(1), np.array([10**6])).scales[0] > 0


@pytest.mark.parametrize("part", ["row", "user", "delta", "weight", "n_users", "allowances"])
def test_programs_that_differ_anywhere_are_solved_each_for_itself(part):
    columns = {"row": [0, 0, 1], "user": [0, 1, 2], "delta": [4, 2, 8], "weight": [1.0, 2.0]}
    others = {"row": [0, 1, 1], "user": [0, 2, 1], "delta": [4, 3, 8], "weight": [1.0, 3.0]}
    users, allowance = 3, 1_000_000

    def solved(columns: dict[str, list[float]], users: int, allowance: int) -> list[float]:
        program = Sensitivities(**{name: np.array(column) for name, column in columns.items()}, n_users=users)
        result = allocate(program, np.full(users, allowance))
        return [*result.scales.tolist(), *result.charges.tolist(), result.bound]

    first = solved(columns, users, allowance)
    changed = columns | {part: others[part]} if part in others else columns
    second = solved(changed, users + (part == "n_users"), allowance * (1 + (part == "allowances")))
    assert first != second
    assert solved(columns, users, allowance) == first
