"""Wide batches of noise: the tables decide exactly what the law says, to the last bit, and the noise has its
distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from dpcore import noise as sampler
from dpcore._inversion import PART, PARTS, WHOLE, Inversion, part_tails, whole_tails
from dpcore.noise import WIDE, Noise

N = 100_000
"""Samples of a χ² test with 40 bins: a law that is off by 0.01 in total variation is noticed with power > 0.99 at α."""
ALPHA = 1e-6


def exact_floor(tail: Decimal, bits: int) -> int:
    return int(tail * 2**bits)


def tails(bits: int) -> tuple[list[int], list[int]]:
    """The tails of the whole and of the part, by decimal arithmetic with 200 digits."""
    with localcontext() as context:
        context.prec = 200
        e = Decimal(-1).exp()
        whole = [exact_floor(e**k, bits) for k in range(1, bits + 1)]
        part = [exact_floor(((-Decimal(k) / PARTS).exp() - e) / (1 - e), bits) for k in range(1, PARTS)]
    return [floor for floor in whole if floor] + [0], part


@pytest.mark.parametrize("bits", [16, 64, 128, 256])
def test_the_tails_are_right_to_the_last_bit(bits: int) -> None:
    assert (whole_tails(bits), part_tails(bits)) == tails(bits)


@pytest.mark.parametrize(("name", "law"), [("whole", WHOLE), ("part", PART)])
def test_sixteen_bits_decide_what_they_can_and_the_rest_is_left_to_further_bits(name: str, law: Inversion) -> None:
    """All 65 536 draws of 16 bits, completed by zeros and by ones: each end of the interval has the value of the exact
    tails."""
    floors = np.array(tails(64)[name == "part"], dtype=np.uint64)
    bits = np.arange(2**16, dtype=np.uint16)
    for fill in (2 << 16, 2**64 - 1):  # neither meets a tail, which 64 bits would not decide
        drawn = law.of(bits, lambda n, fill=fill: np.full(n, fill, dtype=np.uint64))
        r = (bits.astype(np.uint64) << np.uint64(48)) | np.uint64(fill >> 16)
        assert drawn.tolist() == (floors[None, :] > r[:, None]).sum(axis=1).tolist()


@pytest.mark.parametrize(("law", "floors"), [(WHOLE, whole_tails), (PART, part_tails)], ids=["whole", "part"])
def test_where_64_bits_meet_a_tail_further_bits_decide(law: Inversion, floors: Callable[[int], list[int]]) -> None:
    at = next(floor for floor in floors(64) if floor >> 48 in floors(16))
    k = floors(64).index(at) + 1
    for beyond, expected in ((0, k), (2**64 - 1, k - 1)):
        words = Mock(side_effect=np.array([[(at << 16) % 2**64], [beyond]], dtype=np.uint64))
        assert law.of(np.array([at >> 48], dtype=np.uint16), words).tolist() == [expected]


def p_value(samples: np.ndarray, t: int, s: int) -> float:
    """χ² of about 40 bins against the exact law of discrete Laplace noise of scale t/s."""
    a = math.exp(-s / t)
    edges = np.unique(np.round(stats.laplace.ppf(np.linspace(0.01, 0.99, 40), scale=t / s)).astype(np.int64))
    below = np.where(edges >= 0, 1 - a ** (edges + 1.0) / (1 + a), a ** np.abs(edges) / (1 + a))
    observed = np.histogram(samples, bins=[-(2**62), *(edges + 0.5).tolist(), 2**62])[0]
    expected = np.diff([0.0, *below, 1.0]) * len(samples)
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1))


SCALES = [(7, 3), (2**32 + 1, 2**20), (2**40, 1)]


@pytest.mark.parametrize(("t", "s"), SCALES)
def test_a_wide_batch_has_the_exact_law(t: int, s: int) -> None:
    assert p_value(Noise().discrete_laplace(t, s, N), t, s) > ALPHA


def test_a_batch_just_too_narrow_has_the_exact_law_too() -> None:
    for t, s in SCALES[:2]:
        samples = np.concatenate([Noise().discrete_laplace(t, s, WIDE - 1) for _ in range(6)])
        assert p_value(samples, t, s) > ALPHA


@pytest.mark.parametrize("bug", ["uniform part", "half unit"])
def test_a_planted_bug_in_the_tables_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "uniform part": lambda bits: [((PARTS - k) << bits) // PARTS for k in range(1, PARTS)],
        "half unit": lambda bits: part_tails(bits)[: PARTS // 2],
    }
    monkeypatch.setattr(sampler, "PART", Inversion(wrong[bug]))
    assert p_value(Noise().discrete_laplace(7_000, 3, N), 7_000, 3) < ALPHA
