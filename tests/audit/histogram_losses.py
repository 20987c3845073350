"""What the shipped draw of spatial histograms costs each user over three windows, exact, beside what they are charged
for them: for "singular", whose noise is added to the counts themselves."""

from fractions import Fraction

import numpy as np

from stream.config import Config
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.histograms.histograms import (
    contributing,
    draw_histograms,
    exact_counts,
)
from stream.statistics.plan import Plan
from tests.audit.values_losses import Asked
from tests.support.builders import SLOT, located_rows
from tests.support.releasing import planned_with_fixes

WINDOWS = 3


def integers(plan: Plan, fixes: Fixes) -> np.ndarray:
    """What "singular" adds noise to."""
    assert plan.terms.histogram is not None
    return np.asarray(exact_counts(plan.terms.histogram, contributing(plan, fixes)))


def worst_share_of_histograms(config: Config, seed: int = 0) -> Fraction:
    """The largest part of their charges for histograms that any user who leaves loses over the windows."""
    spent, paid, lost = dict[int, int](), dict[int, int](), dict[int, Fraction]()

    def planned(rows: np.ndarray, slot: int) -> tuple[Plan, Fixes]:
        users = np.unique(rows["user"]).tolist()
        left = np.array([config.privacy.ledger_budget - spent.get(user, 0) for user in users], dtype=np.int64)
        plan, _, fixes = planned_with_fixes(config, rows, left, slot)
        assert fixes is not None
        return plan, fixes

    for number in range(WINDOWS):
        slot = SLOT + 3600 * number
        rows = located_rows(seed + number, 60, users=8, slot=slot)
        plan, fixes = planned(rows, slot)
        draw_histograms(plan, fixes, asked := Asked())
        ((t, s),) = set(asked.scales)
        exact, terms = integers(plan, fixes), plan.terms.histogram
        assert terms is not None
        payers = set(contributing(plan, fixes).users.tolist())
        for user in plan.users.tolist():
            moved = np.abs(exact - integers(*planned(rows[rows["user"] != user], slot))).sum()
            lost[user] = lost.get(user, Fraction(0)) + Fraction(int(moved) * s, t)
            paid[user] = paid.get(user, 0) + terms.cost * (user in payers)
        for user, charge in zip(plan.users.tolist(), plan.charges.tolist(), strict=True):
            spent[user] = spent.get(user, 0) + charge
    assert max(spent.values()) <= config.privacy.ledger_budget
    return max(loss * 1_000_000 / paid[user] if paid[user] else loss * 10**9 for user, loss in lost.items())
