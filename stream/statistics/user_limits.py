"""What one user may count for in one window: so many events, in so many cells. Which ones is a rule on their own rows.

A window's cost follows from its (cell, user) pairs, and a sender chooses how many pairs their users make; the limits
bound what each can cost. Nobody's rows decide about another's, and measured values decide nothing. So under relation
"participation" (neighbours differ by all of one user's events) removing a user changes that user's part alone, and
under "values" (neighbours differ in one user's values) both histories keep the same rows: sensitivities and charges are
as before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpcore.contributions import Contributions, Counts
from stream.terms import UserLimits

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def counted(limits: UserLimits, rows: npt.NDArray[np.void], contributions: Contributions) -> BoolArray | None:
    """Which of ``rows`` count within ``limits``, shape (N,); None where all of them do.

    ``contributions``: those of ``rows``, one event per user and time. Of a user above a limit count the first events in
    time; then, of these, those in the cells with most of them, the lowest cell first where cells have equally many.
    """
    counts = contributions.counts
    above = np.zeros(counts.n_users, dtype=bool)
    if limits.events:
        above |= counts.by_user(counts.samples) > limits.events
    if limits.cells:
        above |= np.bincount(counts.pair_user, minlength=counts.n_users) > limits.cells
    if not above.any():
        return None
    pairs, last = _chosen(limits, contributions, above)
    user = np.searchsorted(counts.users, rows["user"])
    of_limited = np.flatnonzero(above[user])
    owner, own = user[of_limited], rows[of_limited]
    cell = np.minimum(np.searchsorted(counts.cells, own["cell"]), counts.n_cells - 1)
    # Some cells occur only in rows that were removed as duplicates of another row with the same user and time.
    chosen = np.isin(cell * counts.n_users + owner, pairs) & (counts.cells[cell] == own["cell"])
    counted = np.ones(len(rows), dtype=bool)
    counted[of_limited] = (own["time"] <= last[owner]) & chosen
    return counted


def _chosen(limits: UserLimits, contributions: Contributions, above: BoolArray) -> tuple[IntArray, IntArray]:
    """Of users ``above`` a limit: the pairs that count, as cell · L + user, and the time of each user's last event
    (L,)."""
    counts = contributions.counts
    event_pair = np.repeat(np.arange(len(counts.samples)), counts.samples)
    events = np.flatnonzero(above[counts.pair_user[event_pair]])
    user, time = counts.pair_user[event_pair[events]], contributions.times[events]
    order = np.lexsort((time, user))
    first = order[_rank(user[order]) < (limits.events or len(order))]
    last = np.zeros(counts.n_users, dtype=np.int64)
    last[user[first]] = time[first]  # in ascending order of time, so the last one stays
    chosen = _with_most_events(limits, counts, *np.unique(event_pair[events][first], return_counts=True))
    return counts.pair_cell[chosen] * counts.n_users + counts.pair_user[chosen], last


def _with_most_events(limits: UserLimits, counts: Counts, pair: IntArray, events: IntArray) -> IntArray:
    """Of each user the pairs among ``pair`` with most ``events``, as many as cells may count."""
    order = np.lexsort((pair, -events, counts.pair_user[pair]))
    chosen: IntArray = pair[order][_rank(counts.pair_user[pair[order]]) < (limits.cells or len(order))]
    return chosen


def _rank(group: IntArray) -> IntArray:
    """Place of each entry within its group, from 0; ``group`` is sorted."""
    return np.arange(len(group)) - np.searchsorted(group, group)
