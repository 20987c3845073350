"""Commands that need no server: exit codes, machine output, help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stream.cli
from dpcore import __version__
from stream.cli import SUBJECTS, app
from tests.support import hourly

BUS, RIDERS = str(hourly.BUS), str(hourly.RIDERS)


def hexveil(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_check_says_what_is_promised_and_how_many_windows_the_budget_pays() -> None:
    report = json.loads(hexveil("check", "--config", BUS, "--json").stdout)
    assert report["windows_with_full_epsilon"] == report["windows_per_period"] == 24
    assert report["worst_error"]["value"] == 65.0, "U times two statistics over epsilon 2"
    riders = json.loads(hexveil("check", "--config", RIDERS, "--json").stdout)
    assert riders["windows_with_full_epsilon"] == 8
    assert "worst_error" not in riders, "noise does not follow from counts there"
    assert riders["cells"] == 312


@pytest.mark.parametrize("command", ["check", "worker", "doctor", "topics create", "ledger show"])
def test_a_broken_configuration_is_wrong_usage_with_the_key_named(tmp_path: Path, command: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(Path(BUS).read_text().replace("epsilon = 2.0", "epsilon = -2.0"))
    result = hexveil(*command.split(), "--config", str(file))
    assert result.exit_code == 2
    assert "privacy.epsilon" in result.output


def test_a_cell_list_beyond_its_bound_is_refused_at_check(tmp_path: Path) -> None:
    file = tmp_path / "riders.toml"
    file.write_text(re.sub(r"(?m)^resolution = \d+", "resolution = 10", Path(RIDERS).read_text()))
    result = hexveil("check", "--config", str(file))
    assert result.exit_code == 2
    assert "choose a smaller area or a coarser resolution" in result.output


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_init_writes_a_configuration_that_check_accepts_and_never_overwrites(tmp_path: Path, relation: str) -> None:
    file = tmp_path / "mine.toml"
    assert hexveil("init", str(file), "--relation", relation).exit_code == 0
    assert hexveil("check", "--config", str(file)).exit_code == 0
    again = hexveil("init", str(file))
    assert (again.exit_code, again.stderr.startswith("hexveil: ")) == (2, True)
    assert hexveil("init", str(file), "--force").exit_code == 0


def test_servers_that_do_not_answer_are_exit_3_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    monkeypatch.setenv("HEXVEIL_REDIS__URL", "redis://127.0.0.1:9/0")
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "key"))
    result = hexveil("doctor", "--config", BUS, "--json")
    assert result.exit_code == 3
    failed = [finding for finding in json.loads(result.stdout) if not finding["ok"]]
    assert {finding["check"] for finding in failed} == {"redis", "kafka"}
    assert all(finding["remedy"] for finding in failed)
    assert hexveil("ledger", "show", "--config", BUS).exit_code == 3


def test_offline_replay_writes_releases_to_stdout_and_the_outcome_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "day.ndjson"
    event = {"user": "a", "time": 1_490_097_600_000, "lat": 30.2, "lng": -97.7, "speed": 12.0}
    file.write_text(json.dumps(event) + "\nnot json\n")
    result = hexveil("replay", str(file), "--offline", "--config", BUS)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["topic"] for line in lines] == ["hexveil.hexagon-speed.v1", "hexveil.window.v1"]
    assert "1 refused" in result.stderr


def test_which_windows_participation_releases_offline_depends_on_the_named_span_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.ndjson").write_text(
        json.dumps({"user": "a", "time": 1_490_097_600_000, "lat": 30.2, "lng": -97.7, "speed": 12.0}) + "\n"
    )
    (tmp_path / "none.ndjson").write_text("")
    refused = hexveil("replay", "one.ndjson", "--offline", "--config", RIDERS)
    assert refused.exit_code == 2
    assert "--from" in refused.stderr
    span = ("--from", "2017-03-21T06:00", "--until", "2017-03-21T09:00")
    windows = []
    for name in ("one.ndjson", "none.ndjson"):
        result = hexveil("replay", name, "--offline", "--config", RIDERS, *span)
        assert result.exit_code == 0, result.output
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        windows.append([(line["headers"]["ce_id"], line["key"]) for line in lines])
    assert windows[0] == windows[1]
    assert len([name for name, _ in windows[0] if name.startswith("hexveil.window.v1/")]) == 3


def test_a_ledger_kept_in_a_folder_outlives_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.ndjson").write_text(
        json.dumps({"user": "a", "time": 1_490_097_600_000, "lat": 30.2, "lng": -97.7, "speed": 12.0}) + "\n"
    )
    command = ("replay", "day.ndjson", "--offline", "--config", BUS, "--state", "ledger", "--json")
    first, again = hexveil(*command), hexveil(*command)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert len(first.stdout.splitlines()) == 2
    assert again.stdout == ""
    assert json.loads(again.stderr)["already_released"] == 1


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_command_has_help(subject: str) -> None:
    result = hexveil(subject, "--help")
    assert result.exit_code == 0
    assert len(result.stdout) > 100


def test_the_version_is_that_of_the_mathematics() -> None:
    result = hexveil("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"hexveil {__version__} (Python 3.")


@pytest.mark.parametrize(("alone", "code"), [(None, 0), ("1.2.0", 0), ("1.1.0", 1)])
def test_mathematics_of_another_version_beside_the_service_are_refused(
    alone: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        installed = {"hexveil": "1.2.0", "hexveil-dpcore": alone}[name]
        if installed is None:
            raise stream.cli.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(stream.cli, "version", version)
    result = hexveil("init", str(tmp_path / "mine.toml"))
    assert result.exit_code == code
    assert ("pip uninstall hexveil hexveil-dpcore" in result.output) == bool(code)
