"""95 % intervals of range counts, by construction: what the blocks inside a range hold at least, and those it touches
at most.

A release says nothing about where inside a block its points lie. A range that cuts blocks holds at least the points of
the blocks inside it and at most those of the blocks that it touches, however unevenly they lie. Both are sums of
released counts whose noise is known. So an interval holds the truth in 95 % of draws or more, for every data set,
whatever reading of the draws is shown beside it. It is wide where blocks are large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from dpcore.spatial.range_noise import Tails

_HAIR = 1e-6
"""Of a count: released counts are rounded, and sums of many of them in floating point."""


@dataclass(frozen=True)
class Intervals:
    """``low`` ≤ ``high``, whole numbers of 0 or more, each of shape (Q,)."""

    low: FloatArray
    high: FloatArray

    def hold(self, truth: FloatArray) -> npt.NDArray[np.bool_]:
        """Which intervals hold the ``truth`` (Q,)."""
        return np.asarray((self.low <= truth) & (truth <= self.high))


@dataclass(frozen=True)
class NoisySums:
    """Unbiased sums (Q,) of ``parts`` (Q,) released counts each and how far their noise reaches. A sum of no counts is
    0 without noise.
    """

    counts: FloatArray
    parts: npt.NDArray[np.int64]
    tails: Tails


def between(inner: NoisySums, outer: NoisySums) -> Intervals:
    """95 % intervals of whole numbers t with I ≤ t ≤ O, I and O the true sums behind ``inner`` and ``outer``, whose
    parts include those of ``inner``.

    A t is rejected where the inner sum exceeds t by more than noise does, or the outer one is less by more than
    ``down``: together 5 % or less, at any t. Of one sum, the same inside and outside, ``up`` takes what ``down`` leaves
    of 5 %. Two sums have noise of their own, and ``down`` of the greater one may take all of its 2.5 %: the inner one
    has its own ``down`` on its side, too.

    A t of at most ``down`` is never rejected from above, so the inner sum may miss alone there: such t are
    rejected beyond clip(t, ``alone``, ``up``). This orders rejections by likelihood ratio for counts ≥ 0, as Feldman
    and Cousins (1998) do, and keeps intervals from being empty where noise carries a count below 0.
    """
    down = np.maximum(inner.tails.down, outer.tails.down)
    up = np.where(inner.parts == outer.parts, inner.tails.up, inner.tails.down)
    reach = np.clip(inner.counts / 2, inner.tails.alone, up)
    low = np.maximum(np.ceil(inner.counts - reach - _HAIR), 0.0)
    high = np.floor(np.maximum(outer.counts, 0.0) + down + _HAIR)
    # Steps of noise smaller than 1 may leave no whole number between: the nearest one then.
    return Intervals(np.minimum(low, np.maximum(high, np.rint(inner.counts))), np.maximum(high, low))
