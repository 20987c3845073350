"""The candidates of the selections that :meth:`dpcore.noise.Noise.exponential` makes in one call, by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore._whole_numbers import whole_numbers
from dpcore.errors import OverflowBoundError, ParameterError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Candidates of k selections. ``start``: (k,), first candidate of each; ``excess``: (n,), cost above the least of
    its group among candidates of positive weight, 0 where the weight is 0; ``cumulative``: (n+1,), sums of the weights;
    ``base``, ``total``: (k,), the sums before each group and within it.
    """

    start: IntArray
    excess: IntArray
    cumulative: IntArray
    base: IntArray
    total: IntArray

    @classmethod
    def of(cls, costs: IntArray, offsets: IntArray | None, weights: IntArray | None) -> Groups:
        """Raises as :meth:`dpcore.noise.Noise.exponential`."""
        costs = whole_numbers("cost", costs)
        bounds = np.array([0, len(costs)]) if offsets is None else whole_numbers("offset", offsets)
        if np.any(np.diff(bounds) < 1):
            raise ParameterError("a selection among 0 candidates has no outcome; give every group at least 1")
        w = whole_numbers("weight", np.ones(len(costs), dtype=np.int64) if weights is None else weights)
        if np.any(w < 0):
            raise ParameterError("a negative weight is no measure; give weights of 0 or more")
        if float(w.astype(np.float64).sum()) >= 2.0**62:
            raise OverflowBoundError("the weights sum to 2^62 or more; use coarser weights")
        start = bounds[:-1]
        cumulative = np.append(0, np.cumsum(w))
        total = cumulative[bounds[1:]] - cumulative[start]
        if np.any(total == 0):
            raise ParameterError("all weights of a selection are 0; give one candidate a positive weight")
        usable = np.where(w > 0, costs, np.iinfo(np.int64).max)
        excess = costs - np.repeat(np.minimum.reduceat(usable, start), np.diff(bounds))
        excess[w == 0] = 0
        return cls(start, excess, cumulative, cumulative[start], total)

    def candidates(self, group: IntArray, drawn: IntArray) -> IntArray:
        """The proposed candidate for each entry of ``group``, from uniform integers ``drawn`` of 0..total-1.

        The weights of a group divide this range into one interval for each candidate. The candidate in whose interval
        the integer lies is proposed, so each has P ∝ its weight.
        """
        return np.searchsorted(self.cumulative, self.base[group] + drawn, side="right") - 1
