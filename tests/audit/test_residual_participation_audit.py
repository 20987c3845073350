"""Residual clipping under "participation" on the shipped path: forced transcripts over four windows, exact.

One world is released with real noise, window after window: ledger, plan, ranges, draw, messages, memory. Its transcript
is forced on the worlds that lack one user. Given the same outputs, their ranges and scales must be the same, and what
noise is added to may differ by no more than that user is charged. The first two windows give the ranges of the others.
Planted bugs must show. No sampling; power 1.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stream.statistics.plan import ParticipationPart, Plan
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from tests.audit.participation_transcripts import config_of, worst_shares


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
@pytest.mark.parametrize("weight", ["share", "user", "sample"])
def test_no_user_loses_more_over_four_windows_than_they_are_charged(
    tmp_path: Path, weight: str, accounting: str, record_property: Callable[[str, object], None]
) -> None:
    shares = worst_shares(config_of(tmp_path, weight, accounting))
    record_property("loss", {"worst": float(max(shares)), "charged": 1.0})
    assert max(shares) <= 1
    assert max(shares) > Fraction(1, 2), "the audit found next to nothing"


def half_the_scale(*given: Any, **named: Any) -> Plan:
    """Planted bug: half the noise that was charged for."""
    plan = plan_window(*given, **named)
    return msgspec.structs.replace(plan, denominators=2 * plan.scales.denominator)


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
def test_the_same_audit_catches_half_the_noise(tmp_path: Path, accounting: str) -> None:
    assert max(worst_shares(config_of(tmp_path, "share", accounting), half_the_scale)) > 1


def around_the_truth(read: WindowRows, *given: Any) -> Plan:
    """Planted bug: ranges follow the means of the window that is released."""
    plan = plan_window(read, *given)
    if plan.ranges is None:
        return plan
    middle = np.full(len(plan.cells), int(read.contributions.quanta.mean()))
    part = ParticipationPart(lower=middle - 500, upper=middle, foretold=middle - 250)
    return msgspec.structs.replace(plan, participation=part)


def test_the_same_audit_catches_ranges_of_the_true_data(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="looked at this window"):
        worst_shares(config_of(tmp_path, "share", "pure"), around_the_truth)
