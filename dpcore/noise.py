"""Exact discrete noise from injected entropy: discrete Laplace and the exponential mechanism, vectorised.

Every sample is drawn from exactly the stated distribution: integers and rejection only, no floating point between the
entropy and the result (Mironov 2012 shows why). Algorithms after Canonne, Kamath and Steinke, *The Discrete Gaussian
for Differential Privacy* (2020), Algorithms 1 and 2.

Exact inversion of laws whose probabilities are irrational: uniform bits are compared with tails as far as it takes.

A uniform R on [0, 1) gives X = #{k : R < P(X >= k)}, which has the stated tails exactly. Of R only bits are drawn: with
b of them, r = ⌊2^b·R⌋, R < T is certain where r < ⌊2^b·T⌋, R >= T where r > ⌊2^b·T⌋, and only where both are equal
further bits are drawn. The digits of the tails are computed in integers with a bound on their error, so no probability
is ever rounded.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from dpcore._whole_numbers import whole_number, whole_numbers
from dpcore.arrays import BoolArray, FloatArray, IdArray, IntArray
from dpcore.errors import OverflowBoundError, ParameterError

PARTS = 256
"""Parts of a unit: P(M >= m) = exp(-m/PARTS) for M = PARTS·V + A, with A in 0..PARTS-1 and V independent of it."""

_GUARD, _ERROR = 96, 32
"""Binary digits beyond those that are asked for, and how many of the last ones may be wrong."""


def _powers(digits: int, powers: int) -> list[int]:
    """About 2^digits·exp(-k/PARTS), k = 0..``powers``, each off by less than k·2^10 (k > 0), for ``digits`` below 2^12.

    A term is the floor of its exact value. There are fewer than 2^9, so the root is off by less than 2^9 + 1. A product
    adds to the error of the power before it at most that of the root, and 1 for its own floor.
    """
    one = 1 << digits
    term, root, sign, j = one, 0, 1, 0
    while term:
        root, j, sign = root + sign * term, j + 1, -sign
        term //= PARTS * j
    values = [one]
    for _ in range(powers):
        values.append(values[-1] * root >> digits)
    return values


def _certain(bits: int, about: Callable[[int], list[int]]) -> list[int]:
    """⌊2^bits·T⌋ of the tails T of which ``about`` gives 2^digits·T, each off by less than 2^:data:`_ERROR`."""
    digits = bits + _GUARD
    while True:
        values, drop = about(digits), digits - bits
        floors = [value >> drop for value in values]
        if all((value - (1 << _ERROR)) >> drop == (value + (1 << _ERROR)) >> drop for value in values if value):
            return floors
        digits += _GUARD


def whole_tails(bits: int) -> list[int]:
    """⌊2^bits·exp(-k)⌋ for k = 1, 2, … down to 0, which stands for all that follow."""
    floors = _certain(bits, lambda digits: _powers(digits, PARTS * bits)[PARTS::PARTS])
    return [floor for floor in floors if floor] + [0]


def part_tails(bits: int) -> list[int]:
    """⌊2^bits·P(A >= k)⌋ for k = 1..PARTS-1, P(A >= k) = (exp(-k/PARTS) - exp(-1))/(1 - exp(-1)).

    Numerator and denominator are off by less than 2^19 and 2^18 and the latter is above 2^(digits-1), so their ratio,
    which is below 1, is off by less than 2^21.
    """

    def about(digits: int) -> list[int]:
        powers = _powers(digits, PARTS)
        return [((power - powers[-1]) << digits) // ((1 << digits) - powers[-1]) for power in powers[1:-1]]

    return _certain(bits, about)


@dataclass(frozen=True)
class Inversion:
    """The law with ``tails``: bits -> ⌊2^bits·P(X >= k)⌋ for k = 1, 2, …, descending."""

    tails: Callable[[int], list[int]]

    @cached_property
    def _table(self) -> npt.NDArray[np.int16]:
        """X for each of 16 bits; -1 where they do not decide."""
        floors = np.array(self.tails(16)[::-1])
        table = len(floors) - np.searchsorted(floors, np.arange(2**16), side="right")
        table[floors] = -1
        return table.astype(np.int16)

    @cached_property
    def _ascending(self) -> IdArray:
        return np.array(self.tails(64)[::-1], dtype=np.uint64)

    def of(self, first: npt.NDArray[np.uint16], more: Callable[[int], IdArray]) -> IntArray:
        """X, shape (n,), from 16 bits each, and from words of 64 uniform bits of ``more`` where those do not decide."""
        result = self._table[first].astype(np.int64)
        undecided = np.flatnonzero(result < 0)
        if len(undecided):
            words = (first[undecided].astype(np.uint64) << np.uint64(48)) | (more(len(undecided)) >> np.uint64(16))
            ascending = self._ascending
            result[undecided] = len(ascending) - np.searchsorted(ascending, words, side="right")
            for i in np.flatnonzero(np.isin(words, ascending)).tolist():
                result[undecided[i]] = self._beyond(int(words[i]), more)
        return result

    def _beyond(self, drawn: int, more: Callable[[int], IdArray]) -> int:
        """X where 64 bits do not decide, which happens once in 2^56 draws."""
        bits = 64
        while True:
            drawn, bits = (drawn << 64) | int(more(1)[0]), bits + 64
            floors = self.tails(bits)
            if drawn not in floors:
                return sum(drawn < floor for floor in floors)


WHOLE = Inversion(whole_tails)
"""V with P(V >= k) = exp(-k)."""
PART = Inversion(part_tails)
"""A in 0..PARTS-1 with P(A = a) ∝ exp(-a/PARTS)."""


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
    def of(cls, costs: IntArray, offsets: IntArray | None, weights: IntArray | None) -> Self:
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


EntropySource = Callable[[int], bytes]
"""n -> n uniformly random bytes."""

MAX_SCALE_NUMERATOR = 2**40
"""Largest numerator t of a scale t/s: t·V stays below 2^63 for every geometric V below :data:`_MAX_GEOMETRIC`."""

_MAX_EXPONENT = 2**62
"""Bound of an exponent's numerator, so that it fits in int64."""
_MAX_GEOMETRIC = 2**22
_FACTORIAL_20 = math.factorial(20)
_INVERSE_FACTORIALS = np.array([_FACTORIAL_20 // math.factorial(k) for k in range(20, 0, -1)], dtype=np.int64)
"""20!/k! for k = 20..1, ascending: P(w < 20!/k!) = 1/k! for w uniform on 0..20!-1."""
_MAX_PROPOSALS = 1 << 22
WIDE = 2**14
"""Samples of one batch from which on tables pay for themselves. A smaller batch reads its entropy as it always did."""


class Noise:
    """Samplers over one entropy source. Production uses ``os.urandom``; tests inject a recorded tape.

    Never give it a seeded generator in production: whoever knows the seed can subtract the noise.
    """

    def __init__(self, entropy: EntropySource = os.urandom) -> None:
        self._entropy = entropy

    def _words(self, n: int) -> IdArray:
        return np.frombuffer(self._entropy(8 * n), dtype="<u8")

    def below(self, bound: int | IntArray, size: int | None = None) -> IntArray:
        """Uniform integers on 0..bound-1, shape (size,) or the shape of ``bound``; 1 <= bound < 2^63.

        Raises :class:`ParameterError` for a bound below 1, or one that is not an integer.
        """
        if np.ndim(bound) == 0:
            return self._below_scalar(whole_number("bound", bound), 1 if size is None else size)
        given = whole_numbers("bound", bound)
        bounds = given.astype(np.uint64)
        if (given < 1).any():
            raise ParameterError("a bound below 1 has nothing to draw from; give at least 1")
        words = self._words(len(bounds))
        result = words % bounds
        # The last, incomplete run of residues is rejected. A word is in it iff its run would pass 2^64.
        pending = (words - result > -bounds).nonzero()[0]
        while pending.size:
            words = self._words(len(pending))
            result[pending] = words % bounds[pending]
            pending = pending[words - result[pending] > -bounds[pending]]
        return result.view(np.int64)

    def _below_scalar(self, bound: int, size: int) -> IntArray:
        if not 1 <= bound < 2**63:
            raise ParameterError(f"bound {bound} is outside 1..2^63-1; nothing to draw from")
        words = self._words(size)
        if bound & (bound - 1) == 0:
            return (words & np.uint64(bound - 1)).astype(np.int64)
        limit = np.uint64(2**64 - 2**64 % bound)
        pending = (words >= limit).nonzero()[0]
        if pending.size:
            words = words.copy()
            while pending.size:
                words[pending] = self._words(len(pending))
                pending = pending[words[pending] >= limit]
        return (words % np.uint64(bound)).view(np.int64)

    def _bernoulli_exp_one(self, size: int) -> BoolArray:
        """P(True) = exp(-1): CKS Algorithm 1 with γ = 1 stops at K with P(K > k) = 1/k!; True iff K is odd."""
        w = self._below_scalar(_FACTORIAL_20, size)
        accepted: BoolArray = _INVERSE_FACTORIALS.searchsorted(w, side="right") % 2 == 0
        for i in (w == 0).nonzero()[0]:
            k = 21
            while self._below_scalar(k, 1)[0] == 0:
                k += 1
            accepted[i] = k % 2 == 1
        return accepted

    def _geometric(self, size: int) -> IntArray:
        """V with P(V >= k) = exp(-k)."""
        result = np.zeros(size, dtype=np.int64)
        pending = np.arange(size)
        while pending.size:
            pending = pending[self._bernoulli_exp_one(len(pending))]
            result[pending] += 1
        return result

    def _bernoulli_exp_fraction(self, numerator: IntArray, denominator: IntArray, k: int = 1) -> BoolArray:
        """P(True) = exp(-numerator/denominator) for 0 <= numerator <= denominator <= 2^48 (CKS Algorithm 1).

        With ``k`` above 1: the same, given that the events before the k-th have come true.
        """
        accepted = np.ones(len(numerator), dtype=bool)
        pending = np.arange(len(numerator))
        n, d = numerator, denominator
        while pending.size:
            going = self.below(d * k) < n
            if k % 2 == 0:
                accepted[pending[~going]] = False
            pending, n, d = pending[going], n[going], d[going]
            k += 1
        return accepted

    def bernoulli_exp(self, numerator: IntArray, denominator: int | IntArray) -> BoolArray:
        """P(True) = exp(-numerator/denominator), elementwise, for integers numerator >= 0 and 1 <= denominator <= 2^40.

        Raises :class:`ParameterError` outside these bounds, and for numbers that are not integers.
        """
        n = whole_numbers("numerator", numerator)
        d = np.broadcast_to(whole_numbers("denominator", denominator), n.shape)
        if (n < 0).any() or (d < 1).any() or (d > MAX_SCALE_NUMERATOR).any():
            raise ParameterError("exp(-n/d) needs n >= 0 and 1 <= d <= 2^40; reduce the ratio")
        whole, rest = np.divmod(n, d)
        accepted = np.ones(len(n), dtype=bool)
        large = whole.nonzero()[0]
        accepted[large] = self._geometric(len(large)) >= whole[large]
        alive = (accepted & (rest > 0)).nonzero()[0]
        accepted[alive] = self._bernoulli_exp_fraction(rest[alive], d[alive])
        return accepted

    def discrete_laplace(
        self, numerator: int | IntArray, denominator: int | IntArray = 1, size: int | None = None
    ) -> IntArray:
        """Integers X with P(X = x) ∝ exp(-|x|·denominator/numerator): scale b = numerator/denominator (CKS Algorithm
        2).

        Shape (size,) or the broadcast shape of the scales. Integers 1 <= numerator <= 2^40, denominator >= 1, else
        :class:`ParameterError`.
        """
        top, bottom = whole_numbers("numerator", numerator), whole_numbers("denominator", denominator)
        if size is None:
            t, s = np.broadcast_arrays(top, bottom)
            shape = t.shape
            t, s = t.astype(np.int64).ravel(), s.astype(np.int64).ravel()
        else:
            shape = (size,)
            t, s = np.full(size, top, dtype=np.int64), np.full(size, bottom, dtype=np.int64)
        if (t < 1).any() or (t > MAX_SCALE_NUMERATOR).any() or (s < 1).any():
            raise ParameterError("a noise scale t/s needs 1 <= t <= 2^40 and s >= 1; use a coarser quantum")
        draw = self._wide_laplace if len(t) >= WIDE else self._narrow_laplace
        return draw(t, s).reshape(shape)

    def _narrow_laplace(self, t: IntArray, s: IntArray) -> IntArray:
        """CKS Algorithm 2."""
        result = np.zeros(len(t), dtype=np.int64)
        pending = np.arange(len(t))
        while pending.size:
            tp = t[pending]
            u = self.below(tp)
            kept = self._bernoulli_exp_fraction(u, tp).nonzero()[0]
            magnitude = self._magnitude(u[kept], tp[kept], s[pending[kept]])
            negative = (np.frombuffer(self._entropy(len(kept)), dtype=np.uint8) & 1).astype(bool)
            done = ~(negative & (magnitude == 0))
            index = pending[kept[done]]
            result[index] = np.where(negative[done], -magnitude[done], magnitude[done])
            unfinished = np.ones(len(pending), dtype=bool)
            unfinished[kept[done]] = False
            pending = pending[unfinished]
        return result

    def _wide_laplace(self, t: IntArray, s: IntArray) -> IntArray:
        """CKS Algorithm 2 with fewer rejections and a quarter of the entropy.

        To be proved: P(magnitude >= y) = exp(-y·s/t) before the sign. Let G = u + t·M with u on 0..t-1, P(u) ∝
        exp(-u/(256·t)), and P(M >= m) = exp(-m/256). Every G >= 0 has one such (u, M), and P(G) ∝
        exp(-u/(256·t))·exp(-M/256) = exp(-G/(256·t)), so P(G >= g) = exp(-g/(256·t)), and ⌊G/(256·s)⌋ >= y iff G >=
        256·s·y. u is uniform and kept with exp(-γ), γ = u/(256·t), by CKS Algorithm 1; its first event, Bernoulli(γ),
        is that of a byte 0 and a uniform integer of 0..t-1 below u.
        """
        result = np.zeros(len(t), dtype=np.int64)
        pending: IntArray | slice = slice(None)
        while True:
            tp, sp = t[pending], s[pending]
            if not len(tp):
                return result
            u = self._below_scalar(int(tp[0]), len(tp)) if (tp == tp[0]).all() else self.below(tp)
            bits = np.frombuffer(self._entropy(6 * len(tp)), dtype="<u2").reshape(3, -1)
            steps = WHOLE.of(bits[0], self._words)
            steps *= PARTS
            steps += PART.of(bits[1], self._words)
            if int(steps.max()) >= _MAX_GEOMETRIC:
                raise OverflowBoundError("a geometric draw passed 2^22 (probability below e^-16000): entropy is broken")
            negative = bits[2] >= 2**15
            doubtful = np.flatnonzero((bits[2] & (PARTS - 1)) == 0)
            going = doubtful[self.below(tp[doubtful]) < u[doubtful]]
            steps *= tp
            steps += u
            steps >>= PARTS.bit_length() - 1
            if (sp != 1).any():
                steps //= sp
            again = negative & (steps == 0)
            again[going[~self._bernoulli_exp_fraction(u[going], PARTS * tp[going], 2)]] = True
            result[pending] = np.where(negative, -steps, steps)
            unfinished = np.flatnonzero(again)
            pending = unfinished if isinstance(pending, slice) else pending[unfinished]

    def _magnitude(self, u: IntArray, t: IntArray, s: IntArray) -> IntArray:
        v = self._geometric(len(u))
        if len(v) and int(v.max()) >= _MAX_GEOMETRIC:
            raise OverflowBoundError("a geometric draw passed 2^22 (probability below e^-4000000): entropy is broken")
        return (u + t * v) // s

    def exponential(
        self,
        costs: IntArray,
        numerator: int,
        denominator: int,
        *,
        offsets: IntArray | None = None,
        weights: IntArray | None = None,
    ) -> IntArray:
        """Exponential mechanism: index i with P(i) ∝ weights[i]·exp(-cost·numerator/denominator), exactly, cost =
        min(costs[i], c + M).

        ``offsets`` of shape (k+1,) makes k independent selections over ``costs[offsets[j]:offsets[j+1]]`` in one call;
        the result has shape (k,) and is relative to each group's start. c is the least cost of a group, M =
        ⌊2^62/numerator⌋: products fit in int64 whatever the costs are. min(costs[i], c + M) moves by no more than costs
        do, so what is claimed for costs of a sensitivity holds; and what lies beyond M has P below exp(-2^20). Proof: a
        candidate is proposed with P ∝ weights[i] and accepted with exp(-excess[i]·numerator/denominator), excess[i] =
        min(costs[i] - c, M). The first accepted one of independent proposals has P(i) ∝ the product of both, and the
        least cost cancels. A group takes Σweights / Σweights·exp(-excess·…) proposals on average. Tested against the
        exact law in tests/dpcore/test_noise.py.

        Raises :class:`ParameterError` for an empty group, weights that are negative or sum to 0, a ratio out of bounds,
        or numbers that are not integers; :class:`OverflowBoundError` for weights that could leave int64. No costs are
        refused.
        """
        numerator, denominator = whole_number("numerator", numerator), whole_number("denominator", denominator)
        if not 0 <= numerator <= _MAX_EXPONENT // 2 or not 1 <= denominator <= MAX_SCALE_NUMERATOR:
            raise ParameterError(
                f"exponent ratio {numerator}/{denominator} is out of bounds; need 0 <= n <= 2^61, 1 <= d <= 2^40"
            )
        groups = Groups.of(costs, offsets, weights)
        exponent = np.minimum(groups.excess, _MAX_EXPONENT // max(numerator, 1)) * numerator
        result = np.empty(len(groups.total), dtype=np.int64)
        pending = np.arange(len(result))
        repeats = 2
        while len(pending):
            group = np.repeat(pending, repeats)
            proposed = groups.candidates(group, self.below(groups.total[group]))
            accepted = self.bernoulli_exp(exponent[proposed], denominator).reshape(len(pending), repeats)
            hit = accepted.any(axis=1)
            first = proposed.reshape(len(pending), repeats)[np.arange(len(pending)), accepted.argmax(axis=1)]
            result[pending[hit]] = first[hit] - groups.start[pending[hit]]
            pending = pending[~hit]
            repeats = max(2, min(2 * repeats, _MAX_PROPOSALS // max(len(pending), 1)))
        return result


def interval_half_width(numerator: int | IntArray, denominator: int | IntArray = 1) -> FloatArray:
    """Smallest integer w with P(|X| <= w) >= 0.95 for discrete Laplace noise of scale t/s, in quanta."""
    b = np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64)
    # P(|X| > w) = 2·a^(w+1)/(1+a) with a = exp(-1/b).
    tail = (1.0 - 0.95) * (1.0 + np.exp(-1.0 / b)) / 2.0
    return np.asarray(np.maximum(np.ceil(-b * np.log(tail) - 1.0 - 1e-9), 0.0))
