"""A fleet whose events have no speeds, or some, its feed, and what a live source makes of them."""

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stream.config.feed import FeedConfig, SpeedSource
from stream.sources.hfp import HighFrequencyPositions, Publication
from tests.stream.sources.recordings import AUSTIN
from tests.stream.sources.recordings import feed as recorded_feed
from tests.support.builders import SLOT, bus_config, bus_fleet_file, riders_config

Fix = tuple[str, int, float, float, float | None]
"""Vehicle, seconds, latitude, longitude, speed in m/s."""
MINUTES = 70
_SLOTTING = bus_config(Path("unused")).slotting
NAMES = {"user": "bus", "time": "seen", "lat": "y", "lng": "x", "value": "v"}
SPEEDLESS = {role: name for role, name in NAMES.items() if role != "value"}


def day(seed: int = 1, fleet: int = 9) -> list[Fix]:
    """A fleet that drives, jumps, stands for long, is silent for minutes, and reports again what it reported; by
    time."""
    rng, fixes = random.Random(seed), dict[tuple[str, int], Fix]()
    for number in range(fleet):
        clock, lat, name = SLOT, 30.2, f"22:{number + 1}"
        while clock < SLOT + 60 * MINUTES:
            clock += rng.choice([1, 3, 8, 20, 60, 60, 400 if rng.random() < 0.1 else 9])
            lat += 0.0 if number % 4 == 0 else rng.choice([0.0, 0.0004, 0.001, 0.3 if rng.random() < 0.02 else 0.0])
            lat = 30.2 if lat > 30.8 else round(lat, 6)
            reported = 7.25 if rng.random() < 0.2 else None
            fixes[name, clock] = name, clock, lat, round(-97.7 + number / 100, 6), reported
    return sorted(fixes.values(), key=lambda fix: fix[1])


def feed(speeds: SpeedSource = "missing", **changes: Any) -> FeedConfig:
    fields = {**NAMES, "time_format": "epoch-s"}
    return recorded_feed(**{"speed_unit": "m/s", "speeds": speeds, "fields": fields} | changes)


def config_of(tmp_path: Path, chosen: FeedConfig, relation: str = "values") -> Any:
    made = bus_config(tmp_path) if relation == "values" else riders_config(tmp_path)
    return made.model_copy(update={"feed": chosen})


def configured(tmp_path: Path, names: Mapping[str, str] = SPEEDLESS) -> Path:
    """A configuration that derives missing speeds, with this map of fields."""
    file = bus_fleet_file(tmp_path, AUSTIN)
    missing = 'format = "canonical"\nspeeds = "missing"\nspeed_unit = "m/s"'
    lines = file.read_text(encoding="utf-8").replace('format = "canonical"', missing)
    fields = "".join(f'{role} = "{name}"\n' for role, name in names.items())
    file.write_text(lines + f'\n[feed.fields]\n{fields}time_format = "epoch-s"\n', encoding="utf-8")
    return file


def live(fixes: list[Fix], speeds: SpeedSource = "missing") -> list[bytes]:
    """What ``hexveil hfp`` sends for these fixes, which come a few at a time."""
    return list(_sent(tuple(fixes), speeds))


@cache
def _sent(fixes: tuple[Fix, ...], speeds: SpeedSource) -> list[bytes]:
    """The same, worked out once for all tests of a fleet."""
    source, values = HighFrequencyPositions(feed(speeds, fields=None), _SLOTTING, speeds), list[bytes]()
    for begin in range(0, len(fixes), 5):
        part = fixes[begin : begin + 5]
        values += source.of([publication(fix) for fix in part], part[-1][1] * 1_000_000).values
    return values


def publication(fix: Fix) -> Publication:
    name, clock, lat, lng, speed = fix
    operator, vehicle = name.split(":")
    topic = f"/hfp/v2/journey/ongoing/vp/bus/{operator}/{vehicle}/1069/1/x/7:20/1/2/60;24/19/73/44"
    return Publication(topic, json.dumps({"VP": {"tsi": clock, "lat": lat, "long": lng, "spd": speed}}).encode())


def by_vehicle(values: list[bytes]) -> dict[str, list[bytes]]:
    events = defaultdict(list)
    for value in values:
        events[json.loads(value)["user"]].append(value)
    return events
