"""Bad input to every public mechanism of single statistics: a typed error that names value, bound and remedy, or a
defined result.

Refusals: no users, counts or capacities out of range, values that are not integers (NaN), ε that is no integer above 0,
bounds out of range, totals that could leave int64. Defined: one user, one sample, equal values, U = 0.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import epsilon_of_rho, gaussian_losses, gaussian_ratio, rho_of, rho_of_pure, square_losses
from dpcore.allocation import Sensitivities, allocate, exact_charges, uniform_allocation
from dpcore.bernstein import polynomials
from dpcore.budget import MICRO, rolling_grants, to_micro
from dpcore.cdf import bin_edges
from dpcore.contributions import Contributions
from dpcore.distribution import Distribution
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.gaussian import discrete_gaussian
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from dpcore.interval_calibration import CLASSES, FACTORS, Calibration
from dpcore.laplace_posterior import laplace_posterior
from dpcore.level_tree import LevelTree
from dpcore.mean import Mean, sum_caps
from dpcore.modelled_percentiles import percentiles, shrunken_variances
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.occupancy import Occupancy
from dpcore.participation import Layout, PublicCells, integers
from dpcore.residual import ResidualMean
from dpcore.resolution import choose_resolution
from dpcore.scales import LaplaceScales, check_total, noise_ratio
from dpcore.single_cell.cell import bestfit
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import AutoMean, EpsilonQuantile, FixedQuantile, Levy, select_quantiles, select_range
from dpcore.suppression import suppress, sweep_chop_user
from dpcore.variance import Variance
from tests.dpcore.programs import counts_of, from_dense
from tests.dpcore.silence import Silence

U = 100
CELLS: dict[str, Callable[[int], Any]] = {
    "baseline": Baseline,
    "pooled-minimax": PooledMinimax,
    "array-averaging": ArrayAveraging,
    "levy": Levy,
    "fixed-quantile": FixedQuantile,
    "epsilon-quantile": EpsilonQuantile,
    "auto": AutoMean,
}
"""Every mechanism of one cell under relation "values", by its upper bound."""
ONE = np.array([1], dtype=np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def plans(upper: int, samples: Any, micro: Any) -> dict[str, tuple[type[DPError], Callable[[], Any]]]:
    return {name: (DPError, lambda make=make: make(upper).plan(samples, micro)) for name, make in CELLS.items()}


def releases(values: np.ndarray) -> dict[str, tuple[type[DPError], Callable[[], Any]]]:
    """Of ``values``, where two are planned."""
    return {
        name: (ParameterError, lambda make=make: make(U).release(values, make(U).plan(ints(2), MICRO), Noise()))
        for name, make in CELLS.items()
    }


def _case(kind: type[DPError], **calls: Callable[[], Any]) -> dict[str, tuple[type[DPError], Callable[[], Any]]]:
    return {name: (kind, call) for name, call in calls.items()}


def clipped_to(upper: int, value: int) -> Contributions:
    """One user's value in one cell."""
    return Contributions.group(ONE.astype(np.uint64), ONE.astype(np.uint64), ONE, ints(value), upper=upper)


def modelled(means: list[float], variances: list[float], *, upper: float = 65.0, percent: float = 50.0) -> Any:
    return percentiles(np.array(means), np.array(variances), upper=upper, percents=[percent])


