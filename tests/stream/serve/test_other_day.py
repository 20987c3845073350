"""The window of another day is the one at the same local time, or none with the reason for it. Usual values are
weighted means of earlier releases, and depend on nothing else."""

import json
from datetime import date, datetime
from itertools import chain
from pathlib import Path

import pytest

from stream.config import Config
from stream.messages.message import Message
from stream.serve.alerts.rules import Usual
from stream.serve.hexagons import other_day
from stream.serve.window_store import View, WindowView, local_start, start_at
from tests.stream.serve.city import city_config, window
from tests.stream.serve.made_windows import arrivals, completed, outcomes
from tests.stream.serve.serving import json_of, served
from tests.support.builders import SLOT

DAY, WEEK = 24, 7 * 24
"""Hours."""


def hours_to(starts: str) -> list[int]:
    """From hour 0, Tuesday 2017-03-21 12:00 UTC or 07:00 in Chicago, to those starts of that year in UTC."""
    return [round((datetime.fromisoformat(f"2017-{start}:00Z").timestamp() - SLOT) / 3600) for start in starts.split()]


def released(config: Config, *hours: int) -> list[list[Message]]:
    return [window(config, hour) for hour in hours]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return city_config(tmp_path)


def beside(view: View, start: str, day: date | None = None) -> tuple[str, str | None, str | None]:
    """Of what stands beside the window that starts then: the day, the start, and the reason why there is none."""
    shown = view.find(start, "bus")
    assert shown is not None
    compared = other_day(view, shown, day)
    return compared.day.isoformat(), compared.other and compared.other.start, compared.reason


def test_a_week_before_is_compared_with_or_else_the_day_before(config):
    week, day, now = released(config, -WEEK, -DAY, 0)
    start = "2017-03-21T12:00:00Z"
    assert beside(completed(View(), week, day, now), start) == ("2017-03-14", "2017-03-14T12:00:00Z", None)
    assert beside(completed(View(), day, now), start) == ("2017-03-20", "2017-03-20T12:00:00Z", None)
    assert beside(completed(View(), now), start) == ("2017-03-20", None, "none"), "nobody knows whether there was one"


def test_a_window_of_other_settings_or_length_is_not_compared_with_and_the_day_before_is_looked_at(tmp_path, config):
    start = "2017-03-21T12:00:00Z"
    week, day, now = released(config, -WEEK, -DAY, 0)
    marker = json.loads(week[-1].value)
    for changes in ({"relation": "participation"}, {"clipping": {"lower": 0.0, "upper": 40.0, "unit": "km/h"}}):
        other = [*week[:-1], week[-1]._replace(value=json.dumps(marker | changes).encode())]
        view = completed(View(), other, day, now)
        assert beside(view, start, date(2017, 3, 14)) == ("2017-03-14", None, "settings"), changes
        assert beside(view, start) == ("2017-03-20", "2017-03-20T12:00:00Z", None), changes
    longer = city_config(tmp_path, **{"window.slot": "4h"})
    view = completed(View(), window(config, 1 - DAY), window(longer, 1))
    assert beside(view, "2017-03-21T13:00:00Z") == ("2017-03-20", None, "settings")


def test_a_window_whose_close_marker_has_not_arrived_has_no_zone_so_nothing_stands_beside_it(config):
    """12:00 UTC is 06:00 in Chicago on 10 March, and 07:00 on 14 March."""
    *before, after = released(config, *hours_to("03-10T12 03-10T13 03-14T12"))
    view = completed(View(), *before)
    outcomes(view, arrivals(after[:-1]))
    assert beside(view, "2017-03-14T12:00:00Z", date(2017, 3, 10)) == ("2017-03-10", None, "incomplete")


def test_the_oldest_and_the_newest_window_are_those_of_the_feed_as_it_is_now(config):
    older, newer, newest = released(config, -1, 0, 1)
    view = View(2)
    assert view.span("bus") is None
    outcomes(view, arrivals(older, 1))
    assert view.span("bus") == ("2017-03-21T11:00:00Z", "2017-03-21T11:00:00Z")
    outcomes(view, arrivals(newer[:-1]))
    assert view.span("bus") == ("2017-03-21T11:00:00Z", "2017-03-21T11:00:00Z"), "it is not complete"
    outcomes(view, arrivals(newer[-1:], 2))
    outcomes(view, arrivals(newest, 3))
    assert view.span("bus") == ("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z")
    assert view.span("tram") is None


