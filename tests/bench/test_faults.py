"""The short form of the fault campaign: every kind of server fails, and no rule of the checker is broken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stream.local import REPO_ROOT


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.false_alarm(1e-5)
def test_every_window_of_a_short_campaign_is_released_once_whatever_fails() -> None:
    """The campaign runs in a process of its own. In this one the service's limit of unpacked batches may be in force,
    and would hide an oversized batch from the recount.

    The service draws fresh noise. α = 1e-5: the checker refuses a sound window with odds below 1e-8, and the campaign
    has fewer than a thousand windows.
    """
    command = [sys.executable, "-m", "stream", "bench", "faults", "--quick", "--json"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout)
    assert figures["violations"] == []
    assert figures["faults"] >= 5
    assert figures["windows"] >= 10
    assert set(figures["relations"]) == {"values", "participation"}
