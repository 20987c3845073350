"""GeoJSON areas that cannot be a feed's public area are refused with the place in the file and the remedy."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.config import ConfigError
from stream.config.public_cells import Box, read_area

AUSTIN = Box(29.8, -98.3, 30.9, -97.2)
RING = [[-97.8, 30.2], [-97.6, 30.2], [-97.6, 30.4], [-97.8, 30.2]]


def polygon(*rings: Any) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": list(rings)}


def with_position(position: Any) -> dict[str, Any]:
    return polygon([RING[0], position, *RING[1:]])


def read(tmp_path: Path, shape: Any) -> Any:
    file = tmp_path / "area.geojson"
    file.write_text(json.dumps(shape))
    return read_area(file, AUSTIN)


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
def test_what_is_no_area_of_this_feed_is_refused_with_its_place_and_a_remedy(
    tmp_path: Path, shape: Any, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, shape)
    assert says in str(refused.value)
    assert str(tmp_path / "area.geojson") in str(refused.value)


def test_swapped_coordinates_are_recognised(tmp_path: Path) -> None:
    file = tmp_path / "oslo.geojson"
    file.write_text(json.dumps(polygon([[59.9, 10.7], [59.95, 10.7], [59.95, 10.8], [59.9, 10.7]])))
    with pytest.raises(ConfigError, match="write longitude first: all would be inside"):
        read_area(file, Box(59.8, 10.5, 60.0, 11.0))


def test_areas_of_every_form_are_read(tmp_path: Path) -> None:
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
def test_no_coordinates_end_in_anything_but_an_area_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, coordinates: Any, kind: str
) -> None:
    with suppress(ConfigError):
        read(tmp_path_factory.getbasetemp(), {"type": kind, "coordinates": coordinates})


@pytest.mark.parametrize(
    "text", ["nonsense", "[" * 100_000, "\x00", '{"type": "Polygon", "coordinates": [[[1' + "0" * 5000]
)
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "area.geojson"
    file.write_text(text)
    with pytest.raises(ConfigError, match="GeoJSON"):
        read_area(file, AUSTIN)
