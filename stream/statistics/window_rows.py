"""The rows of one window as its statistics read them: without duplicates, faulty fixes and what is beyond a user's
limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.contributions import Contributions, Counts
from stream.statistics.fix_rules import refused
from stream.statistics.histograms.fixes import Fixes, fixes_of
from stream.statistics.merging import by_planned_cells
from stream.statistics.plan import Plan, PlanError
from stream.statistics.user_limits import counted
from stream.terms import Reading
from stream.windows import utc_text

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]

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
    def of(cls, rows: npt.NDArray[np.void], reading: Reading) -> WindowRows:
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

    def as_planned(self, plan: Plan) -> WindowRows:
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
                "without "
                "positions; nothing was drawn. The next attempt reads them"
            )
        return WindowRows.of(self.rows, reading)

    def in_cells_of(self, plan: Plan) -> Contributions:
        """The contributions by the cells of ``plan``; raises as :func:`stream.statistics.merging.by_planned_cells`."""
        return by_planned_cells(plan, self.contributions)

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
