"""The promise sheet and what it says: figures from the configuration, retention as the code keeps it."""

from __future__ import annotations

import math
import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stream.cli.sheet import as_html, as_markdown, fingerprint, nights_to_stand_out
from stream.config import Config, load_config
from stream.config.promise import DAYS, bounds, factor, one_day_among_others, percent, posterior
from stream.local import REPO_ROOT
from stream.messages.topics import KEPT_PERIODS, LAST_FIXES, kept, topic_plans
from stream.sources.derived_speed import DerivationLimits
from tests.support.builders import riders_config, zcdp_config

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


def test_days_add_up_and_a_horizon_bounds_them(tmp_path: Path) -> None:
    assert DAYS == (1, 7, 28, 365)
    assert epsilons(riders(tmp_path)) == [12, 84, 336, 4380]
    # 7 or 28 days touch two blocks of 28 days, a year touches 14.
    assert epsilons(riders(tmp_path, **{"privacy.horizon": HORIZON})) == [12, 48, 48, 14 * 24]
    week = riders(tmp_path, **{"privacy.period": "7d"})
    assert epsilons(week) == [12, 24, 60, 53 * 12]


def test_under_zcdp_rho_adds_up_and_is_converted_once(tmp_path: Path) -> None:
    config = zcdp_config(tmp_path)
    assert epsilons(config) == [config.privacy.stated_epsilon(days * config.privacy.ledger_budget) for days in DAYS]
    assert epsilons(config)[1] < 7 * epsilons(config)[0]


def test_what_one_day_costs_among_others_is_that_of_the_proof(tmp_path: Path) -> None:
    horizon = {"privacy.horizon": HORIZON}
    assert one_day_among_others(riders(tmp_path)) is None
    assert one_day_among_others(shipped("bus-fleet", tmp_path, **horizon)) is None
    assert one_day_among_others(riders(tmp_path, **horizon)) == 2 * min(12 + 2, 24)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_sheet_states_what_the_configuration_promises(name: str, tmp_path: Path) -> None:
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


def test_another_setting_has_another_hash_and_another_place_the_same(tmp_path: Path) -> None:
    one, other = riders(tmp_path), riders(tmp_path, **{"privacy.budget": 13.0})
    moved = riders(tmp_path / "elsewhere", **{"kafka.bootstrap": "kafka.example:9092"})
    assert fingerprint(one) == fingerprint(moved) != fingerprint(other)


def test_certainty_is_never_rounded_up_to() -> None:
    assert [percent(posterior(prior, 12)) for prior in (0.001, 0.01, 0.5)] == ["99.4 %", "99.94 %", "99.9994 %"]
    assert percent(posterior(0.5, 4380)) == "nearly 100 %"
    assert factor(4380) == f"10^{4380 / math.log(10):.0f}"


def test_the_night_worker_stands_out_as_soon_as_the_sheet_says(tmp_path: Path) -> None:
    """The attack itself is tests/audit/test_horizon_audit.py."""
    assert nights_to_stand_out(riders(tmp_path)) == 5
    assert nights_to_stand_out(riders(tmp_path, **{"privacy.epsilon": 0.25})) == 288


def test_retention_is_what_the_code_keeps(tmp_path: Path) -> None:
    config = riders(tmp_path)
    raw, *outputs = topic_plans(config)
    open_for = config.window.slot + config.window.allowed_delay
    assert timedelta(milliseconds=raw.retention_ms) == timedelta(days=1) + open_for
    assert timedelta(days=2) == KEPT_PERIODS
    assert timedelta(seconds=2 * DerivationLimits().most_s) == LAST_FIXES
    times = {plan.name: plan.retention_ms / 86_400_000 for plan in outputs}
    assert [times[f"hexveil.{name}.v1"] for name in ("hexagon-speed", "spatial-histogram", "window", "rejected")] == [
        365,
        365,
        -1 / 86_400_000,
        7,
    ]
    page = (REPO_ROOT / "docs" / "dpia.md").read_text(encoding="utf-8")
    for row in kept(config):
        if row.place.startswith("Redis"):
            assert f"| {row.what} | {row.place} | yes | {row.time}" in page
    assert "1 day longer than a window is open" in page
    assert "| no | 365 days |" in page
    assert "| no | 7 days |" in page


def test_the_command_writes_the_sheet(hexveil: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "promise.html"
    config = str(REPO_ROOT / "config" / "riders-live.toml")
    done = subprocess.run(
        [*hexveil, "check", "-c", config, "--sheet", str(file)], capture_output=True, text=True, check=True
    )
    assert "a day ε 4, a week ε 12.3, 28 days ε 29.41, a year ε 190.5" in done.stdout
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    refused = subprocess.run(
        [*hexveil, "check", "-c", config, "--sheet", "promise.pdf"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert ".html" in refused.stderr
