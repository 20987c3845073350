"""The mean of all cells together under "participation": what a user moves is what they are charged, and smoothing uses
it. GeoJSON areas that cannot be a feed's public area are refused with the place in the file and the remedy. Under
"participation" and a weak signal, smoothed means lean neither to the middle of [0, U] nor to the typical speed.

Exact: every user of a random window is removed, and the loss is read from inside the noise of the shipped draw.
"""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import h3.api.numpy_int as h3
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.participation import Layout
from stream.config import Config, ConfigError
from stream.config.public_cells import read_area
from stream.config.section import BoundingBox
from stream.messages.message import WINDOW, validator
from stream.statistics.columns import Derived
from stream.statistics.pipeline import post_process
from stream.statistics.plan import decode_plan, encode_plan
from stream.statistics.smoothing_state import Memory
from stream.storage.row_store import ROW
from tests.dpcore.silence import Silence
from tests.support.builders import SLOT, SMALL, random_rows, riders, zcdp_config
from tests.support.releasing import build_messages, cell_bodies, draw, planned
from tests.support.tapes import recorded

AREA: dict[str, Any] = {
    "participation.weight": "share",
    "participation.area_share": 36,
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean"],
}


def with_area(tmp_path: Path, accounting: str = "pure", **more: Any) -> Config:
    """ε = 1 or ρ = 0.5 in a window, of which nine tenths are the area's."""
    if accounting == "zcdp":
        return zcdp_config(tmp_path, rho=0.5, rho_budget=4.0, **(SMALL | AREA | more))
    return riders(tmp_path, **({"privacy.epsilon": 1.0, "privacy.budget": 8.0} | AREA | more))


def test_the_area_counts_every_user_once_and_averages_their_speeds_and_its_intervals_hold_both(tmp_path):
    """With ε = 1000 next to no noise is left. At ε = 1 intervals hold in 200 recorded draws what 95 % less 5 standard
    errors is; if half as wide, they hold less than 80 %."""
    config = with_area(tmp_path, **{"privacy.epsilon": 1000.0, "privacy.budget": 8000.0})
    rows = random_rows(2, 300, users=40)
    speeds = np.random.default_rng(3).uniform(5, 60, 40)
    users, of_row = np.unique(rows["user"], return_inverse=True)
    rows["value"] = 100 * speeds[of_row]
    plan, contributions = planned(config, rows)
    columns = draw(plan, contributions, recorded(1))
    assert columns["area_users"].value[0] == pytest.approx(len(users), abs=0.1)
    assert columns["area_mean"].value[0] == pytest.approx(speeds[: len(users)].mean(), abs=0.1)
    plan, contributions = planned(with_area(tmp_path), rows)
    noise, quiet = recorded(2), draw(plan, contributions, Silence())
    drawn = [draw(plan, contributions, noise) for _ in range(200)]
    for name in ("area_users", "area_mean"):
        assert np.mean([of[name].low <= quiet[name].raw <= of[name].high for of in drawn]) > 0.87


def test_the_close_marker_states_the_area_and_only_where_it_is_released(tmp_path):
    for config, stated in ((with_area(tmp_path), True), (riders(tmp_path), False)):
        messages, _ = build_messages(*planned(config, random_rows(1, 50)), Noise(), None)
        marker = json.loads(messages[-1].value)
        assert validator(WINDOW).is_valid(marker)
        assert ("area" in marker) == stated


def test_the_stored_plan_alone_decides_whether_the_area_is_released(tmp_path):
    """A worker whose configuration was changed after the charge releases what was planned and charged, noise for
    noise."""
    with_it, without = with_area(tmp_path), riders(tmp_path, **(AREA | {"participation.area_share": 0}))
    for mine, others in ((with_it, without), (without, with_it)):
        plan, contributions = planned(mine, random_rows(1, 50))
        taken_over = decode_plan(encode_plan(plan))
        one, other = (
            build_messages(each, contributions, recorded(1), None)[0]
            for each, config in ((plan, mine), (taken_over, others))
        )
        assert [message.value for message in one] == [message.value for message in other]
        assert ("area" in json.loads(other[-1].value)) == (mine is with_it)


