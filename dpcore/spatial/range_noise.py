"""Intervals of range counts, and how far the noise of the sum of several released counts may reach.

A released count is the truth plus noise X. Intervals need three quantiles of X, in counts: :class:`Tails`. They are
exact for sums of equal independent draws, and bounds for other sums. Everything here is computed from what a release
says about its own noise: no privacy depends on it.

A 95 % interval is what the blocks inside a range hold at least, and those it touches at most. A release says nothing
about where inside a block its points lie. A range that cuts blocks holds at least the points of the blocks inside it
and at most those of the blocks that it touches, however unevenly they lie. Both are sums of released counts whose noise
is known. So an interval holds the truth in 95 % of draws or more, for every data set, whatever reading of the draws is
shown beside it. It is wide where blocks are large.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

import numpy as np

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.errors import ParameterError

LEVEL = 0.95
"""Coverage that an interval promises."""
_MISS = 1 - LEVEL
_GAUSSIAN = 1.645 * math.sqrt(2) / math.log(1 / (2 * _MISS))
"""95 % quantile of Gaussian over that of Laplace noise, 1.010. The 97.5 % quantile is greater for Laplace noise."""
_LATTICE = 300.0
"""Standard deviation of whole-numbered noise from which on its steps do not matter."""


@dataclass(frozen=True)
class Tails:
    """Bounds of noise X, each of shape (Q,): P(X < −``down``) ≤ 2.5 %, P(X > ``up``) + P(X < −``down``) ≤ 5 %, and
    P(X > ``alone``) ≤ 5 %.

    ``alone`` ≤ ``up`` ≤ ``down``. Where the truth is so near to 0 that an interval can miss it on one side only, that
    side may use the whole 5 %.
    """

    alone: FloatArray
    up: FloatArray
    down: FloatArray


def independent_tails(number: IntArray, variance: float) -> Tails:
    """Tails of sums of ``number`` (Q,) independent discrete Laplace draws of ``variance`` each; exact below
    :data:`_LATTICE`."""
    distinct, index = np.unique(np.maximum(number, 0), return_inverse=True)
    quantiles = np.array([_sum_quantiles(int(n), float(variance)) for n in distinct]).reshape(-1, 3)[index]
    return Tails(quantiles[:, 0], quantiles[:, 1], quantiles[:, 2])


def spread_tails(variance: FloatArray) -> Tails:
    """Tails of noise of ``variance`` (Q,), a weighted sum of independent discrete Laplace draws with weights of at most
    1.

    One draw X, q = exp(−ε), has P(|X| > T) ≤ 2q^T/(1 + q) at every real T, which is 5 % at T = ln(40/(1 + q))/ε: half a
    count above the quantile of continuous noise or less. Sums have shorter tails than one draw of their variance v, and
    weights below 1 smaller steps, so this T is taken for all, with one exception. Where T < 1 all that counts is how
    often noise is not 0, and of a sum that is more often. Any noise exceeds √(v/5 %) in 5 % of draws or fewer
    (Chebyshev), so T is at least that, up to 1: beyond 1 noise must take two steps. Proved for one draw and for v ≤ 5
    %; tests/dpcore/spatial/test_intervals.py computes exact laws of other sums and trees.

    Least squares over a tree has weights of at most 1: sums of weights from the root on are potentials of a network of
    resistors whose ends have 0 or 1, so they lie between. Haar coefficients and the total of regions have such weights,
    too.
    """
    with np.errstate(divide="ignore"):
        epsilon = 2 * np.arcsinh(1 / np.sqrt(2 * variance))
    own = 1 + np.exp(-epsilon)
    two_sided = np.maximum(np.log(2 / (_MISS * own)) / epsilon, np.minimum(np.sqrt(variance / _MISS), 1.0))
    alone = np.maximum(
        _GAUSSIAN * np.log(1 / (_MISS * own)) / epsilon, np.minimum(np.sqrt(variance / (2 * _MISS)), 1.0)
    )
    return Tails(alone, two_sided, two_sided)


@lru_cache(maxsize=4096)
def _sum_quantiles(number: int, variance: float) -> tuple[float, float, float]:
    """``alone``, ``up``, ``down`` of a sum of discrete Laplace draws, by Fourier inversion."""
    deviation = math.sqrt(number * variance)
    if deviation == 0:
        return 0.0, 0.0, 0.0
    step = max(1.0, deviation / _LATTICE)
    q = math.exp(-math.acosh(1 + step**2 / variance))
    size = 1 << math.ceil(math.log2(40 * deviation / step + 64))
    angle = 2 * math.pi * np.arange(size // 2 + 1) / size
    one = (1 - q) ** 2 / (1 - 2 * q * np.cos(angle) + q**2)
    half = size // 2
    mass = np.maximum(np.fft.irfft(one**number, size), 0.0)[: half + 1]
    above = np.append(mass[::-1].cumsum()[::-1][1:], 0.0)  # above[k] = P(X > k) = P(X < −k)
    down = int(np.argmax(above <= _MISS / 2))
    up = int(np.argmax(above <= _MISS - above[down]))
    alone = int(np.argmax(above <= _MISS))
    return alone * step, up * step, down * step


def haar_share(cells: int, low: IntArray, high: IntArray) -> FloatArray:
    """Σ w², shape (Q,), of the weights with which [low, high) of ``cells`` cells sums Haar coefficients of unit
    variance.

    The base counts with its share of the padded axis; a difference of two halves of m cells in all counts with
    (cells in its first half − cells in its second half)/m.
    """
    size = 1 << (cells - 1).bit_length()
    total = ((high - low) / size) ** 2
    block = size
    while block > 1:
        half = block // 2
        for edge in (low, high):
            # Only blocks that an edge of the range cuts have a weight; a block cut by both edges is met once.
            start = edge // block * block
            first = np.minimum(np.maximum(np.stack([low, high]), start[None]), start[None] + half)
            second = np.minimum(np.maximum(np.stack([low, high]), start[None] + half), start[None] + block)
            weight = ((first[1] - first[0]) - (second[1] - second[0])) / block
            total += np.where((edge is high) & (low // block == high // block), 0.0, weight**2)
        block = half
    return np.asarray(total, dtype=np.float64)


class TreeNoiseError(ParameterError):
    """Numbers that are no tree of draws."""


@dataclass(frozen=True)
class TreeNoise:
    """Noise of the leaves of a tree after least squares: they share the draws of the nodes above them.

    Nodes level by level from the root; ``children`` (M,): how many each has, 0 for a leaf; the children of one level
    stand in the order of their parents. ``drawn`` (M,): noise variance of each node's own draw.
    """

    children: IntArray
    drawn: FloatArray

    def __post_init__(self) -> None:
        if len(self.children) != len(self.drawn) or not len(self.children):
            raise TreeNoiseError(
                f"{len(self.children)} nodes with {len(self.drawn)} variances; give one of each per node"
            )
        if np.any(self.children < 0) or not (np.isfinite(self.drawn).all() and np.all(self.drawn > 0)):
            raise TreeNoiseError("a node has fewer than 0 children or a variance that is not finite and above 0")
        if int(self.children.sum()) != len(self.children) - 1:
            raise TreeNoiseError(
                f"{int(self.children.sum())} children in a tree of {len(self.children)} nodes; give every node but the "
                "root once"
            )
        _ = self._starts

    @property
    def leaves(self) -> int:
        """How many nodes have no children."""
        return int(np.count_nonzero(self.children == 0))

    @cached_property
    def _starts(self) -> list[int]:
        """First node of every level, and the number of nodes."""
        starts = [0, 1]
        while starts[-1] < len(self.children):
            here = int(self.children[starts[-2] : starts[-1]].sum())
            if here == 0:
                raise TreeNoiseError(f"a tree whose level {len(starts) - 2} has no children while nodes are left over")
            starts.append(starts[-1] + here)
        return starts

    @cached_property
    def _own(self) -> FloatArray:
        """Variance of each node's best estimate from its own subtree alone, shape (M,)."""
        own = self.drawn.copy()
        for level in range(len(self._starts) - 3, -1, -1):
            inner, first = self._inner(level)
            below = np.add.reduceat(own[self._starts[level + 1] : self._starts[level + 2]], first)
            own[inner] = 1 / (1 / own[inner] + 1 / below)
        return own

    def _inner(self, level: int) -> tuple[IntArray, IntArray]:
        """Nodes of ``level`` that have children, and the place of the first child of each within the next level."""
        here = self.children[self._starts[level] : self._starts[level + 1]]
        inner = np.flatnonzero(here)
        return inner + self._starts[level], (np.cumsum(here) - here)[inner]

    def variances(self, weights: FloatArray) -> FloatArray:
        """Variance of Σ ``weights``·noise over the leaves, in their order: (Q, leaves) -> (Q,).

        Given a parent's error e, its children's are e shared in proportion to their own variances v, plus a remainder
        with covariance diag(v) − v·vᵀ/Σv: summed from the deepest level up.
        """
        total = np.zeros(len(weights))
        end, below = self.leaves, np.zeros((len(weights), 0))
        for level in range(len(self._starts) - 2, -1, -1):
            here = self.children[self._starts[level] : self._starts[level + 1]]
            at = np.empty((len(weights), len(here)))
            leaf = here == 0
            begin = end - int(np.count_nonzero(leaf))
            at[:, leaf] = weights[:, begin:end]
            end = begin
            if below.shape[1]:
                own = self._own[self._starts[level + 1] : self._starts[level + 2]]
                _, first = self._inner(level)
                spread = np.add.reduceat(own, first)
                mean = np.add.reduceat(own * below, first, axis=1)
                total += (np.add.reduceat(own * below**2, first, axis=1) - mean**2 / spread).sum(axis=1)
                at[:, ~leaf] = mean / spread
            below = at
        return np.asarray(np.maximum(total + below[:, 0] ** 2 * self._own[0], 0.0), dtype=np.float64)

    def to_release(self) -> dict[str, Any]:
        """JSON values: each distinct variance once, and which of them is each node's."""
        distinct, index = np.unique(self.drawn, return_inverse=True)
        return {"children": self.children.tolist(), "variances": distinct.tolist(), "draw": index.tolist()}

    @classmethod
    def from_release(cls, tree: dict[str, Any]) -> Self:
        """The noise of a release's structure; raises :class:`TreeNoiseError` for numbers that are none."""
        index = np.asarray(tree["draw"], dtype=np.int64)
        distinct = np.asarray(tree["variances"], dtype=np.float64)
        if len(index) and (index.min() < 0 or index.max() >= len(distinct)):
            raise TreeNoiseError(
                f"a node's draw is {int(index.max())} of {len(distinct)} variances; give an index of them"
            )
        return cls(np.asarray(tree["children"], dtype=np.int64), distinct[index])


PartNoise = Literal["independent"] | TreeNoise | None
"""How the noise of the parts is correlated; None where counts were changed so that its law is unknown."""


_HAIR = 1e-6
"""Tolerance in counts: released counts are rounded, and sums of many of them in floating point."""


@dataclass(frozen=True)
class Intervals:
    """``low`` ≤ ``high``, whole numbers of 0 or more, each of shape (Q,)."""

    low: FloatArray
    high: FloatArray

    def hold(self, truth: FloatArray) -> BoolArray:
        """Which intervals hold the ``truth`` (Q,)."""
        return np.asarray((self.low <= truth) & (truth <= self.high))


@dataclass(frozen=True)
class NoisySums:
    """Unbiased sums (Q,) of ``parts`` (Q,) released counts each and how far their noise reaches. A sum of no counts is
    0 without noise.
    """

    counts: FloatArray
    parts: IntArray
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
