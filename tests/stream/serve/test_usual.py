"""Usual values are weighted means of earlier releases, and depend on nothing else."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.messages.message import Message, digest
from stream.serve.cell_history import Usual, UsualMean
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import BUSY, CELLS, LONELY, STEADY, city_config, window
from tests.stream.serve.taking import arrivals, outcomes

DAY, WEEK = 24, 7 * 24
"""Hours."""


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
        assert outcomes(view, arrivals(messages, number))[-1] == "completed"
    return view


def usual_in(view: View, shown: WindowView | None = None) -> dict[str, UsualMean]:
    """Usual means before a window, or before the newest."""
    usual, shown = Usual(), shown or newest(view)
    return usual.means(shown, usual.earlier(view, shown))


def newest(view: View) -> WindowView:
    return view.ordered()[0]


def test_the_more_certain_release_weighs_more_and_intervals_narrow(tmp_path: Path) -> None:
    said = ((30.0, 1.0), (20.0, 2.0), (40.0, 2.0), (0.0, 1.0))
    view = view_of(*(released(tmp_path, day * DAY, *one) for day, one in enumerate(said)))
    weights = (1 / 2, 1 / 8, 1 / 8)
    mean = np.average([30.0, 20.0, 40.0], weights=weights)
    half = 1.959964 / math.sqrt(sum(weights))
    assert usual_in(view)[BUSY] == pytest.approx((mean, mean - half, mean + half), abs=1e-3)


def test_gaussian_noise_of_the_same_scale_is_half_the_variance(tmp_path: Path) -> None:
    zcdp = {"accounting": "zcdp", "rho": 0.05, "delta": 1e-6}
    widths = []
    for more in ({}, zcdp):
        _, low, high = usual_in(view_of(*(released(tmp_path, day * DAY, 30.0, 1.0, **more) for day in range(4))))[BUSY]
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(2), abs=1e-3)


def test_neither_the_window_itself_nor_a_later_one_nor_fewer_than_three_are_usual(tmp_path: Path) -> None:
    view = view_of(*(released(tmp_path, day * DAY, 10.0 * day, 1.0) for day in range(5)))
    shown = [view.find(f"2017-03-{day}T12:00:00Z", "bus") for day in (21, 23, 24)]
    assert [{} if one is None else usual_in(view, one).get(BUSY, (None,))[0] for one in shown] == [None, None, 10.0]


def test_a_window_without_its_marker_says_nothing_of_what_is_usual(tmp_path: Path) -> None:
    *unmarked, _ = released(tmp_path, 0, 10.0, 1.0)
    view = view_of(*(released(tmp_path, day * DAY, 10.0, 1.0) for day in (1, 2, 3)))
    outcomes(view, arrivals(unmarked))
    assert usual_in(view) == {}


def test_suppressed_cells_have_no_usual_value_and_values_stay_in_range(tmp_path: Path) -> None:
    usual = usual_in(view_of(*(released(tmp_path, day * DAY, -300.0, 5.0) for day in range(4))))
    assert usual.keys() == set(CELLS) - {LONELY}
    assert usual[BUSY].value == 0.0
    assert usual[STEADY].value == pytest.approx(45, abs=3)


def test_what_is_forgotten_by_the_view_is_forgotten_here(tmp_path: Path) -> None:
    usual = Usual()
    view = view_of(*(released(tmp_path, day * DAY, 30.0, 1.0) for day in range(3)))
    shown = newest(view)
    usual.means(shown, usual.earlier(view, shown))
    assert len(usual.kept) == 2
    view.windows.clear()
    assert usual.earlier(view, shown) == []
    assert usual.kept == {}


def starts(view: View, shown: WindowView) -> list[int]:
    """How many hours before a window those begin that determine what is usual of it."""
    return [round((moment(shown) - moment(other)) / 3600) for other in Usual().earlier(view, shown)]


def moment(window: WindowView) -> float:
    return datetime.fromisoformat(window.start).timestamp()


def test_usual_is_of_the_same_hour_and_weekday_where_there_are_three_such_windows(tmp_path: Path) -> None:
    hours = [*(week * WEEK for week in range(4)), 1, 3 * WEEK - 1, *(3 * WEEK - day * DAY for day in (1, 2, 3))]
    view = view_of(*(released(tmp_path, hour, 30.0, 1.0) for hour in sorted(hours)))
    assert starts(view, newest(view)) == [WEEK, 2 * WEEK, 3 * WEEK]


def test_usual_is_of_the_same_kind_of_day_and_then_of_any_day_and_never_of_another_hour(tmp_path: Path) -> None:
    """2017-03-21 is a Tuesday: Friday is 3 days later, Monday 6."""
    view = view_of(*(released(tmp_path, day * DAY, 30.0, 1.0) for day in range(7)))
    assert starts(view, newest(view)) == [3 * DAY, 4 * DAY, 5 * DAY, 6 * DAY]
    view = view_of(*(released(tmp_path, day * DAY, 30.0, 1.0) for day in (3, 4, 5, 6)))
    assert starts(view, newest(view)) == [1 * DAY, 2 * DAY, 3 * DAY]
    view = view_of(*(released(tmp_path, hour, 30.0, 1.0) for hour in range(5)))
    assert starts(view, newest(view)) == []


def test_the_same_hour_is_the_local_one_when_clocks_change(tmp_path: Path) -> None:
    """Chicago's clocks went forward on 2017-03-12 and back on 2017-11-05, so 12:00 UTC is an hour off after that
    Sunday."""
    before, after = 32 * WEEK, 33 * WEEK
    view = view_of(*(released(tmp_path, hour, 30.0, 1.0) for hour in (before - WEEK, before, after, after + 1)))
    assert starts(view, newest(view)) == [WEEK + 1, 2 * WEEK + 1]


def test_a_zone_that_nobody_knows_counts_as_utc(tmp_path: Path) -> None:
    for zone in ("Nowhere/At-All", "../../etc/passwd", "Europe", "<b>"):
        *cells, marker = released(tmp_path, 0, 30.0, 1.0)
        body = json.loads(marker.value)
        strange = json.dumps(body | {"period": body["period"] | {"timezone": zone}}).encode()
        view = view_of([*cells, marker._replace(value=strange)])
        assert usual_in(view) == {}


def test_a_merged_cell_is_compared_with_releases_of_the_same_area_only(tmp_path: Path) -> None:
    """The same id is the whole hexagon in some windows and what finer neighbours leave of it in others."""
    one, other = STEADY, LONELY
    areas: list[dict[str, Any]] = [{}, {"excludes": [one]}, {"excludes": [other, one]}, {"excludes": [one, other]}]
    made = [released(tmp_path, week * WEEK, 10.0 * (1 + week % 4), 1.0, **areas[week % 4]) for week in range(12)]
    assert usual_in(view_of(*made))[BUSY].value == 34.0, "the order of excludes says nothing"
    view = view_of(*made, released(tmp_path, 12 * WEEK, 50.0, 1.0))
    assert usual_in(view)[BUSY].value == 10.0
