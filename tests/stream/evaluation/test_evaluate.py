"""``hexveil evaluate`` uses the service's own plans, its scores are correct, and its output is marked as not private.
Errors are computed for each hexagon, noise and intervals for each cell of the plan."""

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from stream.config import Config
from stream.evaluation.evaluate import (
    VARIANTS,
    Places,
    PlannedWindow,
    Tables,
    evaluate,
    planned_windows,
    score_draw,
    variants,
    with_epsilon,
    with_speed,
)
from stream.evaluation.leading import released
from stream.evaluation.scores import Errors
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders
from tests.support.command import run
from tests.support.feeding import event

BUS = str(hourly.BUS)


def recording(folder: Path, buses: int = 1, places: int = 1) -> str:
    """A file of ten events of each bus, in turn in each of the places."""
    fixes = [(u, SLOT * 1000 + 1000 * k, 30.2 + 0.02 * (k % places)) for u in range(buses) for k in range(10)]
    file = folder / "day.ndjson"
    file.write_bytes(b"\n".join(event(f"b{u}", moment, lat, speed=20 + u) for u, moment, lat in fixes))
    return str(file)


def test_every_mechanism_is_scored_at_equal_loss_and_intervals_of_raw_values_cover_95_percent(tmp_path):
    """n = 60 draws × 6 cells × 3 windows = 1 080 for each score (360 for means drawn cell by cell), α = 1e-7 each:
    refuted outside 91.5 (89) to 98.5 %.

    Intervals of half the width cover 78 %, which is refuted with power above 0.999.
    """
    config = bus_config(tmp_path, **{"speed.post_processing": []})
    windows = {SLOT + 3600 * k: random_rows(k, 200, slot=SLOT + 3600 * k) for k in range(3)}
    single = ["baseline", "array-averaging", "levy", "epsilon-quantile"]
    of_means = variants(with_speed(config, statistics=("mean",)), single)
    for name, chosen in (*variants(config, ["uniform", "exact-loss", "exact-loss+cap"]), *of_means):
        of = {SLOT: windows[SLOT]} if name in single else windows
        for score in evaluate(chosen, of, 60, name):
            assert score.charges.most <= config.privacy.epsilon_micro
            if score.estimator == "released":
                n = 60 * score.cells
                assert stats.binomtest(round(score.coverage * n), n, 0.95).pvalue > 1e-7, score


def test_a_cell_whose_speeds_are_mostly_above_the_bound_is_named_although_few_events_are_in_it(tmp_path):
    """Speeds of 85 km/h at a bound of 65: intervals hold the clipped mean and, clamped to the bound, never the measured
    one."""
    config = bus_config(tmp_path, **{"privacy.epsilon": 50.0, "privacy.budget": 1200.0, "speed.post_processing": []})
    rows = random_rows(1, 400)
    rows["value"] %= 5000
    motorway = np.unique(rows["cell"])[2]
    chosen = np.flatnonzero(rows["cell"] == motorway)
    rows["value"][chosen] = 8500
    kept = np.delete(rows, chosen[15:])
    (score,) = (s for s in evaluate(config, {SLOT: kept}, 10) if (s.statistic, s.estimator) == ("mean", "released"))
    assert score.coverage > 0.8
    worst, *others = score.cell_coverage
    assert (worst.cell, worst.releases, worst.events) == (f"{motorway:x}", 10, 150)
    assert (worst.clipped, worst.measured) == (config.value.upper, 85.0)
    assert (worst.covers_clipped, worst.covers_measured) == (pytest.approx(1.0, abs=0.4), 0.0)
    assert all(one.covers_measured == one.covers_clipped > 0.5 for one in others)