KEPT = {
    "1h": "03-10T12 03-10T13 03-12T07 03-12T08 03-13T06 03-13T07 03-14T12 10-29T06 11-05T06 11-05T07 11-06T07",
    "3h": "03-12T06 03-12T12 03-13T11",
    "4h": "03-12T06 03-12T10 03-13T05 03-13T13 11-05T05 11-06T06",
}
"""Starts in UTC of the windows of each length, beside the Sundays 2017-03-12 and 2017-11-05 on which Chicago's clocks
changed at 02:00. Slots are counted from midnight in elapsed time: on the one in March those of three hours begin at 0,
4, 7, … o'clock, and of those of four hours the first lasts until 05:00."""
A_WEEK_BEFORE = "10-29"
"""The day before 11-05 that is chosen where nobody chooses one."""
BESIDE = {
    "1h": [
        ("03-14T12", "03-10", "03-10T13"),  # 07:00 in Chicago
        ("03-13T06", "03-12", "03-12T07"),
        ("03-13T07", "03-12", None),  # the clocks skipped this hour
        ("11-06T07", "11-05", "11-05T06"),  # and repeated this one
        ("11-05T06", A_WEEK_BEFORE, "10-29T06"),
        ("11-05T07", A_WEEK_BEFORE, "10-29T06"),
    ],
    "3h": [("03-13T11", "03-12", None)],
    "4h": [("03-13T05", "03-12", None), ("03-12T10", "03-13", None), ("11-06T06", "11-05", None)],
}
"""Start in UTC, other day, and start of the window that stands beside it."""


@pytest.mark.parametrize("slot", BESIDE)
def test_when_clocks_change_a_window_of_the_same_local_hours_is_found_or_said_not_to_be_there(tmp_path, slot):
    config = city_config(tmp_path, **{"window.slot": slot})
    view = completed(View(), *released(config, *hours_to(KEPT[slot])))
    for start, day, other in BESIDE[slot]:
        expected = (f"2017-{day}", other and f"2017-{other}:00:00Z", None if other else "clocks")
        asked = None if day == A_WEEK_BEFORE else date.fromisoformat(f"2017-{day}")
        assert beside(view, f"2017-{start}:00:00Z", asked) == expected


def test_a_window_that_cannot_be_compared_with_has_a_reason_and_no_other_takes_its_place(config):
    """Windows are forgotten in the order of their close markers, so also one between two that are kept."""
    start = "2017-03-21T12:00:00Z"
    made = released(config, -DAY, -4 * DAY, -3 * DAY, 0)
    view = completed(View(3), *made)
    *withheld, marker = made[0]
    march = {10: "none", 19: "none", 20: "gone", 21: "same", 22: "later"}
    days = {date(2017, 3, day): reason for day, reason in march.items()} | {date.min: "none", date.max: "later"}
    for day, reason in days.items():
        assert beside(view, start, day) == (day.isoformat(), None, reason)
    outcomes(view, arrivals(window(config, -2 * DAY)[:-1]))
    assert beside(view, start, date(2017, 3, 19)) == ("2017-03-19", None, "incomplete")
    body = json.loads(marker.value) | {"withheld": True}
    hidden = completed(View(), made[1], [*withheld, marker._replace(value=json.dumps(body).encode())], made[3])
    assert beside(hidden, start) == ("2017-03-20", None, "withheld")


def test_a_zone_that_nobody_knows_counts_as_utc(config):
    made = []
    for messages in released(config, -DAY, 0):
        *cells, marker = messages
        body = json.loads(marker.value)
        body["period"]["timezone"] = "../../etc/passwd"
        made.append([*cells, marker._replace(value=json.dumps(body).encode())])
    assert beside(completed(View(), *made), "2017-03-21T12:00:00Z")[1] == "2017-03-20T12:00:00Z"
    for zone in ("Nowhere/At-All", "Europe", "<b>"):
        assert local_start("2017-03-21T12:00:00Z", zone).hour == 12, zone


