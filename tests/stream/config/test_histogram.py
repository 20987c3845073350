"""Section [histogram]: a configuration that could not draw is refused, and every accepted one can draw."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from dpcore.noise import Noise
from dpcore.packing import MOST_PACKED
from dpcore.spatial import HTF, Domain, E2EPriv, euler_inference
from stream.cli import app
from stream.config import Config, ConfigError, load_config
from stream.config.histogram import MAX_MESSAGE_BYTES, MECHANISMS, PAPER_TUNING_AREAS, Inference
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.serve.received import received
from stream.statistics.histograms.fixes import fixes_of
from stream.statistics.histograms.histograms import draw_histograms, histogram_body, mechanism_of, regions_of
from stream.statistics.plan import decode_plan, encode_plan
from stream.terms import Terms
from tests.support import hourly
from tests.support.builders import EVERY_MECHANISM, bus_config, located_rows, uncommented, with_histograms
from tests.support.nightly import nightly_but
from tests.support.releasing import build_messages, planned_with_fixes

BUS, RIDERS = hourly.BUS, hourly.RIDERS


@pytest.mark.parametrize("euler", [False, True], ids=["", "euler"])
@pytest.mark.parametrize("file", [BUS, RIDERS])
def test_the_commented_example_is_a_sound_configuration(file, euler, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(uncommented(file, euler=euler), encoding="utf-8")
    config = load_config(path, **{"privacy.budget": 100.0})
    assert config.histogram is not None
    assert config.histogram.mechanisms == (("sparse", "euler") if euler else ("sparse",))
    assert config.histogram.model_fields_set | {"euler"} == set(type(config.histogram).model_fields)
    if euler:
        assert config.histogram.euler is not None
        set_here, known = config.histogram.euler.model_fields_set, set(type(config.histogram.euler).model_fields)
        assert set_here == known, "the example names every parameter"


def test_every_mechanism_of_the_library_can_be_configured():
    assert sorted(MECHANISMS) == EVERY_MECHANISM


def test_every_inference_of_the_library_can_be_configured():
    assert get_args(euler_inference.Inference) == get_args(Inference)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"histogram.mechanisms": []}, "histogram.mechanisms"),
    ({"histogram.mechanisms": ["dawa"]}, "histogram.mechanisms"),
    ({"histogram.mechanisms": ["ug", "ug"]}, "twice"),
    ({"histogram.mechanisms": ["ug", "euler"]}, r"\[histogram.euler\] go together"),
    ({"histogram.euler": {}}, "go together"),
    ({"histogram.epsilon": 0}, "histogram.epsilon"),
    ({"histogram.epsilon": float("nan")}, "histogram.epsilon"),
    ({"histogram.epsilon": 1e-7}, "raise epsilon"),
    ({"histogram.epsilon": 1e-3, "histogram.fixes_per_user": 2}, "raise epsilon, or lower fixes_per_user"),
    ({"histogram.epsilon": 100}, "allows epsilon 96, below the 102.* of one window"),
    ({"histogram.preset": {"euler": "paper"}}, "but mechanisms are"),
    ({"histogram.preset": {"ug": "paper"}}, "histogram.preset"),
    ({"histogram.preset": {"htf": "best"}}, "histogram.preset"),
    ({"histogram.epsilon": 0.009, "histogram.preset": {"htf": "paper"}}, "does not pay for a tree of height"),
    ({"histogram.fixes_per_user": 0}, "fixes_per_user"),
    ({"histogram.rows": 0}, "histogram.rows"),
    ({"histogram.columns": 2000}, "histogram.columns"),
    ({"histogram.rows": 1024, "histogram.columns": 1024, "histogram.mechanisms": ["privlet"]}, "brokers refuse"),
    ({"histogram.rows": 1024, "histogram.columns": 1024, "histogram.epsilon": 0.2}, "or raise epsilon"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 30.1, "east": -97.5}}, "no area"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 31.1, "east": -97.5}}, "outside feed.domain"),
    ({"histogram.bounds": 1}, "histogram.bounds"),
]


@pytest.mark.parametrize("relation", ["values", "participation"])
@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_a_bad_section_is_refused_with_its_key_and_a_remedy(tmp_path, relation, settings, says):
    with pytest.raises(ConfigError, match=says):
        with_histograms(relation, tmp_path, ["htf", "ug"], **settings)


def test_under_zcdp_the_budget_must_bear_the_histograms_too(tmp_path):
    with pytest.raises(ConfigError, match=r"privacy.budget allows rho 12, below the 50.5 of one window"):
        with_histograms("zcdp", tmp_path, ["ug"], **{"histogram.epsilon": 10.0})


def least(name: str, s: int, goal: str, grid: tuple[int, int], tmp_path: Path) -> Config:
    """The least epsilon that is accepted, on a grid of this shape."""
    rows, columns = grid
    side = {"histogram.rows": rows, "histogram.columns": columns}
    settings = side | {"histogram.epsilon": 1e-3 * s, "histogram.fixes_per_user": s, "histogram.goal": goal}
    settings |= {"speed.suppression": "none", "speed.allocation": "uniform", "speed.clipping": "none"}
    if name == "euler":
        settings["histogram.euler"] = {"rows": min(rows, 12), "columns": min(columns, 12), "diameter_m": 0.5}
    return with_histograms("values", tmp_path, [name], **settings)


@pytest.mark.parametrize("grid", nightly_but([(1, 1), (3, 2)], [(1, 1), (1, 40), (3, 2), (64, 64)]))
@pytest.mark.parametrize("name", EVERY_MECHANISM)
def test_whatever_is_accepted_can_be_drawn_in_the_bytes_that_were_foreseen(tmp_path, name, grid):
    """Users are charged before the draw: a mechanism that then failed would cost them their budget for nothing."""
    for s, goal in ((1, "absolute"), (7, "absolute"), (7, "relative")):
        config = least(name, s, goal, grid, tmp_path)
        for rows in (located_rows(1, 60, users=40), located_rows(1, 0)):
            plan, contributions, fixes = planned_with_fixes(config, rows)
            messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
            (message,) = [m for m in messages if m.topic == SPATIAL_HISTOGRAM]
            assert config.histogram is not None
            assert len(message.value) <= config.histogram.largest_message(name) + 1_000 < MAX_MESSAGE_BYTES + 1_000


PRESETS = ("e2epriv", "euler", "htf")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_papers_setting_and_reaches_the_mechanism(tmp_path, name):
    rows = located_rows(1, 60, users=40)
    tuned, _, _ = planned_with_fixes(with_histograms("values", tmp_path, [name]), rows)
    plan, _, fixes = planned_with_fixes(
        with_histograms("values", tmp_path, [name], **{"histogram.preset": {name: "paper"}}), rows
    )
    assert tuned.terms.histogram is not None
    assert plan.terms.histogram is not None
    assert decode_plan(encode_plan(plan)).terms == plan.terms
    (drawn,) = draw_histograms(plan, fixes, Noise())
    if name == "euler":
        assert drawn.histogram.to_release()["structure"]["grade"] == "covert"
        assert histogram_body(drawn, "bus", {})["regions"]["outliers"] == "discard"
        wide, bounded = (
            regions_of(each.terms.histogram, fixes).diameters().max() for each in (tuned, plan) if each.terms.histogram
        )
        assert plan.terms.histogram.regions is not None
        assert bounded <= plan.terms.histogram.regions.diameter_m < wide
        return
    mechanism, by_default = mechanism_of(name, plan.terms.histogram), mechanism_of(name, tuned.terms.histogram)
    if isinstance(mechanism, E2EPriv) and isinstance(by_default, E2EPriv):
        assert (mechanism.objective, by_default.objective) == ("relative", "weighted")
        assert len(set(mechanism.queries.areas().tolist())) == len(PAPER_TUNING_AREAS), "one size of squares per area"
    else:
        assert (mechanism, by_default) == (HTF.published(), HTF())


def test_packed_grids_of_the_library_fit_a_message():
    assert MOST_PACKED + 2 * 1_025 * len("1024,") + 2_000 < MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    "name", nightly_but(["ug", "e2epriv", "htf"], ["ug", "singular", "e2epriv", "htf", "kdtree", "quadtree"])
)
def test_a_grid_of_1024_cells_a_side_is_accepted_where_what_is_released_can_be_made_to_fit_a_message(tmp_path, name):
    fine = {"histogram.rows": 1024, "histogram.columns": 1024}
    config = with_histograms("values", tmp_path, [name], **fine)
    plan, contributions, fixes = planned_with_fixes(config, located_rows(1, 2_000, users=1_500))
    messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
    (histogram,) = [message for message in messages if message.topic == SPATIAL_HISTOGRAM]
    assert config.histogram is not None
    largest = config.histogram.largest_message(name)
    assert len(histogram.value) <= largest <= MAX_MESSAGE_BYTES < 4 * largest
    assert received(SPATIAL_HISTOGRAM, "x", histogram.value) is not None


@pytest.mark.parametrize("goal", ["absolute", "relative"])
def test_the_goal_does_not_decide_by_which_error_e2epriv_chooses_its_size(tmp_path, goal):
    """Chosen by relative error a grid may have several times the error, see research/reproductions.md."""
    plan, _, _ = planned_with_fixes(
        with_histograms("values", tmp_path, ["e2epriv"], **{"histogram.goal": goal}), located_rows(1, 60)
    )
    assert plan.terms.histogram is not None
    mechanism = mechanism_of("e2epriv", plan.terms.histogram)
    assert isinstance(mechanism, E2EPriv)
    assert mechanism.objective == "weighted"


@pytest.mark.parametrize("fixes", nightly_but([9], [1, 9, 100]))
@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("name", ["e2epriv", "htf", "kdtree", "quadtree"])
def test_what_is_accepted_can_be_drawn_whatever_the_number_of_points(tmp_path, name, preset, fixes):
    """Users are charged first. Costs of choices move by up to ``fixes`` times as much, the noisy total decides
    the height, and all points may lie in one cell: grids of 0, 300 and 10⁹ points are drawn."""
    chosen = {"histogram.preset": {name: preset}} if name in PRESETS else {}
    for epsilon in (max(fixes / 1000, 0.02), 1000.0):
        settings = {"histogram.epsilon": epsilon, "histogram.fixes_per_user": fixes, "privacy.budget": 3000.0}
        settings |= {"histogram.rows": 64, "histogram.columns": 64} | chosen
        config = with_histograms("values", tmp_path, [name], **settings)
        plan, contributions, own = planned_with_fixes(config, located_rows(1, 60, users=40))
        assert plan.terms.histogram is not None
        assert build_messages(plan, contributions, Noise(), None, own)[0]
        mechanism = mechanism_of(name, plan.terms.histogram)
        for points in (0, 300, 10**9):
            counts = np.zeros((64, 64), dtype=np.int64)
            counts[5, 7] = points
            mechanism.fit(counts, Domain.unit_cells(64, 64), plan.terms.histogram.epsilons[0], Noise(), fixes)


def test_check_shows_what_histograms_cost_a_window_and_a_day(tmp_path):
    def check(config: str, *, as_json: bool) -> Any:
        file = tmp_path / "c.toml"
        file.write_text(config, encoding="utf-8")
        done = CliRunner().invoke(app, ["check", "--config", str(file), *(["--json"] if as_json else [])])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["histogram"] if as_json else " ".join(done.stdout.split())

    bus = uncommented(BUS, euler=True)
    report = check(bus, as_json=True)
    assert report["epsilon"] == {"euler": 0.25, "sparse": 0.25}
    costs = {name: report[name] for name in report if "cost" in name}
    assert costs == {
        "cost_per_window": 0.5,
        "cost_per_period": 12.0,
        "window_cost_with_speed": 2.5,
        "period_cost_with_speed": 60.0,
    }
    text = check(bus, as_json=False)
    assert "euler (epsilon 0.25)" in text
    assert "pays epsilon 0.5 per window, and 12 if they have one in every window of a period" in text
    assert "budget 48.0 pays for 19 of 24 windows" in text
    assert "the whole epsilon for speed" in text
    riders = uncommented(RIDERS)
    assert "the whole epsilon for speed" not in check(riders, as_json=False)
    zcdp = re.sub(
        r"(?m)^epsilon = 2.0\nbudget = \S+$", 'accounting = "zcdp"\nbudget = 20.0\nwindows = 60\ndelta = 1e-6', riders
    )
    report = check(zcdp, as_json=True)
    assert (report["unit"], report["cost_per_window"], report["cost_per_period"]) == ("rho", 0.125, 3.0)


def test_the_box_is_half_open_and_fixes_outside_it_count_for_nobody(tmp_path):
    config = with_histograms("values", tmp_path, ["ug"])
    rows = located_rows(1, 4, users=1)
    rows["user"] = [1, 2, 3, 4]
    rows["lat"], rows["lng"] = 303_000_000, [-979_000_000, -975_000_000, -975_000_001, -979_000_001]
    plan, contributions, fixes = planned_with_fixes(config, rows)
    assert fixes.users.tolist() == [1, 3]
    grant = config.privacy.epsilon_micro
    charges = dict(zip(contributions.counts.users.tolist(), plan.charges.tolist(), strict=True))
    assert charges == {1: grant + 1_100_000, 2: grant, 3: grant + 1_100_000, 4: grant}


def test_without_the_section_nothing_of_histograms_is_read_planned_or_published(tmp_path):
    config = bus_config(tmp_path)
    assert Terms.of(config).reading.box is None
    assert fixes_of(located_rows(1, 50), Terms.of(config).reading.box) is None
    assert config.window_grant == config.privacy.ledger_grant
