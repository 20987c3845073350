"""Published distributions: what they say, what they cost, and when they are left out. Modelled percentiles in messages:
from published means and variances alone, marked as modelled, without an interval. Any measured value: what is released
of it is what is released of speeds, moved by the lower bound and in its unit."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpcore.cdf import CDFs
from dpcore.modelled_percentiles import percentiles
from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.config import public_cells as public_cells_of
from stream.config.public_cells import public_cells
from stream.messages.message import HEXAGON_SPEED, validator
from stream.messages.tables import row_of
from stream.statistics import columns
from stream.statistics.columns import Derived
from stream.statistics.observed_means import modelled_percentiles
from stream.statistics.residual_clipping import with_ranges
from stream.statistics.values.draw import exact_values
from tests.support.builders import SLOT, bus_config, random_rows, riders, riders_config, zcdp_config
from tests.support.releasing import build_messages, draw, planned
from tests.support.schemas import validate
from tests.support.tapes import recorded

Bodies = list[dict[str, Any]]
NAMES = ["p15", "p50", "p85"]


def bodies_of(config: Any, seed: int = 9, n: int = 400) -> tuple[Any, Bodies]:
    """The plan of a window, and its messages under one tape of entropy, marker last."""
    plan, contributions = planned(config, random_rows(seed, n))
    messages = build_messages(plan, contributions, recorded(3), None)[0]
    for message in messages:
        validate(message.topic, json.loads(message.value))
    return plan, [json.loads(message.value) for message in messages]


@pytest.mark.parametrize("build", [bus_config, riders])
def test_a_distribution_is_published_beside_percentiles_and_by_itself_in_one_form(tmp_path, build):
    _, (*cells, _) = bodies_of(build(tmp_path, **{"speed.statistics": ["mean"]}))
    assert not any("cdf" in body for body in cells), "means alone have none"
    for statistics in (["p50"], ["mean", "p15", "p50", "p85"], ["cdf"], ["cdf", "mean"]):
        _, (*cells, _) = bodies_of(build(tmp_path, **{"speed.statistics": statistics}))
        for body in cells:
            assert validator(HEXAGON_SPEED).is_valid(body)
            cdf = body["cdf"]
            assert len({len(cdf[name]) for name in ("at", "value", "raw", "scale", "low", "high")}) == 1
            assert (len(cdf["at"]), cdf["at"][-1], cdf["value"][-1]) == (32, 65.0, 1.0)
            for name in ("at", "value", "low", "high"):
                assert cdf[name] == sorted(cdf[name])
            ends = zip(cdf["low"], cdf["value"], cdf["high"], strict=True)
            assert all(low <= value <= high for low, value, high in ends)
            assert set(statistics) <= set(body)


@pytest.mark.parametrize("n", [400, 0])
@pytest.mark.parametrize(("upper", "asked", "bins"), [(0.3, 32, 31), (0.3, 31, 31), (0.01, 4096, 2), (1.0, 4096, 101)])
@pytest.mark.parametrize("build", [bus_config, riders])
def test_more_bins_than_speeds_are_as_many_as_there_are_speeds_in_everything_that_is_released(
    tmp_path, build, upper, asked, bins, n
):
    """Speeds are multiples of 0.01 km/h, so that 0 … 0.3 km/h are 31."""
    settings = {"value.upper": upper, "speed.cdf_bins": asked, "speed.statistics": ["mean", "p50", "cdf"]}
    if build is riders:
        settings |= {"speed.clipping": "none", "speed.post_processing": [], "value.typical": upper / 2}
    config = build(tmp_path, **settings)
    plan, (*cells, marker) = bodies_of(config, n=n)
    assert "cut_short" not in marker
    assert len(cells) == len(public_cells(config) if build is riders else plan.cells)
    for body in cells:
        assert {len(body["cdf"][name]) for name in ("at", "value", "raw", "scale", "low", "high")} == {bins}
        assert body["cdf"]["at"] == [k / 100 for k in range(bins)]
        assert 0 <= body["p50"]["value"] <= upper


@pytest.mark.parametrize(
    ("build", "mechanism"), [(bus_config, "allocated"), (bus_config, "levy"), (riders, "allocated")]
)
def test_asking_for_the_distribution_too_changes_neither_a_charge_nor_a_scale_nor_a_draw(tmp_path, build, mechanism):
    """The same bytes of entropy give the same percentiles: nothing further is drawn, and nothing further is read."""
    chosen = {"speed.mean_mechanism": mechanism}
    (plan, bodies), (more, others) = (
        bodies_of(build(tmp_path, **chosen, **{"speed.statistics": statistics}))
        for statistics in (["mean", "p50"], ["mean", "p50", "cdf"])
    )
    assert plan.charges.tolist() == more.charges.tolist()
    assert plan.scales.numerator.tolist() == more.scales.numerator.tolist()
    assert bodies[:-1] == others[:-1]


def test_a_percentile_lies_where_the_distribution_crosses_its_share_and_its_interval_holds_the_true_one(tmp_path):
    """n = 30 recorded draws × 6 cells × 3 percentiles: 94 % hold it at least. If half as wide, 43 % do."""
    config = bus_config(tmp_path, **{"speed.statistics": NAMES, "privacy.epsilon": 8.0})
    _, (*cells, _) = bodies_of(config)
    for body in cells:
        at = [0.0, *body["cdf"]["at"]]
        for name, share in zip(NAMES, (0.15, 0.5, 0.85), strict=True):
            k = int(np.searchsorted(body["cdf"]["value"], share - 1e-5))
            assert at[k] - 0.01 <= body[name]["value"] <= at[k + 1] + 0.01
    plan, contributions = planned(config, random_rows(10, 800))
    truth = exact_values(plan, contributions.retain(plan.retained))
    drawn = [draw(plan, contributions, recorded(seed)) for seed in range(30)]
    inside = [(of[name].low <= truth[name]) & (truth[name] <= of[name].high) for of in drawn for name in NAMES]
    assert np.mean(inside) >= 0.94


def test_windows_with_very_many_numbers_leave_distributions_out_and_say_so(tmp_path, monkeypatch):
    config = bus_config(tmp_path, **{"speed.statistics": ["mean", "p50"]})
    plan, (*cells, marker) = bodies_of(config)
    assert "cut_short" not in marker
    for limit, left_out in ((len(plan.cells) * 32, False), (len(plan.cells) * 32 - 1, True)):
        monkeypatch.setattr(columns, "MAX_NUMBERS", limit)
        _, (*cells, marker) = bodies_of(config)
        assert any("cdf" in body for body in cells) != left_out
        assert all("p50" in body for body in cells)
        assert marker.get("cut_short") == (["cdf"] if left_out else None)


def test_a_public_list_too_long_for_its_bins_is_refused_with_bins_that_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(public_cells_of, "MAX_NUMBERS", 500)
    config = riders(tmp_path, **{"speed.statistics": ["cdf"], "speed.cdf_bins": 4096})
    cells = len(public_cells(riders(tmp_path)))
    with pytest.raises(ConfigError, match=f"lower speed.cdf_bins to {500 // cells} or choose fewer cells"):
        public_cells(config)
    monkeypatch.setattr(public_cells_of, "MAX_NUMBERS", cells)
    with pytest.raises(ConfigError, match=f"more than {cells}; choose fewer cells, or leave 'cdf' out"):
        public_cells(config)


def refuse(*_: Any) -> Any:
    raise AssertionError("shares of distributions that are left out are not computed")


@pytest.mark.parametrize("build", [bus_config, riders])
def test_percentiles_alone_are_released_where_their_distributions_are_too_many_which_are_not_computed(
    tmp_path, monkeypatch, build
):
    monkeypatch.setattr(columns, "MAX_NUMBERS", 1)
    monkeypatch.setattr(CDFs, "shares", refuse)
    _, (*cells, marker) = bodies_of(build(tmp_path, **{"speed.statistics": ["p50"]}))
    assert all("p50" in body and "cdf" not in body for body in cells)
    assert marker["cut_short"] == ["cdf"]


@pytest.mark.parametrize("others", [[], ["mean"]], ids=["alone", "beside the mean"])
def test_nobody_pays_for_distributions_that_public_counts_leave_out(tmp_path, monkeypatch, others):
    means, _ = bodies_of(bus_config(tmp_path, **{"speed.statistics": ["mean"]}))
    monkeypatch.setattr(columns, "MAX_NUMBERS", 1)
    plan, (*cells, marker) = bodies_of(bus_config(tmp_path, **{"speed.statistics": [*others, "cdf"]}))
    assert marker["cut_short"] == ["cdf"]
    assert {body["status"] for body in cells} == {"published" if others else "suppressed"}
    assert plan.charges.tolist() == (means.charges.tolist() if others else [0] * len(plan.charges))
    if others:
        assert plan.scales.numerator.tolist() == means.scales.numerator.tolist()


MODELLED = {"speed.post_processing": ["clipped-normal"], "speed.statistics": ["mean", "variance"]}
UPPER = 65.0


def messages_of(config: Config) -> Bodies:
    """The hexagon messages of one window."""
    return bodies_of(config, 1, 300)[1][:-1]


def body(mean: float, variance: float, scale: float, **fields: Any) -> dict[str, Any]:
    return {"mean": {"value": mean}, "variance": {"raw": variance, "scale": scale}} | fields


@pytest.mark.parametrize(("build", "kinds"), [*product([bus_config, riders, zcdp_config], [[], ["kalman"]])])
def test_published_cells_have_modelled_percentiles_without_intervals_that_every_reader_computes(tmp_path, build, kinds):
    """The modelled mean counts, else the released one; means in messages are rounded to 0.001 km/h."""
    config = build(tmp_path, **MODELLED | {"speed.post_processing": [*kinds, "clipped-normal"]})
    bodies = messages_of(config)
    published = [each for each in bodies if each["status"] == "published"]
    assert published
    assert not any("p50" in each for each in bodies)
    assert not any("post_processed" in each for each in bodies if each not in published)
    smoothed = [each["post_processed"].pop("mean")["value"] for each in published if kinds]
    again = modelled_percentiles(published, {"mean": Derived("any", np.array(smoothed))} if kinds else {}, UPPER)
    for g, each in enumerate(published):
        modelled = {name: each["post_processed"].pop(name) for name in NAMES}
        assert kinds or not each["post_processed"]
        values = [modelled[name].pop("value") for name in NAMES]
        assert all(modelled[name] == {"method": "clipped-normal", "unit": "km/h"} for name in NAMES)
        assert values == sorted(values)
        assert min(values) >= 0
        assert values == pytest.approx([again[name].value[g] for name in NAMES], abs=0.06)


@pytest.mark.parametrize("build", [bus_config, riders, zcdp_config])
def test_nothing_else_changes_when_percentiles_are_modelled(tmp_path, build):
    with_model, without = (
        messages_of(build(tmp_path, **MODELLED | {"speed.post_processing": kinds}))
        for kinds in (["kalman", "clipped-normal"], ["kalman"])
    )
    for each in with_model:
        if each["status"] == "published":
            assert [each["post_processed"].pop(name)["method"] for name in NAMES] == ["clipped-normal"] * 3
    assert with_model == without


def test_noise_of_a_cell_counts_by_the_law_that_its_message_names():
    """A Laplace scale is √2 times smaller than its standard deviation, a Gaussian one is it."""
    laplace = [body(20.0, variance, 50.0) for variance in (100.0, 400.0, 250.0)]
    gaussian = [body(20.0, variance, 50.0 * np.sqrt(2), accounting="zcdp") for variance in (100.0, 400.0, 250.0)]
    by_laplace, by_gaussian = (modelled_percentiles(bodies, {}, UPPER) for bodies in (laplace, gaussian))
    for name in NAMES:
        assert by_laplace[name].value == pytest.approx(by_gaussian[name].value)
        assert by_laplace[name].interval is None


def test_cells_without_a_release_do_not_take_part():
    published = [body(20.0, 100.0, 5.0), body(30.0, 250.0, 5.0)]
    alone = modelled_percentiles(published, {}, UPPER)
    beside = modelled_percentiles([published[0], {"status": "suppressed"}, published[1]], {}, UPPER)
    for name in NAMES:
        assert beside[name].value[[0, 2]].tolist() == alone[name].value.tolist()
        assert beside[name].value[1] == 0
    assert modelled_percentiles([], {}, UPPER)["p50"].value.shape == (0,)


def test_of_single_cells_without_noise_in_the_variance_the_law_is_that_of_the_message():
    (value,) = modelled_percentiles([body(20.0, 300.0, 0.0)], {}, UPPER)["p50"].value
    expected = percentiles(np.array([20.0]), np.array([300.0]), upper=UPPER, percents=[50.0])
    assert value == expected[0, 0]


@pytest.mark.parametrize("build", [bus_config, riders])
@pytest.mark.parametrize(("statistics", "missing"), [(["mean"], "variance"), (["p50"], "mean and variance")])
def test_a_model_without_its_moments_is_refused_with_the_remedy(tmp_path, build, statistics, missing):
    with pytest.raises(ConfigError, match=rf"without {missing}; add what is missing, or leave 'clipped-normal' out"):
        build(tmp_path, **MODELLED | {"speed.statistics": statistics})


LOWER = -300.0
SPEEDS = {"feed.format": "declared", "speed.sum_cap": 0.0, "hexagons.merge_until": None} | {
    f"feed.quality.{rule}": never for rule, never in (("teleport_km_h", 0), ("fastest_km_h", 0), ("frozen", "0s"))
}
"""Overrides of a feed whose value is a speed, without the rules that are for speeds alone."""
FIELDS = {name: name for name in ("user", "time", "lat", "lng", "value")}
ALERT = {"name": "a", "false_alarms_per_day": 1}
DELAY = {"value.name": "delay", "value.unit": "s", "value.lower": LOWER, "value.upper": LOWER + 65.0}
EVERY = {"speed.statistics": ["mean", "variance", "p50", "cdf"], "speed.post_processing": ["kalman", "clipped-normal"]}
KINDS: dict[str, Any] = {
    "values": (bus_config, EVERY),
    "participation": (riders_config, EVERY | {"speed.clipping": "none"}),
    "participation, residual": (
        riders_config,
        {"speed.statistics": ["mean"], "speed.clipping": "residual", "speed.post_processing": ["kalman"]},
    ),
}


def windows(config: Config, moved: int) -> list[dict[str, Any]]:
    """The bodies of three windows, each after the memory of those before; ``moved``: quanta that each row is moved
    by.
    """
    memory, bodies = None, []
    for n in range(3):
        rows = random_rows(n, 700, users=40, slot=SLOT + 3600 * n)
        rows["value"] += moved
        plan, contributions = planned(config, rows, slot=SLOT + 3600 * n)
        plan = with_ranges(plan, memory)
        messages, memory = build_messages(plan, contributions, Noise(np.random.default_rng(n).bytes), memory)
        for message in messages:
            validate(message.topic, json.loads(message.value))
        bodies += [json.loads(message.value) for message in messages]
    return bodies


def moved_by(body: Any, lower: float, key: str = "") -> Any:
    """A speed's body as that of the delay: what is a value is moved, what is a difference of values is not."""
    if isinstance(body, dict):
        if body.get("unit") == "1" and "at" not in body:
            return body
        if body.get("unit") == "(km/h)^2":
            return body | {"unit": "(s)^2"}
        return {
            name: "s" if part == "km/h" else moved_by(part, 0.0 if name == "deviation" else lower, name)
            for name, part in body.items()
        }
    if isinstance(body, list):
        return [moved_by(part, lower, key) for part in body]
    is_value = key in ("value", "raw", "lower", "upper", "interval", "at") and isinstance(body, float)
    return pytest.approx(body + lower, abs=1e-6) if is_value else body


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_with_another_lower_bound_is_released_as_speeds_are_moved_by_it(tmp_path, kind):
    build, settings = KINDS[kind]
    settings = SPEEDS | settings | {"feed.fields": FIELDS, "value.upper": 65.0, "value.typical": 20.0}
    speeds = windows(build(tmp_path, **settings), 0)
    delays = windows(build(tmp_path, **settings | DELAY | {"value.typical": LOWER + 20.0}), round(LOWER * 100))
    for one, other in zip(speeds, delays, strict=True):
        if "cell" not in one:
            assert other["value"] == "delay"
            assert other["clipping"] == {"lower": LOWER, "upper": LOWER + 65.0, "unit": "s"}
            continue
        cdf = one.pop("cdf", None)
        if cdf is not None:
            expected = cdf | {"at": [pytest.approx(end + LOWER) for end in cdf["at"]]}
            assert other.pop("cdf") == expected
        assert other == moved_by(one, LOWER)
        assert row_of(json.dumps(other).encode()).get("mean_unit", "s") == "s"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speed.sum_cap": 1.0}, "speed.sum_cap is about speeds alone"),
        ({"feed.quality.teleport_km_h": 200.0}, "feed.quality.teleport_km_h is about speeds alone"),
        ({"feed.quality.frozen": "20m", "feed.speed_unit": "m/s"}, "feed.speed_unit, feed.quality.frozen are about"),
        ({"feed.format": "itms", "feed.fields": None}, "feed.format 'itms' is about"),
        ({"value.lower": 70.0}, "must be at most 10000 s above lower 70, and not below"),
        ({"value.lower": 0.005}, "lower 0.005 is not a multiple"),
        ({"value.typical": -301.0}, "typical -301 is not between"),
        ({"value.unit": "m s"}, "value.unit"),
        ({"value.name": "speed"}, "'speed' is in km/h, from lower 0"),
        ({"public.alerts": [ALERT | {"below": -400.0}]}, "is not between value.lower"),
        ({"public.alerts": [ALERT | {"slower_percent": 9.0}]}, "only a speed is slower"),
    ],
)
def test_rules_that_argue_with_distance_and_bounds_that_make_no_range_are_refused(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        bus_config(tmp_path, **SPEEDS | {"feed.fields": FIELDS} | DELAY | changes)
