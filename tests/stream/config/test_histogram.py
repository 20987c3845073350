"""Section [histogram]: a configuration that could not draw is refused, and every accepted one can draw."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from dpcore.noise import Noise
from dpcore.spatial import HTF, Domain, E2EPriv, euler_inference
from stream.cli import app
from stream.config import Config, ConfigError, load_config
from stream.config.histogram import MAX_MESSAGE_BYTES, MECHANISMS, Inference
from stream.local import REPO_ROOT
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.statistics.histograms.fixes import fixes_of
from stream.statistics.histograms.histograms import draw_histograms, histogram_body, mechanism_of, regions_of
from stream.statistics.plan import decode_plan, encode_plan
from stream.terms import Terms
from tests.support import hourly
from tests.support.builders import EVERY_MECHANISM, TABLES, bus_config, located_rows, uncommented, with_histograms
from tests.support.releasing import build_messages, planned_with_fixes

BUS, RIDERS = hourly.BUS, hourly.RIDERS


@pytest.mark.parametrize("tables", [(), TABLES], ids=["", "tables"])
@pytest.mark.parametrize("file", [BUS, RIDERS])
def test_the_commented_example_is_a_sound_configuration(file: Path, tables: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(uncommented(file, tables), encoding="utf-8")
    config = load_config(path, **{"privacy.budget": 100.0})
    assert config.histogram is not None
    assert config.histogram.mechanisms == ("sparse", *tables)
    if tables:
        set_here = {name: getattr(config.histogram, name).model_fields_set for name in TABLES}
        known = {name: set(type(getattr(config.histogram, name)).model_fields) for name in TABLES}
        assert set_here == known, "the example names every parameter"
    assert config.histogram.grid_sizes == (4, 8, 16, 32, 64)


def test_every_mechanism_of_the_library_can_be_configured() -> None:
    assert sorted(MECHANISMS) == EVERY_MECHANISM


def test_every_inference_of_the_library_can_be_configured() -> None:
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
    ({"histogram.epsilon": 100}, "below the 102.* of one window"),
    ({"histogram.shares": {"ag": 1}}, "but mechanisms are"),
    ({"histogram.shares": {"ug": 1}}, "every mechanism"),
    ({"histogram.shares": {"ug": 1, "htf": -1}}, "above 0"),
    ({"histogram.shares": {"ug": 1, "htf": float("inf")}}, "above 0"),
    ({"histogram.shares": {"ug": 1, "htf": 1e-9}}, "less than 1e-6"),
    ({"histogram.fixes_per_user": 0}, "fixes_per_user"),
    ({"histogram.rows": 0}, "histogram.rows"),
    ({"histogram.columns": 2000}, "histogram.columns"),
    ({"histogram.rows": 1024, "histogram.columns": 1024}, "brokers refuse"),
    ({"histogram.sizes": [0]}, "between 1 and"),
    ({"histogram.sizes": [32]}, "between 1 and"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 30.1, "east": -97.5}}, "no area"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 31.1, "east": -97.5}}, "outside feed.domain"),
    ({"histogram.bounds": 1}, "histogram.bounds"),
]


@pytest.mark.parametrize("relation", ["values", "participation"])
@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_a_bad_section_is_refused_with_its_key_and_a_remedy(
    tmp_path: Path, relation: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        with_histograms(relation, tmp_path, ["htf", "ug"], **settings)


def test_under_zcdp_the_budget_must_bear_the_histograms_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy.rho_budget 12.0 is below the 50.5 of one window"):
        with_histograms("zcdp", tmp_path, ["ug"], **{"histogram.epsilon": 10.0})


def least(name: str, s: int, goal: str, grid: tuple[int, int], tmp_path: Path) -> Config:
    """The least epsilon that is accepted, on a grid of this shape."""
    rows, columns = grid
    side = {"histogram.rows": rows, "histogram.columns": columns, "histogram.sizes": []}
    settings = side | {"histogram.epsilon": 1e-3 * s, "histogram.fixes_per_user": s, "histogram.goal": goal}
    settings |= {"speed.suppression": "none", "speed.allocation": "uniform", "speed.clipping": "none"}
    if name == "euler":
        settings["histogram.euler"] = {"rows": min(rows, 12), "columns": min(columns, 12), "diameter_m": 0.5}
    return with_histograms("values", tmp_path, [name], **settings)


@pytest.mark.parametrize("grid", [(1, 1), (1, 40), (3, 2), (64, 64)])
@pytest.mark.parametrize("name", EVERY_MECHANISM)
def test_whatever_is_accepted_can_be_drawn_in_the_bytes_that_were_foreseen(
    tmp_path: Path, name: str, grid: tuple[int, int]
) -> None:
    """Users are charged before the draw: a mechanism that then failed would cost them their budget for nothing."""
    for s, goal in ((1, "absolute"), (7, "absolute"), (7, "relative")):
        config = least(name, s, goal, grid, tmp_path)
        for rows in (located_rows(1, 60, users=40), located_rows(1, 0)):
            plan, contributions, fixes = planned_with_fixes(config, rows)
            messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
            (message,) = [m for m in messages if m.topic == SPATIAL_HISTOGRAM]
            assert config.histogram is not None
            assert len(message.value) <= config.histogram.largest_message(name) + 1_000 < MAX_MESSAGE_BYTES + 1_000


VARIED: dict[str, dict[str, Any]] = {
    "e2epriv": {
        "objective": "relative",
        "size_share": 0.9,
        "total_share": 0.1,
        "cap": 2.0,
        "rho": 5.0,
        "rho_share": 0.0,
        "tuning_areas": [0.01, 0.25, 1.0],
    },
    "htf": {
        "split": "search",
        "rounds": 3,
        "max_height": 6,
        "margin": 0.0,
        "extra_levels": 0,
        "stop_cells": 5,
        "stop_count": 100.0,
        "height_share": 0.05,
        "level_epsilon": 0.0005,
        "stop_share": 0.3,
        "counts": "drawn",
    },
    "quadtree": {"budget": "uniform", "height": 3, "counts": "drawn"},
    "kdtree": {"budget": "uniform", "max_height": 4, "split_share": 0.5, "total_share": 0.05, "counts": "drawn"},
    "euler": {"rows": 4, "columns": 4, "inference": "consistent", "outliers": "discard"},
}
"""Tables of mechanisms with what their papers vary."""
NAMED_OTHERWISE = ("tuning_areas", "counts", "level_epsilon")
"""Keys that are not arguments of the mechanism by the same name."""


def test_a_share_for_a_total_that_an_inference_does_not_use_is_refused_and_the_default_is_not(tmp_path: Path) -> None:
    for table in (
        {"inference": "max-norm"},
        {"inference": "covert"},
        {"inference": "covert", "total_share": 0.0},
        {"inference": "ordered", "total_share": 0.1},
        {"total_share": 0.1},
    ):
        with_histograms("values", tmp_path, ["euler"], **{"histogram.euler": table})
    unused = {"inference": "covert", "total_share": 0.1}
    with pytest.raises(ConfigError, match="leave total_share out"):
        with_histograms("values", tmp_path, ["euler"], **{"histogram.euler": unused})


@pytest.mark.parametrize("name", VARIED)
def test_what_a_paper_varies_can_be_configured_and_reaches_the_mechanism(tmp_path: Path, name: str) -> None:
    plain = {} if name != "euler" else {"histogram.euler": {"rows": 4, "columns": 4}}
    plan, _, fixes = planned_with_fixes(
        with_histograms("values", tmp_path, [name], **plain), located_rows(1, 60, users=40)
    )
    varied = with_histograms("values", tmp_path, [name], **{f"histogram.{name}": VARIED[name]})
    other, _, _ = planned_with_fixes(varied, located_rows(1, 60, users=40))
    assert plan.terms.histogram is not None
    assert other.terms.histogram is not None
    assert decode_plan(encode_plan(other)).terms == other.terms
    (drawn,) = draw_histograms(other, fixes, Noise())
    assert drawn.mechanism == name
    if name == "euler":
        assert drawn.histogram.to_release()["structure"]["grade"] == "consistent"
        assert histogram_body(drawn, "bus", {})["regions"]["outliers"] == "discard"
        wide, bounded = (
            regions_of(each.terms.histogram, fixes).diameters().max() for each in (plan, other) if each.terms.histogram
        )
        assert bounded <= other.terms.histogram.regions.diameter_m < wide
        return
    mechanism, by_default = mechanism_of(name, other.terms.histogram), mechanism_of(name, plan.terms.histogram)
    expected = {key: value for key, value in VARIED[name].items() if key not in NAMED_OTHERWISE}
    expected |= {} if "counts" not in VARIED[name] else {"consistency": False}
    expected |= {} if "level_epsilon" not in VARIED[name] else {"level_epsilon_micro": 500}
    for key, value in expected.items():
        assert getattr(mechanism, key) == value != getattr(by_default, key)
    if isinstance(mechanism, E2EPriv):
        assert len(set(mechanism.queries.areas().tolist())) == 3, "one size of squares per configured area"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("e2epriv", {"histogram.sizes": [30, 40, 50, 60, 70, 80]}),
        ("e2epriv", {"histogram.sizes": [100, 200, 270]}),
        ("htf", {"histogram.htf": {"max_height": 14, "height_epsilon": 0.0001}}),
        ("kdtree", {"histogram.kdtree": {"max_height": 14}}),
        ("quadtree", {"histogram.quadtree": {"height": 7}}),
    ],
)
def test_a_grid_of_1024_cells_a_side_is_accepted_where_what_is_released_fits_a_message_and_it_does(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    fine = {"histogram.rows": 1024, "histogram.columns": 1024, "histogram.tuning_queries": 50}
    config = with_histograms("values", tmp_path, [name], **fine | settings)
    rows = located_rows(1, 2_000, users=1_500)
    plan, contributions, fixes = planned_with_fixes(config, rows)
    messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
    (histogram,) = [message for message in messages if message.topic == SPATIAL_HISTOGRAM]
    assert config.histogram is not None
    assert len(histogram.value) <= config.histogram.largest_message(name) <= MAX_MESSAGE_BYTES
    assert plan.terms.histogram is not None
    if name == "htf":
        assert mechanism_of(name, plan.terms.histogram).parts(1_100_000) == (100, 1_099_900), "the source's, at any ε"


@pytest.mark.parametrize("goal", ["absolute", "relative"])
def test_the_goal_does_not_decide_by_which_error_e2epriv_chooses_its_size(tmp_path: Path, goal: str) -> None:
    """Chosen by relative error a grid may have several times the error, see research/reproductions.md."""
    plan, _, _ = planned_with_fixes(
        with_histograms("values", tmp_path, ["e2epriv"], **{"histogram.goal": goal}), located_rows(1, 60)
    )
    assert plan.terms.histogram is not None
    mechanism = mechanism_of("e2epriv", plan.terms.histogram)
    assert isinstance(mechanism, E2EPriv)
    assert mechanism.objective == "weighted"


def test_the_published_tree_can_be_configured_as_the_document_says(tmp_path: Path) -> None:
    document = (REPO_ROOT / "docs" / "spatial.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```toml\n(\[histogram\.htf\].*?)```", document, re.DOTALL)
    given = tomllib.loads(table)["histogram"]["htf"]
    plan, _, _ = planned_with_fixes(
        with_histograms("values", tmp_path, ["htf"], **{"histogram.htf": given}), located_rows(1, 60)
    )
    assert plan.terms.histogram is not None
    assert mechanism_of("htf", plan.terms.histogram) == HTF.published()


@pytest.mark.parametrize(
    ("mechanism", "table", "says"),
    [
        ("ug", {"histogram.htf": {}}, "mechanisms lack 'htf'"),
        ("htf", {"histogram.htf": {"split_share": 0.01}, "histogram.epsilon": 0.001}, "lower max_height"),
        ("htf", {"histogram.htf": {"rounds": 11}}, "histogram.htf.rounds"),
        ("htf", {"histogram.htf": {"level_epsilon": 1e-7}}, "below 1e-6"),
        ("htf", {"histogram.htf": {"height_epsilon": 1e-7}}, "below 1e-6"),
        ("htf", {"histogram.htf": {"height_epsilon": 2.0}}, "tree of height 1,.*1e-6"),
        ("htf", {"histogram.htf": {"height_epsilon": 0.01, "height_share": 0.02}}, "buy nothing"),
        ("htf", {"histogram.htf": {"level_epsilon": 0.01, "split_share": 0.2}}, "buy nothing"),
        (
            "htf",
            {"histogram.htf": {"level_epsilon": 0.06}},
            "tree of height 19.*max_height 20 below 19, lower level_epsilon",
        ),
        ("htf", {"histogram.htf": {"level_epsilon": 2.0}}, "tree of height 1,.*1e-6; lower level_epsilon"),
        ("euler", {"histogram.euler": {"inference": "median"}}, "histogram.euler.inference"),
        ("kdtree", {"histogram.kdtree": {"split_share": 0.01}, "histogram.epsilon": 0.001}, "lower max_height"),
        ("e2epriv", {"histogram.e2epriv": {"tuning_areas": [0.0]}}, "tuning_areas"),
        ("e2epriv", {"histogram.e2epriv": {"cap": 2.0}}, 'cap 2.0 is for objective "relative"'),
        ("quadtree", {"histogram.quadtree": {"budget": "square"}}, "histogram.quadtree.budget"),
    ],
)
def test_a_parameter_that_a_draw_could_fail_on_is_refused_before_anybody_is_charged(
    tmp_path: Path, mechanism: str, table: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        with_histograms("values", tmp_path, [mechanism], **table)


EXTREMES: dict[str, list[dict[str, Any]]] = {
    "e2epriv": [
        {"objective": "relative", "size_share": 0.05, "total_share": 0.5, "cap": 0.1},
        {"size_share": 0.9, "total_share": 0.01},
    ],
    "htf": [
        {"height_share": 0.001, "split_share": 0.01, "stop_share": 0.95},
        {"height_share": 0.1, "split_share": 0.8, "stop_share": 0.01, "counts": "drawn"},
        {"level_epsilon": 1e-6, "max_height": 20},
        {"level_epsilon": 0.05, "max_height": 18, "split": "search"},
    ],
    "quadtree": [{"budget": "uniform", "height": 0}, {"counts": "drawn", "height": 10}],
    "kdtree": [
        {"split_share": 0.01, "total_share": 0.1, "counts": "drawn"},
        {"split_share": 0.9, "total_share": 0.001, "budget": "uniform"},
        {"max_height": 3},
    ],
}
"""Tables at the ends of what is accepted."""


def unless_too_many_levels(name: str, tmp_path: Path, settings: dict[str, Any]) -> Config | None:
    """The configuration on 64 × 64 cells; None if its levels cannot be paid for."""
    try:
        return with_histograms(
            "values", tmp_path, [name], **{"histogram.rows": 64, "histogram.columns": 64}, **settings
        )
    except ConfigError as error:
        if "does not pay for a tree" not in str(error):
            raise
        return None


@pytest.mark.parametrize("epsilon", [0.001, 0.02, 1.0])
@pytest.mark.parametrize("name", EXTREMES)
def test_a_table_at_the_ends_of_what_is_accepted_is_refused_or_can_be_drawn_whatever_the_number_of_points(
    tmp_path: Path, name: str, epsilon: float
) -> None:
    """Users are charged first. The noisy number of points decides the height: grids of 0, 300 and 10⁹ points are
    drawn."""
    drawn = 0
    for table in EXTREMES[name]:
        config = unless_too_many_levels(name, tmp_path, {f"histogram.{name}": table, "histogram.epsilon": epsilon})
        if config is None:
            continue
        plan, _, _ = planned_with_fixes(config, located_rows(1, 60, users=40))
        assert plan.terms.histogram is not None
        mechanism = mechanism_of(name, plan.terms.histogram)
        for points in (0, 300, 10**9):
            counts = np.zeros((64, 64), dtype=np.int64)
            counts[5, 7] = points
            mechanism.fit(counts, Domain.unit_cells(64, 64), plan.terms.histogram.epsilons[0], Noise(), 1)
            drawn += 1
    assert drawn >= (3 if epsilon == 0.001 else 6)


@pytest.mark.parametrize("fixes", [1, 8, 9, 100])
@pytest.mark.parametrize("name", EXTREMES)
def test_with_any_number_of_fixes_per_user_what_is_accepted_can_be_drawn_at_the_least_and_the_largest_epsilon(
    tmp_path: Path, name: str, fixes: int
) -> None:
    """Costs of choices move by up to ``fixes`` times as much, and with ε = 1000 all points may lie in one cell."""
    drawn = 0
    for table, epsilon in itertools.product(({}, *EXTREMES[name]), (fixes / 1000, 1000.0)):
        settings = {f"histogram.{name}": table, "histogram.epsilon": epsilon, "histogram.fixes_per_user": fixes}
        config = unless_too_many_levels(name, tmp_path, settings | {"privacy.budget": 3000.0})
        if config is None:
            continue
        plan, contributions, own = planned_with_fixes(config, located_rows(1, 60, users=40))
        assert plan.terms.histogram is not None
        assert build_messages(plan, contributions, Noise(), None, own)[0]
        mechanism = mechanism_of(name, plan.terms.histogram)
        for cell in (0, 10**9):
            counts = np.zeros((64, 64), dtype=np.int64)
            counts[5, 7] = cell
            mechanism.fit(counts, Domain.unit_cells(64, 64), plan.terms.histogram.epsilons[0], Noise(), fixes)
        drawn += 1
    assert drawn >= 3


def test_check_shows_what_histograms_cost_a_window_and_a_day(tmp_path: Path) -> None:
    def check(config: str, *, as_json: bool) -> Any:
        file = tmp_path / "c.toml"
        file.write_text(config, encoding="utf-8")
        done = CliRunner().invoke(app, ["check", "--config", str(file), *(["--json"] if as_json else [])])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["histogram"] if as_json else " ".join(done.stdout.split())

    bus = uncommented(BUS, TABLES)
    report = check(bus, as_json=True)
    assert report["epsilon"] == {"sparse": 0.03125} | dict.fromkeys(TABLES, 0.09375)
    costs = {name: report[name] for name in report if "cost" in name}
    assert costs == {
        "cost_per_window": 0.5,
        "cost_per_period": 12.0,
        "window_cost_with_speed": 2.5,
        "period_cost_with_speed": 60.0,
    }
    text = check(bus, as_json=False)
    assert "euler (epsilon 0.09375)" in text
    assert "sparse (epsilon 0.03125)" in text
    assert "pays epsilon 0.5 per window, and 12 if they have one in every window of a period" in text
    assert "budget 48.0 pays for 19 of 24 windows" in text
    assert "the whole epsilon for speed" in text
    riders = uncommented(RIDERS)
    assert "the whole epsilon for speed" not in check(riders, as_json=False)
    zcdp = re.sub(
        r"(?m)^epsilon = 2.0\nbudget = \S+$", 'accounting = "zcdp"\nrho = 0.05\nrho_budget = 3.0\ndelta = 1e-6', riders
    )
    report = check(zcdp, as_json=True)
    assert (report["unit"], report["cost_per_window"], report["cost_per_period"]) == ("rho", 0.125, 3.0)


def test_without_the_section_nothing_of_histograms_is_read_planned_or_published(tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    assert Terms.of(config).reading.box is None
    assert fixes_of(located_rows(1, 50), Terms.of(config).reading.box) is None
    assert config.window_grant == config.privacy.ledger_grant


def test_the_box_is_half_open_and_fixes_outside_it_count_for_nobody(tmp_path: Path) -> None:
    config = with_histograms("values", tmp_path, ["ug"])
    rows = located_rows(1, 4, users=1)
    rows["user"] = [1, 2, 3, 4]
    rows["lat"], rows["lng"] = 303_000_000, [-979_000_000, -975_000_000, -975_000_001, -979_000_001]
    plan, contributions, fixes = planned_with_fixes(config, rows)
    assert fixes.users.tolist() == [1, 3]
    grant = config.privacy.epsilon_micro
    charges = dict(zip(contributions.counts.users.tolist(), plan.charges.tolist(), strict=True))
    assert charges == {1: grant + 1_100_000, 2: grant, 3: grant + 1_100_000, 4: grant}