LAYOUT = Layout.of(mean=True, variance=False, percentiles=True, weight="user", upper=U, bins=4)
SOME = counts_of([[2, 1], [1, 3]])
CROWD = from_dense(np.array([[5, 5], [5, 0]]))
HUGE = ints(2**62, 2**62, 2**62)
REFUSED: dict[str, dict[str, tuple[type[DPError], Callable[[], Any]]]] = {
    "empty cell": plans(U, ints(), MICRO) | _case(ParameterError, bestfit=lambda: bestfit(ints(), 1)),
    "a user without samples": plans(U, ints(2, 0), MICRO) | plans(U, ints(-1), MICRO),
    "counts that are not integers": plans(U, np.array([1.5]), MICRO) | plans(U, np.array([math.nan]), MICRO),
    **{
        f"epsilon {micro}": plans(U, ints(2, 1), micro)
        | _case(BudgetError, chop=lambda m=micro: suppress(SOME, m), sweep=lambda m=micro: sweep_chop_user(SOME, m))
        for micro in (0, -5, math.nan)
    },
    "no epsilon to share": _case(
        BudgetError,
        allocate=lambda: allocate(Mean(U).rows(SOME, SOME.samples), ints(0, MICRO)),
        uniform_allocation=lambda: uniform_allocation(Mean(U).rows(SOME, SOME.samples), ints(0, MICRO)),
        quantiles=lambda: select_quantiles(ints(1), U, ints(5), 0, Noise()),
        range=lambda: select_range(ints(1), U, 5, 0, Noise()),
    ),
    "epsilon as a float": plans(U, ints(2, 1), 1.0),
    "upper bound below 0": plans(-1, ints(2, 1), MICRO)
    | _case(
        ParameterError,
        group=lambda: Contributions.group(ONE.astype(np.uint64), ONE.astype(np.uint64), ONE, ONE, upper=-1),
    ),
    "upper bound NaN": plans(math.nan, ints(2, 1), MICRO),
    "more samples than int64 sums hold": plans(10**9, HUGE, MICRO)
    | plans(0, HUGE, MICRO)
    | _case(
        OverflowBoundError,
        group=lambda: Contributions.group(ONE.astype(np.uint64), ONE.astype(np.uint64), ONE, ONE, upper=2**62),
        sensitivities=lambda: Sensitivities(ints(0), ints(0), ints(2**41), np.ones(1), 1),
        total=lambda: check_total(2**40, 2**22),
    ),
    "values NaN": releases(np.array([1.0, math.nan]))
    | _case(ParameterError, posterior=lambda: laplace_posterior(np.eye(1), np.array([math.nan]), np.ones(1))),
    "other values than planned": releases(ints(1, 2, 3)),
    "m_UB out of range": _case(
        ParameterError,
        array_averaging_below=lambda: ArrayAveraging(U, capacity=0).plan(ints(1, 3), MICRO),
        bestfit_above=lambda: bestfit(ints(1, 3), 4),
        bestfit_below=lambda: bestfit(ints(2, 3), 1),
    ),
    "parameters out of range": _case(
        ParameterError,
        no_bins=lambda: Distribution(U, 0).rows(SOME, SOME.samples),
        many_bins=lambda: Distribution(U, 10**6).rows(SOME, SOME.samples),
        half_bin=lambda: select_range(ints(1), U, 0, MICRO, Noise()),
        unclipped=lambda: select_quantiles(ints(U + 1), U, ints(5), MICRO, Noise()),
        min_users=lambda: suppress(SOME, MICRO, min_users=0),
        statistics=lambda: suppress(SOME, MICRO, statistics=("mode",)),
        no_statistics=lambda: suppress(SOME, MICRO, statistics=()),
        retained=lambda: Mean(U).rows(SOME, SOME.samples + 1),
        retained_variance=lambda: Variance(U, 1).rows(SOME, SOME.samples + 1),
        cap=lambda: sum_caps(SOME, U, -0.5, np.ones(SOME.n_cells)),
        laplace_scale=lambda: Noise().discrete_laplace(0),
        laplace_large=lambda: Noise().discrete_laplace(2**41),
        gaussian_scale=lambda: discrete_gaussian(Noise(), ints(0), ints(1)),
        no_candidates=lambda: Noise().exponential(ints(), 1, 1),
    ),
    "noise for another sensitivity": _case(
        ParameterError,
        part=lambda: noise_ratio(0.9, MICRO),
        cut_off=lambda: noise_ratio(1.9, MICRO),
        negative=lambda: noise_ratio(-5, MICRO),
        truth=lambda: noise_ratio(True, MICRO),
        gaussian=lambda: gaussian_ratio(1.9, 10**9),
        gaussian_negative=lambda: gaussian_ratio(-1, 10**9),
    ),
    "a charge for another loss": _case(
        ParameterError,
        part=lambda: gaussian_losses(np.array([0.9]), 1, 1),
        squares=lambda: square_losses(np.array([0.9]), 1, 1),
        negative=lambda: square_losses(ints(-1, 2), 1, 1),
        scale=lambda: gaussian_losses(ints(1), 1.9, 1),
        scale_below_0=lambda: gaussian_losses(ints(1), -1, 1),
        denominator=lambda: gaussian_losses(ints(1), 1, 0.5),
        denominator_0=lambda: gaussian_losses(ints(1), 1, 0),
    )
    | _case(BudgetError, pure=lambda: rho_of_pure(0.9)),
    "a draw for another scale": _case(
        ParameterError,
        laplace=lambda: Noise().discrete_laplace(1.9),
        laplace_many=lambda: Noise().discrete_laplace(1.9, 1, 1000),
        laplace_denominators=lambda: Noise().discrete_laplace(ints(1, 1), np.array([1.0, 1.5])),
        laplace_huge=lambda: Noise().discrete_laplace(2**70),
        gaussian=lambda: discrete_gaussian(Noise(), 1.9),
        gaussian_many=lambda: discrete_gaussian(Noise(), 1.9, 1, 1000),
        bernoulli=lambda: Noise().bernoulli_exp(np.array([0.9]), 1),
        bernoulli_denominator=lambda: Noise().bernoulli_exp(ints(1), 1.5),
        bound=lambda: Noise().below(2.5),
        bounds=lambda: Noise().below(np.array([2.5])),
        costs=lambda: Noise().exponential(np.array([0.0, 0.9]), 1, 1),
        cost_ratio=lambda: Noise().exponential(ints(0, 1), 1, 0.5),
        weights=lambda: Noise().exponential(ints(0, 1), 1, 1, weights=np.array([0.5, 1.5])),
    ),
    "values clipped to more than the noise is for": _case(
        ParameterError,
        mean=lambda: Mean(U).draw(clipped_to(10 * U, U), ints(0)),
        variance=lambda: Variance(U, 1).draw(clipped_to(10 * U, U), ints(0)),
        distribution=lambda: Distribution(U, 4).integers(clipped_to(10 * U, U)),
        participation=lambda: integers(LAYOUT, clipped_to(10 * U, U), PublicCells(ONE.astype(np.uint64))),
    ),
    "a budget that means nothing": {
        repr(epsilon): (BudgetError, lambda epsilon=epsilon: to_micro(epsilon, round_up=False))
        for epsilon in (0, -1.0, math.nan, math.inf, "x", 1e-9)
    },
    "a rho or a delta that is none": _case(
        BudgetError,
        ratio_of_nothing=lambda: gaussian_ratio(1, 0),
        ratio_of_a_part=lambda: gaussian_ratio(1, 0.5),
        epsilon_of_nothing=lambda: epsilon_of_rho(0, 1e-6),
        rho_of_nothing=lambda: rho_of(0, 1e-6),
        rho_below_0=lambda: rho_of_pure(-1),
    )
    | {f"delta {delta}": (ParameterError, lambda d=delta: epsilon_of_rho(1, d)) for delta in (0, 1, -1e-6, math.nan)},
    "programs that cannot be charged": _case(
        BudgetError,
        nothing_left=lambda: allocate(CROWD, ints(1, 0)),
        too_little_left=lambda: allocate(CROWD, ints(1, MICRO)),
        parts=lambda: allocate(CROWD, np.array([1.0, 2.0])),
        less_than_2_nano_rho=lambda: allocate_gaussian(CROWD, ints(1, MICRO)),
        parts_of_nano_rho=lambda: allocate_gaussian(CROWD, np.array([1.5, 2.0])),
    )
    | _case(
        OverflowBoundError,
        scale=lambda: allocate(from_dense(np.array([[2**40]])), ints(1000)),
        denominator=lambda: exact_charges(CROWD, ints(1, 1), ints(2**61, 1)),
        nano_rho=lambda: allocate_gaussian(CROWD, ints(10**13, 10**13)),
        gaussian_scale=lambda: allocate_gaussian(from_dense(np.array([[2**40]])), ints(10)),
        gaussian_numerator=lambda: exact_rho_charges(CROWD, ints(0, 1), ints(1, 1)),
        squares=lambda: Contributions.group(
            *(np.zeros(4, np.uint64),) * 2, *[np.arange(4)] * 2, upper=2**31
        ).cell_squares(),
    )
    | _case(
        ParameterError,
        weight=lambda: from_dense(np.array([[5, 5]]), np.array([0.0])),
        pair_twice=lambda: Sensitivities(ints(0, 0), ints(1, 1), ints(1, 1), np.ones(1), 2),
        target=lambda: choose_resolution(SOME, [np.zeros(2, np.uint64)], lambda of: np.ones(of.n_cells), target=0),
        parents=lambda: choose_resolution(SOME, [np.zeros(1, np.uint64)], lambda of: np.ones(of.n_cells), target=1),
    ),
    "a draw that has no law": _case(
        ParameterError,
        laplace=lambda: Noise().discrete_laplace(1, 0, 1),
        gaussian_large=lambda: discrete_gaussian(Noise(), 2**40 + 1, 1, 1),
        gaussian_denominator=lambda: discrete_gaussian(Noise(), 1, 0, 1),
        gaussian_negative=lambda: discrete_gaussian(Noise(), -1, 1, 1),
        bound=lambda: Noise().below(0),
        no_weight=lambda: Noise().exponential(ints(1), 1, 1, weights=ints(0)),
        negative_weight=lambda: Noise().exponential(ints(1), 1, 1, weights=ints(-1)),
        ratio=lambda: Noise().exponential(ints(1), 2**62, 1),
    )
    | _case(OverflowBoundError, weights=lambda: Noise().exponential(ints(0, 1), 1, 1, weights=ints(2**61, 2**61))),
    "what no polynomial or modelled percentile is of": _case(
        ParameterError,
        degree=lambda: polynomials(ONE, ONE, U, 3),
        above=lambda: polynomials(ONE * (U + 1), ONE, U, 1),
        weight=lambda: polynomials(ONE, -ONE, U, 1),
        shapes=lambda: modelled([1.0, 2.0], [1.0]),
        mean=lambda: modelled([math.nan], [1.0]),
        variance=lambda: modelled([1.0], [math.inf]),
        upper=lambda: modelled([1.0], [1.0], upper=0.0),
        percent_0=lambda: modelled([1.0], [1.0], percent=0.0),
        percent_100=lambda: modelled([1.0], [1.0], percent=100.0),
        deviations=lambda: shrunken_variances(np.ones(2), np.ones(1)),
        deviation_below_0=lambda: shrunken_variances(np.ones(2), np.array([-1.0, 1.0])),
        deviation_without_end=lambda: shrunken_variances(np.ones(2), np.array([math.inf, 1.0])),
    )
    | _case(OverflowBoundError, weights=lambda: polynomials(ONE, ONE * 2**40, 100_000, 2)),
    "what no posterior is of": {
        f"posterior {number}": (ParameterError, lambda given=given: laplace_posterior(*map(np.array, given)))
        for number, given in enumerate(
            [
                (np.eye(2), np.zeros(1), np.ones(1)),
                (np.eye(1), np.zeros(1), [-1.0]),
                (np.eye(1), np.zeros(1), [math.inf]),
                (np.zeros((1, 1)), np.zeros(1), np.ones(1)),
            ]
        )
    }
    | _case(
        ParameterError,
        evidence=lambda: Calibration(np.zeros((2, 3))),
        evidence_not_finite=lambda: Calibration(np.full((len(CLASSES), len(FACTORS)), math.nan)),
        users=lambda: Occupancy(np.array([math.nan]), 0.0, 0.0, 0.0),
        users_below_0=lambda: Occupancy(np.zeros(1), -1.0, 0.0, 0.0),
    ),
    "thresholds, ranges and bins that are none": {
        f"moving from {least} of {upper}": (ParameterError, lambda u=upper, v=least: MovingMean(u, v))
        for upper, least in ((10, 0), (10, 10), (10, -1), (500, 700))
    }
    | {
        f"range {lower} to {upper}, gain {gain}": (
            ParameterError,
            lambda low=lower, high=upper, gain=gain: ResidualMean(ints(low), ints(high), 6, np.array([gain])),
        )
        for lower, upper, gain in ((3, 3, 1.0), (-1, 3, 1.0), (0, 7, 1.0), (0, 3, 0.0))
    }
    | _case(
        ParameterError,
        edges=lambda: bin_edges(-1, 64),
        bins=lambda: Layout(1, users=False, tree=LevelTree(7, (7,)), weight="user", upper=5),
    )
    | _case(
        BudgetError,
        damaged_ledger=lambda: rolling_grants(1000, ints(-1), 4),
        ledger_of_parts=lambda: rolling_grants(1000, np.array([0.5]), 4),
    ),
    "bounds that are none": _case(
        ParameterError,
        mean=lambda: Mean(-5),
        mean_of_a_float=lambda: Mean(80.5),
        variance=lambda: Variance(-5, 1),
        grid=lambda: Variance(U, 0),
        grid_of_a_float=lambda: Variance(U, 0.5),
    ),
}
"""Case -> what is called -> (least specific error that will do, the call)."""
REMEDY = r"[;:,] ?.*\b(give|use|leave|drop|need|plan|clip|count|keep|raise|set|must|correct|allowed)\b"
BOUND = r"must|\bneed\b|finite|outside|within|above|below|exceed|sorted|offered"
BOUND_ALONE = {
    "programs that cannot be charged",
    "a draw that has no law",
    "what no polynomial or modelled percentile is of",
    "what no posterior is of",
    "thresholds, ranges and bins that are none",
}
"""Calls that only the code makes; their errors state the bound, which is the remedy."""


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_the_value_and_the_remedy(case):
    for name, (kind, call) in REFUSED[case].items():
        with pytest.raises(kind) as refused:
            call()
        message = f"{name}: {refused.value}"
        assert type(refused.value) is not DPError, "a kind of refusal that callers can tell apart"
        assert re.search(r"\d|nan|inf|None|mode|\(\)|'x'|sorted", str(refused.value)), f"no value in: {message}"
        remedy = f"{REMEDY}|{BOUND}" if case in BOUND_ALONE else REMEDY
        assert re.search(remedy, str(refused.value)), f"no remedy in: {message}"


