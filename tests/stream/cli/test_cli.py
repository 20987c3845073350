"""Commands that need no server: exit codes, machine output, help, signals, and sentences instead of tracebacks. What
``check`` and its promise sheet say of budgets, rules and retention is what the code keeps. ``tune --write`` replaces a
file only by one that reads as what was chosen."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import typer

import stream.cli
from dpcore import __version__
from stream.cli import SUBJECTS
from stream.cli.sheet import as_html, as_markdown, fingerprint, nights_to_stand_out
from stream.cli.tune import check_target, keys_for, write_chosen
from stream.config import Config, load_config
from stream.config.promise import DAYS, bounds, factor, one_day_among_others, percent, posterior
from stream.evaluation.leading import TrialOutcome, Want
from stream.evaluation.tuning import EPSILONS, Setting, Trial
from stream.local.kafka import REPO_ROOT
from stream.messages.topics import KEPT_PERIODS, kept, topic_plans
from tests.support import hourly
from tests.support.builders import SLOT, riders_config, zcdp_config
from tests.support.command import run

BUS, RIDERS = str(hourly.BUS), str(hourly.RIDERS)
SOURCE = hourly.BUS.read_text(encoding="utf-8")


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


def test_check_says_what_is_promised_and_how_many_windows_the_budget_pays():
    report = json.loads(run("check", "--config", BUS, "--json").stdout)
    assert report["windows_with_full_epsilon"] == report["windows_per_period"] == 24
    assert report["worst_error"]["value"] == 65.0, "U times two statistics over epsilon 2"
    assert report["worst_error"]["variance"] == 65.0**2
    riders = json.loads(run("check", "--config", RIDERS, "--json").stdout)
    assert riders["windows_with_full_epsilon"] == 8
    assert "worst_error" not in riders, "noise does not follow from counts there"
    assert riders["cells"] == 312


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_init_writes_a_configuration_that_check_accepts_makes_no_folder_and_never_overwrites(tmp_path, relation):
    file = tmp_path / "mine.toml"
    run("init", str(file), "--relation", relation)
    run("check", "--config", str(file))
    assert run("init", str(file), code=2).stderr.startswith("hexveil: ")
    run("init", str(file), "--force")
    assert "folder" in run("init", tmp_path / "nowhere" / "mine.toml", code=2).output


@pytest.mark.usefixtures("desk")
def test_servers_that_do_not_answer_are_exit_3_with_a_remedy():
    findings = json.loads(run("doctor", "--config", BUS, "--json", code=3).stdout)
    failed = [finding for finding in findings if not finding["ok"]]
    assert {finding["check"] for finding in failed} == {"redis", "kafka"}
    assert all(finding["remedy"] for finding in failed)
    run("ledger", "show", "--config", BUS, code=3)


def test_offline_replay_writes_releases_to_stdout_and_the_outcome_to_stderr_and_a_ledger_in_a_folder_outlives_it(desk):
    with (desk / "day.ndjson").open("a") as day:
        day.write("not json\n")
    command = ("replay", "day.ndjson", "--offline", "--config", BUS)
    result = run(*command)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["topic"] for line in lines] == ["hexveil.hexagon-speed.v1", "hexveil.window.v1"]
    assert "1 refused" in result.stderr
    first, again = (run(*command, "--state", "ledger", "--json") for _ in range(2))
    assert len(first.stdout.splitlines()) == 2
    assert again.stdout == ""
    assert json.loads(again.stderr)["already_released"] == 1


def test_which_windows_participation_releases_offline_depends_on_the_named_span_alone(desk):
    (desk / "none.ndjson").write_text("")
    assert "--from" in run("replay", "day.ndjson", "--offline", "--config", RIDERS, code=2).stderr
    span = ("--from", "2017-03-21T06:00", "--until", "2017-03-21T09:00")
    windows = []
    for name in ("day.ndjson", "none.ndjson"):
        released = run("replay", name, "--offline", "--config", RIDERS, *span).stdout
        lines = [json.loads(line) for line in released.splitlines()]
        windows.append([(line["headers"]["ce_id"], line["key"]) for line in lines])
    assert windows[0] == windows[1]
    assert len([name for name, _ in windows[0] if name.startswith("hexveil.window.v1/")]) == 3


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_command_has_help(subject):
    assert len(run(subject, "--help").stdout) > 100


def test_the_version_is_that_of_the_mathematics():
    assert run("--version").stdout.startswith(f"hexveil {__version__} (Python 3.")


@pytest.mark.parametrize(("alone", "code"), [(None, 0), ("1.2.0", 0), ("1.1.0", 1)])
def test_mathematics_of_another_version_beside_the_service_are_refused(alone, code, tmp_path, monkeypatch):
    def version(name: str) -> str:
        installed = {"hexveil": "1.2.0", "hexveil-dpcore": alone}[name]
        if installed is None:
            raise stream.cli.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(stream.cli, "version", version)
    said = run("init", str(tmp_path / "mine.toml"), code=code).output
    assert ("pip uninstall hexveil hexveil-dpcore" in said) == bool(code)


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


def test_a_forked_command_says_the_same_in_its_folder_and_nothing_of_it_is_left_when_it_is_killed(hexveil, desk):
    """Within 80 ms from its start a command is asked for, forked, and told to whoever asked."""
    words = ("check", "--config", "day.ndjson")  # which is there, and no configuration
    done = subprocess.run([*hexveil, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, run(*words, code=2).stderr)
    for seconds in (*np.arange(0, 0.08, 0.01), None):
        with subprocess.Popen([*hexveil, "worker", "--config", BUS], stderr=subprocess.PIPE) as asked:
            time.sleep(seconds or 0)
            assert seconds is not None or any(b"redis does not answer" in line for line in asked.stderr)
            asked.kill()
        assert asked.returncode == -9
    deadline = time.monotonic() + 60
    while sum(process.info["cwd"] == str(desk) for process in psutil.process_iter(["cwd"])) > 1:  # this one is there
        assert time.monotonic() < deadline
        time.sleep(0.05)


SPAN = ["--from", "2017-03-21", "--until", "2017-03-22"]


def toml(old: str, new: str) -> Callable[[Path], None]:
    """A writer of riders.toml with one change."""
    text = Path(RIDERS).read_text(encoding="utf-8")
    assert old in text
    return lambda path: path.write_text(text.replace(old, new), encoding="utf-8") and None


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
def test_a_configuration_that_cannot_be_used_is_refused_by_every_command(desk, monkeypatch, write, says):
    monkeypatch.delenv("HEXVEIL_REDIS__URL")
    write(desk / "bad.toml")
    for command in ("check", "worker", "serve", "doctor", "topics create", "ledger show", "evaluate day.ndjson"):
        assert says in run(*command.split(), "--config", "bad.toml", code=2).output.replace("\n", " "), command


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
    assert says in run(*command.split(), "--config", RIDERS, *span, code=2).output


@pytest.mark.parametrize("key", ["folder", "file", "nowhere/deeper/key", "file/key"])
@pytest.mark.parametrize("command", ["replay day.ndjson --offline", "evaluate day.ndjson --trials 1"])
def test_a_user_key_that_cannot_be_kept_is_refused(desk, monkeypatch, key, command):
    (desk / "file").chmod(0o644)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", key)
    code = 0 if key.startswith("nowhere") else 2
    said = run(*command.split(), "--config", BUS, code=code).output
    assert code == 0 or "key" in said


RECORDINGS: dict[str, bytes | None] = {
    "garbage": bytes(range(256)) * 400,
    "giant-line": b'{"user":"' + b"a" * 3_000_000 + b'"}\n',
    "zeros": b"\x00" * 100_000,
    "deep": b"[" * 100_000 + b"\n",
    "empty": b"",
    "cut.csv.gz": gzip.compress(b"vehicle_id,timestamp,latitude,longitude,speed\n" * 1000)[:40],
    "no-gzip.csv.gz": b"vehicle_id,timestamp\n1,2\n",
    "nowhere.ndjson": None,
    "folder": None,
}


@pytest.mark.parametrize("command", ["replay --offline", "evaluate"])
def test_a_recording_that_is_broken_or_cannot_be_read_is_wrong_usage_and_named(desk, command):
    for name, content in RECORDINGS.items():
        if content is not None:
            (desk / name).write_bytes(content)
        assert f"hexveil: {name}" in run(*command.split(), name, "--config", BUS, code=2).output


HISTOGRAM = '\n[histogram]\nmechanisms = ["ug"]\nepsilon = 1.0\n'


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ("epsilon=1e9", "=1e+09: privacy.epsilon: found 1000000000.0; write a number above 0 and of at most 1000"),
        ("epsilon=1e9 --histograms", "=1e+09: histogram.epsilon: found 1000000000.0; write a number above 0"),
        ("epsilon=1e-9", "epsilon=1e-09: privacy: epsilon 1e-09 is below the resolution"),
        ("epsilon=1,nan", "with positive numbers"),
        ("epsilon=inf", "with positive numbers"),
        ("epsilon=1e999", "with positive numbers"),
    ],
)
def test_a_sweep_beyond_the_bounds_is_refused_in_the_words_of_the_configuration(desk, sweep, says):
    (desk / "hexveil.toml").write_text(SOURCE + HISTOGRAM)
    said = run("evaluate", "day.ndjson", "--sweep", *sweep.split(), code=2).output
    assert says in said.replace("\n", " ")
    assert "validation error" not in said
    assert "pydantic" not in said


@pytest.mark.parametrize("extra", ["--speed 2", "--order file", "--state file", "--state file/deeper"])
def test_an_offline_replay_refuses_a_ledger_that_cannot_be_kept_and_options_that_say_how_events_are_sent(desk, extra):
    said = run("replay", "day.ndjson", "--offline", "--config", BUS, *extra.split(), code=2).output
    assert ("--state" if "--state" in extra else "--speed and --order") in said


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
    said = run(*command.split(), "--config", RIDERS, *span, code=2).output
    assert "participation.geojson" in said


@pytest.mark.parametrize(
    "command", ["doctor", "worker", "serve", "topics create", "replay day.ndjson", "simulate --once"]
)
def test_a_file_of_credentials_that_cannot_be_read_is_refused_with_its_key(desk, monkeypatch, command):
    monkeypatch.setenv("HEXVEIL_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("HEXVEIL_KAFKA__USERNAME", "worker")
    monkeypatch.setenv("HEXVEIL_KAFKA__PASSWORD_FILE", "nowhere")
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # the recording is of 2017
    assert "kafka.password_file" in run(*command.split(), "--config", BUS, code=2).output


@pytest.mark.parametrize("command", ["doctor", "doctor --json", "ledger show"])
def test_a_password_of_redis_is_not_shown(desk, monkeypatch, command):
    monkeypatch.setenv("HEXVEIL_REDIS__URL", "redis://worker:geheim@127.0.0.1:9/0")
    said = run(*command.split(), "--config", BUS, code=3).output
    assert "redis://***@127.0.0.1:9/0" in said
    assert "geheim" not in said


SHIPPED = ("riders-live", "bus-fleet")
HORIZON = {"period": "28d", "budget": 24.0}


def shipped(name: str, folder: Path, **overrides: Any) -> Config:
    settings = {"privacy.user_key_file": str(folder / "user.key")} | overrides
    return load_config(REPO_ROOT / "config" / f"{name}.toml", **settings)


def riders(folder: Path, **overrides: Any) -> Config:
    """Under "participation" by pure ε: 2 a window, 12 a period, 312 hexagons."""
    return riders_config(folder, **({"privacy.budget": 12.0} | overrides))


def epsilons(config: Config) -> list[float]:
    return [bound.epsilon for bound in bounds(config)]


def test_days_add_up_and_a_horizon_bounds_them(tmp_path):
    assert DAYS == (1, 7, 28, 365)
    assert epsilons(riders(tmp_path)) == [12, 84, 336, 4380]
    # 7 or 28 days touch two blocks of 28 days, a year touches 14.
    assert epsilons(riders(tmp_path, **{"privacy.horizon": HORIZON})) == [12, 48, 48, 14 * 24]
    week = riders(tmp_path, **{"privacy.period": "7d"})
    assert epsilons(week) == [12, 24, 60, 53 * 12]


def test_under_zcdp_rho_adds_up_and_is_converted_once(tmp_path):
    config = zcdp_config(tmp_path)
    assert epsilons(config) == [config.privacy.stated_epsilon(days * config.privacy.ledger_budget) for days in DAYS]
    assert epsilons(config)[1] < 7 * epsilons(config)[0]


def test_what_one_day_costs_among_others_is_that_of_the_proof(tmp_path):
    horizon = {"privacy.horizon": HORIZON}
    assert one_day_among_others(riders(tmp_path)) is None
    assert one_day_among_others(shipped("bus-fleet", tmp_path, **horizon)) is None
    assert one_day_among_others(riders(tmp_path, **horizon)) == 2 * min(12 + 2, 24)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_sheet_states_what_the_configuration_promises(name, tmp_path):
    config = shipped(name, tmp_path)
    page = as_markdown(config)
    for bound, span in zip(bounds(config), ("a day", "a week", "28 days", "a year"), strict=True):
        after = [percent(posterior(prior, bound.epsilon)) for prior in (0.001, 0.01, 0.5)]
        assert "| " + " | ".join([span, f"{bound.epsilon:.4g}", factor(bound.epsilon), *after]) + " |" in page
    assert fingerprint(config) in page
    assert "Do not use it if" in page
    html = as_html(config)
    assert html.count("<h2>") == page.count("\n## ")
    assert len(re.findall("<tr>", html)) == len(re.findall(r"(?m)^\| (?!---)", page))


def test_another_setting_has_another_hash_and_another_place_the_same(tmp_path):
    one, other = riders(tmp_path), riders(tmp_path, **{"privacy.budget": 13.0})
    moved = riders(tmp_path / "elsewhere", **{"kafka.bootstrap": "kafka.example:9092"})
    assert fingerprint(one) == fingerprint(moved) != fingerprint(other)


def test_certainty_is_never_rounded_up_to():
    assert [percent(posterior(prior, 12)) for prior in (0.001, 0.01, 0.5)] == ["99.4 %", "99.94 %", "99.9994 %"]
    assert percent(posterior(0.5, 4380)) == "nearly 100 %"
    assert factor(4380) == f"10^{4380 / math.log(10):.0f}"


def test_the_night_worker_stands_out_as_soon_as_the_sheet_says(tmp_path):
    """The attack itself is tests/audit/test_horizon_audit.py."""
    assert nights_to_stand_out(riders(tmp_path)) == 5
    assert nights_to_stand_out(riders(tmp_path, **{"privacy.epsilon": 0.25})) == 288


def test_retention_is_what_the_code_keeps(tmp_path):
    config = riders(tmp_path)
    raw, *outputs = topic_plans(config)
    open_for = config.window.slot + config.window.allowed_delay
    assert timedelta(milliseconds=raw.retention_ms) == timedelta(days=1) + open_for
    assert timedelta(days=2) == KEPT_PERIODS
    times = {plan.name: plan.retention_ms / 86_400_000 for plan in outputs}
    days = [times[f"hexveil.{name}.v1"] for name in ("hexagon-speed", "spatial-histogram", "window", "rejected")]
    assert days == [365, 365, -1 / 86_400_000, 7]
    page = (REPO_ROOT / "docs" / "dpia.md").read_text(encoding="utf-8")
    for row in kept(config):
        if row.place.startswith("Redis"):
            assert f"| {row.what} | {row.place} | yes | {row.time}" in page
    assert "1 day longer than a window is open" in page
    assert "| no | 365 days |" in page
    assert "| no | 7 days |" in page


def test_the_command_writes_the_sheet(tmp_path):
    file = tmp_path / "promise.html"
    check = ("check", "-c", str(REPO_ROOT / "config" / "riders-live.toml"), "--sheet")
    said = run(*check, str(file)).stdout
    assert "a day ε 4, a week ε 12.3, 28 days ε 29.41, a year ε 190.5" in " ".join(said.split())
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ".html" in run(*check, "promise.pdf", code=2).stderr


def output(*arguments: str) -> str:
    return run("check", *arguments).stdout


def rules(config: str) -> dict[str, dict[str, Any]]:
    return {rule["key"]: rule for rule in json.loads(output("--config", config, "--json"))["rules"]}


def test_the_shipped_budget_pays_for_every_window_and_a_smaller_one_is_a_warning_with_the_remedy(monkeypatch):
    shipped = str(REPO_ROOT / "config" / "bus-fleet.toml")
    assert "Warning: budget" not in output("--config", shipped)
    assert "has 9 windows instead of 8" in output("--config", shipped)
    assert "set budget to 13.5.\n" in output("--config", shipped)
    monkeypatch.setenv("HEXVEIL_PRIVACY__BUDGET", "8")
    said = output("--config", shipped)
    assert "Warning: budget 8.0 pays for" in said
    assert "the last windows of a period go dark" in said
    assert "or set budget to 12, or 13.5 for the 9 of the longest period.\n" in said
    monkeypatch.setenv("HEXVEIL_PRIVACY__ADMISSION", "paced")
    said = output("--config", shipped)
    assert "Warning: budget" not in said
    assert "spread over it (privacy.admission 'paced'). To pay for all of them, lower epsilon" in said
    monkeypatch.delenv("HEXVEIL_PRIVACY__ADMISSION")
    monkeypatch.setenv("HEXVEIL_PRIVACY__BUDGET", "12")
    monkeypatch.setenv("HEXVEIL_HISTOGRAM", '{"mechanisms": ["ug"], "epsilon": 0.5}')
    assert f"or set budget to {12 + 0.5 * windows(shipped):g}, or " in output("--config", shipped)


def test_the_recommended_budget_is_exact_and_sufficient(monkeypatch):
    """288 windows of 0.123456 cost 35.555328; with six digits it read 35.5553, which pays for 287."""
    monkeypatch.setenv("HEXVEIL_WINDOW__SLOT", "5m")
    monkeypatch.setenv("HEXVEIL_PRIVACY__EPSILON", "0.123456")
    monkeypatch.setenv("HEXVEIL_PRIVACY__BUDGET", "1")
    assert "or set budget to 35.555328, or 37.0368 for the 300 of the longest period.\n" in output("--config", BUS)
    monkeypatch.setenv("HEXVEIL_PRIVACY__BUDGET", "35.555328")
    said = output("--config", BUS)
    assert "Warning: budget" not in said
    assert "has 300 windows instead of 288" in said
    monkeypatch.setenv("HEXVEIL_PRIVACY__BUDGET", "37.0368")
    assert "Note" not in output("--config", BUS)


def test_where_clocks_are_never_changed_every_period_is_as_long(monkeypatch):
    monkeypatch.setenv("HEXVEIL_FEED__TIMEZONE", "Asia/Kolkata")
    shipped = str(REPO_ROOT / "config" / "bus-fleet.toml")
    assert "Note" not in output("--config", shipped)
    assert json.loads(output("--config", shipped, "--json"))["windows_of_longest_period"] == windows(shipped) == 8
    assert json.loads(output("--config", BUS, "--json"))["windows_of_longest_period"] == 24


def test_under_zcdp_the_warning_names_what_is_configured(tmp_path):
    text = hourly.RIDERS.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^epsilon = .*", 'accounting = "zcdp"\nwindows = 10\ndelta = 1e-9', text, count=1)
    file = tmp_path / "hexveil.toml"
    file.write_text(text, encoding="utf-8")
    said = output("--config", str(file))
    assert "budget 16.0 pays for 10 of 24 windows at rho " in said
    assert "lengthen window.slot, or set windows to 24, or 25 for the 25" in said


def windows(config: str) -> int:
    return int(json.loads(output("--config", config, "--json"))["windows_per_period"])


def test_every_rule_under_values_is_there_with_its_value_and_unit():
    by_key = rules(BUS)
    values = {key: (rule["bounds"], rule["value"], rule["unit"], rule["fixed"]) for key, rule in by_key.items()}
    assert values == {
        "window.allowed_delay": ("an event", 300, "s", False),
        "window.max_age": ("an event", 86_400, "s", False),
        "ahead": ("an event", 300, "s", True),
        "origin": ("an event", 0.01, "degrees", True),
        "message": ("an event", 65_536, "bytes", True),
        "array": ("an event", 262_144, "bytes", True),
        "elements": ("an event", 5_000, "events", True),
        "batch": ("an event", 16 << 20, "bytes", True),
        "events": ("a user", 100_000, "events", True),
        "cells": ("a user", 1_000, "cells", True),
        "value.upper": ("a user", 65, "km/h", False),
        "window.slot": ("a window", 3_600, "s", False),
        "speed.min_users": ("a window", 1, "users", False),
        "pairs": ("a window", 200_000, "pairs", True),
        "suppression": ("a window", 2_000_000, "evaluations", True),
    }


def test_under_participation_no_rule_depends_on_counts_and_those_of_public_list_and_histogram_are_there(
    tmp_path,
):
    by_key = rules(RIDERS)
    assert not by_key.keys() & {"speed.min_users", "pairs", "suppression"}
    assert by_key["participation.cells_per_user"]["value"] == 8
    assert by_key["public cells"]["value"] == 20_000
    assert by_key["window.publication_margin"]["value"] == 60
    (tmp_path / "hexveil.toml").write_text(Path(RIDERS).read_text() + HISTOGRAM)
    assert rules(str(tmp_path / "hexveil.toml"))["histogram.fixes_per_user"]["value"] == 1


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("HEXVEIL_WINDOW__MAX_AGE", "90m", "  window.max_age: 90 min: "),
        ("HEXVEIL_WINDOW__PUBLICATION_MARGIN", "90s", "  window.publication_margin: 90 s: "),
        ("HEXVEIL_WINDOW__LATENESS", "event-time", "  window.idle_timeout: 5 min: "),
        ("HEXVEIL_WINDOW__LATENESS", "event-time", "  window.max_age: 36500 d: "),
        ("HEXVEIL_WINDOW__SLOT", "2h", "  events (fixed): 100 000 events: "),
    ],
)
def test_the_lines_state_what_was_configured(monkeypatch, variable, value, line):
    monkeypatch.setenv(variable, value)
    assert any(text.startswith(line) for text in output("--config", BUS).splitlines())


def chosen(config: Config, **changes: object) -> Trial:
    outcome = TrialOutcome(1.0, 12.01, 12_010_000, 5.0, 0.9, 1.0)
    return Trial(replace(Setting.of(config), **changes), EPSILONS.index(1.0), outcome, reaches=True, seconds=0.0)  # type: ignore[arg-type]


def write(path: Path, trial: Trial, config: Config, *, force: bool) -> None:
    keys = keys_for(trial, config, SOURCE, 12.05)
    write_chosen(path, SOURCE, keys, trial.setting.keys() | keys, Want(5.0, 0.8), force=force)


@pytest.fixture
def kept_file(tmp_path: Path) -> Path:
    """A file that exists."""
    path = tmp_path / "kept_file.toml"
    path.write_text("mine")
    path.chmod(0o640)
    return path


def test_force_replaces_a_file_and_nothing_else_does(kept_file):
    config = load_config(hourly.BUS)
    with pytest.raises(typer.Exit):
        write(kept_file, chosen(config), config, force=False)
    assert kept_file.read_text() == "mine"
    write(kept_file, chosen(config), config, force=True)
    assert load_config(kept_file).privacy.budget == 12.01
    assert kept_file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(kept_file.parent) == [kept_file.name]


def test_settings_that_are_no_valid_configuration_leave_the_old_file(kept_file, capsys):
    config = load_config(hourly.BUS)
    invalid = chosen(config, resolution=0, merge_until=8.0, coarsest_resolution=0)
    with pytest.raises(typer.Exit) as stopped:
        write(kept_file, invalid, config, force=True)
    assert (stopped.value.exit_code, kept_file.read_text()) == (2, "mine")
    assert os.listdir(kept_file.parent) == [kept_file.name]
    assert "kept_file.toml is not written" in (message := capsys.readouterr().err)
    assert "coarsest_resolution 0 is not below resolution 0" in message


def test_the_file_says_what_was_chosen_where_the_environment_said_it_before(tmp_path, monkeypatch):
    """The template has mean and variance, and no key of merging."""
    monkeypatch.setenv("HEXVEIL_SPEED__STATISTICS", '["mean"]')
    config, path = load_config(hourly.BUS), tmp_path / "new.toml"
    assert "window.slot" not in keys_for(chosen(config), config, SOURCE, 12.05)
    write(path, chosen(config), config, force=False)
    monkeypatch.delenv("HEXVEIL_SPEED__STATISTICS")
    assert load_config(path).speed.statistics == ("mean",)


def test_a_variable_that_overrides_the_choice_is_an_error_and_the_old_file_stays(kept_file, monkeypatch, capsys):
    monkeypatch.setenv("HEXVEIL_PRIVACY__EPSILON", "1.5")
    config = load_config(hourly.BUS)
    with pytest.raises(typer.Exit):
        write(kept_file, chosen(config), config, force=True)
    assert kept_file.read_text() == "mine"
    assert "privacy.epsilon = 1.5 instead of 1.0" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        check_target(kept_file, force=True)
    assert "HEXVEIL_PRIVACY__EPSILON would override" in capsys.readouterr().err, "before anything is computed"
