"""Processor time goes to the part of the program that used it."""

from __future__ import annotations

import signal
import time

import pytest

from bench.processor_time import ProcessorTime


def spend_here(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def spend_in_a_call(seconds: float) -> None:
    spend_here(seconds)


def test_processor_time_goes_to_the_innermost_part_and_the_rest_to_other() -> None:
    parts = {"caller": r"test_processor_time\.py:spend_in_a_call", "called": r":spend_here"}
    begun = time.process_time()
    with ProcessorTime(parts) as spent:
        spend_in_a_call(0.3)
        sum(range(3_000_000))
    total = time.process_time() - begun
    assert spent.seconds["called"] == pytest.approx(0.3, abs=0.03)
    assert spent.seconds["caller"] < 0.03
    assert sum(spent.seconds.values()) == pytest.approx(total, abs=0.03)
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
