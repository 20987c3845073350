"""Lines of routes are simplified within their tolerance, cut at the domain and bounded; the served file is the one that
gtfs writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stream.config import load_config
from stream.config.section import BoundingBox
from stream.local import REPO_ROOT
from stream.serve.city.places import read_places
from stream.sources.invented_city import invented_schedule
from stream.sources.places import as_table, places, route_lines, simplified
from stream.sources.schedule import Schedule, Stop, read_schedule
from stream.sources.simulate import Simulation
from tests.stream.sources.made_schedules import AUSTIN, FILES, archive
from tests.support.counting_calls import calls_in

METRES = 111_195.0
"""Metres of a degree of latitude."""


def test_no_dropped_point_is_farther_from_the_line_than_the_tolerance() -> None:
    rng = np.random.default_rng(5)
    line = np.column_stack([np.cumsum(rng.normal(0, 1e-4, 500)), np.linspace(0, 0.2, 500)])
    for tolerance in (5.0, 50.0):
        kept = simplified(line, tolerance)
        assert 2 <= len(kept) < len(line)
        assert kept[[0, -1]].tolist() == line[[0, -1]].tolist()
        for point in line:
            along = np.diff(kept, axis=0)
            share = (((point - kept[:-1]) * along).sum(axis=1) / (along**2).sum(axis=1)).clip(0, 1)
            away = np.linalg.norm(point - kept[:-1] - share[:, None] * along, axis=1).min()
            assert away * METRES <= tolerance * 1.01


def test_lines_are_cut_at_the_domain_and_listed_once_per_route() -> None:
    box = BoundingBox(south=0, west=0, north=1, east=1)
    line = [(0.5, -0.5), (0.5, 0.1), (0.6, 0.4), (2.0, 0.5), (0.2, 0.5), (0.2, 0.5), (0.3, 0.9)]
    schedule = Schedule(
        routes={"a": "10", "b": "10", "c": "far"}, lines={"a": [line, line], "b": [line], "c": [[(5, 5), (6, 6)]]}
    )
    cut = [[(0.2, 0.5), (0.3, 0.9)], [(0.5, 0.1), (0.6, 0.4)]]
    assert route_lines(schedule, box) == {"10": cut}


def test_more_lines_than_fit_are_simplified_further_and_then_left_out() -> None:
    box = BoundingBox(south=-1, west=-1, north=1, east=1)
    rng = np.random.default_rng(6)
    lines = [[(float(y), float(x)) for y, x in rng.uniform(-1, 1, (200, 2))] for _ in range(20)]
    schedule = Schedule(routes={"a": "1"}, lines={"a": lines})  # type: ignore[arg-type]
    for most in (1_000, 30):
        kept = route_lines(schedule, box, most)["1"]
        assert 0 < sum(map(len, kept)) <= most


class Counted(dict[str, Stop]):
    """Stops of which each look at one is a call."""

    def __getitem__(self, key: str) -> Stop:
        return super().__getitem__(key)


@pytest.mark.parametrize("count", [500, 2_000])
def test_more_lines_or_stops_in_one_cell_than_a_city_has_cost_work_by_their_number_alone(count: int) -> None:
    """Each line is a route of its own, and each stop has a name of its own."""
    box = BoundingBox(south=-1, west=-1, north=1, east=1)
    lines = {f"{k}": [[(0.5, 0.5), (0.5, k / count)]] for k in range(count)}
    many = Schedule(routes={k: k for k in lines}, lines=lines)  # type: ignore[arg-type]
    stops = Counted({f"{k}": Stop(f"stop {k}", 0.1, 0.1 + k * 1e-9) for k in range(count)})
    assert calls_in(lambda: route_lines(many, box, 100)) < 200 * count
    assert calls_in(lambda: places(Schedule(stops=stops), box, 5)) < 40 * count


def test_the_file_that_gtfs_writes_is_served_with_names_that_are_printable(tmp_path: Path) -> None:
    files = dict(FILES)
    files["stops.txt"] += '8,"a\u0000\nb\u202e",30.33,-97.73\n'
    chart = places(read_schedule(archive(tmp_path / "gtfs.zip", files)), AUSTIN, 8)
    path = tmp_path / "places.json"
    path.write_text(json.dumps(as_table(chart)), encoding="utf-8")
    served = read_places(path)
    assert [place.cell for place in served.cells] == [place.cell for place in chart.cells]
    assert {stop.name for stop in served.stops} == {"Congress / 6th", "Lamar, North", "a b"}
    assert {line.route for line in served.lines} == {"2", "10", "Airport"}
    assert set(served.corridors) == {"2", "10", "Airport"}


def test_platforms_of_one_name_and_place_are_one_stop() -> None:
    stops = {str(n): Stop("Hbf", 30.26801 + n * 1e-5, -97.7429) for n in range(5)} | {"x": Stop("", 30.3, -97.7)}
    assert len(places(Schedule(stops=stops), AUSTIN, 8).stops) == 1


@pytest.mark.parametrize("template", ["bus-fleet.toml", "riders-live.toml"])
def test_the_invented_city_has_a_name_for_nearly_every_cell_and_is_served(tmp_path: Path, template: str) -> None:
    config = load_config(REPO_ROOT / "config" / template, **{"feed.format": "canonical"})
    schedule = invented_schedule(Simulation(config.feed, 300, 1_490_097_600_000_000))
    chart = places(schedule, config.feed.domain, config.hexagons.resolution)
    path = tmp_path / "places.json"
    path.write_text(json.dumps(as_table(chart)), encoding="utf-8")
    served = read_places(path)
    assert len(served.cells) > 20
    assert sum(place.name is None for place in served.cells) < len(served.cells) / 10
    assert len(served.lines) == 25


def test_a_line_is_simplified_in_parts_because_one_of_corners_takes_time_by_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []
    norm = np.linalg.norm

    def counted(points: np.ndarray, **options: int) -> np.ndarray:
        measured.append(len(points))
        return norm(points, **options)

    monkeypatch.setattr(np.linalg, "norm", counted)
    ends = np.linspace(0, 1, 12_000)
    spiral = [(30.0 + 0.3 * (1 - k) * np.cos(400 * k), -97.7 + 0.3 * (1 - k) * np.sin(400 * k)) for k in ends.tolist()]
    read = Schedule(stops={}, routes={"r": "1"}, lines={"r": [spiral]})
    (name,) = route_lines(read, AUSTIN)
    assert name == "1"
    assert max(measured) < 2_000
