"""GDAL, which is not ours, reads from an archive what was put into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from pyogrio import list_layers
from pyogrio.raw import read

from stream.tiles.archive import archive_of
from stream.tiles.vector_tile import EXTENT, MARGIN, Feature, Point
from tests.support.mercator import EARTH_M, in_metres

MIDDLE = (30.27, -97.74)
ROAD: list[Point] = [(30.10, -98.00), (30.31, -97.80), (30.22, -97.70), (30.45, -97.55)]
LAKE: list[Point] = [(30.20, -97.90), (30.40, -97.85), (30.35, -97.70), (30.25, -97.60), (30.28, -97.80)]
LAYERS = {
    "water": [Feature("polygon", LAKE, {"kind": "lake"})],
    "roads": [Feature("line", ROAD, {"name": "Größe Road", "kind": "major_road"})],
    "places": [Feature("point", [MIDDLE], {"name": "Middle"})],
}


def layer_of(path: Path, name: str, zoom: int) -> tuple[Any, dict[str, list[str]]]:
    """The geometries of a layer at one zoom, as GDAL clips them to their tiles, and its columns."""
    meta, _, shapes, columns = read(path, layer=name, ZOOM_LEVEL=str(zoom))
    return shapely.from_wkb(shapes), dict(zip(meta["fields"], map(list, columns), strict=True))


def side_m(zoom: int) -> float:
    return 2 * EARTH_M / 2**zoom


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "city.pmtiles"
    path.write_bytes(archive_of(LAYERS, range(8, 13), "nobody"))
    return path


@pytest.mark.parametrize("zoom", range(8, 13))
def test_lines_polygons_and_points_are_read_where_they_were_put_at_every_zoom(archive: Path, zoom: int) -> None:
    unit = side_m(zoom) / EXTENT
    assert {name for name, _ in list_layers(archive)} == set(LAYERS)
    roads, tags = layer_of(archive, "roads", zoom)
    assert set(tags["name"]) == {"Größe Road"}
    assert set(tags["kind"]) == {"major_road"}
    road = shapely.LineString(in_metres(LAYERS["roads"][0]))
    assert shapely.union_all(roads).hausdorff_distance(road) < 2 * unit
    lake = shapely.Polygon(in_metres(LAYERS["water"][0]))
    drawn = shapely.union_all(shapely.make_valid(layer_of(archive, "water", zoom)[0]))
    assert drawn.symmetric_difference(lake).area < 2 * unit * lake.length
    [point] = {shape.wkt for shape in layer_of(archive, "places", zoom)[0]}
    assert shapely.from_wkt(point).distance(shapely.Point(in_metres(LAYERS["places"][0]))) < unit


def test_random_lines_and_polygons_keep_their_shape_however_they_cross_tiles(tmp_path: Path) -> None:
    rng, zoom, path = np.random.default_rng(19), 11, tmp_path / "random.pmtiles"
    unit = side_m(zoom) / EXTENT
    for _ in range(20):
        turns = np.sort(rng.uniform(0, 2 * np.pi, 9))
        reach = rng.uniform(0.02, 0.4, 9)
        star = [
            (30.27 + r * float(np.sin(t)), -97.74 + r * float(np.cos(t))) for r, t in zip(reach, turns, strict=True)
        ]
        walk = [(30.27 + a, -97.74 + b) for a, b in rng.uniform(-0.5, 0.5, (12, 2)).tolist()]
        layers = {"water": [Feature("polygon", star)], "roads": [Feature("line", walk)]}
        path.write_bytes(archive_of(layers, range(zoom, zoom + 1), ""))
        line = shapely.LineString(in_metres(layers["roads"][0]))
        assert shapely.union_all(layer_of(path, "roads", zoom)[0]).hausdorff_distance(line) < 2 * unit
        polygon = shapely.Polygon(in_metres(layers["water"][0]))
        drawn = shapely.union_all(shapely.make_valid(layer_of(path, "water", zoom)[0]))
        assert drawn.symmetric_difference(polygon).area < 2 * unit * polygon.length


def test_a_tile_holds_nothing_beyond_its_margin(archive: Path) -> None:
    zoom = 12
    _, _, shapes, _ = read(archive, layer="roads", ZOOM_LEVEL=str(zoom), CLIP="NO")
    longest = (EXTENT + 2 * MARGIN) / EXTENT * side_m(zoom)
    assert len(shapes) > 5
    for west, south, east, north in shapely.bounds(shapely.from_wkb(shapes)):
        assert max(east - west, north - south) <= longest * 1.001


def test_a_feature_is_drawn_from_its_zoom_on(tmp_path: Path) -> None:
    path = tmp_path / "roads.pmtiles"
    lane = Feature("line", ROAD[::-1], {"name": "Lane"}, min_zoom=10)
    path.write_bytes(archive_of({"roads": [*LAYERS["roads"], lane]}, range(9, 11), ""))
    assert [set(layer_of(path, "roads", zoom)[1]["name"]) for zoom in (9, 10)] == [
        {"Größe Road"},
        {"Größe Road", "Lane"},
    ]


def test_the_same_layers_give_the_same_bytes_and_the_whole_world_is_one_tile(archive: Path, tmp_path: Path) -> None:
    assert archive.read_bytes() == archive_of(LAYERS, range(8, 13), "nobody")
    path = tmp_path / "world.pmtiles"
    path.write_bytes(archive_of({"places": [Feature("point", [(89.9, 0.0), (-89.9, 10.0)])]}, range(1), ""))
    assert len(layer_of(path, "places", 0)[0]) == 1


def test_a_feature_of_several_points_has_them_all(tmp_path: Path) -> None:
    path, places = tmp_path / "places.pmtiles", [(10.0, 10.0), (20.0, 20.0), (30.0, 30.0)]
    path.write_bytes(archive_of({"places": [Feature("point", places)]}, range(1), ""))
    [shape] = layer_of(path, "places", 0)[0]
    assert shape.geom_type == "MultiPoint"
    assert np.allclose(shapely.get_coordinates(shape), in_metres(Feature("point", places)), atol=side_m(0) / EXTENT)


@pytest.mark.parametrize(
    "ring", [[(85.2, 0), (86, 40), (89, 20)], [(-85.2, 0), (-86, 40), (-89, 20)], [(0, 0), (0, 9), (0, 4)]]
)
def test_a_polygon_without_area_is_left_out(tmp_path: Path, ring: list[Point]) -> None:
    path = tmp_path / "pole.pmtiles"
    path.write_bytes(archive_of({"water": [Feature("polygon", ring), *LAYERS["water"]]}, range(1), ""))
    shapes = layer_of(path, "water", 0)[0]
    assert all(shape.area > 0 for shape in shapes)


def test_nothing_to_draw_and_more_tiles_than_a_directory_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="give lines, polygons or points"):
        archive_of({}, range(8, 10), "")
    with pytest.raises(ValueError, match="leave out the closest zooms"):
        archive_of({"land": [Feature("polygon", [(-85, -179), (85, -179), (85, 179), (-85, 179)])]}, range(6, 7), "")
