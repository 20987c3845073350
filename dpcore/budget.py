"""Privacy budgets as integers of micro-epsilon (µε): charges round up, allowances round down.

Floats never enter a ledger. A loss is charged at least what it is; an allowance grants at most what it says.

Rolling grants (S17) are what each user may lose in the next window, from what they have left and the windows still to
come. Relation "values" only: there charges are functions of public counts, earlier releases and the ledger.
To be proved: if every window charges at most its grant, a user's charges of a period never exceed their budget, and the
grant depends on that user's own past charges and on public facts only, as the individual filter demands (Feldman and
Zrnic 2021). Proof: the grant is at most budget − spent; its arguments are one user's own. Tested: over random periods,
with a grant of another user's ledger planted, in ``tests/dpcore/test_contributions.py``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Self

import numpy as np

from dpcore.arrays import IntArray
from dpcore.errors import BudgetError

Amount = float | str | Decimal | Fraction


MICRO = 1_000_000
"""µε in one unit of epsilon."""

ChargeBasis = Literal["counts", "own", "histograms"]
"""What a user's charge may depend on. "counts": the public counts of everybody. "own": the user's own data alone.
"histograms": the same, because histograms are released, which promise participation under either relation."""


def to_micro(epsilon: Amount, *, round_up: bool) -> int:
    """``epsilon`` in µε; floats are read as their shortest decimal form, so 0.1 is exactly 100 000 µε.

    Raises :class:`BudgetError` unless ``epsilon`` is finite and positive, or if an allowance rounds down to nothing.
    """
    try:
        exact = Fraction(str(epsilon)) if isinstance(epsilon, float | np.floating) else Fraction(epsilon)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise BudgetError(f"epsilon {epsilon!r} is not a finite number; give a positive one") from None
    if exact <= 0:
        raise BudgetError(f"epsilon {epsilon!r} is not above 0; give a positive number")
    micro = int(math.ceil(exact * MICRO) if round_up else math.floor(exact * MICRO))  # also of an integer of numpy
    if micro == 0:
        raise BudgetError(f"epsilon {epsilon!r} is below the resolution of 1e-6; give at least 1e-6")
    return micro


def from_micro(micro: int) -> float:
    """µε as epsilon, for reports only."""
    return micro / MICRO


@dataclass(frozen=True)
class BudgetSplit:
    """Shares of a budget in integer µε, spent one after another on the same user; they add up to ``total`` exactly.

    Raises :class:`BudgetError` for shares below 1 µε or that do not add up.
    """

    total: int
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 1:
            raise BudgetError(f"shares {self.shares} µε; every share must be at least 1 µε, give a larger epsilon")
        if sum(self.shares) != self.total:
            raise BudgetError(f"shares {self.shares} µε add up to {sum(self.shares)}, not {self.total}; correct them")

    @classmethod
    def by_weights(cls, total: int, weights: Sequence[float]) -> Self:
        """Shares in proportion to public positive ``weights``, rounded down, the remainder to the largest."""
        if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise BudgetError(f"budget weights {list(weights)}; give finite numbers above 0")
        return cls(total, _proportional(total, tuple(weights)))


@lru_cache(maxsize=1024)
def _proportional(total: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Shares of ``total`` in proportion to ``weights``, in exact fractions: the same in every window."""
    exact = [Fraction(weight) for weight in weights]
    whole = sum(exact)
    shares = [int(total * weight / whole) for weight in exact]
    shares[max(range(len(shares)), key=lambda i: exact[i])] += total - sum(shares)
    return tuple(shares)


def rolling_grants(budget: int, spent: IntArray, windows_left: IntArray | int) -> IntArray:
    """⌊(budget − spent)/windows left⌋ of each user, shape (L,), 0 where nothing is left; in the ledger's unit.

    ``windows_left``: windows of the period in which a user may still be active, this one among them, (L,) or one for
    all; less than 1 counts as 1. So whoever was absent gets what they did not spend. Raises :class:`BudgetError` for
    amounts that are no integers.
    """
    if not np.issubdtype(np.asarray(spent).dtype, np.integer) or not np.issubdtype(
        np.asarray(windows_left).dtype, np.integer
    ):
        raise BudgetError("spent amounts and windows are integers; count in micro-epsilon or nano-rho")
    if budget < 0 or np.any(spent < 0):
        raise BudgetError(f"a budget of {budget} or an amount spent is below 0; the ledger is damaged")
    left = np.maximum(budget - spent, 0)
    return np.asarray(left // np.maximum(windows_left, 1), dtype=np.int64)
