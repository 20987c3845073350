"""Commands that need no server: exit codes, machine output, help. Signals that end a command, at the worst moments.
Commands with wrong arguments or input end with a sentence and an exit code, never with a traceback."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stream.cli
from dpcore import __version__
from stream.cli import SUBJECTS, app
from stream.local import REPO_ROOT
from tests.support import hourly
from tests.support.builders import SLOT

BUS, RIDERS = str(hourly.BUS), str(hourly.RIDERS)


def hexveil(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_check_says_what_is_promised_and_how_many_windows_the_budget_pays():
    report = json.loads(hexveil("check", "--config", BUS, "--json").stdout)
    assert report["windows_with_full_epsilon"] == report["windows_per_period"] == 24
    assert report["worst_error"]["value"] == 65.0, "U times two statistics over epsilon 2"
    assert report["worst_error"]["variance"] == 65.0**2
    riders = json.loads(hexveil("check", "--config", RIDERS, "--json").stdout)
    assert riders["windows_with_full_epsilon"] == 8
    assert "worst_error" not in riders, "noise does not follow from counts there"
    assert riders["cells"] == 312


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_init_writes_a_configuration_that_check_accepts_and_never_overwrites(tmp_path, relation):
    file = tmp_path / "mine.toml"
    assert hexveil("init", str(file), "--relation", relation).exit_code == 0
    assert hexveil("check", "--config", str(file)).exit_code == 0
    again = hexveil("init", str(file))
    assert (again.exit_code, again.stderr.startswith("hexveil: ")) == (2, True)
    assert hexveil("init", str(file), "--force").exit_code == 0


def test_servers_that_do_not_answer_are_exit_3_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    monkeypatch.setenv("HEXVEIL_REDIS__URL", "redis://127.0.0.1:9/0")
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "key"))
    result = hexveil("doctor", "--config", BUS, "--json")
    assert result.exit_code == 3
    failed = [finding for finding in json.loads(result.stdout) if not finding["ok"]]
    assert {finding["check"] for finding in failed} == {"redis", "kafka"}
    assert all(finding["remedy"] for finding in failed)
    assert hexveil("ledger", "show", "--config", BUS).exit_code == 3


def test_offline_replay_writes_releases_to_stdout_and_the_outcome_to_stderr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "day.ndjson"
    event = {"user": "a", "time": 1_490_097_600_000, "lat": 30.2, "lng": -97.7, "speed": 12.0}
    file.write_text(json.dumps(event) + "\nnot json\n")
    result = hexveil("replay", str(file), "--offline", "--config", BUS)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["topic"] for line in lines] == ["hexveil.hexagon-speed.v1", "hexveil.window.v1"]
    assert "1 refused" in result.stderr


def test_which_windows_participation_releases_offline_depends_on_the_named_span_alone(tmp_path, monkeypatch):
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


def test_a_ledger_kept_in_a_folder_outlives_the_run(tmp_path, monkeypatch):
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
def test_every_command_has_help(subject):
    result = hexveil(subject, "--help")
    assert result.exit_code == 0
    assert len(result.stdout) > 100


def test_the_version_is_that_of_the_mathematics():
    result = hexveil("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"hexveil {__version__} (Python 3.")


@pytest.mark.parametrize(("alone", "code"), [(None, 0), ("1.2.0", 0), ("1.1.0", 1)])
def test_mathematics_of_another_version_beside_the_service_are_refused(alone, code, tmp_path, monkeypatch):
    def version(name: str) -> str:
        installed = {"hexveil": "1.2.0", "hexveil-dpcore": alone}[name]
        if installed is None:
            raise stream.cli.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(stream.cli, "version", version)
    result = hexveil("init", str(tmp_path / "mine.toml"))
    assert result.exit_code == code
    assert ("pip uninstall hexveil hexveil-dpcore" in result.output) == bool(code)


WHILE_A_PROCESS_STARTS = """
import os, signal
from stream.cli.options import Interrupts
interrupts = Interrupts()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))
if os.fork() == 0:
    os._exit(0)