def test_who_has_spent_the_budget_of_a_block_is_absent_from_its_later_days(tmp_path):
    """A day pays for one window, a block of 28 days for two: the third day of the block is empty, the next block is
    not."""
    budgets = {"privacy.epsilon": 1.0, "privacy.budget": 1.0, "speed.suppression": "none"}
    horizon = {"privacy.horizon": {"period": "28d", "budget": 2.0}}
    admitted = {}
    for terms in (budgets, budgets | horizon):
        config = bus_config(tmp_path, **terms)
        block = bus_config(tmp_path, **budgets, **horizon).slotting.block_of(SLOT)
        starts = [block.start + 86_400 * day + 43_200 for day in (0, 1, 2, 28)]
        windows = {start: random_rows(1, 200, users=2, slot=start) for start in starts}
        admitted[len(terms)] = [int((one.plan.charges > 0).sum()) for one in planned_windows(config, windows)]
    assert admitted == {3: [2, 2, 2, 2], 4: [2, 2, 0, 2]}


def test_more_epsilon_means_less_error(tmp_path):
    config = bus_config(tmp_path, **{"speed.post_processing": []})
    windows = {SLOT: random_rows(1, 300)}
    errors = [
        next(s.mae for s in evaluate(with_epsilon(config, e), windows, 20) if s.statistic == "mean")
        for e in (0.2, 2.0, 20.0)
    ]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("least", [1, 8, 12, 1000])
def test_what_is_not_released_is_missed_not_left_out_as_where_settings_are_tuned(tmp_path, least):
    """At ε = 1 000 noise is next to nothing, so all that is released is useful."""
    terms = {"privacy.epsilon": 1000.0, "privacy.budget": 24000.0, "speed.clipping": "none", "speed.sum_cap": 0.0}
    config = bus_config(tmp_path, **terms, **{"speed.min_users": least, "speed.statistics": ["mean"]})
    windows = {SLOT + 3600 * k: random_rows(k, 60 + 60 * k, slot=SLOT + 3600 * k) for k in range(2)}
    (score,) = (s for s in evaluate(config, windows, 2) if s.estimator == "released")
    users = {
        (k, cell): len(set(rows["user"][rows["cell"] == cell]))
        for k, rows in windows.items()
        for cell in set(rows["cell"])
    }
    shown = sum(int((windows[k]["cell"] == cell).sum()) for (k, cell), n in users.items() if n >= least)
    assert score.released == score.useful_coverage == shown / 180
    assert score.useful_cells == sum(n >= least for n in users.values()) / len(users)
    every, _ = released(config, windows, 2, seed=1)
    assert every.share_within(1e9) == pytest.approx(score.released, abs=1e-12)


