"""Mean of one cell under relation "values": Baseline, Array-Averaging and the pooled minimax mean.

To be proved: if all values of one user change, the integer that noise is added to moves by at most their
``sensitivities`` in the plan, so they lose at most their ``charges``. Proof: their Γ retained values lie in [0, U], so
a pooled sum moves by at most U·Γ. A mean of arrays adds ⌊GRID·average⌋ of each array; all their values lie in one array
of ``fill`` samples, whose average moves by at most U·Γ/fill, and |⌊a⌋ − ⌊b⌋| <= ⌈|a − b|⌉. Discrete Laplace noise of
scale t/s on an integer that moves by Δ costs Δ·s/t, which :func:`dpcore.single_cell.cell.losses` rounds up. Tested: by
brute force in tests/dpcore/single_cell/test_mean.py, exactly over all outputs of small cells and on samples in
tests/audit/test_single_cell_audit.py.

Neighbours differ in the values of one user; who, when, where and how often is public, and so is every plan.
Source: [M] arXiv 2401.15906, mechanisms S1, S3, S4.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.scales import check_total, checked_micro, checked_upper, noise_ratio
from dpcore.single_cell.cell import (
    Estimate,
    Grouping,
    bestfit_within,
    checked_samples,
    checked_values,
    losses,
    lower_median,
    noisy_estimate,
    retained_values,
)

USER_SHARE, SAMPLE_SHARE = 0.03, 0.15
"""Standard deviations of users' levels, and of samples around their user's level, as shares of U: typical of speeds."""
GRID = 256
"""Array averages are rounded down to 1/GRID quantum before they are added: a fixed, public granularity."""


@dataclass(frozen=True)
class MeanPlan:
    """Public part of a pooled mean: (Σ first Γ values of each user + noise) / ``divisor``.

    ``sensitivities``: shape (L,), most that each user moves the integer sum, in quanta. ``numerator``/``denominator``:
    noise scale t/s in the same unit. ``charges``: µε of each user, their own Δ/scale rounded up. ``bias_bound``:
    quanta, for the worst values; ``usual_bias``: quanta, for values as :func:`usual_bias` takes them.
    """

    samples: IntArray
    retained: IntArray
    divisor: int
    sensitivities: IntArray
    numerator: int
    denominator: int
    charges: IntArray
    bias_bound: float
    usual_bias: float

    @property
    def scale(self) -> float:
        """Noise scale b of the released mean, in quanta."""
        return self.numerator / self.denominator / self.divisor

    @property
    def predicted_error(self) -> float:
        """Expected |error| for usual values, in quanta: bias + E|noise| (= b). Used to choose among mechanisms."""
        return self.usual_bias + self.scale


@dataclass(frozen=True)
class ArrayPlan(MeanPlan):
    """Public part of mean of array averages: (Σ ⌊GRID·average⌋ + noise) / ``divisor``; everything in 1/GRID quantum."""

    grouping: Grouping


@dataclass(frozen=True)
class Baseline:
    """Mean of all samples plus Lap(U·max m/(N·ε)) (S1). ``upper``: U in quanta."""

    upper: int

    def plan(self, samples: IntArray, epsilon_micro: int) -> MeanPlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        upper, m = checked_upper(self.upper), checked_samples(samples)
        retained = self._retained(m, epsilon_micro)
        n, total = int(retained.sum()), int(m.sum())
        check_total(total, upper)
        sensitivities = upper * retained
        t, s = noise_ratio(int(sensitivities.max()), epsilon_micro)
        bias, usual = upper * (1 - n / total), usual_bias(upper, m, retained, np.full(len(m), 1 / n))
        return MeanPlan(m, retained, n, sensitivities, t, s, losses(sensitivities, t, s), bias, usual)

    def _retained(self, samples: IntArray, epsilon_micro: int) -> IntArray:
        return samples

    def release(self, values: IntArray, plan: MeanPlan, noise: Noise) -> Estimate:
        """Draw the mean of retained ``values`` (N,), quanta sorted by (user, time); in quanta. Relation "values"."""
        checked = checked_values(values, plan.samples, self.upper)
        kept, _ = retained_values(checked, plan.samples, plan.retained)
        scale = plan.numerator, plan.denominator
        return noisy_estimate(int(kept.sum()), *scale, plan.divisor, self.upper, plan.bias_bound, noise)


class PooledMinimax(Baseline):
    """Mean of the first m samples of each user, m minimising worst-case bias + noise scale (S4). ``upper``: quanta."""

    def _retained(self, samples: IntArray, epsilon_micro: int) -> IntArray:
        return np.minimum(samples, minimax_samples(samples, epsilon_micro))


def minimax_samples(samples: IntArray, epsilon_micro: int) -> int:
    """The m among ``samples`` that minimises (1 − ΣΓ/N) + m/(ε·ΣΓ), Γ = min(m_l, m); exact, ties to the smaller m.

    No other m can be better, and the choice never falls as ε grows. Source: [M], mechanisms S4.
    """
    ordered = np.sort(checked_samples(samples))
    micro, n = checked_micro(epsilon_micro), int(ordered.sum())
    below = np.append(0, np.cumsum(ordered))
    best, best_cost = 0, Fraction(0)
    for m in np.unique(ordered).tolist():
        fewer = int(np.searchsorted(ordered, m))
        kept = int(below[fewer]) + m * (len(ordered) - fewer)
        cost = Fraction(n - kept, n) + Fraction(m * MICRO, micro * kept)
        if best == 0 or cost < best_cost:
            best, best_cost = m, cost
    return best


@dataclass(frozen=True)
class ArrayAveraging:
    """Mean of the averages of BestFit arrays plus Lap(Δ/ε), Δ = (U/K̄)·max Γ/fill (S3). ``upper``: U in quanta.

    ``capacity``: m_UB, moved into [min m, max m]; by default the lower median of m. Plan and charges follow from it and
    from counts, so the proof holds for every m_UB. The divisor is K̄, the arrays opened; the printed K = ⌊ΣΓ/m_UB⌋ is
    wrong (``research/errata.md``).
    """

    upper: int
    capacity: int | None = None

    def plan(self, samples: IntArray, epsilon_micro: int) -> ArrayPlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        m = checked_samples(samples)
        grouping = bestfit_within(m, lower_median(m) if self.capacity is None else self.capacity)
        top = GRID * checked_upper(self.upper)
        check_total(int(m.sum()), top)
        sensitivities = grouping.sensitivities(top)
        t, s = noise_ratio(int(sensitivities.max()), epsilon_micro)
        return ArrayPlan(
            samples=m,
            retained=grouping.retained,
            divisor=GRID * grouping.n_arrays,
            sensitivities=sensitivities,
            numerator=t,
            denominator=s,
            charges=losses(sensitivities, t, s),
            bias_bound=self.upper * grouping.bias_bound(int(m.sum())) + rounding_bias(grouping),
            usual_bias=usual_grouping_bias(self.upper, m, grouping),
            grouping=grouping,
        )

    def release(self, values: IntArray, plan: ArrayPlan, noise: Noise) -> Estimate:
        """Draw the mean of the array averages of ``values`` (N,), quanta sorted by (user, time). Relation "values"."""
        statistic = int(array_averages(values, plan.samples, plan.grouping, self.upper).sum())
        return noisy_estimate(
            statistic, plan.numerator, plan.denominator, plan.divisor, self.upper, plan.bias_bound, noise
        )


def array_averages(values: IntArray, samples: IntArray, grouping: Grouping, upper: int) -> IntArray:
    """⌊GRID·average⌋ of the values that each array holds, shape (K̄,), in 0..GRID·U."""
    checked = checked_values(values, samples, upper)
    kept, user = retained_values(checked, samples, grouping.retained)
    sums = np.zeros(grouping.n_arrays, dtype=np.int64)
    np.add.at(sums, grouping.array[user], kept)
    averages: IntArray = GRID * sums // grouping.fill
    return averages


def usual_bias(upper: int, samples: IntArray, retained: IntArray, weight: FloatArray) -> float:
    """Mean |Σ w·x − mean of all samples| in quanta where user l's first ``retained`` samples weigh ``weight``[l] each.

    For independent levels of users and samples around them, of :data:`USER_SHARE` and :data:`SAMPLE_SHARE`. It is a
    guess from public counts: it helps to choose a mechanism, and neither privacy nor an interval depends on it.
    """
    n = samples.sum()
    own = np.square(retained * weight - samples / n).sum()
    single = (retained * np.square(weight - 1 / n) + (samples - retained) / np.square(float(n))).sum()
    return float(upper * np.sqrt(2 / np.pi * (USER_SHARE**2 * own + SAMPLE_SHARE**2 * single)))


def usual_grouping_bias(upper: int, samples: IntArray, grouping: Grouping) -> float:
    """:func:`usual_bias` of the mean of a grouping's array averages."""
    weight = 1 / (grouping.n_arrays * grouping.fill[grouping.array])
    return usual_bias(upper, samples, grouping.retained, weight)


def rounding_bias(grouping: Grouping) -> float:
    """Most that rounding the array averages down lowers their mean, in quanta; 0 where every fill divides GRID."""
    return 0.0 if np.all(GRID % grouping.fill == 0) else 1.0 / GRID
