"""The operator's files of places and areas: what is wrong in them is said at the start; what stays is bounded and
inert. The statistics of an area under relation "participation", on windows released for real: even how many were there
is noisy."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h3
import msgspec
import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from dpcore.participation import UNIT
from stream.config import Config, ConfigError
from stream.messages.cells import Cell, Clipping, cells_of
from stream.serve.city import areas, city, places
from stream.serve.city.areas import Corridor, PolygonArea, read_areas
from stream.serve.city.city import read_streets
from stream.serve.city.combining import combined
from stream.serve.city.places import Places, check_name, read_places
from stream.statistics.participation.draw import draw_participation, exact_integers
from stream.statistics.plan import Plan
from stream.storage.row_store import ROW
from tests.support.builders import SLOT, riders, zcdp_config
from tests.support.counting_calls import calls_in
from tests.support.nightly import nightly, nightly_but
from tests.support.releasing import cell_bodies, planned

CELL = h3.latlng_to_cell(30.27, -97.74, 7)
NONE = Places(None, [])


def square(south: float, west: float, side: float) -> list[list[list[float]]]:
    corners = [[west, south], [west + side, south], [west + side, south + side], [west, south + side]]
    return [[*corners, corners[0]]]


AREA = square(30, -98, 1)


def feature(name: Any, coordinates: Any = AREA, kind: str = "Polygon") -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "properties": {"name": name}, "geometry": geometry}


def collection(*features: Any) -> str:
    return json.dumps({"type": "FeatureCollection", "features": features})


def place_file(**changes: Any) -> str:
    whole = {"resolution": 7, "cells": [{"cell": CELL, "name": "Congress / 6th", "stops": 1, "routes": ["10"]}]}
    return json.dumps(whole | changes)


def stop(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "lat": 1, "lng": 1} | changes


def ring_of(points: int) -> list[list[float]]:
    turn = np.linspace(0, 2 * math.pi, points)
    return np.column_stack([-97.7 + 0.1 * np.cos(turn), 30.3 + 0.1 * np.sin(turn)]).tolist()


READERS: dict[str, Callable[[Path], object]] = {
    "places": read_places,
    "streets": read_streets,
    "areas": lambda path: read_areas(path, NONE),
}
"""What reads the file of each key below ``public``."""
WRONG: dict[str, dict[str, tuple[str | bytes | None, str]]] = {
    "places": {
        "missing": (None, "name a readable file"),
        "no JSON": ("{", "hexveil gtfs"),
        "nothing": ("", "hexveil gtfs"),
        "HTML": ("<html>login</html>", "hexveil gtfs"),
        "nested without end": ("[" * 100_000, "hexveil gtfs"),
        "GeoJSON": (collection(feature("a")), "resolution"),
        "no number": (place_file(stops=[stop(lat=math.nan)]), "no file of places"),
        "beyond every number": (place_file(stops=[stop(lat=0)]).replace('"lat": 0', '"lat": 1e999'), "no file"),
        "off the globe": (place_file(stops=[stop(lat=91)]), "lat"),
        "a point": (place_file(lines=[{"route": "1", "lines": [[[1, 2]]]}]), "lines"),
        "an unknown cell": (place_file(cells=[{"cell": "87489e342fffffz"}]), "no H3 cell"),
        "another resolution": (place_file(resolution=8), "not of resolution 8"),
        "a cell twice": (place_file(cells=[{"cell": CELL}] * 2), "listed twice"),
        "a route twice": (place_file(lines=[{"route": "1", "lines": []}] * 2), "listed twice"),
        "an empty name": (place_file(cells=[{"cell": CELL, "name": " "}]), "is empty"),
        "a long name": (place_file(cells=[{"cell": CELL, "name": "x" * 257}]), "257 characters"),
        "control characters": (place_file(cells=[{"cell": CELL, "routes": ["1\u0000"]}]), "control characters"),
        "a lone surrogate": (place_file(stops=[stop(name="\ud800")]), "no file of places"),
    },
    "streets": {
        "missing": (None, "name a readable file"),
        "no JSON": ("{", "GeoJSON FeatureCollection"),
        "nested without end": ("[" * 100_000, "GeoJSON FeatureCollection"),
        "an area": (collection(feature("a")), "LineStrings"),
        "half a line": ('{"type": "LineString", "coordinates": [[1, 2]]}', "two or more positions"),
        "off the globe": ('{"type": "MultiPoint", "coordinates": [[1, 2], [1, 91]]}', "not a place on Earth"),
    },
    "areas": {
        "missing": (None, "name a readable file"),
        "no JSON": ("{", "GeoJSON FeatureCollection"),
        "not UTF-8": (b"\xff\xfe{}", "GeoJSON FeatureCollection"),
        "nested without end": ("[" * 100_000, "GeoJSON FeatureCollection"),
        "no features": (collection(), "no features"),
        "a place": (collection(feature("a", [1, 2], "Point")), "Point"),
        "no name": (collection(feature(None)), "property 'name'"),
        "a number for a name": (collection(feature(7)), "property 'name'"),
        "an empty name": (collection(feature(" ")), "is empty"),
        "control characters": (collection(feature("a\nb")), "control characters"),
        "a name like a box": (collection(feature("1,2,3,4")), "no letter"),
        "a name like a route": (collection(feature("route:10")), "begins with 'route:'"),
        "a name twice": (collection(feature("a"), feature("a", square(31, -98, 1))), "two areas are named 'a'"),
        "no number": (collection(feature("a", [[[math.nan, 1], [2, 3], [4, 5]]])), "not a place on Earth"),
        "endless": (collection(feature("a", [[[math.inf, 1], [2, 3], [4, 5]]])), "not a place on Earth"),
        "a line": (collection(feature("a", [[[1, 2], [2, 3], [1, 2]]])), "different positions and no area"),
        "too many": (collection(*[feature(f"a{n}") for n in range(1001)]), "1001 features, more than 1000"),
    },
}


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [pytest.param(key, *case, id=f"{key}, {name}") for key, cases in WRONG.items() for name, case in cases.items()],
)
def test_a_wrong_or_missing_file_is_refused_with_its_key_and_the_reason(tmp_path, key, text, said):
    """Where there is no file, a folder is none either."""
    path = tmp_path / "file.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for given in (path, tmp_path) if text is None else (path,):
        with pytest.raises(ConfigError, match=f"public.{key} .*{said}"):
            READERS[key](given)


@pytest.mark.parametrize("name", ["\u200b", "a\u2028b", "a\u2029b", "\u200b \u2060"], ids=ascii)
def test_a_name_that_shows_nothing_or_breaks_a_line_is_refused(name):
    with pytest.raises(ValueError, match=r"^the name, .* has (no visible character|control characters); "):
        check_name(name, "the name")


def test_large_files_are_refused_before_they_are_read_and_shapes_before_they_are_checked(tmp_path):
    for key, module in (("places", places), ("streets", city), ("areas", areas)):
        path = tmp_path / key
        with path.open("wb") as file:
            file.truncate(module.LARGEST + 1)
        with pytest.raises(ConfigError, match=f"more than {module.LARGEST}"):
            READERS[key](path)
    path = tmp_path / "many.geojson"
    path.write_text(collection(feature("a", [[[1, 2]] * 100_000])).replace(" ", ""))

    def refused() -> None:
        with pytest.raises(ConfigError, match="more than 10000 points"):
            read_areas(path, NONE)

    assert calls_in(refused) < 200_000, "eleven for each of the first 10 000 points, not for all"


def test_a_cell_is_in_a_polygon_if_its_centre_is_and_a_hole_is_outside():
    """Against H3's own test of containment, on 1 500 cells; none lies on an edge."""
    outer, hole = ring_of(400), [[-97.7, 30.28], [-97.66, 30.28], [-97.66, 30.33], [-97.7, 30.33]]
    area = PolygonArea("a", [[[(x, y) for x, y in outer], [(x, y) for x, y in hole]]])
    wanted = set(h3.geo_to_cells({"type": "Polygon", "coordinates": [outer, [*hole, hole[0]]]}, 8))
    tried = sorted(h3.grid_disk(h3.latlng_to_cell(30.3, -97.7, 8), 22))
    assert 100 < len(wanted) < len(tried) == 1519
    assert set(area.holds((cell, []) for cell in tried)) == wanted


