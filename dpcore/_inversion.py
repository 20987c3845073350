"""Exact inversion of laws whose probabilities are irrational: uniform bits are compared with tails as far as it takes.

A uniform R on [0, 1) gives X = #{k : R < P(X >= k)}, which has the stated tails exactly. Of R only bits are drawn: with
b of them, r = ⌊2^b·R⌋, R < T is certain where r < ⌊2^b·T⌋, R >= T where r > ⌊2^b·T⌋, and only where both are equal
further bits are drawn. The digits of the tails are computed in integers with a bound on their error, so no probability
is ever rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

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
    def _ascending(self) -> npt.NDArray[np.uint64]:
        return np.array(self.tails(64)[::-1], dtype=np.uint64)

    def of(self, first: npt.NDArray[np.uint16], more: Callable[[int], npt.NDArray[np.uint64]]) -> npt.NDArray[np.int64]:
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

    def _beyond(self, drawn: int, more: Callable[[int], npt.NDArray[np.uint64]]) -> int:
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
