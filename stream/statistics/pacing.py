"""Spreads a budget that is too small for all windows of a period evenly over them, for each user alone.

Without it, users are admitted first come, first served: one who is active all day has nothing left in the evening.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpcore.arrays import IntArray
from dpcore.budget import rolling_grants
from stream.statistics.plan import Due

_ODD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: its multiples spread over all 64-bit numbers."""


def spendable(left: IntArray, users: npt.NDArray[np.uint64], due: Due, budget: int) -> IntArray:
    """What each of ``users`` may spend in the window that is ``due``, shape (L,), in the ledger's unit: at most
    ``left``.

    ``left``: (L,) what they have left of ``budget`` in the window's period. With ``admission`` "paced" they may have
    spent, by the end of the window, the share of ``budget`` that has passed of the period, plus a part of one window's
    grant. That part is drawn for each user and period by their pseudonym, so that users take turns instead of being
    absent together. It depends on the time, the configuration and the user's own past charges and pseudonym alone, so
    charges remain what the filter of docs/privacy.md admits under either relation: pacing admits nobody whom the ledger
    would refuse. With "rolling", for relation "values", they may spend an even share of what they have left over the
    windows left of the period (:mod:`dpcore.budget`).
    """
    if due.terms.privacy.rolling:
        return rolling_grants(budget, np.maximum(budget - left, 0), due.windows_left)
    if not due.terms.privacy.paced:
        return left
    period = due.period
    passed = budget * (due.window.end - period.start) // (period.end - period.start)
    turns = (users ^ np.uint64(period.start)) * np.uint64(_ODD)
    turns = (turns ^ turns >> np.uint64(32)) * np.uint64(_ODD)
    turns ^= turns >> np.uint64(32)
    ahead = (turns % np.uint64(due.terms.window_grant)).astype(np.int64)
    spent = budget - left
    paced: IntArray = np.clip(passed + ahead - spent, 0, np.maximum(left, 0))
    return paced
