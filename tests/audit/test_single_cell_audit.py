"""Means of one cell. Exact: the whole law of every mechanism on every small cell, by enumeration of every path of its
private choices and every released number. Black box: ε on worst-case neighbours, with the noise and the quanta as they
are; n, α and power as in :mod:`tests.audit.blackbox`, ε = 1 unless a case says otherwise.

The mechanism runs unchanged. Its source of noise returns every possible choice in turn, and multiplies the
probabilities of the choices on each path. A reader who sees the width of the noise and the noisy integer sees at least
as much as any release shows. No samples, hence no α: the loss is computed over all outputs, all values of one user and
all values of the others (their averages in steps of one quantum), to 1e-9 in ε. Power is 1: a bug that costs more than
the charge anywhere is found.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.single_cell import mean, range_mean
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import (
    AutoMean,
    Choice,
    EpsilonQuantile,
    FixedQuantile,
    Levy,
    RangePlan,
    select_quantiles,
    select_range,
)
from tests.audit.blackbox import N, Pooled, assert_private, epsilon_lower_bound
from tests.support.nightly import nightly

FloatArray = npt.NDArray[np.float64]
TOLERANCE = 1e-9
"""Rounding of the enumeration, in ε: probabilities are floats, correct to about 1e-12."""


class Path(Noise):
    """Follows one path: the given choices, then always choice 0."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self.choices = choices
        self.options: list[int] = []
        self.probability = 1.0
        self.scale: tuple[int, int] = (0, 1)

    def _choose(self, probabilities: FloatArray) -> int:
        at, possible = len(self.options), np.flatnonzero(probabilities)
        self.options.append(len(possible))
        chosen = int(possible[self.choices[at] if at < len(self.choices) else 0])
        self.probability *= float(probabilities[chosen])
        return chosen

    def exponential(
        self, costs: Any, numerator: int, denominator: int, *, offsets: Any = None, weights: Any = None
    ) -> Any:
        """Return the path's next choice for each selection that the mechanism makes."""
        bounds = [0, len(costs)] if offsets is None else offsets
        measure = np.ones(len(costs)) if weights is None else np.asarray(weights, dtype=np.float64)
        law = measure * np.exp(-np.asarray(costs) * (numerator / denominator))
        groups = [law[a:b] / law[a:b].sum() for a, b in itertools.pairwise(bounds)]
        return np.array([self._choose(group) for group in groups])

    def below(self, bound: Any, size: int | None = None) -> Any:
        """Return the path's next choice for each uniform integer that the mechanism draws."""
        return np.array([self._choose(np.full(int(b), 1 / int(b))) for b in np.atleast_1d(bound)])

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        """Return 0: the law of the noise is known and is applied afterwards."""
        self.scale = int(numerator), int(denominator)
        return np.zeros(1, dtype=np.int64)


def paths(draw: Callable[[Path], Any]) -> Iterator[tuple[Path, Any]]:
    """Every path through the choices that ``draw`` makes, each with its result."""
    taken: list[int] = []
    while True:
        path = Path(taken)
        yield path, draw(path)
        taken = (taken + [0] * len(path.options))[: len(path.options)]
        while taken and taken[-1] + 1 == path.options[len(taken) - 1]:
            taken.pop()
        if not taken:
            return
        taken[-1] += 1


Law = dict[tuple[Any, ...], dict[int, float]]
"""What a reader sees beside the noisy integer (the noise's scale first) -> integer before noise -> probability."""


def law_of(draw: Callable[[Path], tuple[tuple[Any, ...], int]]) -> Law:
    """Exact law of what ``draw`` shows beside its integer, and of that integer."""
    law: Law = {}
    for path, (shown, integer) in paths(draw):
        row = law.setdefault((path.scale, *shown), {})
        row[integer] = row.get(integer, 0.0) + path.probability
    assert abs(sum(sum(row.values()) for row in law.values()) - 1) < TOLERANCE, "the paths do not add up to a law"
    return law


def loss(one: Law, other: Law) -> float:
    """Largest |log ratio| of the two laws over all outputs."""
    if one.keys() != other.keys():
        return np.inf
    worst = 0.0
    for key in one:
        (t, s), a, b = key[0], one[key], other[key]
        if t == 0:
            worst = max(worst, np.inf if a.keys() != b.keys() else max(abs(np.log(a[x] / b[x])) for x in a))
            continue
        # Beyond the extreme integers both tails fall at the same rate, so the ratio of the laws no longer changes.
        seen = np.arange(min(*a, *b) - 1, max(*a, *b) + 2)
        sides = [
            np.exp(-np.abs(seen[:, None] - np.array(list(row))) * (s / t)) @ np.array(list(row.values()))
            for row in (a, b)
        ]
        worst = max(worst, float(np.abs(np.log(sides[0] / sides[1])).max()))
    return worst


Column = tuple[int, ...]


