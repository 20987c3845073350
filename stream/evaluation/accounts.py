"""What the users of a simulated feed have paid, by the rules of the ledger; it lives in memory and has no server."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from dpcore.arrays import IdArray, IntArray
from stream.statistics.pacing import spendable
from stream.statistics.plan import Allowance, Due, Plan


class Accounts:
    """Users pay from the budget of the period and, with a horizon, from that of its block, as
    :meth:`stream.protocol.planning.Planning.make` has them pay.
    """

    def __init__(self) -> None:
        self._spent: dict[str, Counter[int]] = defaultdict(Counter)

    def allowance(self, due: Due, users: IdArray) -> Allowance:
        """What each of ``users`` (L,) may spend in the window that is ``due``."""
        budget, block = due.terms.privacy.budget, due.period.block
        left = spendable(self._left(due.period.key, budget, users), users, due, budget)
        if block is not None:
            left = np.minimum(left, self._left(block.key, block.budget, users))
        return Allowance(left, budget)

    def pay(self, due: Due, plan: Plan) -> None:
        """Add the charges of a plan."""
        users, charged = plan.charged_users()
        paid, block = dict(zip(users.tolist(), charged.tolist(), strict=True)), due.period.block
        for key in (due.period.key, *(() if block is None else (block.key,))):
            self._spent[key].update(paid)

    def _left(self, key: str, budget: int, users: IdArray) -> IntArray:
        spent = self._spent[key]
        return np.array([budget - spent[user] for user in users.tolist()], dtype=np.int64)