def test_a_merged_cell_is_in_a_polygon_by_a_part_that_was_not_released_apart():
    """Its centre lies in its centre child: where that was released apart, another part stands for the rest."""
    parent = h3.cell_to_parent(CELL, 6)
    child, grandchild = h3.cell_to_center_child(parent, 7), h3.cell_to_center_child(parent, 8)
    lat, lng = h3.cell_to_latlng(parent)
    small = PolygonArea("small", [[[(x, y) for x, y in square(lat - 0.003, lng - 0.003, 0.006)[0]]]])
    large = PolygonArea("large", [[[(x, y) for x, y in square(lat - 0.5, lng - 0.5, 1)[0]]]])
    sibling = next(cell for cell in sorted(h3.cell_to_children(parent, 7)) if cell != child)
    assert small.holds([(parent, [sibling])]) == [parent]
    assert small.holds([(parent, [child]), (child, [])]) == [child]
    assert small.holds([(parent, [grandchild]), (grandchild, [])]) == [grandchild]
    assert large.holds([(parent, [child]), (child, [])]) == [parent, child]
    assert large.holds([(parent, [child, grandchild])]) == [parent]


def test_a_corridor_holds_merged_cells_that_cover_it_and_smaller_cells_within_it():
    parent = h3.cell_to_parent(CELL, 6)
    others = [cell for cell in h3.cell_to_children(parent, 7) if cell != CELL]
    corridor = Corridor("10", [CELL], 7)
    assert corridor.holds([(CELL, []), (others[0], [])]) == [CELL]
    assert corridor.holds([(parent, [])]) == [parent]
    assert corridor.holds([(parent, [CELL])]) == []
    assert corridor.holds([(parent, [others[0]])]) == [parent]
    inner, outer = (h3.cell_to_center_child(cell, 9) for cell in (CELL, others[0]))
    assert corridor.holds([(inner, []), (outer, [])]) == [inner]
    assert corridor.geometry()["type"] == "MultiPolygon"