def worst_losses(law_at: Callable[[Column], Law], columns: Iterable[Column], order: Any = tuple) -> FloatArray:
    """Per entry: the largest loss over all ``columns`` that differ in it alone. ``order``: of entries in a column."""
    laws = {column: law_at(column) for column in columns}
    worst = np.zeros(len(next(iter(laws))))
    for column, law in laws.items():
        for at, own in enumerate(column):
            for other in range(own):
                beside = laws[tuple(order((*column[:at], other, *column[at + 1 :])))]
                worst[at] = max(worst[at], loss(law, beside))
    return worst


RANGES = [(Levy, (90, 90, 90), 6), (FixedQuantile, (2, 2, 2), 4), (EpsilonQuantile, (2, 2, 2), 4)]
"""Counts for which Levy narrows the range; three arrays each."""
SET = [
    (functools.partial(ArrayAveraging, capacity=3), (2, 2, 3), 4),
    (functools.partial(FixedQuantile, capacity=1, percent=40), (2, 2, 2), 4),
]
"""With an m_UB and quantiles that the configuration sets."""
SIMPLE = [(Baseline, (2, 1), 4), (PooledMinimax, (3, 1), 4), (ArrayAveraging, (2, 2, 1), 4), (AutoMean, (1, 1), 4)]


@pytest.mark.parametrize(("make", "m", "upper"), RANGES + SIMPLE + SET)
def test_no_output_of_any_small_cell_costs_a_user_more_than_their_charge(make, m, upper, monkeypatch):
    """Averages are whole quanta: the proof holds for every public granularity, and a coarse one can be enumerated."""
    for module in (mean, range_mean):
        monkeypatch.setattr(module, "GRID", 1)
    mechanism = make(upper)
    plan = mechanism.plan(np.array(m), 2 * MICRO)
    own = plan.plan if isinstance(plan, Choice) else plan
    divisor = int(own.grouping.n_arrays if isinstance(own, RangePlan) else own.divisor)

    def law_at(averages: Column) -> Law:
        def draw(source: Path) -> tuple[tuple[float, float], int]:
            drawn = mechanism.release(np.repeat(averages, m), plan, source)
            return (drawn.scale, drawn.bias_bound), round(drawn.raw * divisor)

        return law_of(draw)

    every = itertools.product(range(upper + 1), repeat=len(m))
    shares = worst_losses(law_at, every) / (plan.charges / MICRO)
    assert shares.max() <= 1 + TOLERANCE, shares
    attained = 1 - TOLERANCE if (make, m, upper) in SIMPLE else 0.6
    assert shares.max() > attained, f"the audit would not see a charge that is too small: {shares}"


def selection_loss(select: Callable[[FloatArray, Path], Any], upper: int) -> float:
    """Largest loss of a selection over all columns of five entries of 0..``upper``."""
    columns = itertools.combinations_with_replacement(range(upper + 1), 5)

    def law_at(column: Column) -> Law:
        return law_of(lambda source: ((select(np.array(column), source),), 0))

    return float(worst_losses(law_at, columns, sorted).max())


@pytest.mark.parametrize("rank", [0, 5, 12, 25, 38, 50])
def test_quantile_selections_cost_exactly_what_they_claim(rank):
    """ε = 1, target ranks from the lowest to the highest (at its ends the factor is not needed)."""
    chosen = selection_loss(lambda z, source: int(select_quantiles(z, 4, np.array([rank]), MICRO, source)[0]), 4)
    assert 0.4 < chosen <= 1 + TOLERANCE


@pytest.mark.parametrize("half_bin", [1, 2])
def test_range_selections_cost_exactly_what_they_claim(half_bin):
    """ε = 1."""
    assert 0.7 < selection_loss(lambda z, source: select_range(z, 7, half_bin, MICRO, source), 7) <= 1 + TOLERANCE


FEW, MANY = ((3, 1, 2), 40, (0, 0, 0), 1, N), ((400,) * 9, 800, (0,) * 4 + (800,) * 4 + (0,), 2, 2000)
"""Counts, upper bound, values of the others, ε, samples. Nine arrays of 400: enough samples for Levy to narrow the
range, few enough users to have a large share; four at either end leave the median to one."""


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (ArrayAveraging, FEW),
        (Levy, MANY),
        *(nightly(make, FEW) for make in (Baseline, PooledMinimax, AutoMean)),
        *(nightly(make, MANY) for make in (FixedQuantile, EpsilonQuantile)),
    ],
)
def test_a_black_box_finds_no_more_than_a_user_is_charged(make, case):
    """All values of one user at 0 or at the bound. The outputs are (mean, scale): the scale reveals a range's width."""
    m, upper, others, epsilon, n = case
    mechanism = make(upper)
    plan = mechanism.plan(np.array(m), epsilon * MICRO)
    assert isinstance(plan, RangePlan) == (case is MANY)
    user, sides = int(np.argmax(plan.charges)), []
    for own in (0, upper):
        values, noise = np.repeat((*others[:user], own, *others[user + 1 :]), m), Pooled()
        drawn = [mechanism.release(values, plan, noise) for _ in range(n)]
        sides.append([(each.raw, each.scale) for each in drawn])
    assert_private(epsilon_lower_bound(*sides), plan.charges[user] / MICRO)
