"""Exact audits: the whole law of every single-cell mean on every small cell.

No samples, hence no α: the loss is computed over all outputs, all values of one user and all values of the others
(their averages in steps of one quantum), to 1e-9 in ε. Power is 1: a bug that costs more than the charge anywhere is
found.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dpcore.single_cell.mean
import dpcore.single_cell.range_mean
from dpcore.budget import MICRO
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import (
    EpsilonQuantile,
    FixedQuantile,
    Levy,
    RangePlan,
    select_quantiles,
    select_range,
)
from tests.audit.enumeration import TOLERANCE, Enumerated, Law, Path, paths

RANGES = [(Levy, (90, 90, 90), 6), (FixedQuantile, (2, 2, 2), 4), (EpsilonQuantile, (2, 2, 2), 4)]
"""Counts for which Levy narrows the range; three arrays each."""
SET = [
    (functools.partial(ArrayAveraging, capacity=3), (2, 2, 3), 4),
    (functools.partial(FixedQuantile, capacity=1, percent=40), (2, 2, 2), 4),
]
"""With an m_UB and quantiles that the configuration sets."""
SIMPLE = [(Baseline, (2, 1), 4), (PooledMinimax, (3, 1), 4), (ArrayAveraging, (2, 2, 1), 4)]


@pytest.fixture(autouse=True)
def whole_quanta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages in whole quanta: the proof holds for every public granularity, and a coarse one can be enumerated."""
    for module in (dpcore.single_cell.mean, dpcore.single_cell.range_mean):
        monkeypatch.setattr(module, "GRID", 1)


Laws = dict[tuple[int, ...], Law]
"""Averages of the users -> law of the release."""


def planned(make: Any, m: tuple[int, ...], upper: int) -> tuple[Enumerated, Any]:
    """A mechanism to enumerate, and its plan at ε = 2."""
    mechanism = make(upper)
    plan = mechanism.plan(np.array(m), 2 * MICRO)
    return Enumerated(lambda values, noise: mechanism.release(values, plan, noise), 1 / _divisor(plan)), plan


def laws_of(audited: Enumerated, m: tuple[int, ...], upper: int) -> Laws:
    """The laws at all averages of the users."""
    every = itertools.product(range(upper + 1), repeat=len(m))
    return {averages: audited.law(np.repeat(np.array(averages), m)) for averages in every}


def worst_shares(make: Any, m: tuple[int, ...], upper: int) -> np.ndarray:
    """Per user: their largest loss over all neighbouring cells, as a share of what they are charged."""
    audited, plan = planned(make, m, upper)
    laws, worst = laws_of(audited, m, upper), np.zeros(len(m))
    for averages, law in laws.items():
        for user, own in enumerate(averages):
            for other in range(own):
                changed = (*averages[:user], other, *averages[user + 1 :])
                worst[user] = max(worst[user], audited.loss(law, laws[changed]))
    return worst / (plan.charges / MICRO)


def _divisor(plan: Any) -> int:
    return int(plan.grouping.n_arrays if isinstance(plan, RangePlan) else plan.divisor)


@pytest.mark.parametrize(("make", "m", "upper"), RANGES + SIMPLE + SET)
def test_no_output_of_any_small_cell_costs_a_user_more_than_their_charge(make, m, upper):
    shares = worst_shares(make, m, upper)
    assert shares.max() <= 1 + TOLERANCE, shares
    attained = 1 - TOLERANCE if (make, m, upper) in SIMPLE else 0.6
    assert shares.max() > attained, f"the audit would not see a charge that is too small: {shares}"


def _selection_loss(select: Callable[[np.ndarray, Path], Any], entries: int, upper: int) -> float:
    """Largest |log ratio| of a selection's law over all columns of ``entries`` values that differ in one of them."""
    laws: dict[tuple[int, ...], dict[Any, float]] = {}
    for column in itertools.combinations_with_replacement(range(upper + 1), entries):
        law: dict[Any, float] = {}
        for path, chosen in paths(lambda source, z=column: select(np.array(z), source)):
            law[chosen] = law.get(chosen, 0.0) + path.probability
        laws[column] = law
    worst = 0.0
    for column, law in laws.items():
        for at, other in itertools.product(range(entries), range(upper + 1)):
            beside = laws[tuple(sorted((*column[:at], other, *column[at + 1 :])))]
            assert law.keys() == beside.keys()
            worst = max(worst, *(abs(np.log(law[key] / beside[key])) for key in law))
    return float(worst)


@pytest.mark.parametrize("rank", [0, 5, 12, 25, 38, 50])
def test_quantile_selections_cost_exactly_what_they_claim(rank):
    """ε = 1, five entries of 0..4, target ranks from the lowest to the highest (at its ends the factor is not
    needed)."""

    def select(z: np.ndarray, source: Path) -> int:
        return int(select_quantiles(z, 4, np.array([rank]), MICRO, source)[0])

    assert 0.4 < _selection_loss(select, 5, 4) <= 1 + TOLERANCE


@pytest.mark.parametrize("half_bin", [1, 2])
def test_range_selections_cost_exactly_what_they_claim(half_bin):
    """ε = 1, five entries of 0..7."""

    def select(z: np.ndarray, source: Path) -> tuple[int, int]:
        return select_range(z, 7, half_bin, MICRO, source)

    assert 0.7 < _selection_loss(select, 5, 7) <= 1 + TOLERANCE
