"""Means of cells: sensitivity by brute force, the cap, clipping, budgets and columns. Sensitivities by brute force: the
largest change of one number over all values of a small cell."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.budget import to_micro
from dpcore.cdf import ONE_SIDED
from dpcore.contributions import Contributions, Counts
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.mean import Mean, clipping_bias, sum_caps
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales
from dpcore.variance import Variance, worst_change
from dpcore.variance import clipping_bias as variance_bias
from tests.support.tapes import tape


def group(rows: list[tuple[int, int, int, int]], upper: int) -> Contributions:
    cell, user, time, value = (np.array(column) for column in zip(*rows, strict=True))
    return Contributions.group(cell.astype(np.uint64), user.astype(np.uint64), time, value, upper=upper)


def worst_changes(
    rows: list[tuple[int, int, int, int]], integers: Callable[[Contributions], np.ndarray], upper: int
) -> np.ndarray:
    """Largest change of one cell's integer by each user's values, over all values in {0, U/2, U} of everybody."""
    owner = np.array([user for _, user, _, _ in rows])
    integer = {}
    for values in itertools.product((0, upper // 2, upper), repeat=len(rows)):
        contributions = group([(c, u, k, v) for (c, u, k, _), v in zip(rows, values, strict=True)], upper)
        integer[values] = int(integers(contributions)[0])
    worst = np.zeros(owner.max() + 1, dtype=np.int64)
    for user in range(len(worst)):
        beside: dict[tuple[int, ...], list[int]] = {}
        for values, exact in integer.items():
            beside.setdefault(tuple(np.array(values)[owner != user]), []).append(exact)
        worst[user] = max(max(group) - min(group) for group in beside.values())
    return worst


def test_the_sensitivity_is_the_worst_change_over_all_values_of_one_user():
    """Exhaustive over values in {0, U/2, U}."""
    for samples in [(1,), (1, 1), (2, 1), (1, 2, 2), (3, 1, 1), (4, 2)]:
        mean = Mean(10)
        rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
        counts = group(rows, 10).counts
        assert (worst_changes(rows, mean.integers, 10) == mean.sensitivities(counts, counts.samples)).all()


def test_a_capped_sum_moves_by_at_most_its_cap():
    """Exhaustive over values in {0, 5, U} of one user beside others at U; without the cap the claim is broken."""
    for samples, cap in itertools.product([(1,), (2, 1), (3, 2, 1), (4, 2)], [10, 13, 25]):
        upper, caps = 10, np.array([cap])
        for user, m in enumerate(samples):
            sums: dict[bool, list[int]] = {True: [], False: []}
            for own in itertools.product((0, 5, 10), repeat=m):
                rows = [
                    (1, u, k, own[k] if u == user else upper) for u, count in enumerate(samples) for k in range(count)
                ]
                contributions = group(rows, upper)
                claimed = int(Mean(upper, caps).sensitivities(contributions.counts, contributions.counts.samples)[user])
                for capped in sums:
                    sums[capped].append(int(Mean(upper, caps if capped else None).integers(contributions)[0]))
            assert max(sums[True]) - min(sums[True]) == claimed == min(cap, upper * m)
            if cap < upper * m:
                assert max(sums[False]) - min(sums[False]) > claimed, (
                    "planted bug: charged for the cap, released without it"
                )


def test_the_cap_is_a_share_of_the_mean_contribution_and_never_below_one_sample():
    counts = group([(1, 1, k, 0) for k in range(9)] + [(1, 2, 0, 0)], 100).counts
    assert sum_caps(counts, 100, 0.7, np.ones(1)).tolist() == [350]
    assert sum_caps(counts, 100, 0.01, np.ones(1)).tolist() == [100]
    assert Mean(100, np.array([350])).rows(counts, counts.samples).delta.tolist() == [350, 100]
    with pytest.raises(ParameterError, match="above 0"):
        sum_caps(counts, 100, 0.0, np.ones(1))
    with pytest.raises(ParameterError, match="2 caps for 1 cells"):
        Mean(100, np.array([350, 350])).rows(counts, counts.samples)


def test_a_wider_cell_has_a_wider_cap_and_stays_are_compared_per_width():
    """Who crosses a cell of twice the width at the same speed has twice the samples there, and needs twice the room."""
    counts = group([(1, 1, k, 0) for k in range(10)] + [(2, 1, k, 0) for k in range(20)], 100).counts
    assert sum_caps(counts, 100, 0.7, np.array([1.0, 2.0])).tolist() == [700, 1400]
    assert sum_caps(counts, 100, 0.7, np.array([10.0, 20.0])).tolist() == [700, 1400], "any unit of width"
    alike = sum_caps(counts, 100, 0.7, np.ones(2))
    assert alike.tolist() == [1050, 1050]
    most = sum_caps(counts, 10**5, 1e12, np.array([1.0, 1e6]))
    assert (most > 0).all(), "a cap beyond int64 is no cap"
    for wrong in (np.ones(1), np.array([1.0, 0.0]), np.array([1.0, np.nan]), np.array([-1.0, 1.0])):
        with pytest.raises(ParameterError, match="width above 0"):
            sum_caps(counts, 100, 0.7, wrong)
    with pytest.raises(ParameterError, match="below 0"):
        Mean(100, np.array([5, -1]))
    nobody = Counts(counts.cells, counts.users, counts.pair_cell, counts.pair_user, 0 * counts.samples)
    assert sum_caps(nobody, 100, 0.7, np.ones(2)).tolist() == [100, 100]


@given(st.data())
def test_changing_one_users_values_moves_each_integer_by_at_most_its_sensitivity(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    upper, grid, n = 6500, 100, int(rng.integers(1, 60))
    cell, user = rng.integers(0, 4, n).astype(np.uint64), rng.integers(0, 6, n).astype(np.uint64)
    time, value = rng.permutation(n), rng.integers(-10, 9000, n)
    other = np.where(user == user[0], rng.choice([0, upper, 3000], n), value)
    one = Contributions.group(cell, user, time, value, upper=upper)
    two = Contributions.group(cell, user, time, other, upper=upper)
    retained = np.minimum(one.counts.samples, rng.integers(0, 5, len(one.counts.samples)))
    one, two = one.retain(retained), two.retain(retained)
    mine = one.counts.users[one.counts.pair_user] == user[0]
    for statistic in (
        Mean(upper),
        Mean(upper, np.linspace(6500, 9000, one.counts.n_cells).astype(np.int64)),
        Variance(upper, grid),
    ):
        allowed = one.counts.by_cell(np.where(mine, statistic.sensitivities(one.counts, retained), 0))
        assert (np.abs(statistic.integers(one) - statistic.integers(two)) <= allowed).all()


def test_clipping_bias_is_the_worst_case_by_brute_force():
    for total in range(1, 9):
        for kept in range(1, total + 1):
            values = np.array(list(itertools.product((0.0, 1.0), repeat=total)))
            worst = np.abs(values.mean(axis=1) - values[:, :kept].mean(axis=1)).max()
            assert worst == pytest.approx(clipping_bias(np.array([total]), np.array([kept]))[0])


def test_values_are_clipped_before_they_are_summed_and_the_first_in_time_are_retained():
    contributions = group([(1, 1, 3, 99), (1, 1, 1, -5), (1, 1, 2, 4), (2, 1, 0, 7)], upper=10)
    assert contributions.values.tolist() == [0, 4, 10, 7]
    assert contributions.retain(np.array([2, 0])).values.tolist() == [0, 4]
    with pytest.raises(ParameterError):
        contributions.retain(np.array([4, 0]))


def test_sums_that_could_leave_int64_are_refused():
    zeros = np.zeros(4, dtype=np.uint64)
    with pytest.raises(OverflowBoundError):
        Contributions.group(zeros, zeros, np.arange(4), np.arange(4), upper=2**61)
    contributions = Contributions.group(zeros, zeros, np.arange(4), np.arange(4), upper=2**31)
    with pytest.raises(OverflowBoundError):
        contributions.cell_squares()


@given(st.decimals(min_value="0.000001", max_value="1000000", allow_nan=False))
def test_charges_round_up_and_allowances_round_down(epsilon):
    exact = Fraction(epsilon) * 1_000_000
    assert to_micro(epsilon, round_up=False) <= exact <= to_micro(epsilon, round_up=True)
    for tenth in (0.1, np.float64(0.1), np.float32(0.1), "0.1"):
        assert to_micro(tenth, round_up=False) == to_micro(tenth, round_up=True) == 100_000
    assert type(to_micro(np.int64(2), round_up=True)) is int, "a charge of numpy's would wrap around"


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), "x", 1e-9])
def test_budgets_that_mean_nothing_are_refused(epsilon):
    with pytest.raises(BudgetError) as caught:
        to_micro(epsilon, round_up=False)
    assert isinstance(caught.value, DPError)
    assert "give" in str(caught.value)


def test_the_sensitivity_of_a_variance_is_the_worst_change_over_all_values_of_one_user():
    """Exhaustive over values in {0, U/2, U}; the worst case of a convex function sits at its corners."""
    for grid, samples in itertools.product([1, 3], [(1,), (1, 1), (2, 1), (1, 2, 2), (3, 1, 1), (4, 2)]):
        variance = Variance(10, grid)
        rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
        counts = group(rows, 10).counts
        claimed, worst = variance.sensitivities(counts, counts.samples), worst_changes(rows, variance.integers, 10)
        assert (worst <= claimed).all()
        assert (claimed - worst <= 1).all(), "looser than the rounding explains"


def test_the_printed_item_level_variance_sensitivity_is_wrong():
    """U²(L−1)/L would be L times too large: the true item-level value is U²(L−1)/L²."""
    upper, users = 100, 3
    counts = group([(1, user, 0, 0) for user in range(users)], upper).counts
    expected = Fraction(upper**2 * (users - 1), users**2)
    assert set(Variance(upper, 1).sensitivities(counts, counts.samples).tolist()) == {int(-(-expected // 1))}


def test_the_two_cases_of_the_clipping_bias_are_printed_the_wrong_way_round():
    """N = 4, n = 3: the worst bias is 3·U²/16. The formula printed for n > N/2, U²⌊N/2⌋⌈N/2⌉/N², gives 4·U²/16."""
    values = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    worst = np.abs(values.var(axis=1) - values[:, :3].var(axis=1)).max()
    assert worst == pytest.approx(3 * (4 - 3) / 16)
    assert worst < 2 * 2 / 16


def test_clipping_bias_of_a_variance_is_the_worst_case_by_brute_force():
    for total in range(1, 9):
        for kept in range(1, total + 1):
            values = np.array(list(itertools.product((0.0, 1.0), repeat=total)))
            worst = np.abs(values.var(axis=1) - values[:, :kept].var(axis=1)).max()
            assert worst == pytest.approx(variance_bias(np.array([total]), np.array([kept]))[0])


def test_the_worst_change_of_one_user_is_that_of_the_sensitivity():
    for n in range(1, 9):
        for own in range(1, n + 1):
            rows = [(1, 0, k, 0) for k in range(own)] + [(1, 1, k, 0) for k in range(n - own)]
            counts = group(rows, 1).counts
            delta = int(Variance(1000, 1).sensitivities(counts, counts.samples)[0])
            assert delta - 1 <= 10**6 * worst_change(np.array([n]), np.array([own]))[0] <= delta + 1e-6


def test_variances_of_large_values_are_exact_and_one_sample_has_none():
    rng = np.random.default_rng(5)
    cell, value = np.repeat(np.arange(3), (1, 2, 500)).astype(np.uint64), rng.integers(0, 2**24, 503)
    contributions = Contributions.group(cell, np.arange(503).astype(np.uint64), np.arange(503), value, upper=2**24)
    exact = [
        sum((Fraction(int(x)) - Fraction(sum(map(int, v)), len(v))) ** 2 for x in v) / len(v)
        for v in (value[:1], value[1:3], value[3:])
    ]
    assert Variance(2**24, 100).integers(contributions).tolist() == [int(x // 100) for x in exact]
    assert not Variance(2**24, 100).sensitivities(contributions.counts, contributions.counts.samples)[0]


VALUES = (0, 2, 3, 5, 7, 10)
"""Standing at 0 and 2, moving from 3 on, U = 10; 3 and 10 are the ends between which a moving value can change."""


def worst(number: MovingMean, rows: list[tuple[int, int, int, int]], user: int) -> Fraction:
    """Largest L1 change of both integers of one cell by the values of one user, whatever the others' are (they add
    up)."""
    mine = [at for at, (_, owner, _, _) in enumerate(rows) if owner == user]
    seen = set()
    for own in itertools.product(VALUES, repeat=len(mine)):
        values = dict(zip(mine, own, strict=True))
        changed = [(c, u, k, values.get(at, 10)) for at, (c, u, k, _) in enumerate(rows)]
        seen.add(tuple(number.integers(group(changed, 10))[:, 0].tolist()))
    return max(Fraction(abs(a - c) + abs(b - d)) for (a, b), (c, d) in itertools.product(seen, repeat=2))


@pytest.mark.parametrize("samples", [(1,), (2, 1), (3, 2), (4, 1)])
def test_sum_and_number_together_move_by_the_sensitivity_and_no_more(samples):
    number = MovingMean(10, 3)
    rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
    counts = group(rows, 10).counts
    claimed = number.sensitivities(counts, counts.samples).tolist()
    assert [worst(number, rows, user) for user in range(len(samples))] == claimed == [14 * m for m in samples]


def test_a_user_is_charged_for_both_numbers_in_each_of_their_cells():
    counts = group([(1, 1, 0, 0), (1, 1, 1, 0), (2, 1, 2, 0), (2, 2, 3, 0)], 10).counts
    scales = LaplaceScales(np.array([140, 70]), np.array([1, 1]))
    assert MovingMean(10, 3).charges(counts, counts.samples, scales).tolist() == [200_000 + 200_000, 200_000]


def test_without_noise_the_mean_is_that_of_moving_reports_alone_and_the_number_theirs():
    number = MovingMean(10, 3)
    kept = group([(1, 1, 0, 0), (1, 1, 1, 2), (1, 2, 2, 4), (1, 2, 3, 9), (2, 1, 4, 1)], 10)
    noisy = number.draw(kept, np.zeros((2, 2), dtype=np.int64))
    assert number.number(noisy).tolist() == [2.0, 0.0]
    ratio = number.mean(noisy, np.full(2, 1e-9), ONE_SIDED)
    assert 3 + 7 * ratio.value[0] == pytest.approx(6.5)
    assert (ratio.low[1], ratio.high[1]) == (0.0, 1.0), "where none moves, nothing is known"


def test_the_interval_of_the_mean_holds_it_in_95_of_100_draws_also_where_few_move():
    """16 cells of 4 to 64 moving reports and as many standing, 1 000 draws: 16 000 intervals, at least 95 % less 5
    standard errors."""
    number, movers, rng = MovingMean(6500, 500), np.arange(4, 65, 4), np.random.default_rng(1)
    cell = np.repeat(np.arange(len(movers)), 2 * movers)
    value = np.where(np.arange(len(cell)) % 2, rng.integers(500, 6500, len(cell)), 0)
    user = np.arange(len(cell), dtype=np.uint64)
    kept = Contributions.group(cell.astype(np.uint64), user, np.arange(len(cell)), value, upper=6500)
    truth = [(kept.values[cell == g][kept.values[cell == g] > 0].mean() - 500) / 6000 for g in range(len(movers))]
    scale = LaplaceScales(np.full((2, 1), 12_000), np.ones((2, 1), dtype=np.int64))
    noise, inside = Noise(tape(3)), 0
    for _ in range(1000):
        drawn = np.broadcast_to(scale.numerator, (2, len(movers)))
        noisy = number.draw(kept, noise.discrete_laplace(drawn))
        ratio = number.mean(noisy, np.full(len(movers), 12_000 * np.sqrt(2)), ONE_SIDED)
        inside += int(((ratio.low <= truth) & (truth <= ratio.high)).sum())
    share = inside / (1000 * len(movers))
    assert 0.95 - 5 * np.sqrt(0.05 * 0.95 / (1000 * len(movers))) <= share <= 0.99


@pytest.mark.parametrize(("upper", "least"), [(10, 0), (10, 10), (10, -1), (500, 700)])
def test_a_threshold_that_everything_or_nothing_passes_is_refused(upper, least):
    with pytest.raises(ParameterError, match="moving from"):
        MovingMean(upper, least)
