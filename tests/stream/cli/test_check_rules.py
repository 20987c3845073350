"""``hexveil check`` prints every public rule that bounds an event, a user or a window."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.local import REPO_ROOT
from tests.support import hourly

BUS, RIDERS = str(hourly.BUS), str(hourly.RIDERS)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def rules(config: str) -> dict[str, dict[str, Any]]:
    return {rule["key"]: rule for rule in json.loads(output("--config", config, "--json"))["rules"]}


def test_the_shipped_budget_pays_for_every_window_and_a_smaller_one_is_a_warning_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_the_recommended_budget_is_exact_and_sufficient(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_where_clocks_are_never_changed_every_period_is_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_FEED__TIMEZONE", "Asia/Kolkata")
    shipped = str(REPO_ROOT / "config" / "bus-fleet.toml")
    assert "Note" not in output("--config", shipped)
    assert json.loads(output("--config", shipped, "--json"))["windows_of_longest_period"] == windows(shipped) == 8
    assert json.loads(output("--config", BUS, "--json"))["windows_of_longest_period"] == 24


def test_under_zcdp_the_warning_names_what_is_configured(tmp_path: Path) -> None:
    text = hourly.RIDERS.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^epsilon = .*", 'accounting = "zcdp"\nwindows = 10\ndelta = 1e-9', text, count=1)
    file = tmp_path / "hexveil.toml"
    file.write_text(text, encoding="utf-8")
    said = output("--config", str(file))
    assert "budget 16.0 pays for 10 of 24 windows at rho " in said
    assert "lengthen window.slot, or set windows to 24, or 25 for the 25" in said


def windows(config: str) -> int:
    return int(json.loads(output("--config", config, "--json"))["windows_per_period"])


def test_every_rule_under_values_is_there_with_its_value_and_unit() -> None:
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


def test_under_participation_no_rule_depends_on_counts_and_those_of_the_public_list_are_there() -> None:
    by_key = rules(RIDERS)
    assert not by_key.keys() & {"speed.min_users", "pairs", "suppression"}
    assert by_key["participation.cells_per_user"]["value"] == 8
    assert by_key["public cells"]["value"] == 20_000
    assert by_key["window.publication_margin"]["value"] == 60


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("HEXVEIL_WINDOW__MAX_AGE", "90m", "  window.max_age: 90 min: "),
        ("HEXVEIL_WINDOW__PUBLICATION_MARGIN", "90s", "  window.publication_margin: 90 s: "),
        ("HEXVEIL_WINDOW__LATENESS", "event-time", "  window.idle_timeout: 5 min: "),
        ("HEXVEIL_WINDOW__LATENESS", "event-time", "  window.max_age: 36500 d: "),
    ],
)
def test_the_lines_state_what_was_configured(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert any(text.startswith(line) for text in output("--config", BUS).splitlines())


def test_a_histogram_bounds_the_fixes_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "hexveil.toml"
    file.write_text(Path(RIDERS).read_text() + '\n[histogram]\nmechanisms = ["ug"]\nepsilon = 1.0\n')
    assert rules(str(file))["histogram.fixes_per_user"]["value"] == 1
