"""The short form of the fault campaign: every kind of server fails, and no rule of the checker is broken."""

from __future__ import annotations

import pytest

from bench import faults


@pytest.mark.timeout(600)
def test_every_window_of_a_short_campaign_is_released_once_whatever_fails() -> None:
    outcome, figures = faults.run_sizes(faults.QUICK)
    assert figures["violations"] == []
    assert figures["faults"] >= 5
    assert figures["windows"] >= 10
    relations = {recording.config.relation for recording in outcome.recordings}
    assert relations == {"values", "participation"}
    assert all(recording.ledger for recording in outcome.recordings)
