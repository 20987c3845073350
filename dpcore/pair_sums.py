"""Sums of values for each (cell, user) pair: all that :mod:`dpcore.mean` and :mod:`dpcore.variance` read of values.

What they draw from these sums is what they draw from the values: Σx and Σx² of a cell, capped or not, are sums over its
pairs, and integers add up in any order. So sensitivities and charges, which are functions of :class:`Counts`, hold as
they are. Values must have been clipped to [0, U] before they were added: a bound that is applied to a sum is no bound
of each value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpcore.arrays import IdArray, IntArray
from dpcore.contributions import Contributions, Counts, check_squares, check_values, numbered_pairs
from dpcore.errors import ParameterError
from dpcore.event_order import indexed


@dataclass(frozen=True)
class PairSums:
    """Σx and Σx² of the values behind :class:`Counts`, shape (P,) each; every value was in [0, ``upper``] quanta."""

    counts: Counts
    sums: IntArray
    squares: IntArray
    upper: int

    @classmethod
    def group(
        cls, cell: IdArray, user: IdArray, samples: IntArray, sums: IntArray, squares: IntArray, *, upper: int
    ) -> PairSums:
        """Add up parts of pairs, columns of shape (N,); those of one pair are added.

        Raises :class:`ParameterError` for sums that ``samples`` values in [0, ``upper``] cannot have, and
        :class:`OverflowBoundError` where :meth:`Contributions.group` does for as many values.
        """
        if not len(cell) == len(user) == len(samples) == len(sums) == len(squares):
            raise ParameterError("columns of pairs have unequal lengths; give one entry of each for every pair")
        _check_sums(samples, sums, squares, upper)
        cells, users, pair = numbered_pairs(cell, user)
        distinct, position = indexed(pair)
        totals = [np.zeros(len(distinct), dtype=np.int64) for _ in range(3)]
        for total, column in zip(totals, (samples, sums, squares), strict=True):
            np.add.at(total, position, column)  # bincount would add in floating point
        pair_cell, pair_user = np.divmod(distinct, max(len(users), 1))
        return cls(Counts(cells, users, pair_cell, pair_user, totals[0]), totals[1], totals[2], upper)

    @classmethod
    def of(cls, contributions: Contributions) -> PairSums:
        """The sums of ``contributions``; raises :class:`OverflowBoundError` where squares could leave int64."""
        counts, values = contributions.counts, contributions.values
        check_squares(len(values), contributions.upper)
        pair = np.repeat(np.arange(len(counts.samples)), counts.samples)
        sums, squares = np.zeros((2, len(counts.samples)), dtype=np.int64)
        np.add.at(sums, pair, values)
        np.add.at(squares, pair, values * values)
        return cls(counts, sums, squares, contributions.upper)

    @classmethod
    def merged(cls, *several: PairSums) -> PairSums:
        """The sums of all of them; those of one pair are added. At least one."""
        columns = [
            (
                one.counts.cells[one.counts.pair_cell],
                one.counts.users[one.counts.pair_user],
                one.counts.samples,
                one.sums,
                one.squares,
            )
            for one in several
        ]
        cell, user, samples, sums, squares = (np.concatenate(column) for column in zip(*columns, strict=True))
        return cls.group(cell, user, samples, sums, squares, upper=max(one.upper for one in several))

    def among(self, pairs: npt.NDArray[np.bool_]) -> PairSums:
        """These ``pairs`` alone, (P,); users and cells without one are left out."""
        counts = self.counts
        cell, user = counts.cells[counts.pair_cell[pairs]], counts.users[counts.pair_user[pairs]]
        return PairSums.group(
            cell, user, counts.samples[pairs], self.sums[pairs], self.squares[pairs], upper=self.upper
        )

    def regroup(self, renamed: IdArray) -> PairSums:
        """The same sums with cell g called ``renamed[g]``, shape (C,); a user's in cells of one name are one pair."""
        counts = self.counts
        if len(renamed) != counts.n_cells:
            raise ParameterError(f"{len(renamed)} names for {counts.n_cells} cells; give one for each")
        cell, user = renamed[counts.pair_cell], counts.users[counts.pair_user]
        return PairSums.group(cell, user, counts.samples, self.sums, self.squares, upper=self.upper)

    def retain(self, samples: IntArray) -> PairSums:
        """The pairs with all of their ``samples`` (P,); those with 0 stay, empty. Raises :class:`ParameterError` for
        any other number.

        Which values of a pair came first cannot be told from their sum.
        """
        available = self.counts.samples
        if len(samples) != len(available) or np.any((samples != 0) & (samples != available)):
            raise ParameterError(
                "sums of a pair can be retained as a whole or not at all; plan from these counts, without clipping"
            )
        kept = samples > 0
        counts = replace(self.counts, samples=samples.astype(np.int64))
        return PairSums(counts, np.where(kept, self.sums, 0), np.where(kept, self.squares, 0), self.upper)

    @property
    def pair_sums(self) -> IntArray:
        """As :attr:`Contributions.pair_sums`."""
        return self.sums

    def cell_sums(self, caps: IntArray | None = None) -> IntArray:
        """As :meth:`Contributions.cell_sums`."""
        own = self.sums if caps is None else np.minimum(self.sums, caps[self.counts.pair_cell])
        return self.counts.by_cell(own)

    def cell_squares(self) -> IntArray:
        """As :meth:`Contributions.cell_squares`."""
        check_squares(int(self.counts.samples.sum()), self.upper)
        return self.counts.by_cell(self.squares)


def _check_sums(samples: IntArray, sums: IntArray, squares: IntArray, upper: int) -> None:
    if upper < 0 or np.any(samples < 0):
        raise ParameterError("an upper bound or a number of samples is negative; give 0 or more")
    check_values(int(samples.sum()), upper)
    # Σx² lies between Σx, as values are whole, and U·Σx.
    if np.any((sums < 0) | (sums > samples * upper) | (squares < sums) | (-(-squares // max(upper, 1)) > sums)):
        raise ParameterError(f"sums of a pair are none of values in [0, {upper}] quanta; what is stored is damaged")


Summable = Contributions | PairSums
"""What a mean and a variance are drawn from."""
