"""Windows of a small city with known speeds, released for real."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h3
import msgspec
import numpy as np

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message, digest
from stream.statistics.merging import by_planned_cells
from stream.storage.row_store import ROW
from tests.support.builders import SLOT, bus_config
from tests.support.releasing import build_messages, planned

HOUR = 3600
CELLS = [h3.latlng_to_cell(30.2 + 0.05 * k, -97.7, 7) for k in range(4)]
BUSY, STEADY, UNCERTAIN, LONELY = CELLS
"""Cells with many users, with fewer, with two, so that an interval is 11 km/h wide, and with one, below ``min_users``.
"""


class Cell(NamedTuple):
    """``users`` in a cell, each with ``fixes`` of one speed in km/h."""

    users: int
    fixes: int
    speed: float


USUAL_DAY: Mapping[str, Cell] = {
    BUSY: Cell(100, 2, 22.0),
    STEADY: Cell(60, 1, 45.0),
    UNCERTAIN: Cell(2, 1, 30.0),
    LONELY: Cell(1, 1, 20.0),
}
JAM = {**USUAL_DAY, BUSY: Cell(100, 2, 13.2)}
JAM_RULE = {"name": "jam", "below": 18.0, "windows": 1, "false_alarms_per_day": 1.0}


def city_config(tmp_path: Path, **overrides: Any) -> Config:
    """Bus fleet whose noise is small where there are many; means only, unless overridden."""
    fixed = {
        "privacy.epsilon": 18.0,
        "privacy.budget": 432.0,
        "speed.statistics": ["mean"],
        "speed.min_users": 2,
        "speed.post_processing": [],
    }
    return bus_config(tmp_path, **(fixed | overrides))


def window(config: Config, hour: int, city: Mapping[str, Cell] = USUAL_DAY) -> list[Message]:
    """Cells and marker of the timeslot ``hour`` hours after 2017-03-21 12:00 UTC."""
    plan, contributions = planned(config, rows_of_city(hour, city), slot=SLOT + hour * HOUR)
    return build_messages(plan, by_planned_cells(plan, contributions), Noise(), None)[0]


def windows(config: Config, cities: Sequence[Mapping[str, Cell]]) -> list[Message]:
    """One after the other from hour 0."""
    return [message for hour, city in enumerate(cities) for message in window(config, hour, city)]


def remembered(config: Config, *cities: Mapping[str, Cell]) -> list[Message]:
    """Windows from hour 0, of which every one knows what the one before it released."""
    messages, memory = [], None
    for hour, there in enumerate(cities):
        plan, contributions = planned(config, rows_of_city(hour, there), slot=SLOT + hour * HOUR)
        noise = Noise(np.random.default_rng(hour).bytes)
        made, memory = build_messages(plan, by_planned_cells(plan, contributions), noise, memory)
        messages += made
    return messages


def closed(before: Sequence[Message], marker: Message, **changes: Any) -> list[Message]:
    """The window with these messages and a marker that counts them."""
    counted = {"messages": len(before), "digest": digest(message.value for message in before)}
    return [*before, marker._replace(value=msgspec.json.encode(json.loads(marker.value) | counted | changes))]


def bodies(messages: Sequence[Message]) -> dict[str, dict[str, Any]]:
    """Values of one window's cells."""
    return {body["cell"]: body for body in (json.loads(message.value) for message in messages) if "cell" in body}


def rows_of_city(hour: int, city: Mapping[str, Cell]) -> np.ndarray:
    parts = []
    first = 1
    for cell, (users, fixes, speed) in city.items():
        rows = np.zeros(users * fixes, dtype=ROW)
        rows["cell"] = h3.str_to_int(cell)
        rows["user"] = np.repeat(np.arange(first, first + users), fixes)
        rows["time"] = (SLOT + hour * HOUR) * 1_000_000 + np.arange(len(rows)) * 1000
        rows["value"] = round(speed * 100)
        parts.append(rows)
        first += users
    return np.concatenate(parts)