@pytest.mark.parametrize(
    "wrong", [{"participation.weight": "user"}, {"speed.statistics": ["p50"]}, {"speed.post_processing": []}], ids=str
)
def test_a_configuration_that_could_not_use_the_area_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match=r"participation\.area_share 36 needs .*or area_share = 0"):
        with_area(tmp_path, **wrong)


def test_an_area_of_weights_that_add_up_to_more_than_one_is_refused():
    with pytest.raises(ParameterError, match="more than 1"):
        Layout.of(mean=True, variance=False, percentiles=False, weight="user", upper=6500, bins=32, area=True)


AUSTIN = BoundingBox(south=29.8, west=-98.3, north=30.9, east=-97.2)
RING = [[-97.8, 30.2], [-97.6, 30.2], [-97.6, 30.4], [-97.8, 30.2]]


def polygon(*rings: Any) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": list(rings)}


def with_position(position: Any) -> dict[str, Any]:
    return polygon([RING[0], position, *RING[1:]])


def read(tmp_path: Path, shape: Any, box: BoundingBox = AUSTIN) -> Any:
    """``shape``: what the file says, or text that is no JSON."""
    file = tmp_path / "area.geojson"
    file.write_text(shape if isinstance(shape, str) else json.dumps(shape))
    return read_area(file, box)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({}, "is null; give Polygons"),
        ([], "give Polygons"),
        ({"type": "Point", "coordinates": [0, 0]}, '"Point"; give Polygons'),
        ({"type": "Polygon"}, "has no coordinates; write a list of rings"),
        ({"type": "Polygon", "coordinates": None}, "has no coordinates"),
        ({"type": "MultiPolygon"}, "has no coordinates"),
        ({"type": "MultiPolygon", "coordinates": [[]]}, "has no coordinates"),
        (polygon(), "has no coordinates"),
        (polygon("ring"), 'ring 0 is "ring"; write a list of positions'),
        (polygon([]), "0 different positions and no area"),
        (polygon([RING[0]] * 4), "1 different positions and no area"),
        (with_position("a"), 'ring 0, position 1 is "a"; write [longitude, latitude]'),
        (with_position([-97.7]), "position 1 is [-97.7]; write [longitude, latitude]"),
        (with_position(["-97.7", "30.2"]), "two numbers of degrees"),
        (with_position([True, False]), "two numbers of degrees"),
        (with_position([math.nan, 30.2]), "not a place on Earth"),
        (with_position([10**400, 30.2]), "not a place on Earth"),
        (with_position([-97.7, -200]), "not a place on Earth; write longitude first"),
        (polygon(RING, [[0.0]]), "ring 1, position 0"),
        ({"type": "FeatureCollection"}, "no features"),
        ({"type": "FeatureCollection", "features": [None]}, "features[0] is null"),
        ({"type": "Feature", "geometry": None}, "is null; give Polygons"),
        (polygon([[20, 5], [21, 5], [21, 6], [20, 5]]), "4 of 4 positions lie outside feed.domain"),
        (with_position([-90.0, 30.2]), "1 of 5 positions lie outside feed.domain"),
        (with_position([-90.0, 30.2]), "make the area smaller or the domain larger"),
        (polygon([[y, x] for x, y in RING]), "not a place on Earth; write longitude first"),
    ],
)
def test_what_is_no_area_of_this_feed_is_refused_with_its_place_and_a_remedy(tmp_path, shape, says):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, shape)
    assert says in str(refused.value)
    assert str(tmp_path / "area.geojson") in str(refused.value)


def test_swapped_coordinates_are_recognised(tmp_path):
    oslo = polygon([[59.9, 10.7], [59.95, 10.7], [59.95, 10.8], [59.9, 10.7]])
    with pytest.raises(ConfigError, match="write longitude first: all would be inside"):
        read(tmp_path, oslo, BoundingBox(south=59.8, west=10.5, north=60.0, east=11.0))


