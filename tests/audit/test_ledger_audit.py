"""The order of charge and draw: a crash between them must cost budget, never privacy.

A model of one worker: it releases a number whose noise costs ε = 1 out of a budget of 1, crashes once in between, and
starts again from what its ledger says. The reader sees everything that left the worker.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.noise import Noise
from tests.audit.blackbox import Bound, N, Pooled, assert_caught, assert_private, epsilon_lower_bound

EPSILON = BUDGET = 1
SENSITIVITY = 5


class Worker:
    """``spent`` survives a crash; the transcript has left the house already."""

    def __init__(self, noise: Noise) -> None:
        self.spent = 0
        self.transcript: list[int] = []
        self._noise = noise

    def draw(self, value: int) -> None:
        self.transcript.append(value + int(self._noise.discrete_laplace(SENSITIVITY, EPSILON, 1)[0]))

    def charge_then_draw(self, value: int, crash: bool) -> None:
        if self.spent + EPSILON > BUDGET:
            return
        self.spent += EPSILON
        if crash:
            return
        self.draw(value)

    def draw_then_charge(self, value: int, crash: bool) -> None:
        if self.spent + EPSILON > BUDGET:
            return
        self.draw(value)
        if crash:
            return
        self.spent += EPSILON

    def admit_while_anything_is_left(self, value: int, crash: bool) -> None:
        """Charges of 1 against a budget of which 1/2 is spent: 'spent < B' admits what 'spent + charge <= B' does not."""
        if self.spent >= BUDGET:
            return
        self.spent += EPSILON / 2
        self.draw(value)


def audited(order: str) -> Bound:
    noise = Pooled()

    def transcripts(value: int) -> np.ndarray:
        rows = []
        for _ in range(N):
            worker = Worker(noise)
            step = getattr(worker, order)
            for crash in (True, False, False):
                step(value, crash)
            rows.append(worker.transcript + [0] * (3 - len(worker.transcript)))
        return np.array(rows)

    return epsilon_lower_bound(transcripts(0), transcripts(SENSITIVITY))


def test_charging_before_the_draw_bounds_the_whole_transcript() -> None:
    assert_private(audited("charge_then_draw"), BUDGET)


@pytest.mark.parametrize("order", ["draw_then_charge", "admit_while_anything_is_left"])
def test_charging_after_the_draw_or_too_little_is_caught(order: str) -> None:
    assert_caught(audited(order), BUDGET)