def noisy(rng: np.random.Generator, scales: list[float], events: list[int], *, zcdp: bool) -> list[Cell]:
    """Cells whose mean without noise is 30 km/h."""
    values = []
    for scale, count in zip(scales, events, strict=True):
        noise = rng.normal(0, scale) if zcdp else rng.laplace(0, scale)
        raw = 30 + noise
        half = (1.96 if zcdp else math.log(20)) * scale
        mean = {"value": raw, "raw": raw, "scale": scale, "interval": [raw - half, raw + half], "unit": "km/h"}
        body = {"cell": CELL, "status": "published", "users": 9, "events": count, "mean": mean}
        values.append(json.dumps(body | ({"accounting": "zcdp"} if zcdp else {})).encode())
    return cells_of(values)


@pytest.mark.parametrize("zcdp", [False, True], ids=["Laplace", "Gaussian"])
@pytest.mark.parametrize("scales", [[2.0], [2.0, 0.5, 0.1], nightly([1.0] * 12)], ids=["one", "unequal", "many"])
def test_the_interval_of_an_area_holds_the_mean_without_noise_in_95_percent(scales, zcdp):
    """n = 4 000, alpha = 1e-6 one-sided; an interval with 93 % would fail with probability above 0.6, one with 92 %
    above 0.99."""
    rng, n = np.random.default_rng(11), 4_000
    events = [50 + 10 * k for k in range(len(scales))]
    missed = 0
    for _ in range(n):
        mean = combined(noisy(rng, scales, events, zcdp=zcdp), Clipping(0.0, 1e9))["mean"]
        missed += not mean["interval"][0] <= 30 <= mean["interval"][1]
    p0 = 0.05
    assert missed <= n * p0 + 4.75 * math.sqrt(n * p0 * (1 - p0)), f"n={n} missed={missed / n:.4f} p0={p0}"


def test_an_area_without_published_cells_has_no_mean_and_a_mean_stays_in_the_possible_range():
    def of(*bodies: dict[str, Any]) -> dict[str, Any]:
        return combined(cells_of([json.dumps(body).encode() for body in bodies]), Clipping(0.0, 60.0))

    assert of()["mean"] is None
    body = {"cell": CELL, "status": "suppressed", "users": 1, "events": 4}
    nothing = of(body)
    assert (nothing["cells"], nothing["published"], nothing["mean"]) == (1, 0, None)
    assert nothing["events"] == {"value": 4.0, "interval": None}
    high = {"value": 60, "raw": 75.0, "scale": 1.0, "interval": [60, 60], "unit": "km/h"}
    mean = of(body | {"status": "published", "mean": high})["mean"]
    assert (mean["value"], mean["raw"], mean["interval"]) == (60, 75.0, [60, 60])


def test_corridors_follow_the_polygons_in_the_order_of_route_numbers(tmp_path):
    routes = ["Airport", "10", "9", "100", "²"]
    (tmp_path / "places.json").write_text(place_file(cells=[{"cell": CELL, "routes": routes}]))
    (tmp_path / "areas.geojson").write_text(collection(feature("شارع")))
    listed = list(read_areas(tmp_path / "areas.geojson", read_places(tmp_path / "places.json")))
    assert listed == ["شارع", "route:9", "route:10", "route:100", "route:Airport", "route:²"]


BOX = {"south": 30.12, "west": -97.92, "north": 30.52, "east": -97.52}
MEAN_ONLY: dict[str, Any] = {"speed.statistics": ["mean"], "speed.post_processing": [], "feed.domain": BOX}


