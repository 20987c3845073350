"""Recorded noise for tests of distributions: the same answer in every run, so that a correct mechanism is never refuted by chance.

A statistical test states its α for noise that is fresh; on a recorded tape it either holds or does not. ``HEXVEIL_FRESH_NOISE=1``
draws from the operating system instead: then the suite's false alarms are what the tests state.

Some samples cannot be recorded: another library draws them. Such a test carries the marker ``false_alarm`` with its α;
``tests/audit/test_false_alarms.py`` adds them up.
"""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from dpcore.noise import Noise


@pytest.fixture(autouse=True)
def recorded_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Noise()`` reads one tape per test, whose seed is the test's name."""
    if not os.environ.get("HEXVEIL_FRESH_NOISE"):
        tape = np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
        monkeypatch.setattr(Noise.__init__, "__defaults__", (tape.bytes,))
