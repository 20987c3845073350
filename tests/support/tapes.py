"""Recorded noise for tests of distributions: the same answer in every run, so that a correct mechanism is never refuted
by chance.

A statistical test states its α for noise that is fresh; on a recorded tape it either holds or does not.
``HEXVEIL_FRESH_NOISE=1`` draws from the operating system instead: then the suite's false alarms are what the tests
state.

Some samples cannot be recorded: another library draws them. Such a test carries the marker ``false_alarm`` with its α;
``tests/audit/test_blackbox.py`` adds them up.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dpcore.noise import EntropySource, Noise

_BLOCK = 1 << 13
"""Bytes read from the generator at once."""


def tape(seed: int | Sequence[int]) -> EntropySource:
    """The bytes of ``default_rng(seed).bytes``, call by call, at a tenth of its cost for the few bytes of one draw.

    That generator makes whole words of four bytes, at least one, and drops what is left of the last.
    """
    more, block, at = np.random.default_rng(seed).bytes, b"", 0

    def read(n: int) -> bytes:
        nonlocal block, at
        start, whole = at, 4 * max(1, -(-n // 4))
        if start + whole > len(block):
            block, start = block[start:] + more(max(_BLOCK, whole)), 0
        at = start + whole
        return block[start : start + n]

    return read


def recorded(seed: int | Sequence[int]) -> Noise:
    """The same noise in every run."""
    return Noise(tape(seed))


class Geometric(Noise):
    """Recorded Laplace noise of the same distribution, up to the rounding of floats, from numpy's geometric draws.

    It costs a tenth of the exact sampler, and is for tests that measure what is made of noise, such as intervals. That
    the sampler has this distribution is the claim of ``tests/dpcore/test_noise.py``.
    """

    def __init__(self, seed: int | Sequence[int]) -> None:
        super().__init__(tape(seed))
        self._generator = np.random.default_rng(seed)

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        ends = -np.expm1(-np.asarray(denominator) / np.asarray(numerator))
        one, other = (np.asarray(self._generator.geometric(ends, size), dtype=np.int64) for _ in range(2))
        return one - other


@pytest.fixture(autouse=True)
def recorded_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Noise()`` reads one tape per test, whose seed is the test's name."""
    record(request.node.nodeid, monkeypatch)


def record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``Noise()`` read the tape whose seed is ``name``, unless noise is to be fresh."""
    if not os.environ.get("HEXVEIL_FRESH_NOISE"):
        monkeypatch.setattr(Noise.__init__, "__defaults__", (tape(zlib.crc32(name.encode())),))


@contextmanager
def recording(name: str) -> Iterator[None]:
    """Let ``Noise()`` read the tape whose seed is ``name`` while the block runs: for what several tests share."""
    with pytest.MonkeyPatch.context() as patched:
        record(name, patched)
        yield
