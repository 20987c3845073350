"""Zero-concentrated differential privacy (zCDP): budgets as integers of nano-rho (nρ), and conversion to (ε, δ).

A mechanism is ρ-zCDP if its Rényi divergence of every order α > 1 between neighbours is at most α·ρ (Bun and Steinke
2016, Definition 1.1). ρ adds up over releases. Discrete Gaussian noise of scale σ on an integer of sensitivity Δ costs
Δ²/(2σ²) (Canonne, Kamath and Steinke 2020, Theorem 4, "CKS"). Charges round up, allowances round down; floats only
guess.
"""

import math
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy

from dpcore._whole_numbers import is_whole_number, whole_number, whole_numbers
from dpcore.arrays import IntArray
from dpcore.budget import MICRO, from_micro
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError
from dpcore.noise import MAX_SCALE_NUMERATOR
from dpcore.scales import checked_sensitivity

NANO = 1_000_000_000
"""nρ in one unit of rho."""
MAX_RHO = 1_000
"""Largest rho of an allowance: nρ stay below 2^53, exact wherever they are stored."""

_DIGITS = 60
_GUARD = Decimal(10) ** -40
"""Above the error of a handful of operations at 60 digits."""


@lru_cache(maxsize=1024, typed=True)
def gaussian_ratio(sensitivity: int, rho_nano: int) -> tuple[int, int]:
    """Integers t, s with t/s >= σ = ``sensitivity``/√(2ρ), t <= 2^40, s a power of two: never less noise than promised.

    (0, 1), no noise, for sensitivity 0. Raises :class:`OverflowBoundError` where σ exceeds 2^40, :class:`BudgetError`
    for a budget below 1 nρ, :class:`ParameterError` for a sensitivity that is not an integer of 0 or more.
    """
    rho, moved = _checked_nano(rho_nano), checked_sensitivity(sensitivity)
    if moved == 0:
        return 0, 1
    # t/s >= Δ·√(10⁹/(2ρ)) iff 2ρ·t² >= 10⁹·Δ²·s², decided in integers.
    square = Fraction(NANO * moved**2, 2 * rho)
    for bits in range(31, -1, -1):
        wanted = square * 4**bits
        t = math.isqrt(math.ceil(wanted) - 1) + 1
        if t <= 2**32 or (bits == 0 and t <= MAX_SCALE_NUMERATOR):
            return t, 2**bits
    raise OverflowBoundError(
        f"a noise scale of {math.sqrt(square):.3g} quanta exceeds 2^40; use a coarser quantum or a larger rho"
    )


def gaussian_losses(sensitivities: IntArray, numerator: int, denominator: int) -> IntArray:
    """nρ each user loses to discrete Gaussian noise of scale t/s, rounded up: ⌈10⁹·Δ²·s²/(2t²)⌉, shape of
    ``sensitivities``.

    Raises :class:`ParameterError` for numbers that are not integers, a scale or a sensitivity below 0, or no noise
    where it is above 0; :class:`OverflowBoundError` for a loss of 2^62 nρ.
    """
    return _losses(sensitivities, 2, numerator, denominator)


def square_losses(squares: IntArray, numerator: int, denominator: int) -> IntArray:
    """As :func:`gaussian_losses` of users who move several numbers: ⌈10⁹·Q·s²/(2t²)⌉, Q the sum of their Δ²."""
    return _losses(squares, 1, numerator, denominator)


def _losses(moved: IntArray, power: int, numerator: int, denominator: int) -> IntArray:
    numerator, denominator = whole_number("numerator", numerator), whole_number("denominator", denominator)
    moved = whole_numbers("sensitivity", moved)
    if numerator < 0 or denominator < 1 or moved.min(initial=0) < 0:
        raise ParameterError(
            f"scale {numerator}/{denominator} or sensitivity {moved.min(initial=0)} is out of bounds; give numerators "
            "and sensitivities of 0 or more, and a denominator of at least 1"
        )
    if numerator == 0:
        if np.any(moved != 0):
            raise ParameterError("no noise protects only what nobody can move; give a positive scale")
        return np.zeros(np.shape(moved), dtype=np.int64)
    distinct, which = np.unique(moved, return_inverse=True)
    top, bottom = NANO * denominator**2, 2 * numerator**2
    losses = [-(-top * int(delta) ** power // bottom) for delta in distinct.tolist()]
    if losses and losses[-1] >= 2**62:
        raise OverflowBoundError(f"a loss of {losses[-1]} nρ exceeds 2^62; use a larger noise scale")
    return np.array(losses, dtype=np.int64)[which].reshape(np.shape(moved))


def rho_of_pure(epsilon_micro: int) -> int:
    """nρ that a pure ε-DP release costs: ε²/2 rounded up (Bun and Steinke 2016, Proposition 1.4)."""
    if not is_whole_number(epsilon_micro) or epsilon_micro < 0:
        raise BudgetError(f"an epsilon of {epsilon_micro!r} µε is not an integer of 0 or more; use budget.to_micro")
    return -(-(int(epsilon_micro) ** 2) * NANO // (2 * MICRO**2))


def epsilon_of_rho(rho_nano: int, delta: float) -> float:
    """Least known ε, rounded up to 10⁻⁶, with which ρ-zCDP implies (ε, ``delta``)-DP (CKS, Corollary 13).

    ε(α) = αρ + ln(1/(αδ))/(α−1) + ln(1 − 1/α) holds for every α > 1; floats choose α, decimals of 60 digits evaluate
    it.
    """
    if not 0 < delta < 1:
        raise ParameterError(f"delta {delta!r} is outside (0, 1); give one far below 1 over the number of users")
    rho, log_delta = _checked_nano(rho_nano) / NANO, math.log(delta)

    def of(log_order: float) -> float:
        excess = math.exp(log_order)
        order = 1 + excess
        return order * rho - (log_delta + math.log(order)) / excess + math.log(excess / order)

    guess = math.log(max(math.sqrt(-log_delta / rho), 1e-6))
    best = scipy.optimize.minimize_scalar(of, bracket=(guess - 1, guess + 1)).x
    with localcontext() as context:
        context.prec = _DIGITS
        excess = Decimal(math.exp(best))
        order = 1 + excess
        log = Decimal(repr(delta)).ln() + order.ln()
        epsilon = order * Decimal(int(rho_nano)) / NANO - log / excess + (excess / order).ln() + _GUARD
        micro = int((epsilon * MICRO).to_integral_value(rounding=ROUND_CEILING))
    return from_micro(max(micro, 0))


def rho_of(epsilon: float, delta: float) -> int:
    """Most nρ that :func:`epsilon_of_rho` converts to at most ``epsilon``; raises :class:`BudgetError` below 1 nρ."""
    if not 0 < epsilon <= MAX_RHO:
        raise BudgetError(f"epsilon {epsilon!r} is outside (0, {MAX_RHO}]; give a number inside")
    low, high = 0, math.ceil(epsilon * NANO)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_of_rho(middle, delta) <= epsilon else (low, middle)
    if low == 0:
        raise BudgetError(f"epsilon {epsilon} at delta {delta} allows less than 1 nρ; give a larger epsilon")
    return low


def _checked_nano(rho_nano: int) -> int:
    if not is_whole_number(rho_nano) or rho_nano < 1:
        raise BudgetError(f"rho of {rho_nano!r} nρ is not an integer of at least 1; count in nano-rho")
    return int(rho_nano)