def rows_of(config: Config) -> np.ndarray:
    """1 500 rows of 500 users at 12 km/h in five cells and 200 of 100 users at 40 in one more; all others are
    empty."""
    disk = h3.grid_disk(h3.latlng_to_cell(30.32, -97.72, config.hexagons.resolution), 3)
    rng, rows = np.random.default_rng(3), np.zeros(1_700, dtype=ROW)
    cells = np.array([int(cell, 16) for cell in disk[:6]], dtype=np.uint64)
    rows["cell"][:1_500], rows["cell"][1_500:] = cells[rng.integers(0, 5, 1_500)], cells[5]
    rows["user"][:1_500], rows["user"][1_500:] = rng.integers(1, 501, 1_500), rng.integers(501, 601, 200)
    rows["time"] = SLOT * 1_000_000 + rng.choice(3_600_000, len(rows), replace=False) * 1_000
    rows["value"] = 1_200
    rows["value"][1_500:] = 4_000
    return rows


def drawn(plan: Plan, contributions: Contributions) -> dict[str, Any]:
    """What one draw of the noise says of all cells together."""
    bodies = cell_bodies(plan, contributions, draw_participation(plan, contributions, Noise()))
    cells, upper = cells_of([msgspec.json.encode(body) for body in bodies]), plan.terms.speed.upper_quanta * 0.01
    return combined(cells, Clipping(0.0, upper))


def exact_of(plan: Plan, contributions: Contributions) -> tuple[float, float]:
    """Mean and count of all cells together without noise."""
    degree = 1 + ("variance" in plan.terms.speed.statistics)
    sums = exact_integers(plan, contributions)[: degree + 1].sum(axis=1) / UNIT
    moment = sums[1] if degree == 1 else sums[1] / 2 + sums[2]
    return moment / sums.sum() * plan.terms.speed.upper_quanta * 0.01, sums.sum()


CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "share": (2.0, {"participation.weight": "share"}),
    "user": (20.0, {"participation.weight": "user"}),
    "sample": (80.0, {"participation.weight": "sample"}),
    "variance": (4.0, {"participation.weight": "share", "speed.statistics": ["mean", "variance"]}),
}


@pytest.mark.parametrize("case", nightly_but(["share", "sample"], CASES))
def test_the_interval_of_an_area_with_empty_and_unlike_cells_holds_its_mean_and_count(tmp_path, case):
    """n = 80, alpha = 1e-6 one-sided; an interval with 75 % would fail with probability above 0.9. With the clamp it
    was 30 %."""
    epsilon, changes = CASES[case]
    config = riders(tmp_path, **MEAN_ONLY | {"privacy.epsilon": epsilon, "privacy.budget": 48 * epsilon, **changes})
    plan, contributions = planned(config, rows_of(config))
    exact, missed, n = exact_of(plan, contributions), np.zeros(2), 80
    for _ in range(n):
        answers = drawn(plan, contributions)
        weight = answers["users"] or answers["events"]
        assert (answers["events"] is None) == (case != "sample")
        assert answers["mean"] is not None
        for at, said in enumerate([answers["mean"], weight]):
            missed[at] += not said["interval"][0] <= exact[at] <= said["interval"][1]
    p0 = 0.05
    assert missed.max() <= n * p0 + 4.75 * math.sqrt(n * p0 * (1 - p0)), f"{n=} {missed / n=} {p0=}"


def test_an_area_of_empty_cells_has_no_mean_under_noise(tmp_path):
    """The noise leaves open what the mean is, and no bound is stated in its place. 5 % may state one by chance; n = 40,
    alpha = 1e-6."""
    config = riders(tmp_path, **MEAN_ONLY)
    plan, contributions = planned(config, rows_of(config)[:0])
    answers = [drawn(plan, contributions) for _ in range(40)]
    assert sum(area["mean"] is not None for area in answers) <= 12
    assert {area["published"] == area["cells"] > 20 for area in answers} == {True}


def test_gaussian_noise_is_read_as_such(tmp_path):
    """One release with so little noise that the mean is known to 3 km/h. Ten intervals; one that holds 95 % fails 6 of
    them with probability 3e-6."""
    config = zcdp_config(tmp_path, 20.0, 480.0, **MEAN_ONLY)
    plan, contributions = planned(config, rows_of(config))
    mean, _ = exact_of(plan, contributions)
    holding = 0
    for _ in range(10):
        low, high = drawn(plan, contributions)["mean"]["interval"]
        assert high - low < 3
        holding += low < mean < high
    assert holding >= 5