print("went on, asked:", interrupts.asked)
signal.raise_signal(signal.SIGINT)
"""


def test_an_interrupt_that_python_loses_while_a_process_starts_is_remembered():
    """Found with `hexveil demo`, which once ran on after a SIGTERM between the starts of its processes."""
    command = [sys.executable, "-c", WHILE_A_PROCESS_STARTS]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on, asked: True\n"
    assert "Exception ignored" in done.stderr, "Python lost the first interrupt"
    assert done.stderr.endswith("KeyboardInterrupt\n"), "the second one ended the program"
    assert done.returncode != 0


SPAN = ["--from", "2017-03-21", "--until", "2017-03-22"]


def toml(old: str, new: str) -> Callable[[Path], None]:
    """A writer of riders.toml with one change."""
    text = Path(RIDERS).read_text(encoding="utf-8")
    assert old in text
    return lambda path: path.write_text(text.replace(old, new), encoding="utf-8") and None


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; no server answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "user.key"))
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    monkeypatch.setenv("HEXVEIL_REDIS__URL", "redis://127.0.0.1:9/0")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    event = {"user": "a", "time": SLOT * 1000, "lat": 30.25, "lng": -97.7, "speed": 20}
    (tmp_path / "day.ndjson").write_text(json.dumps(event) + "\n")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: path.write_bytes(b"\xff\xfe\x00relation"), "not valid TOML"),
        (lambda path: path.mkdir(), "readable TOML"),
        (toml('slot = "1h"', 'slot = "99999999999999999999999d"'), "window.slot"),
        (toml("epsilon = 2.0", "epsilon = nan"), "privacy.epsilon"),
        (toml("budget = 16.0", "budget = inf"), "privacy.budget"),
        (toml("resolution = 6", "resolution = 6.5"), "hexagons.resolution"),
        (toml('url = "redis://', 'url = "http://'), "redis.url"),
        (toml("cells_per_user = 8", "cells_per_user = 0"), "cells_per_user"),
        (lambda path: path.write_text("[" * 50_000), "not valid TOML"),
    ],
)
@pytest.mark.parametrize("command", ["check", "worker", "serve", "ledger show", "evaluate day.ndjson"])
def test_a_configuration_that_cannot_be_used_is_refused_by_every_command(desk, monkeypatch, write, says, command):
    monkeypatch.delenv("HEXVEIL_REDIS__URL")
    write(desk / "bad.toml")
    code, said = run(*command.split(), "--config", "bad.toml")
    assert code == 2
    assert says in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HEXVEIL_PRIVACY", "abc", "HEXVEIL_PRIVACY__EPSILON"),
        ("HEXVEIL_PRIVACY__EPSILON", "abc", "privacy.epsilon"),
        ("HEXVEIL_PRIVACY__EPSILLON", "1", "HEXVEIL_PRIVACY__EPSILON"),
        ("HEXVEIL_REDIS__URL", "nonsense", "redis.url"),
        ("HEXVEIL_PARTICIPATION__GEOJSON", "folder", "GeoJSON"),
        ("HEXVEIL_PARTICIPATION__GEOJSON", "nowhere", "GeoJSON"),
        ("HEXVEIL_PARTICIPATION__GEOJSON", "file", "GeoJSON"),
    ],
)
@pytest.mark.parametrize("command", ["check", "evaluate day.ndjson", "replay day.ndjson --offline"])
def test_an_environment_that_says_nonsense_is_refused(desk, monkeypatch, name, value, says, command):
    monkeypatch.setenv(name, value)
    span = SPAN if command.startswith("replay") else []
    code, said = run(*command.split(), "--config", RIDERS, *span)
    assert code == 2
    assert says in said


@pytest.mark.parametrize("key", ["folder", "file", "nowhere/deeper/key", "file/key"])
@pytest.mark.parametrize("command", ["replay day.ndjson --offline", "evaluate day.ndjson --trials 1"])
def test_a_user_key_that_cannot_be_kept_is_refused(desk, monkeypatch, key, command):
    (desk / "file").chmod(0o644)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", key)
    code, said = run(*command.split(), "--config", BUS)
    assert code == (0 if key.startswith("nowhere") else 2), said
    assert code == 0 or "key" in said


@pytest.mark.parametrize("state", ["file", "file/deeper"])
def test_a_ledger_folder_that_cannot_be_kept_is_refused(desk, state):
    code, said = run("replay", "day.ndjson", "--offline", "--config", BUS, "--state", state)
    assert code == 2
    assert "--state" in said


@pytest.mark.parametrize(
    ("epsilon", "says"),
    [
        ("1e9", "epsilon=1e+09: privacy.epsilon: found 1000000000.0; write a number above 0 and of at most 1000"),
        ("1e-9", "epsilon=1e-09: privacy: epsilon 1e-09 is below the resolution"),
        ("1,nan", "with positive numbers"),
        ("inf", "with positive numbers"),
        ("1e999", "with positive numbers"),
    ],
)
def test_a_sweep_beyond_the_bounds_is_refused_in_the_words_of_the_configuration(desk, epsilon, says):
    code, said = run("evaluate", "day.ndjson", "--config", BUS, "--sweep", f"epsilon={epsilon}")
    assert code == 2
    assert says in said.replace("\n", " ")
    assert "validation error" not in said
    assert "pydantic" not in said


@pytest.mark.parametrize("extra", [["--speed", "2"], ["--order", "file"]])
def test_an_offline_replay_refuses_options_that_say_how_events_are_sent(desk, extra):
    code, said = run("replay", "day.ndjson", "--offline", "--config", BUS, *extra)
    assert code == 2
    assert "--speed and --order" in said


def test_a_configuration_in_a_folder_that_is_not_there_is_refused(desk):
    code, said = run("init", "nowhere/mine.toml")
    assert code == 2
    assert "folder" in said


@pytest.mark.parametrize(
    "coordinates",
    [None, "here", [[["a", "b"]] * 4], [[[1]] * 4], [[[20.0, 5.0], [21.0, 5.0], [21.0, 6.0], [20.0, 5.0]]]],
    ids=["none", "text", "letters", "one-number", "Africa"],
)
@pytest.mark.parametrize("command", ["check", "worker", "evaluate day.ndjson", "replay day.ndjson --offline"])
def test_an_area_that_is_none_of_this_feed_is_refused_before_anything_starts(desk, monkeypatch, command, coordinates):
    (desk / "area.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": coordinates}))
    monkeypatch.setenv("HEXVEIL_PARTICIPATION__GEOJSON", "area.geojson")
    span = SPAN if command.startswith("replay") else []
    code, said = run(*command.split(), "--config", RIDERS, *span)
    assert code == 2
    assert "participation.geojson" in said


@pytest.mark.parametrize(
    "command", ["doctor", "worker", "serve", "topics create", "replay day.ndjson", "simulate --once"]
)
def test_a_file_of_credentials_that_cannot_be_read_is_refused_with_its_key(desk, monkeypatch, command):
    monkeypatch.setenv("HEXVEIL_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("HEXVEIL_KAFKA__USERNAME", "worker")
    monkeypatch.setenv("HEXVEIL_KAFKA__PASSWORD_FILE", "nowhere")
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # the recording is of 2017
    code, said = run(*command.split(), "--config", BUS)
    assert code == 2
    assert "kafka.password_file" in said


@pytest.mark.parametrize("command", ["doctor", "doctor --json", "ledger show"])
def test_a_password_of_redis_is_not_shown(desk, monkeypatch, command):
    monkeypatch.setenv("HEXVEIL_REDIS__URL", "redis://worker:geheim@127.0.0.1:9/0")
    code, said = run(*command.split(), "--config", BUS)
    assert code == 3
    assert "redis://***@127.0.0.1:9/0" in said
    assert "geheim" not in said