def test_areas_of_every_form_are_read(tmp_path):
    hole = [[-97.7, 30.25], [-97.65, 30.25], [-97.65, 30.3], [-97.7, 30.25]]
    many = {"type": "MultiPolygon", "coordinates": [[RING, hole], [RING]]}
    collection = {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": many}]}
    high = polygon([[*position, 150.0] for position in RING])
    assert len(read(tmp_path, collection)) == 2
    assert read(tmp_path, high) == read(tmp_path, polygon(RING)) == [[[(x, y) for x, y in RING]]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(coordinates=json_values, kind=st.sampled_from(["Polygon", "MultiPolygon"]))
def test_no_coordinates_end_in_anything_but_an_area_or_a_refusal(tmp_path_factory, coordinates, kind):
    with suppress(ConfigError):
        read(tmp_path_factory.getbasetemp(), {"type": kind, "coordinates": coordinates})


@pytest.mark.parametrize(
    "text", ["nonsense", "[" * 100_000, "\x00", '{"type": "Polygon", "coordinates": [[[1' + "0" * 5000]
)
def test_a_file_that_is_no_json_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="GeoJSON"):
        read(tmp_path, text)


HOURS, VEHICLES, ROUTES = 8, 250, 25
"""A small city: every vehicle crosses a few of so many cells, of some 300 that are listed, in every hour."""
SPEED, LEANS = 12.0, 5.0
"""Mean speed in km/h, where 20 is expected, and U/2 is 32; and how far from it the mean of the last hours may lie."""


def city(hour: int) -> np.ndarray:
    """Rows of one hour: four fixes of every vehicle, on cells along a line."""
    rng = np.random.default_rng(hour)
    cells = h3.grid_path_cells(h3.latlng_to_cell(30.2, -97.8, 7), h3.latlng_to_cell(30.5, -97.6, 7))[:ROUTES]
    rows = np.zeros(4 * VEHICLES, dtype=ROW)
    rows["user"] = np.repeat(np.arange(VEHICLES) + 1, 4)
    rows["cell"] = np.asarray(cells)[rng.integers(0, len(cells), 4 * VEHICLES)]
    rows["time"] = (SLOT + 3600 * hour) * 1_000_000 + np.arange(len(rows)) * 100
    rows["value"] = np.clip(rng.normal(SPEED, 6.0, len(rows)), 0, 65) * 100
    return rows


def smoothed(config: Config, seed: int, hour: int, memory: Memory | None) -> tuple[Derived, Memory | None, np.ndarray]:
    """What one hour's means are smoothed to, with noise of a tape, the memory after it, and errors of visited cells."""
    plan, contributions = planned(config, city(hour), slot=SLOT + 3600 * hour)
    columns = draw(plan, contributions, Noise(np.random.default_rng([seed, hour]).bytes))
    derived, after = post_process(plan, cell_bodies(plan, contributions, columns), memory)
    at = np.searchsorted(plan.cells, contributions.counts.cells)
    return derived["mean"], after, derived["mean"].value[at] - SPEED


def bias(config: Config, seed: int) -> float:
    """Mean error of the smoothed means of visited cells in the second half of the hours."""
    memory, errors = None, []
    for hour in range(HOURS):
        _, memory, wrong = smoothed(config, seed, hour, memory)
        errors.append(float(wrong.mean()))
    return float(np.mean(errors[HOURS // 2 :]))


@pytest.fixture
def weak(tmp_path: Path) -> Config:
    settings = {"privacy.epsilon": 0.25, "privacy.budget": 6.0, "speed.statistics": ["mean"]}
    return riders(tmp_path, **settings)


def test_the_smoothed_mean_of_a_city_with_a_weak_signal_is_near_the_truth(weak):
    """ε = 0.25, two tapes."""
    assert abs(np.mean([bias(weak, seed) for seed in range(2)])) <= LEANS


@pytest.mark.parametrize(("gap", "used"), [(1, True), (25, False)])
def test_counts_of_users_are_used_after_an_hour_and_not_after_more_than_a_day(weak, gap, used):
    _, memory, _ = smoothed(weak, 0, 0, None)
    forgotten = msgspec.structs.replace(memory, counted=b"", counted_sums=(0.0, 0.0, 0.0))
    with_counts, without = (smoothed(weak, 0, gap, before)[0].value for before in (memory, forgotten))
    assert np.array_equal(with_counts, without) != used