def test_where_nothing_is_released_there_is_no_error_and_the_report_is_json(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_SPEED__MIN_USERS", "1000")
    arguments = ["evaluate", recording(tmp_path), "--config", BUS, "--trials", 1]
    machine = run(*arguments, "--json").stdout
    report = json.loads(machine, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    for score in report["scores"]:
        assert [score[name] for name in ("mae", "rmse", "bias", "released", "useful_coverage")] in (
            [None, None, None, 0.0, 0.0],  # of the mean
            [None, None, None, 0.0, None],
        )
    assert "nan" not in run(*arguments).output
    assert [warning for warning in recwarn if warning.category is RuntimeWarning] == []


def test_the_command_marks_its_output_as_not_private(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", recording(tmp_path, 8, 3), "--config", BUS, "--trials", "2"]
    report = json.loads(run(*arguments, "--json", "--mechanisms", "uniform,exact-loss").stdout)
    assert report["private"] is False
    assert "NOT PRIVATE" in report["warning"]
    assert {score["mechanism"] for score in report["scores"]} == {"uniform", "exact-loss"}
    assert "NOT PRIVATE" in run(*arguments, "--sweep", "epsilon=1,2").output


def test_the_relation_chooses_its_shipped_configuration_and_refuses_one_of_the_other(tmp_path, monkeypatch):
    file = recording(tmp_path, 8)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "user.key"))
    monkeypatch.chdir(tmp_path)
    for relation, statistics in (
        ("values", {"mean", "variance", "distribution"}),
        ("participation", {"mean", "variance"}),
    ):
        done = run("evaluate", file, "--format", "canonical", "--relation", relation, "--trials", 1, "--json")
        assert {score["statistic"] for score in json.loads(done.stdout)["scores"]} <= statistics
    refused = run("evaluate", file, "--config", BUS, "--relation", "participation", code=2)
    assert "relation 'values', not 'participation'" in refused.output


def test_every_figure_of_every_statistic_and_mechanism_is_reported(tmp_path):
    config = with_speed(bus_config(tmp_path), statistics=("mean", "moving_mean", "variance", "p15", "p50", "p85"))
    windows = {SLOT + 3600 * k: random_rows(k, 120, slot=SLOT + 3600 * k) for k in range(2)}
    for name, chosen in variants(config, ["exact-loss", "levy"]):
        scores = [asdict(score) for score in evaluate(chosen, windows, 3, name)]
        raw = {score["statistic"]: score for score in scores if score["estimator"] == "released"}
        assert set(raw) == {"mean", "moving_mean", "variance", "p15", "p50", "p85", "distribution"}
        assert 0 < raw["distribution"]["mae"] < 1, "a Kolmogorov distance"
        assert all(score["coverage"] is not None for score in raw.values())
        assert raw["mean"]["noise"] > 0
        assert raw["variance"]["noise"] > 0
        assert raw["mean"]["events"] == 240
        for score in scores:
            assert score["charges"]["unit"] == "micro_epsilon"
            spread = [score["charges"][key] for key in ("least", "p5", "median", "p95", "most")]
            assert spread == sorted(spread)
            assert 0 < spread[-1] <= config.privacy.epsilon_micro
            assert score["seconds"] > 0
            assert (score["duality_gap"] is not None) == (name == "exact-loss")
        json.dumps(scores)


@pytest.mark.parametrize("build", [bus_config, riders])
@pytest.mark.parametrize("released", [["mean", "variance"], ["mean", "variance", "p50"]])
def test_modelled_percentiles_are_scored_by_the_true_ones_beside_the_released_and_without_coverage(
    tmp_path, build, released
):
    """At ε = 1 000 noise is next to nothing, so the errors are of the model alone: of speeds that are spread evenly
    over 0 to 65."""
    terms = {"privacy.epsilon": 1000.0, "privacy.budget": 1000.0, "speed.clipping": "none"}
    config = build(tmp_path, **terms, **{"speed.statistics": released, "speed.post_processing": ["clipped-normal"]})
    rows = random_rows(3, 3000)
    rows["value"] = np.random.default_rng(4).integers(0, 6500, len(rows))
    scores = {(score.statistic, score.estimator): score for score in evaluate(config, {SLOT: rows}, 2)}
    for name, percent in (("p15", 0.15), ("p50", 0.5), ("p85", 0.85)):
        score = scores[name, "clipped-normal"]
        assert (score.coverage, score.noise, score.unit) == (None, None, "km/h")
        law = stats.norm(*_clipped_normal_of_even_speeds())
        assert score.bias == pytest.approx(np.clip(law.ppf(percent), 0, 65) - 65 * percent, abs=0.7)
        assert 0.3 < score.mae < 2, "of the 6 cells that were visited"
        assert ((name, "released") in scores) == (name in released)


def _clipped_normal_of_even_speeds() -> tuple[float, float]:
    """(Location, deviation) of the normal variable that clipped to [0, 65] has the mean and the variance of even
    speeds."""
    middle = 65 / 2

    def variance(deviation: float) -> float:
        integral, _ = integrate.quad(
            lambda z: min(deviation * z, middle) ** 2 * stats.norm.pdf(z), 0, 9, points=[middle / deviation]
        )
        return 2 * float(integral)

    return middle, optimize.brentq(lambda deviation: variance(deviation) - 65**2 / 12, 1.0, 200.0)


@pytest.mark.parametrize("extra", [["--mechanisms", "magic"], ["--sweep", "delta=1"], ["--sweep", "epsilon=-1"]])
def test_wrong_usage_is_refused_with_the_choices(tmp_path, monkeypatch, extra):
    monkeypatch.chdir(tmp_path)
    run("evaluate", recording(tmp_path), "--config", BUS, *extra, code=2)


def test_the_figures_to_beat_on_a_recorded_hour_are_beaten(tmp_path, shared_data):
    """Mean only, ε = 2, U = 80, 07:00 of 2017-03-21: S14 beside a model 5.7 km/h and 61 % of events useful."""
    from stream.diagnosis.reading import read_recording
    from stream.offline import split_by_slot

    config = bus_config(tmp_path, **{"speed.statistics": ["mean"], "value.upper": 80.0, "speed.suppression": "none"})
    rows, _ = read_recording(config, shared_data / "capmetro" / "2017-03-21.csv.gz", "capmetro")
    windows = {SLOT: split_by_slot(rows, config)[SLOT]}
    scores = {score.estimator: score for score in evaluate(config, windows, 30)}
    assert scores["kalman"].mae < 3.8
    assert scores["kalman"].useful_coverage > 0.78


def test_variants_are_configurations_of_the_service(tmp_path):
    config = bus_config(tmp_path)
    for name, chosen in variants(config, list(VARIANTS)):
        assert chosen.privacy == config.privacy, name


def test_a_folder_and_several_files_are_one_recording_in_time_order(tmp_path):
    whole, folder = tmp_path / "whole.ndjson", tmp_path / "days"
    simulated = ["--vehicles", "20", "--start", "2026-03-02T12:00:00Z", "--duration", "2h", "--pace", "max"]
    run("simulate", "--config", BUS, *simulated, "--out", whole)
    lines, given = whole.read_text().splitlines(keepends=True), ["--config", BUS, "--trials", "1", "--json"]
    folder.mkdir()
    first, second = folder / "b.ndjson.gz", folder / "a.ndjson"
    first.write_bytes(gzip.compress("".join(lines[: len(lines) // 2]).encode()))
    second.write_text("".join(lines[len(lines) // 2 :]))
    (want, *_) = json.loads(run("evaluate", whole, *given).stdout)["scores"]
    assert want["windows"] == 2
    for files in ([folder], [second, first]):
        (scored, *_) = json.loads(run("evaluate", *files, *given).stdout)["scores"]
        for name in ("windows", "cells", "events", "charges", "worst_error"):
            assert scored[name] == want[name]
    assert want["events"] > 3_000


def planned_window(config: Config) -> PlannedWindow:
    (window,) = planned_windows(config, {SLOT: random_rows(1, 40)})
    return window


def test_without_merging_hexagons_and_cells_are_the_same_places(tmp_path):
    window = planned_window(bus_config(tmp_path))
    places = Places.of(window.plan, window.contributions)
    assert places.hexagons is places.cells
    np.testing.assert_array_equal(places.answering, places.shown)
    np.testing.assert_array_equal(places.answering, np.flatnonzero(window.plan.published))


def test_a_merged_cell_answers_for_each_of_its_hexagons_which_keep_their_own_truth(tmp_path):
    window = planned_window(bus_config(tmp_path, **{"hexagons.merge_until": 1.0, "hexagons.coarsest_resolution": 4}))
    places = Places.of(window.plan, window.contributions)
    assert places.cells.counts.n_cells < places.hexagons.counts.n_cells, "something is merged"
    estimate = np.arange(places.cells.counts.n_cells, dtype=float)
    truth = np.linspace(0, 1, places.hexagons.counts.n_cells)
    ids = places.hexagons.counts.cells[places.shown]
    for hexagon, error in zip(ids, places.errors(estimate, truth), strict=True):
        at = int(np.searchsorted(places.hexagons.counts.cells, hexagon))
        cell = int(np.searchsorted(places.cells.counts.cells, window.plan.merged[at]))
        assert error == pytest.approx(estimate[cell] - truth[at])
    assert places.weight.sum() == 40


def test_a_draw_adds_one_error_per_shown_hexagon_and_one_verdict_per_noisy_cell(tmp_path):
    config = bus_config(tmp_path, **{"speed.statistics": ["mean"], "speed.post_processing": []})
    window, tables = planned_window(config), Tables(Errors)
    assert score_draw(window.plan, window.contributions, window.measured(), tables, None) is None
    places, errors = Places.of(window.plan, window.contributions), tables["mean", "released"]
    assert [len(column) for column in (errors.error[0], errors.weight[0])] == [len(places.shown)] * 2
    assert len(errors.covered[0]) == len(errors.noise[0]) == len(places.published)
