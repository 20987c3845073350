"""Noise scales as integer ratios: from a sensitivity and a budget to the scale, from the scale to the noise.

All mechanisms plan their scales and draw from them here, and share the checks of their input.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpcore._whole_numbers import is_whole_number
from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.contributions import MAX_TOTAL
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError
from dpcore.noise import MAX_SCALE_NUMERATOR, Noise, interval_half_width


@dataclass(frozen=True)
class NoiseScales(ABC):
    """Scales ``numerator``/``denominator`` of exact noise, one for each released integer; any shape.

    A numerator of 0 stands for an integer that nobody can move: it gets no noise.
    """

    numerator: IntArray
    denominator: IntArray

    @abstractmethod
    def _drawn(self, noise: Noise, t: IntArray, s: IntArray) -> IntArray: ...

    @abstractmethod
    def _reach(self, t: IntArray, s: IntArray) -> FloatArray: ...

    def draw(self, noise: Noise) -> IntArray:
        """Exact noise of every scale, in one batch and in order; 0 where nobody can move the integer."""
        drawn = np.zeros(self.numerator.shape, dtype=np.int64)
        hidden = self.numerator > 0
        drawn[hidden] = self._drawn(noise, self.numerator[hidden], self.denominator[hidden])
        return drawn

    @property
    def values(self) -> FloatArray:
        """The scales, for reports, intervals and predictions; never for drawing."""
        return np.asarray(self.numerator / np.maximum(self.denominator, 1))

    def half_widths(self) -> FloatArray:
        """Smallest integer w with P(|noise| <= w) >= 0.95; 0 where there is no noise."""
        widths = np.zeros(self.numerator.shape)
        hidden = self.numerator > 0
        widths[hidden] = self._reach(self.numerator[hidden], self.denominator[hidden])
        return widths


class LaplaceScales(NoiseScales):
    """Scales b of discrete Laplace noise."""

    def _drawn(self, noise: Noise, t: IntArray, s: IntArray) -> IntArray:
        return noise.discrete_laplace(t, s)

    def _reach(self, t: IntArray, s: IntArray) -> FloatArray:
        return interval_half_width(t, s)


def noise_ratio(sensitivity: int, epsilon_micro: int) -> tuple[int, int]:
    """Integers t, s with t/s >= 10⁶·``sensitivity``/``epsilon_micro``, t <= 2^40: never less noise than promised.

    Exact where the reduced fraction fits; (0, 1), no noise, for sensitivity 0. Raises :class:`OverflowBoundError` where
    the scale itself exceeds 2^40, :class:`BudgetError` for a budget below 1 µε, :class:`ParameterError` for a
    sensitivity that is not an integer of 0 or more.
    """
    micro, moved = checked_micro(epsilon_micro), checked_sensitivity(sensitivity)
    if moved == 0:
        return 0, 1
    exact = Fraction(MICRO * moved, micro)
    if exact > MAX_SCALE_NUMERATOR:
        raise OverflowBoundError(
            f"a noise scale of {float(exact):.3g} quanta exceeds 2^40; use a coarser quantum or a larger epsilon"
        )
    if exact.numerator <= MAX_SCALE_NUMERATOR:
        return exact.numerator, exact.denominator
    s = MAX_SCALE_NUMERATOR * exact.denominator // exact.numerator
    return -(-exact.numerator * s // exact.denominator), s


def checked_upper(upper: int) -> int:
    """``upper``, or :class:`ParameterError` unless it is an integer of 0 or more quanta."""
    if not is_whole_number(upper) or upper < 0:
        raise ParameterError(f"upper bound {upper!r} is not an integer of 0 or more quanta; count in quanta")
    return int(upper)


def checked_sensitivity(sensitivity: int) -> int:
    """``sensitivity``, or :class:`ParameterError` unless it is an integer of 0 or more quanta."""
    if not is_whole_number(sensitivity) or sensitivity < 0:
        raise ParameterError(
            f"sensitivity {sensitivity!r} is not an integer of 0 or more quanta; round it up to quanta, or use a finer "
            "quantum"
        )
    return int(sensitivity)


def check_clipped(largest: int, upper: int) -> None:
    """:class:`ParameterError` where values of up to ``largest`` quanta may exceed the planned ``upper``."""
    if largest > upper:
        raise ParameterError(
            f"values of up to {largest} quanta exceed the upper bound of {upper} that the noise is for; clip them to "
            f"{upper}"
        )


def checked_micro(epsilon_micro: int) -> int:
    """``epsilon_micro``, or :class:`BudgetError` unless it is an integer of at least 1 µε."""
    if not is_whole_number(epsilon_micro) or epsilon_micro < 1:
        raise BudgetError(f"epsilon of {epsilon_micro!r} µε is not an integer of at least 1; use budget.to_micro")
    return int(epsilon_micro)


def check_total(n: int, largest: int) -> None:
    """:class:`OverflowBoundError` where ``n`` terms of up to ``largest`` could leave int64."""
    if int(n) * max(int(largest), 1) >= MAX_TOTAL:
        raise OverflowBoundError(
            f"{n} terms of up to {largest} could exceed 2^62, at most {MAX_TOTAL // max(int(largest), 1)} fit; "
            "use a coarser quantum or split the cell"
        )
