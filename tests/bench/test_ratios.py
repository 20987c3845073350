"""A ratio of processor times that grew by more than 30 % fails; one that is new or gone is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import ratios


def test_a_ratio_within_the_bound_is_no_regression() -> None:
    assert ratios.regressions({"noise": 1.3, "closing": 0.1}, {"noise": 1.0, "closing": 5.0}) == []


def test_a_ratio_above_the_bound_is_said_with_both_figures() -> None:
    (said,) = ratios.regressions({"noise": 1.31}, {"noise": 1.0})
    assert said == "noise took 1.31 times its plain work, above 1.3 times 1"


@pytest.mark.parametrize(("measured", "committed"), [({"noise": 1.0}, {}), ({}, {"noise": 1.0})])
def test_a_name_that_one_side_lacks_is_said(measured: dict[str, float], committed: dict[str, float]) -> None:
    assert ratios.regressions(measured, committed) == ["noise is in one of benchmark and ratios.json only"]


def test_the_committed_ratios_are_those_that_are_measured() -> None:
    figures = ratios.run(quick=True)
    assert figures["ratios"].keys() == json.loads(ratios.COMMITTED.read_text(encoding="utf-8")).keys()
    assert min(figures["ratios"].values()) > 0


@pytest.mark.parametrize(("measured", "regressed"), [([2.0, 1.4, 1.2], False), ([2.0, 1.4, 1.4], True)])
def test_a_ratio_above_its_bound_is_measured_twice_again_and_the_least_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: list[float], regressed: bool
) -> None:
    turns = iter(measured)
    committed = tmp_path / "ratios.json"
    committed.write_text('{"noise": 1.0}', encoding="utf-8")
    monkeypatch.setattr(ratios, "COMMITTED", committed)
    monkeypatch.setattr(ratios, "works", lambda folder, part: {"noise": (sum, sum)})
    monkeypatch.setattr(ratios, "ratio", lambda ours, plain, repeats: next(turns))
    figures = ratios.run(quick=False)
    assert bool(figures["regressions"]) == regressed
    assert figures["ratios"] == {"noise": min(measured)}
    assert next(turns, None) is None