def test_integers_of_any_type_are_taken_and_values_clipped_to_less_than_the_noise_is_for():
    for kind in (np.int16, np.int32, np.uint32, np.int64):
        scale = kind(7)
        assert noise_ratio(scale, MICRO) == (7, 1) == noise_ratio(7, MICRO)
        assert gaussian_ratio(scale, 10**9) == gaussian_ratio(7, 10**9)
        assert Noise().discrete_laplace(np.array([7], dtype=kind)).dtype == np.int64
        assert gaussian_losses(np.array([7], dtype=kind), scale, 1) == gaussian_losses(ints(7), 7, 1)
    assert Noise().discrete_laplace([], []).shape == discrete_gaussian(Noise(), [], []).shape == (0,)
    lower = clipped_to(U // 2, U)
    assert Mean(U).integers(lower).tolist() == [U // 2]
    assert Variance(U, 1).integers(lower).tolist() == [0]
    assert Distribution(U, 4).integers(lower).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("name", CELLS)
def test_one_user_one_sample_equal_values_and_a_range_of_0_have_defined_means(name):
    """Without noise the released number is the value. With U = 0 it is 0, has no noise and charges nobody."""
    make = CELLS[name]
    for samples, values in (((1,), (37,)), ((5,), (37,) * 5), ((2, 3, 1), (37,) * 6)):
        mechanism = make(U)
        plan = mechanism.plan(ints(*samples), 40 * MICRO)
        drawn = mechanism.release(ints(*values), plan, Silence())
        assert 0 <= drawn.value <= U
        assert drawn.low <= drawn.raw <= drawn.high
        assert abs(drawn.raw - 37) <= (1 if name in ("baseline", "pooled-minimax", "array-averaging", "auto") else U)
        assert plan.charges.max() <= 40 * MICRO
    nothing = make(0)
    plan = nothing.plan(ints(2, 1), MICRO)
    drawn = nothing.release(ints(0, 0, 0), plan, Noise())
    assert (drawn.raw, drawn.value, drawn.scale) == (0.0, 0.0, 0.0)
    assert not plan.charges.any()


def test_one_sample_equal_values_and_a_range_of_0_have_defined_variances_and_distributions():
    """One retained sample has variance 0, released without noise at no charge; so has every statistic of U = 0."""
    one = counts_of([[1]])
    assert not Variance(U, 1).sensitivities(one, one.samples).any()
    for upper in (0, U):
        contributions = Contributions.group(*(np.zeros(4, np.uint64),) * 2, np.arange(4), np.full(4, 37), upper=upper)
        assert Variance(upper, 1).integers(contributions).tolist() == [0]
        assert not Mean(upper).sensitivities(contributions.counts, contributions.counts.samples).any() or upper
        assert Distribution(upper, 8).integers(contributions).sum() == 4
    contributions = Contributions.group(*(np.zeros(3, np.uint64),) * 2, np.arange(3), np.array([0, 0, 0]), upper=0)
    cells, drawn = Distribution(0, 8).draw(
        contributions, LaplaceScales(np.zeros((1, 1), np.int64), np.ones((1, 1), np.int64)), Noise()
    )
    assert (len(cells), drawn) == (0, None)
