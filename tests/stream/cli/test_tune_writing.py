"""``hexveil tune --write`` replaces a file only by one that reads as what was chosen."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from stream.cli.tune import check_target, keys_for, write_chosen
from stream.config import Config, load_config
from stream.evaluation.leading import Outcome, Want
from stream.evaluation.tuning import EPSILONS, Setting, Trial
from tests.support import hourly

SOURCE = hourly.BUS.read_text(encoding="utf-8")


def chosen(config: Config, **changes: object) -> Trial:
    outcome = Outcome(1.0, 12.01, 12_010_000, 5.0, 0.9, 1.0)
    return Trial(replace(Setting.of(config), **changes), EPSILONS.index(1.0), outcome, reaches=True, seconds=0.0)  # type: ignore[arg-type]


def write(path: Path, trial: Trial, config: Config, *, force: bool) -> None:
    keys = keys_for(trial, config, SOURCE, 12.05)
    write_chosen(path, SOURCE, keys, trial.setting.keys() | keys, Want(5.0, 0.8), force=force)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file that exists."""
    path = tmp_path / "kept.toml"
    path.write_text("mine")
    path.chmod(0o640)
    return path


def test_force_replaces_a_file_and_nothing_else_does(kept: Path) -> None:
    config = load_config(hourly.BUS)
    with pytest.raises(typer.Exit):
        write(kept, chosen(config), config, force=False)
    assert kept.read_text() == "mine"
    write(kept, chosen(config), config, force=True)
    assert load_config(kept).privacy.budget == 12.01
    assert kept.stat().st_mode & 0o777 == 0o640
    assert os.listdir(kept.parent) == [kept.name]


def test_settings_that_are_no_valid_configuration_leave_the_old_file(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(hourly.BUS)
    invalid = chosen(config, resolution=0, merge_until=8.0, coarsest_resolution=0)
    with pytest.raises(typer.Exit) as stopped:
        write(kept, invalid, config, force=True)
    assert (stopped.value.exit_code, kept.read_text(), os.listdir(kept.parent)) == (2, "mine", [kept.name])
    assert "kept.toml is not written" in (message := capsys.readouterr().err)
    assert "coarsest_resolution 0 is not below resolution 0" in message


def test_the_file_says_what_was_chosen_where_the_environment_said_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template has mean and variance, and no key of merging."""
    monkeypatch.setenv("HEXVEIL_SPEED__STATISTICS", '["mean"]')
    config, path = load_config(hourly.BUS), tmp_path / "new.toml"
    assert "window.slot" not in keys_for(chosen(config), config, SOURCE, 12.05)
    write(path, chosen(config), config, force=False)
    monkeypatch.delenv("HEXVEIL_SPEED__STATISTICS")
    assert load_config(path).speed.statistics == ("mean",)


def test_a_variable_that_overrides_the_choice_is_an_error_and_the_old_file_stays(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEXVEIL_PRIVACY__EPSILON", "1.5")
    config = load_config(hourly.BUS)
    with pytest.raises(typer.Exit):
        write(kept, chosen(config), config, force=True)
    assert kept.read_text() == "mine"
    assert "privacy.epsilon = 1.5 instead of 1.0" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        check_target(kept, force=True)
    assert "HEXVEIL_PRIVACY__EPSILON would override" in capsys.readouterr().err, "before anything is computed"
