"""The live city: its budget pays for every car, its truth is that of its events, and an incident slows what is near."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from unittest import mock

import h3
import numpy as np
import pytest

from stream.cli.demo_view import CITY
from stream.config import load_config
from stream.local import REPO_ROOT
from stream.sources.live_city import LiveCity, Truth

START_US, WINDOWS, CARS = 1_772_600_400_000_000, 20, 400


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Events of five hours of the city, and what it noted of its whole windows."""
    with mock.patch.dict(os.environ, CITY):
        config = load_config(REPO_ROOT / "config" / "riders-live.toml")
    city, path = LiveCity(config, CARS, START_US), tmp_path_factory.mktemp("city") / "truth.ndjson"
    end = START_US + WINDOWS * 20_000_000
    events: list[dict[str, object]] = []
    for block in city.messages(Truth(city, path)):
        if block.due[-1] >= end:
            break
        events += map(json.loads, block.values)
    return events, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.nightly
def test_cars_are_replaced_before_the_budget_of_sixteen_windows_is_spent(lived) -> None:  # type: ignore[no-untyped-def]
    windows = defaultdict(set)
    for event in lived[0]:
        moment = datetime.fromisoformat(event["time"]).timestamp()
        windows[event["user"]].add(int(moment) // 20)
    assert 14 <= max(map(len, windows.values())) <= 16
    present = [sum(window in seen for seen in windows.values()) for window in set.union(*windows.values())]
    assert min(present) >= CARS, "whoever stops is replaced at once"


def test_the_truth_is_that_of_the_events(lived) -> None:  # type: ignore[no-untyped-def]
    events, truth = lived
    known, start = truth[3], datetime.fromisoformat(truth[3]["start"]).timestamp()
    speeds = defaultdict(list)
    for event in events:
        if start <= datetime.fromisoformat(event["time"]).timestamp() < start + 20:
            speeds[h3.latlng_to_cell(event["lat"], event["lng"], 8)].append(event["speed"])
    moved = sum(abs(len(speeds[cell]) - count) for cell, (count, _) in known["cells"].items())
    assert moved <= 2, "positions are written to six decimals, so a fix at an edge may change its cell"
    exact = [cell for cell, (count, _) in known["cells"].items() if len(speeds[cell]) == count]
    assert all(np.mean(speeds[cell]) == pytest.approx(known["cells"][cell][1], abs=0.01) for cell in exact)


def test_an_incident_takes_more_than_half_of_the_speed_where_it_is(lived) -> None:  # type: ignore[no-untyped-def]
    truth = lived[1]
    struck = [line for line in truth if line["incident"]]
    assert struck
    cells = {cell for line in struck for cell in line["incident"]}

    def mean(lines: list[dict[str, dict[str, tuple[int, float]]]]) -> float:
        seen = [line["cells"][cell] for line in lines for cell in cells if cell in line["cells"]]
        return sum(n * value for n, value in seen) / sum(n for n, _ in seen)

    assert mean(struck) < 0.5 * mean(truth[: truth.index(struck[0]) - 1])
    assert all(later["start"] > before["start"] for before, later in pairwise(truth))
