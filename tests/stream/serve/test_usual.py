"""Usual is of earlier windows at the same local time."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from stream.messages.message import Message
from stream.serve.cell_history import Usual
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import city_config, window
from tests.stream.serve.taking import arrivals, outcomes

DAY, WEEK = 24, 7 * 24
"""Hours."""


def released(tmp_path: Path, hour: int) -> list[Message]:
    return window(city_config(tmp_path), hour)


def view_of(*windows: list[Message]) -> View:
    view = View()
    for number, messages in enumerate(windows, 1):
        assert outcomes(view, arrivals(messages, number))[-1] == "completed"
    return view


def newest(view: View) -> WindowView:
    return view.ordered()[0]


def test_what_is_forgotten_by_the_view_is_forgotten_here(tmp_path: Path) -> None:
    usual = Usual()
    view = view_of(*(released(tmp_path, day * DAY) for day in range(3)))
    shown = newest(view)
    for one in usual.earlier_of_each(view, [shown])[0]:
        usual.decoded(one)
    assert len(usual.kept) == 2
    view.windows.clear()
    assert usual.earlier_of_each(view, [shown]) == [[]]
    assert usual.kept == {}


def test_neither_the_window_itself_nor_a_later_one_nor_one_without_its_marker_is_usual(tmp_path: Path) -> None:
    view = view_of(*(released(tmp_path, day * DAY) for day in range(1, 4)))
    outcomes(view, arrivals(released(tmp_path, 0)[:-1]))
    shown = view.find("2017-03-23T12:00:00Z", "bus")
    assert shown is not None
    assert starts(view, shown) == [DAY]


def starts(view: View, shown: WindowView) -> list[int]:
    """How many hours before a window those begin that determine what is usual of it."""
    return [round((moment(shown) - moment(other)) / 3600) for other in Usual().earlier_of_each(view, [shown])[0]]


def moment(window: WindowView) -> float:
    return datetime.fromisoformat(window.start).timestamp()


def test_usual_is_of_the_same_hour_and_weekday_where_there_are_three_such_windows(tmp_path: Path) -> None:
    hours = [*(week * WEEK for week in range(4)), 1, 3 * WEEK - 1, *(3 * WEEK - day * DAY for day in (1, 2, 3))]
    view = view_of(*(released(tmp_path, hour) for hour in sorted(hours)))
    assert starts(view, newest(view)) == [WEEK, 2 * WEEK, 3 * WEEK]


def test_usual_is_of_the_same_kind_of_day_and_then_of_any_day_and_never_of_another_hour(tmp_path: Path) -> None:
    """2017-03-21 is a Tuesday: Friday is 3 days later, Monday 6."""
    view = view_of(*(released(tmp_path, day * DAY) for day in range(7)))
    assert starts(view, newest(view)) == [3 * DAY, 4 * DAY, 5 * DAY, 6 * DAY]
    view = view_of(*(released(tmp_path, day * DAY) for day in (3, 4, 5, 6)))
    assert starts(view, newest(view)) == [1 * DAY, 2 * DAY, 3 * DAY]
    view = view_of(*(released(tmp_path, hour) for hour in range(5)))
    assert starts(view, newest(view)) == []


def test_the_same_hour_is_the_local_one_when_clocks_change(tmp_path: Path) -> None:
    """Chicago's clocks went forward on 2017-03-12 and back on 2017-11-05, so 12:00 UTC is an hour off after that
    Sunday."""
    before, after = 32 * WEEK, 33 * WEEK
    view = view_of(*(released(tmp_path, hour) for hour in (before - WEEK, before, after, after + 1)))
    assert starts(view, newest(view)) == [WEEK + 1, 2 * WEEK + 1]


def test_a_zone_that_nobody_knows_counts_as_utc(tmp_path: Path) -> None:
    for zone in ("Nowhere/At-All", "../../etc/passwd", "Europe", "<b>"):
        *cells, marker = released(tmp_path, 0)
        body = json.loads(marker.value)
        strange = json.dumps(body | {"period": body["period"] | {"timezone": zone}}).encode()
        view = view_of([*cells, marker._replace(value=strange)])
        assert starts(view, newest(view)) == []
