"""Any measured value: what is released of it is what is released of speeds, moved by the lower bound and in its
unit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.messages.tables import row_of
from stream.statistics.residual_clipping import with_ranges
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.releasing import build_messages, planned
from tests.support.schemas import validate

LOWER = -300.0
SPEEDS = {"feed.format": "declared", "speed.sum_cap": 0.0, "hexagons.merge_until": None}
"""Overrides of a feed whose value is a speed, without the rules that are for speeds alone."""
FIELDS = {name: name for name in ("user", "time", "lat", "lng", "value")}
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
def test_a_value_with_another_lower_bound_is_released_as_speeds_are_moved_by_it(tmp_path: Path, kind: str) -> None:
    build, settings = KINDS[kind]
    settings = SPEEDS | settings | {"feed.fields": FIELDS, "value.upper": 65.0, "value.typical": 20.0}
    settings |= {f"feed.quality.{rule}": 0 for rule in ("teleport_km_h", "fastest_km_h")} | {
        "feed.quality.frozen": "0s"
    }
    speeds = windows(build(tmp_path, **settings), 0)
    upper = LOWER + settings["value.upper"]
    delays = windows(
        build(tmp_path, **settings | DELAY | {"value.upper": upper, "value.typical": LOWER + 20.0}), round(LOWER * 100)
    )
    for one, other in zip(speeds, delays, strict=True):
        if "cell" not in one:
            assert other["value"] == "delay"
            assert other["clipping"] == {"lower": LOWER, "upper": upper, "unit": "s"}
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
        ({"public.alerts": [{"name": "a", "below": -400.0, "false_alarms_per_day": 1}]}, "is not between value.lower"),
        (
            {"public.alerts": [{"name": "a", "slower_percent": 9.0, "false_alarms_per_day": 1}]},
            "only a speed is slower",
        ),
    ],
)
def test_rules_that_argue_with_distance_and_bounds_that_make_no_range_are_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        bus_config(tmp_path, **SPEEDS | {"feed.fields": FIELDS} | DELAY | changes)
