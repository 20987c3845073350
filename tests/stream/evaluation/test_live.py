"""``hexveil evaluate --live``: a map is compared with the typical one, and watched while an incident is planted.
``hexveil tune --want "see a drop …"`` finds the least budget at which a live map shows a planted drop in time.
The scores of histograms are correct."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from stream.config import Config, ConfigError, load_config
from stream.config.rewriting import rewritten
from stream.evaluation.drop_tuning import DropSearch
from stream.evaluation.histograms import evaluate_histograms, with_histogram_epsilon
from stream.evaluation.leading import EXAMPLE_OF_A_DROP, DropWant
from stream.evaluation.live import EVENTS, evaluate_live, typical_of
from stream.evaluation.living import Exact, Response, Shown, Watch, exact_windows, plant
from stream.statistics.histograms.fixes import fixes_of
from stream.terms import Terms
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, located, located_rows, random_rows, with_histograms
from tests.support.command import run

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


def test_a_map_without_noise_has_skill_1_and_shows_all_of_an_incident_once_its_window_is_on_the_screen(tmp_path):
    config = bus_config(tmp_path, **RICH)
    score = evaluate_live(config, city(config), 1)
    assert score.skill == pytest.approx(1.0, abs=0.01)
    assert score.mae == pytest.approx(0.0, abs=0.3)
    incident = score.incident
    assert incident.minutes == (16.0, 31.0, 46.0, 61.0)
    np.testing.assert_allclose(incident.seen, 1.0, atol=0.03)
    assert incident.flagged == (1.0, 1.0, 1.0, 1.0)
    assert (incident.after(15), incident.after(16)[1]) == ((0.0, 0.0), 1.0)


def test_a_map_that_shows_nothing_has_skill_0_and_no_incident(tmp_path):
    config = bus_config(tmp_path, **RICH | {"speed.min_users": 1000})
    score = evaluate_live(config, city(config), 1)
    assert (score.shown, score.skill, score.useful, score.mae) == (0.0, 0.0, 0.0, None)
    assert set(score.incident.seen) == {0.0}
    json.dumps(score.facts(), allow_nan=False)


def test_an_incident_of_an_hour_in_a_window_of_three_is_on_no_screen_while_it_lasts(tmp_path):
    config = bus_config(tmp_path, **RICH | {"window.slot": "3h"})
    start = int(config.slotting.slot_starts(np.array([SLOT * 1_000_000]))[0])
    (window,) = exact_windows(config, {start: random_rows(1, 600, slot=start, hours=3)})
    planted = plant([window], 10_800, most=10)
    watch = Watch(config, planted, [window])
    nothing = np.full(len(window.cells), 50.0)
    watch.add(start, *[Shown(nothing, nothing, nothing, nothing)] * 2)
    assert (watch.response().minutes, watch.response().after(60)) == ((181.0,), (0.0, 0.0))
    fast = [cell in planted.cells for cell in window.cells.tolist()]
    slower = watch.struck[start].mean[fast] / window.mean[fast]
    assert np.all((slower > 0.6) & (slower < 1)), "a third of the window is 0.4 times as fast"
    assert watch.response().drop == pytest.approx(0.6 * window.mean[fast].mean(), rel=0.2)


def test_a_planted_drop_is_of_so_many_km_h_in_every_cell(tmp_path):
    config = bus_config(tmp_path, **RICH)
    windows = city(config)
    planted = plant(windows, 900, most=99, drop=8.0)
    response = Watch(config, planted, windows)
    for slot, struck in response.struck.items():
        before = next(window for window in windows if window.slot == slot)
        fall = (before.mean - struck.mean)[np.isin(before.cells, planted.cells)]
        np.testing.assert_allclose(fall, 8.0, rtol=0.25)


def test_what_the_screen_shows_is_its_last_window():
    response = Response(0, 1, 8.0, (16.0, 31.0), (0.25, 0.5), (0.0, 1.0))
    shown = [response.after(minutes) for minutes in (15.9, 16, 30.9, 31, 500)]
    assert shown == [(0.0, 0.0), (0.25, 0.0), (0.25, 0.0), (0.5, 1.0), (0.5, 1.0)]


def test_the_typical_map_of_a_day_is_its_other_windows_and_of_several_days_the_days_before():
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


def test_the_command_prints_and_draws_what_its_json_says(tmp_path):
    config, figure = configuration(tmp_path), tmp_path / "live.svg"
    plain = ["evaluate", simulated(config, "2h", 40), "--config", config, "--live", "--trials", 1, "--plot"]
    asked = [*plain, figure]
    report = json.loads(run(*asked, "--json").stdout)
    (live,) = report["live"]
    assert (report["private"], live["against"], live["windows"]) == (False, "other windows of the day", 8)
    assert [point["minutes"] for point in live["incident"]["on_screen"]] == [20.0, 35.0, 50.0, 65.0]
    assert live["incident"]["seen_after_60_min"] == live["incident"]["on_screen"][2]["seen"]
    assert figure.stat().st_size > 10_000
    assert "oracle" in run(*asked).stdout
    assert "leave out --histograms" in run(*asked, "--histograms", code=2).stderr
    for wrong in ("live.txt", "nowhere/live.png"):
        assert f"cannot write {wrong}" in run(*plain, wrong, code=2).stderr.replace("\n", "")


def simulated(config: Path, duration: str, vehicles: int) -> str:
    """A recording of a simulated morning."""
    file = config.with_name("day.ndjson")
    span = ["--start", "2017-03-21T13:00:00Z", "--duration", duration, "--vehicles", vehicles]
    run("simulate", "--config", config, *span, "--out", file)
    return str(file)


WANT = DropWant(8.0, 30.0, 0.5)


def configuration(folder: Path, relation: str = "values", slot: str = "15m") -> Path:
    """The hourly configuration of a relation, with windows of ``slot``, in ``folder``."""
    source = hourly.BUS if relation == "values" else hourly.RIDERS
    file = folder / "hexveil.toml"
    text = source.read_text(encoding="utf-8").replace("var/user.key", str(folder / "user.key"))
    file.write_text(text.replace('slot = "1h"', f'slot = "{slot}"'), encoding="utf-8")
    return file


def day() -> np.ndarray:
    """Two hours of 60 vehicles in six places that are far apart."""
    quarters = [random_rows(k, 900, users=60, slot=SLOT + 900 * k) for k in range(8)]
    for k, rows in enumerate(quarters):
        rows["time"] = (SLOT + 900 * k) * 1_000_000 + np.arange(len(rows)) * 1_000_000
    return located(np.concatenate(quarters), 1)


def test_the_chosen_budget_is_the_least_that_reaches_the_want_and_other_noise_confirms_it(tmp_path):
    search = DropSearch(configuration(tmp_path), day(), WANT, 400.0, 1)
    tuning = search.run([5], [timedelta(minutes=15)])
    chosen = tuning.chosen
    assert chosen.flagged >= WANT.share
    assert min(trial.budget for trial in tuning.trials) < chosen.budget, "cheaper ones were tried"
    same = [trial for trial in tuning.trials if (trial.way, trial.budget) == (chosen.way, chosen.budget)]
    assert [trial.reaches for trial in same] == [True, True], "under the noise of the search, and under other noise"
    assert load_config(configuration(tmp_path), **chosen.keys).privacy.budget == pytest.approx(chosen.budget, rel=0.01)


def test_a_slot_whose_map_comes_too_late_is_not_tried(tmp_path):
    search = DropSearch(configuration(tmp_path), day(), WANT, 12.0, 1)
    tuning = search.run([5], [timedelta(minutes=15), timedelta(minutes=30)])
    late = (5, timedelta(minutes=30)), ""
    assert list(tuning.skipped) == [late]
    assert "0:35:00" in tuning.skipped[late], "the slot, and five minutes for late events"
    search = DropSearch(configuration(tmp_path), day(), WANT, 12.0, 1)
    with pytest.raises(ConfigError, match="on the screen after"):
        search.run([5], [timedelta(hours=1)])


def test_each_relation_tries_what_it_allows(tmp_path):
    for relation, residual in (("values", True), ("participation", False)):
        search = DropSearch(configuration(tmp_path, relation), day(), WANT, 12.0, 1)
        names = [way.name for way in search.ways()]
        assert ("zCDP, rolling" in names, "pure ε" in names) == (residual, residual)
        assert len(names) == len(set(names)) >= 2


def test_a_want_is_read_as_it_is_written_and_one_that_cannot_be_is_refused_with_an_example():
    for drop, minutes, share in ((0, 30, 80), (8, 0, 80), (8, 61, 80), (8, 30, 0)):
        with pytest.raises(ValueError, match=EXAMPLE_OF_A_DROP):
            DropWant.parse(f"see a drop of {drop} km/h within {minutes} min in {share} % of cells", 65.0)
    want = DropWant.parse(EXAMPLE_OF_A_DROP, 65.0)
    assert want == DropWant(8.0, 30.0, 0.8)
    assert str(want) == EXAMPLE_OF_A_DROP
    assert DropWant.parse("±5 km/h for 80 % of events", 65.0) is None


def test_a_key_with_no_value_is_taken_out_of_a_configuration():
    text = "[privacy]\nepsilon = 1.0  # of a window\nbudget = 12.0\n"
    assert rewritten(text, {"privacy.epsilon": None, "privacy.delta": None}, "x") == "[privacy]\nbudget = 12.0\n"


def test_the_command_writes_what_it_chose_and_says_what_is_nearest_if_nothing_reaches_the_want(tmp_path):
    config, tuned = configuration(tmp_path), tmp_path / "tuned.toml"
    grids = ["--resolutions", "5", "--slots", "15m", "--draws", "1"]
    asked = ["tune", simulated(config, "90m", 60), "--config", config, *grids, "--want"]
    rich = [*asked, "see a drop of 4 km/h within 60 min in 30 % of cells", "--budget", 400]
    report = json.loads(run(*rich, "--write", tuned, "--json").stdout)
    assert (report["private"], report["chosen"]["reaches"]) == (False, True)
    assert load_config(tuned).privacy.budget == pytest.approx(report["chosen"]["budget"], rel=0.01)
    poor = run(*asked, EXAMPLE_OF_A_DROP, "--budget", 0.01, code=1)
    assert ("The nearest" in poor.stdout, "NOT PRIVATE" in poor.stderr) == (True, True)


def test_evaluation_finds_the_error_that_more_epsilon_lowers_and_keeps_the_windows_paid(tmp_path):
    config = with_histograms("participation", tmp_path, ["singular", "sparse"], **{"histogram.epsilon": 1.0})
    windows = {slot: located_rows(k, 800, users=200, slot=slot) for k, slot in enumerate((SLOT, SLOT + 3600))}
    scores, paid = {}, config.privacy.ledger_budget // config.window_grant
    for epsilon in (0.5, 50.0):
        changed = with_histogram_epsilon(config, epsilon)
        assert changed.privacy.ledger_budget // changed.window_grant == paid
        for score in evaluate_histograms(changed, windows, 3):
            scores[score.mechanism, score.ranges, epsilon] = score
    assert len(scores) == 8
    inside = [len(fixes_of(rows, Terms.of(config).reading.box).users) for rows in windows.values()]
    for (name, family, epsilon), score in scores.items():
        assert score.counted == np.mean(inside)
        assert score.windows == 2
        if epsilon == 50.0:
            assert score.mae < scores[name, family, 0.5].mae
    # Without noise to speak of, what is left of "singular" is that fixes are not even inside a cell.
    assert scores["singular", "square", 50.0].mae < 5


def test_histograms_are_judged_on_request_and_said_to_be_not_private(tmp_path):
    file = configuration(tmp_path, slot="1h")
    text = file.read_text(encoding="utf-8")
    asked = ["evaluate", simulated(file, "1h", 60), "--config", file, "--format", "canonical", "--histograms"]
    asked += ["--trials", 1]
    assert "no section [histogram]" in run(*asked, code=2).stderr
    added = '\n[histogram]\nmechanisms = ["sparse"]\nepsilon = 1.0\nrows = 16\ncolumns = 16\n'
    file.write_text(text.replace("budget = 48.0", "budget = 96.0") + added, encoding="utf-8")
    one = [*asked, "--sweep", "epsilon=1,2"]
    report = json.loads(run(*one, "--json").stdout)
    assert report["private"] is False
    assert [(s["mechanism"], s["ranges"], s["epsilon"]) for s in report["histograms"]] == [
        ("sparse", family, epsilon) for epsilon in (1.0, 2.0) for family in ("random", "square")
    ]
    assert "sparse" in run(*one).stdout