def test_a_local_time_at_the_ends_of_the_calendar_is_no_error():
    assert local_start("0001-01-01T00:00:00Z", "America/Chicago").isoformat() == "0001-01-01T00:00:00+00:00"
    last = local_start("9999-12-31T23:00:00Z", "America/Chicago")
    assert start_at(last) == "9999-12-31T23:00:00Z"
    assert start_at(last.replace(hour=23)) is None


async def test_the_api_gives_the_window_or_the_reason_and_refuses_what_is_no_day(tmp_path, config):
    async with served(config, chain(*released(config, -DAY, 0))) as client:
        path = "/api/v1/windows/2017-03-21T12:00:00Z/other-day"
        answer = await json_of(client, path)
        assert (answer["day"], answer["reason"], answer["timezone"]) == ("2017-03-20", None, "America/Chicago")
        assert answer["other"] == await json_of(client, "/api/v1/windows/2017-03-20T12:00:00Z")
        assert (answer["oldest"], answer["newest"]) == ("2017-03-20T12:00:00Z", "2017-03-21T12:00:00Z")
        gone = await json_of(client, f"{path}?day=2001-01-01")
        assert (gone["other"], gone["reason"]) == (None, "none")
        again = await client.get(path)
        assert (await client.get(path, headers={"If-None-Match": again.headers["ETag"]})).status == 304
        for wrong in ("2017-02-29", "20170314", "2017-W11-2", "", "2017-03-14T00:00:00Z", "<b>", "２０１７-03-14"):
            await json_of(client, f"{path}?day={wrong}", 400)
        await json_of(client, "/api/v1/windows/2001-01-01T00:00:00Z/other-day", 404)


def hours_before(view: View, shown: WindowView) -> list[int]:
    """How many hours before a window those begin that determine what is usual of it."""
    moments = [datetime.fromisoformat(one.start) for one in (shown, *Usual().earlier_of_each(view, [shown])[0])]
    return [round((moments[0] - moment).total_seconds() / 3600) for moment in moments[1:]]


def test_what_is_forgotten_by_the_view_is_forgotten_here(config):
    usual, view = Usual(), completed(View(), *released(config, 0, DAY, 2 * DAY))
    shown = view.ordered()[0]
    for one in usual.earlier_of_each(view, [shown])[0]:
        usual.decoded(one)
    assert len(usual.kept) == 2
    view.windows.clear()
    assert usual.earlier_of_each(view, [shown]) == [[]]
    assert usual.kept == {}


def test_neither_the_window_itself_nor_a_later_one_nor_one_without_its_marker_is_usual(config):
    view = completed(View(), *released(config, DAY, 2 * DAY, 3 * DAY))
    outcomes(view, arrivals(window(config, 0)[:-1]))
    shown = view.find("2017-03-23T12:00:00Z", "bus")
    assert shown is not None
    assert hours_before(view, shown) == [DAY]


@pytest.mark.parametrize(
    ("hours", "usual"),
    [
        ([*range(0, 4 * WEEK, WEEK), 1, 3 * WEEK - 1, *(3 * WEEK - day * DAY for day in (1, 2, 3))], [7, 14, 21]),
        (range(0, 7 * DAY, DAY), [3, 4, 5, 6]),
        (range(3 * DAY, 7 * DAY, DAY), [1, 2, 3]),
        ([-2 * DAY, *range(4 * DAY, 12 * DAY, DAY)], [6, 7, 13]),
        (range(5), []),
        ([31 * WEEK, 32 * WEEK, 33 * WEEK, 33 * WEEK + 1], [7 + 1 / DAY, 14 + 1 / DAY]),
    ],
    ids=["same weekday", "workdays", "any day", "weekends", "no other hour", "local hour when clocks change"],
)
def test_usual_is_of_the_same_local_hour_of_three_such_weekdays_or_kinds_of_day_or_days(config, hours, usual):
    """Days before the newest window. 2017-03-21 is a Tuesday: Friday is 3 days later, Monday 6, the next Saturday 11.
    Before and after 2017-11-05 an hour of Chicago is another one of UTC."""
    view = completed(View(), *released(config, *sorted(hours)))
    assert hours_before(view, view.ordered()[0]) == [round(days * DAY) for days in usual]
