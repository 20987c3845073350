"""Privacy budgets as integers of micro-epsilon (µε): charges round up, allowances round down.

Floats never enter a ledger. A loss is charged at least what it is; an allowance grants at most what it says.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from dpcore.errors import BudgetError

MICRO = 1_000_000
"""µε in one unit of epsilon."""


def to_micro(epsilon: float | str | Decimal | Fraction, *, round_up: bool) -> int:
    """``epsilon`` in µε; floats are read as their shortest decimal form, so 0.1 is exactly 100 000 µε.

    Raises :class:`BudgetError` unless ``epsilon`` is finite and positive, or if an allowance rounds down to nothing.
    """
    try:
        exact = Fraction(repr(epsilon)) if isinstance(epsilon, float) else Fraction(epsilon)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise BudgetError(f"epsilon {epsilon!r} is not a finite number; give a positive one") from None
    if exact <= 0:
        raise BudgetError(f"epsilon {epsilon!r} is not above 0; give a positive number")
    scaled = exact * MICRO
    micro = math.ceil(scaled) if round_up else math.floor(scaled)
    if micro == 0:
        raise BudgetError(f"epsilon {epsilon!r} is below the resolution of 1e-6; give at least 1e-6")
    return micro


def from_micro(micro: int) -> float:
    """µε as epsilon, for reports only."""
    return micro / MICRO
