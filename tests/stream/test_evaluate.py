"""``hexveil evaluate``: the service's own plans, honest scores, and never mistaken for a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.evaluate import VARIANTS, evaluate, variants, with_epsilon
from stream.local import REPO_ROOT
from tests.builders import SLOT, bus_config, random_rows

BUS = str(REPO_ROOT / "config" / "bus-fleet.toml")


def test_every_mechanism_is_scored_at_equal_loss_and_intervals_of_raw_values_cover_94_to_96_percent(
    tmp_path: Path,
) -> None:
    """n = 60 draws × 6 cells × 3 windows ≈ 1 000 cells a statistic; the band is ±2 points wide of 0.95 (3 σ)."""
    config = bus_config(tmp_path)
    windows = {SLOT + 3600 * k: random_rows(k, 200, slot=SLOT + 3600 * k) for k in range(3)}
    for name, chosen in variants(config, ["uniform", "exact-loss", "exact-loss+clipping"]):
        for score in evaluate(chosen, windows, 60, name):
            assert score.charge_max <= config.privacy.epsilon + 1e-9
            if score.estimator == "released":
                assert score.coverage is not None
                assert 0.93 <= score.coverage <= 0.97, score


def test_more_epsilon_means_less_error(tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    windows = {SLOT: random_rows(1, 300)}
    errors = [
        next(s.mae for s in evaluate(with_epsilon(config, e), windows, 20) if s.statistic == "mean")
        for e in (0.2, 2.0, 20.0)
    ]
    assert errors == sorted(errors, reverse=True)


def test_the_command_marks_its_output_as_not_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "day.ndjson"
    events = [
        {"user": f"b{u}", "time": SLOT * 1000 + 1000 * k, "lat": 30.2 + 0.02 * (k % 3), "lng": -97.7, "speed": 20 + u}
        for u in range(8)
        for k in range(10)
    ]
    file.write_text("\n".join(json.dumps(event) for event in events))
    arguments = ["evaluate", str(file), "--config", BUS, "--trials", "2"]
    machine = CliRunner().invoke(app, [*arguments, "--json", "--mechanisms", "uniform,exact-loss"])
    assert machine.exit_code == 0, machine.output
    report = json.loads(machine.stdout)
    assert report["private"] is False
    assert "NOT PRIVATE" in report["warning"]
    assert {score["mechanism"] for score in report["scores"]} == {"uniform", "exact-loss"}
    human = CliRunner().invoke(app, [*arguments, "--sweep", "epsilon=1,2"])
    assert human.exit_code == 0
    assert "NOT PRIVATE" in human.output


@pytest.mark.parametrize(
    "extra", [["--mechanisms", "magic"], ["--sweep", "delta=1"], ["--sweep", "epsilon=-1"], ["--window", "x"]]
)
def test_wrong_usage_is_refused_with_the_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "day.ndjson"
    file.write_text(json.dumps({"user": "a", "time": SLOT * 1000, "lat": 30.2, "lng": -97.7, "speed": 1}))
    result = CliRunner().invoke(app, ["evaluate", str(file), "--config", BUS, *extra])
    assert result.exit_code == 2


def test_the_figures_to_beat_on_a_recorded_hour_are_beaten(tmp_path: Path, shared_data: Path) -> None:
    """Mean only, ε = 2, U = 80, 07:00 of 2017-03-21: S14 with shrinkage 5.7 km/h and 61 % of events useful."""
    from stream.offline import read_recording, split_by_slot

    config = bus_config(
        tmp_path, **{"speed.statistics": ["mean"], "speed.upper_bound": 80.0, "speed.suppression": "none"}
    )
    rows, _ = read_recording(config, shared_data / "capmetro" / "2017-03-21.csv.gz", "capmetro")
    windows = {SLOT: split_by_slot(rows, config)[SLOT]}
    scores = {score.estimator: score for score in evaluate(config, windows, 30)}
    assert scores["empirical-bayes"].mae < 3.8
    assert scores["empirical-bayes"].useful_coverage > 0.78


def test_variants_are_configurations_of_the_service(tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    for name, chosen in variants(config, list(VARIANTS)):
        assert chosen.privacy == config.privacy, name
