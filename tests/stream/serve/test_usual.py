"""Usual values: weighted means of earlier releases and of nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stream.messages.message import Message, digest
from stream.serve.cell_history import Usual
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import BUSY, CELLS, LONELY, STEADY, city_config, window


def released(tmp_path: Path, hour: int, raw: float, scale: float, **more: Any) -> list[Message]:
    """A window in which BUSY has that value and noise."""
    *cells, marker = window(city_config(tmp_path), hour)
    changed = []
    for message in cells:
        body = json.loads(message.value)
        if body["cell"] == BUSY:
            body["mean"] |= {"raw": raw, "value": min(max(raw, 0.0), 65.0), "scale": scale}
            body |= more
        changed.append(message._replace(value=json.dumps(body).encode()))
    close = json.loads(marker.value) | {"digest": digest(message.value for message in changed)}
    return [*changed, marker._replace(value=json.dumps(close).encode())]


def view_of(*windows: list[Message]) -> View:
    view = View()
    for number, messages in enumerate(windows, 1):
        outcomes = [view.add(message.topic, message.ce_id, message.value, number) for message in messages]
        assert outcomes[-1] == "completed"
    return view


def usual_in(view: View, shown: WindowView) -> dict[str, Any]:
    usual = Usual()
    return json.loads(usual.over(shown, usual.earlier(view, shown)))


def of(found: dict[str, Any], cell: str) -> dict[str, Any]:
    return next(row for row in found["cells"] if row["cell"] == cell)["raw"]["mean"]


def newest(view: View) -> WindowView:
    return view.ordered()[0]


def test_the_more_certain_release_weighs_more_and_intervals_narrow(tmp_path: Path) -> None:
    view = view_of(released(tmp_path, 0, 30.0, 1.0), released(tmp_path, 1, 20.0, 2.0), released(tmp_path, 2, 0.0, 1.0))
    found = of(usual_in(view, newest(view)), BUSY)
    weights = (1 / 2, 1 / 8)
    mean = (30 * weights[0] + 20 * weights[1]) / sum(weights)
    half = 1.959964 / math.sqrt(sum(weights))
    assert found["value"] == pytest.approx(mean, abs=1e-3)
    assert found["interval"] == pytest.approx([mean - half, mean + half], abs=1e-3)
    assert found["windows"] == 2


def test_gaussian_noise_of_the_same_scale_is_half_the_variance(tmp_path: Path) -> None:
    zcdp = {"accounting": "zcdp", "rho": 0.05, "delta": 1e-6}
    widths = []
    for more in ({}, zcdp):
        view = view_of(released(tmp_path, 0, 30.0, 1.0, **more), released(tmp_path, 1, 0.0, 1.0))
        low, high = of(usual_in(view, newest(view)), BUSY)["interval"]
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(2), abs=1e-3)


def test_neither_the_window_itself_nor_a_later_one_is_usual(tmp_path: Path) -> None:
    view = view_of(*(released(tmp_path, hour, 10.0 * hour, 1.0) for hour in range(4)))
    shown = view.find("2017-03-21T13:00:00Z", "bus")
    assert shown is not None
    found = usual_in(view, shown)
    assert found["earlier_windows"] == 1
    assert of(found, BUSY)["value"] == 0.0
    first = view.find("2017-03-21T12:00:00Z", "bus")
    assert first is not None
    assert usual_in(view, first)["cells"] == []


def test_a_window_without_its_marker_says_nothing_of_what_is_usual(tmp_path: Path) -> None:
    *unmarked, _ = released(tmp_path, 0, 10.0, 1.0)
    view = view_of(released(tmp_path, 1, 10.0, 1.0))
    for message in unmarked:
        view.add(message.topic, message.ce_id, message.value)
    assert usual_in(view, newest(view))["earlier_windows"] == 0


def test_suppressed_cells_have_no_usual_value_and_values_stay_in_range(tmp_path: Path) -> None:
    view = view_of(released(tmp_path, 0, -300.0, 5.0), released(tmp_path, 1, 0.0, 1.0))
    found = usual_in(view, newest(view))
    assert sorted(row["cell"] for row in found["cells"]) == sorted(set(CELLS) - {LONELY})
    assert of(found, BUSY)["value"] == 0.0
    assert of(found, STEADY)["value"] == pytest.approx(45, abs=3)


def test_what_is_forgotten_by_the_view_is_forgotten_here(tmp_path: Path) -> None:
    usual = Usual()
    view = view_of(*(released(tmp_path, hour, 30.0, 1.0) for hour in range(3)))
    shown = newest(view)
    usual.over(shown, usual.earlier(view, shown))
    assert len(usual.decoded) == 2
    view.windows.clear()
    assert usual.earlier(view, shown) == []
    assert usual.decoded == {}
