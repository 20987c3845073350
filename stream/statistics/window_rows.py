"""The rows of one window as its statistics read them: without duplicates, faulty fixes and what is beyond a user's
limits.

What one user may count for in one window: so many events, in so many cells. Which ones is a rule on their own rows.

A window's cost follows from its (cell, user) pairs, and a sender chooses how many pairs their users make; the limits
bound what each can cost. Nobody's rows decide about another's, and measured values decide nothing. So under relation
"participation" (neighbours differ by all of one user's events) removing a user changes that user's part alone, and
under "values" (neighbours differ in one user's values) both histories keep the same rows: sensitivities and charges are
as before.
"""

from dataclasses import dataclass, replace
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, IdArray, IntArray
from dpcore.contributions import Contributions, Counts
from stream.statistics.fix_rules import refused
from stream.statistics.histograms.fixes import Fixes, fixes_of
from stream.statistics.plan import Plan, PlanError
from stream.terms import Reading, UserLimits
from stream.windows import utc_text


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
    """Of users ``above`` a limit: the pairs that count, as cell · L + user, and each user's last time (L,)."""
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


_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose bits look random: products of different users rarely differ by a difference of times."""


@dataclass(frozen=True)
class WindowRows:
    """The rows of one window, as one ``reading`` counts them.

    ``rows``: all of them, perhaps without lat and lng if the reading needs no positions. ``contributions`` and
    ``fixes``: of those that count; ``fixes``: inside the reading's box, None without one. ``refused``: number of rows
    by reason, and ``beyond_limits``: rows that do not count because their user is above a limit; both for operators
    only.
    """

    rows: npt.NDArray[np.void]
    reading: Reading
    contributions: Contributions
    fixes: Fixes | None
    refused: dict[str, int]
    beyond_limits: int

    @classmethod
    def of(cls, rows: npt.NDArray[np.void], reading: Reading) -> Self:
        """``rows`` of one window, whose order is immaterial, in their one order."""
        verdicts = refused(reading.rules, rows)
        numbers = {reason: int(verdict.sum()) for reason, verdict in verdicts.items()}
        plausible = rows[~np.logical_or.reduce(list(verdicts.values()))] if any(numbers.values()) else rows
        kept, contributions = plausible, contributions_of(plausible, reading.upper_quanta, reading.lower_quanta)
        within = counted(reading.limits, plausible, contributions)
        if within is not None:
            kept = plausible[within]
            contributions = contributions_of(kept, reading.upper_quanta, reading.lower_quanta)
        fixes = fixes_of(kept, reading.box, declared=reading.declared)
        return cls(rows, reading, contributions, fixes, numbers, len(plausible) - len(kept))

    def as_planned(self, plan: Plan) -> "WindowRows":
        """The rows as ``plan`` reads them; it may have been made on other terms than these were read on.

        Raises :class:`PlanError` if another worker planned by positions after rows were read without them.
        """
        reading = plan.terms.reading
        if reading == self.reading:
            return self
        if reading == msgspec.structs.replace(self.reading, box=None, declared=False):
            return replace(self, reading=reading, fixes=None)
        if reading.positions and "lat" not in (self.rows.dtype.names or ()):
            raise PlanError(
                f"another worker planned window {utc_text(plan.window.start)} by positions while this one read it "
                "without positions; nothing was drawn. The next attempt reads them"
            )
        return WindowRows.of(self.rows, reading)

    @property
    def counts(self) -> Counts:
        """Who contributed how often where."""
        return self.contributions.counts


def contributions_of(rows: npt.NDArray[np.void], upper: int, lower: int = 0) -> Contributions:
    """Remove duplicates of (user, time), count values from ``lower`` quanta, clip them to [0, ``upper``] and sort by
    (cell, user, time). The order of ``rows`` does not matter.

    Of rows with equal (user, time), the one with the lowest (cell, value) is kept. Whatever the values, this is one
    sample of that user, so sensitivities are unchanged.
    """
    repeated = _repeated(rows["user"], rows["time"])
    kept = rows
    if len(repeated):
        candidates = rows[repeated]
        order = np.lexsort((candidates["value"], candidates["cell"], candidates["time"], candidates["user"]))
        user, time = candidates["user"][order], candidates["time"][order]
        keep = np.ones(len(rows), dtype=bool)
        keep[repeated[order[1:]]] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
        kept = rows[keep]
    values = kept["value"].astype(np.int64) - lower if lower else kept["value"]
    return Contributions.group(kept["cell"], kept["user"], kept["time"], values, upper=upper)


def _repeated(user: IdArray, time: IntArray) -> IntArray:
    """Indices of the rows that share their (user, time) with another, and perhaps of a few more."""
    ordered = _mixed(user, time)
    ordered.sort()
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.isin(_mixed(user, time), np.unique(ordered[1:][again])))


def _mixed(user: IdArray, time: IntArray) -> IdArray:
    """One number per row, modulo 2^64; rows of equal (user, time) have equal ones."""
    mixed: IdArray = user * _MIXER
    mixed += time.view(np.uint64)
    return mixed
