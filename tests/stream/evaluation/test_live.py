"""``hexveil evaluate --live``: a map is compared with the typical one, and watched while an incident is planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config import Config
from stream.evaluation.live import EVENTS, evaluate_live, typical_of
from stream.evaluation.living import Exact, Response, Shown, Watch, exact_windows, plant
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows

QUARTER = {"window.slot": "15m", "window.allowed_delay": "1m"}
RICH: dict[str, Any] = QUARTER | {
    "privacy.epsilon": 900.0,
    "privacy.budget": 90_000.0,
    "speed.statistics": ["mean"],
    "speed.suppression": "none",
    "speed.sum_cap": 0.0,
    "speed.clipping": "none",
    "speed.post_processing": [],
}
"""So little noise that the released mean is nearly exact."""


def city(config: Config, hours: int = 3) -> list[Exact]:
    """A small city of six cells that are far apart, in windows of a quarter of an hour."""
    quarters = range(SLOT, SLOT + hours * 3600, 900)
    rows = {slot: random_rows(k, 300, slot=slot) for k, slot in enumerate(quarters)}
    for slot, of in rows.items():
        of["time"] = slot * 1_000_000 + np.arange(len(of)) * 1_000_000
    return exact_windows(config, rows)


def test_a_map_without_noise_has_skill_1_and_shows_all_of_an_incident_once_its_window_is_on_the_screen(
    tmp_path: Path,
) -> None:
    config = bus_config(tmp_path, **RICH)
    score = evaluate_live(config, city(config), 1)
    assert score.skill == pytest.approx(1.0, abs=0.01)
    assert score.mae == pytest.approx(0.0, abs=0.3)
    incident = score.incident
    assert incident is not None
    assert incident.minutes == (16.0, 31.0, 46.0, 61.0)
    np.testing.assert_allclose(incident.seen, 1.0, atol=0.03)
    assert incident.flagged == (1.0, 1.0, 1.0, 1.0)
    assert (incident.after(15), incident.after(16)[1]) == ((0.0, 0.0), 1.0)


def test_a_map_that_shows_nothing_has_skill_0_and_no_incident(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **RICH | {"speed.min_users": 1000})
    score = evaluate_live(config, city(config), 1)
    assert (score.shown, score.skill, score.useful, score.mae) == (0.0, 0.0, 0.0, None)
    assert score.incident is not None
    assert set(score.incident.seen) == {0.0}
    json.dumps(score.facts(), allow_nan=False)


def test_an_incident_of_an_hour_in_a_window_of_three_is_on_no_screen_while_it_lasts(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **RICH | {"window.slot": "3h"})
    start = int(config.slotting.slot_starts(np.array([SLOT * 1_000_000]))[0])
    (window,) = exact_windows(config, {start: random_rows(1, 600, slot=start, hours=3)})
    planted = plant([window], 10_800, most=10)
    assert planted is not None
    watch = Watch(config, planted, [window])
    nothing = np.full(len(window.cells), 50.0)
    watch.add(start, *[Shown(nothing, nothing, nothing, nothing)] * 2)
    assert (watch.response().minutes, watch.response().after(60)) == ((181.0,), (0.0, 0.0))
    fast = [cell in planted.cells for cell in window.cells.tolist()]
    slower = watch.struck[start].mean[fast] / window.mean[fast]
    assert np.all((slower > 0.6) & (slower < 1)), "a third of the window is 0.4 times as fast"
    assert watch.response().drop == pytest.approx(0.6 * window.mean[fast].mean(), rel=0.2)


def test_a_planted_drop_is_of_so_many_km_h_in_every_cell(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **RICH)
    windows = city(config)
    planted = plant(windows, 900, most=99, drop=8.0)
    assert planted is not None
    response = Watch(config, planted, windows)
    for slot, struck in response.struck.items():
        before = next(window for window in windows if window.slot == slot)
        fall = (before.mean - struck.mean)[np.isin(before.cells, planted.cells)]
        np.testing.assert_allclose(fall, 8.0, rtol=0.25)


def test_what_the_screen_shows_is_its_last_window() -> None:
    response = Response(0, 1, 8.0, (16.0, 31.0), (0.25, 0.5), (0.0, 1.0))
    shown = [response.after(minutes) for minutes in (15.9, 16, 30.9, 31, 500)]
    assert shown == [(0.0, 0.0), (0.25, 0.0), (0.25, 0.0), (0.5, 1.0), (0.5, 1.0)]


def test_the_typical_map_of_a_day_is_its_other_windows_and_of_several_days_the_days_before() -> None:
    cells, ten = np.array([3, 7], dtype=np.uint64), np.array([10.0, 10.0])
    one = [(SLOT, cells, ten, np.array([20.0, 40.0])), (SLOT + 900, cells[:1], ten[:1], np.array([30.0]))]
    alone = typical_of(one, ZoneInfo("America/Chicago"))
    assert (alone.known, alone.against) == ([True, True], "other windows of the day")
    assert [each.tolist() for each in alone.maps] == [[30.0, 30.0], [20.0]], "no other events: the mean of all cells"
    many = np.array([1e6, 1e6])
    days = [
        (SLOT, cells, many, np.array([20.0, 40.0])),
        (SLOT + 7200, cells, many, np.array([10.0, 50.0])),
        (SLOT + 86_400, cells, ten, np.array([99.0, 99.0])),
        (SLOT + 86_400 + 3600, cells, ten, np.array([99.0, 99.0])),
    ]
    later = typical_of(days, ZoneInfo("America/Chicago"))
    assert (later.known, later.against) == ([False, False, True, True], "earlier days")
    np.testing.assert_allclose(later.maps[2], [20.0, 40.0], rtol=10 * EVENTS / 1e6)
    np.testing.assert_allclose(later.maps[3], [15.0, 45.0])


def test_the_command_prints_and_draws_what_its_json_says(tmp_path: Path) -> None:
    config = tmp_path / "hexveil.toml"
    text = hourly.BUS.read_text(encoding="utf-8").replace("var/user.key", str(tmp_path / "k"))
    config.write_text(text.replace('slot = "1h"', 'slot = "15m"'), encoding="utf-8")
    recording, figure = tmp_path / "day.ndjson", tmp_path / "live.svg"
    simulated = ["--start", "2017-03-21T13:00:00Z", "--duration", "2h", "--vehicles", "40", "--out", str(recording)]
    assert CliRunner().invoke(app, ["simulate", "--config", str(config), *simulated]).exit_code == 0
    asked = ["evaluate", str(recording), "--config", str(config), "--live", "--trials", "1", "--plot", str(figure)]
    report = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    (live,) = report["live"]
    assert (report["private"], live["against"], live["windows"]) == (False, "other windows of the day", 8)
    assert [point["minutes"] for point in live["incident"]["on_screen"]] == [20.0, 35.0, 50.0, 65.0]
    assert live["incident"]["seen_after_60_min"] == live["incident"]["on_screen"][2]["seen"]
    assert figure.stat().st_size > 10_000
    printed = CliRunner().invoke(app, asked)
    assert "oracle" in printed.stdout
    refused = CliRunner().invoke(app, [*asked, "--histograms"])
    assert (refused.exit_code, "leave out --histograms" in refused.stderr) == (2, True)
