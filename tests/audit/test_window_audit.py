"""Whole windows under "values": mean and variance of many cells, scales by exact-loss allocation or after CHOP-USER.

The outputs of all cells are audited together against what one user is charged for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpcore.allocation import allocate, exact_charges, stack
from dpcore.budget import MICRO
from dpcore.contributions import Contributions
from dpcore.moments import cell_variances, mean_rows, variance_rows
from dpcore.noise import Noise, scale_ratio
from dpcore.suppression import chop_user
from tests.audit.blackbox import Bound, assert_caught, assert_private, epsilon_lower_bound, half_scale

N = 20_000
"""Samples per side. The loss is spread over up to four numbers; half the noise (ε = 2) is bounded by about 1.4."""
UPPER, GRID = 20, 4


def window(own: int) -> Contributions:
    """Two cells; user 1 has two samples of value ``own`` in the first and one in the second, others stay put."""
    rows = [
        (1, 1, 0, own),
        (1, 1, 1, own),
        (1, 2, 0, 0),
        (2, 1, 2, own),
        (2, 3, 0, 0),
        (2, 3, 1, 0),
        (2, 4, 0, 0),
        (3, 5, 0, 0),
    ]
    cell, user, time, value = (np.array(column) for column in zip(*rows, strict=True))
    return Contributions.group(cell.astype(np.uint64), user.astype(np.uint64), time, value, upper=UPPER)


def released(
    own: int,
    t: np.ndarray,
    s: np.ndarray,
    noise: Noise,
    retained: np.ndarray | None = None,
    variance: bool = True,
    n: int = N,
) -> np.ndarray:
    """``n`` windows, shape (n, numbers): Σx of every cell, then its variance statistic, each with its own noise."""
    held = window(own)
    held = held if retained is None else held.retain(retained)
    exact = np.concatenate([held.cell_sums(), cell_variances(held, GRID) if variance else []]).astype(np.int64)
    columns = np.tile(exact, (n, 1))
    moved = t > 0
    shape = (n, int(moved.sum()))
    columns[:, moved] += noise.discrete_laplace(np.broadcast_to(t[moved], shape), np.broadcast_to(s[moved], shape))
    return columns


def bound(draw: Callable[[int], np.ndarray]) -> Bound:
    return epsilon_lower_bound(draw(0), draw(UPPER))


def test_allocated_scales_keep_every_user_within_his_allowance_over_all_cells_and_statistics() -> None:
    held = window(0)
    counts, samples = held.counts, held.counts.samples
    program = stack([mean_rows(counts, samples, UPPER), variance_rows(counts, samples, UPPER, GRID)])
    plan = allocate(program, np.full(counts.n_users, MICRO))
    epsilon = plan.charges[0] / MICRO
    assert epsilon <= 1.0
    for noise, check in ((Noise(), assert_private), (half_scale(), assert_caught)):
        check(bound(lambda own, n=noise: released(own, plan.numerator, plan.denominator, n)), epsilon)


def test_forgetting_that_a_user_is_in_two_cells_is_caught() -> None:
    """Planted bug: every cell spends the user's whole ε, as if he were in no other."""
    held = window(0)
    rows = mean_rows(held.counts, held.counts.samples, UPPER)
    plan = allocate(rows, np.full(held.counts.n_users, MICRO))
    assert_private(bound(lambda own: released(own, plan.numerator, plan.denominator, Noise(), variance=False)), 1.0)
    t, s = scale_ratio(np.maximum(rows.row_max(rows.delta), 1).astype(float))
    assert exact_charges(rows, t, s)[0] == 1.5 * MICRO
    assert_caught(bound(lambda own: released(own, t, s, Noise(), variance=False)), 1.0)


@pytest.mark.parametrize("forgotten", [False, True])
def test_capped_sums_cost_what_the_cap_allows(forgotten: bool) -> None:
    """A user's two samples add at most U to their cell; the planted bug charges the cap but adds both samples whole."""
    held = window(0)
    rows = mean_rows(held.counts, held.counts.samples, UPPER, UPPER)
    plan = allocate(rows, np.full(held.counts.n_users, MICRO))

    def draw(own: int) -> np.ndarray:
        exact = window(own).cell_sums(None if forgotten else UPPER)
        shape = (2 * N, int((plan.numerator > 0).sum()))
        t, s = (np.broadcast_to(column[plan.numerator > 0], shape) for column in (plan.numerator, plan.denominator))
        return np.asarray(exact[plan.numerator > 0] + Noise().discrete_laplace(t, s))

    check = assert_caught if forgotten else assert_private
    check(bound(draw), plan.charges[0] / MICRO)


@pytest.mark.parametrize("forgotten", [False, True])
def test_suppressed_users_contribute_nothing_and_the_others_pay_for_the_cells_left(forgotten: bool) -> None:
    """CHOP-USER at 1/2 per cell; the planted bug charges the cells left but releases the suppressed samples too."""
    held = window(0)
    counts = held.counts
    decision = chop_user(counts, MICRO // 2, statistics=("mean",))
    assert decision.max_cells < decision.max_cells_before == 2
    kept = decision.samples
    rows = mean_rows(counts, kept, UPPER)
    t, s = scale_ratio(np.maximum(rows.row_max(rows.delta), 1) / 0.5)
    charge = exact_charges(rows, t, s)[0] / MICRO
    assert charge <= 0.5
    leaked = counts.samples if forgotten else kept
    check = assert_caught if forgotten else assert_private
    check(bound(lambda own: released(own, t, s, Noise(), leaked, variance=False, n=4 * N)), charge)
