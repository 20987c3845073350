"""Rolling grants (S17): what each user may lose in the next window, from what they have left and the windows still to
come.

To be proved: if every window charges at most its grant, a user's charges of a period never exceed their budget, and the
grant depends on that user's own past charges and on public facts only, as the individual filter demands (Feldman and
Zrnic 2021). Proof: the grant is at most budget − spent; its arguments are one user's own. Tested: over random periods,
with a grant of another user's ledger planted, in ``tests/dpcore/test_participation.py``.

Relation "values" only: there charges are functions of public counts, earlier releases and the ledger.
"""

from __future__ import annotations

import numpy as np

from dpcore.arrays import IntArray
from dpcore.errors import BudgetError


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
