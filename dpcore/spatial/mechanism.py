"""What spatial mechanisms share: their interface, exact noise for counts, exact private choice.

Neighbours differ by all points of one user (relation "participation"), at most s of them.
To be proved, of every mechanism: :meth:`SpatialMechanism.fit` at ε is ε-DP. A window charges every user with a point in
the box the whole ε, wherever the points lie. Proof, for each step of a mechanism, whose shares of ε add up to ε:
- Counts of disjoint boxes change by at most s in L1. With discrete Laplace noise of scale s/ε they cost ε
  (:func:`noisy_counts`; :func:`dpcore.spatial.partition.draw_counts`).
- A choice with P ∝ exp(−ε·cost/(2Δ)) costs ε where no cost changes by more than Δ (:func:`choose`; McSherry and Talwar
  2007).
- What follows from draws and public parameters alone costs nothing.
The modules of the mechanisms state their own Δ and shares. Tested: tests/audit/test_spatial_audit.py for all of them.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.budget import MICRO
from dpcore.errors import BudgetError, ParameterError
from dpcore.noise import MAX_SCALE_NUMERATOR, Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.histogram import Histogram


class SpatialMechanism(ABC):
    """A frozen dataclass of public parameters that turns points or counts into a released histogram."""

    def fit(
        self,
        points_or_counts: npt.NDArray[Any],
        domain: Domain,
        epsilon_micro: int,
        noise: Noise,
        points_per_user: int = 1,
    ) -> Histogram:
        """Spend exactly ``epsilon_micro`` µε on points (N, 2) or counts (rows, columns), ``points_per_user`` (s) of a
        user.

        The caller makes sure that no user has more than s points. Relation "participation". Raises ``DomainError`` for
        points or counts that do not fit ``domain``, :class:`BudgetError` if the budget or a share of it is less than 1
        µε, and :class:`ParameterError` for less than 1 point per user.
        """
        if epsilon_micro < 1:
            raise BudgetError(f"budget of {epsilon_micro} µε; give at least 1")
        if points_per_user < 1:
            raise ParameterError(f"{points_per_user} points per user; give at least 1")
        return self.draw(domain.counts_of(points_or_counts), domain, epsilon_micro, noise, points_per_user)

    @abstractmethod
    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> Histogram:
        """The draw of :meth:`fit` on ``counts``, shape (rows, columns), all arguments checked."""


def laplace_ratio(epsilon_micro: int, sensitivity: int) -> tuple[int, int]:
    """Noise scale ``sensitivity``/ε as an integer ratio in lowest terms."""
    numerator, denominator = sensitivity * MICRO, epsilon_micro
    common = math.gcd(numerator, denominator)
    return numerator // common, denominator // common


def noisy_counts(counts: IntGrid, epsilon_micro: int, sensitivity: int, noise: Noise) -> IntGrid:
    """``counts`` + discrete Laplace noise of scale ``sensitivity``/ε on every entry: ε-DP where ``counts`` as a whole
    changes by at most ``sensitivity`` in L1.
    """
    numerator, denominator = laplace_ratio(epsilon_micro, sensitivity)
    drawn = noise.discrete_laplace(numerator, denominator, size=counts.size)
    return counts + np.asarray(drawn, dtype=np.int64).reshape(counts.shape)


def can_draw(epsilon_micro: int, sensitivity: int) -> bool:
    """Whether :func:`noisy_counts` can draw noise of this scale."""
    return laplace_ratio(epsilon_micro, sensitivity)[0] <= MAX_SCALE_NUMERATOR


def laplace_variance(epsilon_micro: int, sensitivity: int) -> float:
    """Variance of one draw of :func:`noisy_counts`: 2q/(1−q)², q = exp(−ε/sensitivity)."""
    rate = epsilon_micro / (sensitivity * MICRO)
    # Far below any count's unit the noise is 0 in effect, and expm1 would overflow.
    return 0.0 if rate > 600 else float(1.0 / (math.cosh(rate) - 1.0)) if rate > 1e-4 else 2.0 / rate**2


def choose(costs: IntGrid, epsilon_micro: int, sensitivity: int, noise: Noise) -> int:
    """Index drawn with P ∝ exp(−ε·cost/(2·sensitivity)), exactly: ε-DP where every cost changes by at most
    ``sensitivity`` between neighbours.

    Where 2·10⁶·``sensitivity`` exceeds what can be drawn, 2^40, costs and sensitivity are counted in the least unit q
    that makes it fit. Proof that ε-DP holds in it: |⌊a/q⌋ − ⌊b/q⌋| <= ⌈|a − b|/q⌉ <= ⌈sensitivity/q⌉. Raises
    :class:`ParameterError` below 1.
    """
    if sensitivity < 1:
        raise ParameterError(f"costs of sensitivity {sensitivity} cannot be chosen by; give at least 1")
    unit = -(-sensitivity // (MAX_SCALE_NUMERATOR // (2 * MICRO)))
    return int(noise.exponential(costs // unit, epsilon_micro, 2 * -(-sensitivity // unit) * MICRO)[0])
