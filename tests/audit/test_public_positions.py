"""What relation "values" does not protect: speeds that anybody can compute from public positions and times."""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest

SLOT_S, LEAST_STEPS = 3 * 3600, 20
METRES_PER_DEGREE = 111_195.0
Fix = tuple[float, float, float, float]
"""Time in seconds, latitude, longitude, reported speed in km/h."""


def fixes_of(file: Path) -> dict[str, list[Fix]]:
    """Distinct fixes of each vehicle in order of time; unreadable rows are left out."""
    fixes: dict[str, set[Fix]] = defaultdict(set)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            try:
                time = datetime.fromisoformat(row["timestamp"]).timestamp()
                speed = 3.6 * float(row["speed"])
                fixes[row["vehicle_id"]].add((time, float(row["latitude"]), float(row["longitude"]), speed))
            except ValueError:
                continue
    return {vehicle: sorted(seen) for vehicle, seen in fixes.items()}


def errors_of(fixes: list[Fix]) -> Iterator[float]:
    """By timeslot, how far straight lines between fixes are from the mean of the reported speeds, in km/h."""
    steps: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for (begun, south, west, before), (ended, north, east, after) in pairwise(fixes):
        if 30 <= (seconds := ended - begun) <= 300:
            across = (east - west) * math.cos(math.radians(south))
            metres = METRES_PER_DEGREE * math.hypot(north - south, across)
            steps[int(begun) // SLOT_S].append((metres, seconds, (before + after) / 2))
    for slot in steps.values():
        if len(slot) >= LEAST_STEPS:
            metres, seconds, reported = zip(*slot, strict=True)
            yield abs(3.6 * sum(metres) / sum(seconds) - mean(reported))


@pytest.mark.parametrize("day", ["2017-03-16", "2017-03-21"])
def test_straight_lines_between_public_fixes_give_half_of_the_buses_their_mean_within_3_km_h(
    day: str, shared_data: Path
) -> None:
    """Fixes two minutes apart, means over three hours; no release is needed for it."""
    errors = [
        error for fixes in fixes_of(shared_data / "capmetro" / f"{day}.csv.gz").values() for error in errors_of(fixes)
    ]
    assert len(errors) > 400
    assert 2 < median(errors) < 3
