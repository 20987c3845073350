"""An amount of privacy loss as a whole number of a ledger's units (µε, nρ), without floating point in between."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

from dpcore.errors import BudgetError

Amount = float | str | Decimal | Fraction


def exact_amount(name: str, amount: Amount) -> Fraction:
    """``amount`` as a fraction; floats are read as their shortest decimal form.

    Raises :class:`BudgetError`, which calls it ``name``, unless it is a finite number.
    """
    try:
        return Fraction(str(amount)) if isinstance(amount, float | np.floating) else Fraction(amount)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise BudgetError(f"{name} {amount!r} is not a finite number; give a positive one") from None


def whole_units(name: str, exact: Fraction, per_one: int, *, round_up: bool, given: Amount) -> int:
    """``exact`` in units of which ``per_one``, a power of ten, make 1: charges are rounded up, allowances down.

    Raises :class:`BudgetError`, which calls it ``name`` and shows what was ``given``, if it is rounded down to nothing.
    """
    scaled = exact * per_one
    units = math.ceil(scaled) if round_up else math.floor(scaled)
    if units == 0:
        least = f"1e-{len(str(per_one)) - 1}"
        raise BudgetError(f"{name} {given!r} is below the resolution of {least}; give at least {least}")
    return units
