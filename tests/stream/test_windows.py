"""Timeslots and periods tile time, on every kind of day; watermarks obey the slowest live partition. A domain across
the meridian of 180 degrees, where west is greater than east: events, histograms and ranges."""

from datetime import date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import h3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.spatial import Domain
from dpcore.spatial.domain import DomainError
from stream.config.section import BoundingBox
from stream.messages.cells import Cell
from stream.messages.range_query import RangeError, parse_box
from stream.serve.hexagons import is_asked_for
from stream.windows import PartitionTime, Period, Slotting, SpanError, Window, read_through, watermark
from tests.support.counting_calls import calls_in
from tests.support.nightly import nightly

ZONES = [
    "America/Chicago",
    "Europe/London",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
]
DAY = timedelta(days=1)
YEARS = {"America/Sao_Paulo": 2017, "Pacific/Apia": 2011}


def midnights_of(zone: str, year: int) -> list[int]:
    """When the local days of a year begin; a day that an island skipped does not."""
    first, tz = date(year, 1, 1).toordinal(), ZoneInfo(zone)
    days = (date.fromordinal(first + number) for number in range(367))
    return sorted({int(datetime(day.year, day.month, day.day, tzinfo=tz).timestamp()) for day in days})


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("slot", [nightly(timedelta(minutes=15)), timedelta(hours=1), timedelta(hours=6), DAY])
def test_slots_and_periods_of_a_year_equal_a_walk_over_local_days(zone, slot):
    """Second by second of elapsed time: days of 23, 23.5, 24.5 and 25 hours are among them."""
    slotting, step, windows = Slotting(slot, DAY, zone), slot // timedelta(seconds=1), list[Window]()
    for begin, end in pairwise(midnights_of(zone, YEARS.get(zone, 2017))):
        day = datetime.fromtimestamp(begin, ZoneInfo(zone)).date().isoformat()
        assert slotting.period_of((begin + end) // 2) == Period(begin, end, day)
        windows += [Window(start, min(start + step, end)) for start in range(begin, end, step)]
    starts, ends = np.array(windows).T
    for probe in (starts, (starts + ends) // 2, ends - 1):
        assert (slotting.slot_starts(probe * 1_000_000) == starts).all()
    assert (slotting.slot_starts(ends * 1_000_000 - 1) == starts).all()
    assert all(slotting.window(window.start) == window for window in windows)
    assert all(left.end == right.start for left, right in pairwise(windows))


@given(
    st.sampled_from(ZONES),
    st.integers(0, 2_000_000_000),
    st.sampled_from([60, 900, 3600, 7 * 3600]),
    st.sampled_from([timedelta(hours=8), DAY, 2 * DAY, 7 * DAY]),
)
def test_a_slot_never_straddles_a_period(zone, second, slot, period_length):
    slotting = Slotting(timedelta(seconds=slot), period_length, zone)
    window, period = slotting.window(second), slotting.period_of(second)
    assert period.start <= window.start <= second < window.end <= period.end
    assert slotting.slot_starts(np.array([second * 1_000_000 + 999_999]))[0] == window.start
    assert slotting.period_of(period.end).start == period.end
    assert slotting.period_of(period.start) == period == slotting.period_of(period.end - 1)


def test_weeks_begin_on_local_monday():
    period = Slotting(timedelta(hours=1), 7 * DAY, "America/Chicago").period_of(1490100000)
    assert period.key == "2017-03-20"
    assert date.fromisoformat(period.key).weekday() == 0


def test_parts_of_a_day_have_their_own_keys_and_end_at_midnight():
    slotting = Slotting(timedelta(hours=1), timedelta(hours=8), "America/Chicago")
    start = int(datetime(2017, 11, 5, tzinfo=ZoneInfo("America/Chicago")).timestamp())
    keys = [slotting.period_of(start + hour * 3600).key for hour in range(25)]
    assert sorted(set(keys)) == [f"2017-11-05.{part}" for part in range(4)]
    assert keys.count("2017-11-05.3") == 1


def test_times_before_1970_and_unsorted_input_are_slotted():
    slotting = Slotting(timedelta(hours=1), DAY, "UTC")
    times = np.array([7200_000_001, -1, 0, 400 * 86_400_000_000])
    assert slotting.slot_starts(times).tolist() == [7200, -3600, 0, 400 * 86400]
    assert slotting.slot_starts(np.array([], dtype=np.int64)).size == 0


def test_times_are_slotted_as_a_column_and_not_one_by_one():
    rng = np.random.default_rng(1)
    times = rng.integers(1490000000, 1490000000 + 30 * 86400, 1_000_000) * 1_000_000
    slotting = Slotting(timedelta(hours=1), DAY, "America/Chicago")
    assert calls_in(lambda: slotting.slot_starts(times)) < 100_000


@pytest.mark.parametrize(
    ("slot", "period"),
    [
        (timedelta(0), DAY),
        (timedelta(milliseconds=500), DAY),
        (2 * DAY, DAY),
        (timedelta(hours=1), timedelta(hours=36)),
    ],
)
def test_slots_and_periods_that_cannot_tile_are_refused(slot, period):
    with pytest.raises(ValueError, match=r"give|divide"):
        Slotting(slot, period, "UTC")


SECOND = 1_000_000
DELAY, IDLE = timedelta(seconds=300), timedelta(seconds=600)
NOW = 1_490_000_000 * SECOND


def at(event: int | None, moved: int = NOW, read: int = NOW) -> PartitionTime:
    return PartitionTime(event, moved, read)


AHEAD, BEHIND = NOW - 10 * SECOND, NOW - 900 * SECOND


@pytest.mark.parametrize(
    ("partitions", "seconds"),
    [
        pytest.param([at(AHEAD), at(BEHIND)], 1200, id="the slowest decides"),
        pytest.param([at(AHEAD), at(BEHIND, NOW - 600 * SECOND)], 310, id="it is idle: read to its end, nothing newer"),
        pytest.param([at(AHEAD), at(BEHIND, NOW - 7000 * SECOND, NOW - 6500 * SECOND)], 1200, id="nothing is stored"),
        pytest.param([at(AHEAD), at(BEHIND, NOW - 7000 * SECOND, NOW - 5000 * SECOND)], 1200, id="no one reads it"),
        pytest.param([at(NOW), at(None, NOW - 599 * SECOND)], None, id="one without events is not idle yet"),
        pytest.param([at(NOW), at(None, NOW - 600 * SECOND)], 300, id="and is idle"),
        pytest.param([at(NOW - 10**15, NOW - 600 * SECOND)], 300, id="all are idle: the clock closes the tail"),
        pytest.param([at(None, NOW - 600 * SECOND)], None, id="there was no event"),
        pytest.param([], None, id="there is no partition"),
    ],
)
def test_the_watermark_is_that_of_the_slowest_partition_that_is_not_idle(partitions, seconds):
    named = {f"t/{number}": partition for number, partition in enumerate(partitions)}
    assert watermark(named, NOW, DELAY, IDLE) == (None if seconds is None else NOW - seconds * SECOND)


def test_windows_wait_for_the_partition_that_is_read_least_far():
    assert read_through({}) is None
    assert read_through({"t/0": at(None, read=5), "t/1": at(NOW, read=3)}) == 3


@given(st.integers(0, 10**15), st.dictionaries(st.sampled_from("abcd"), st.integers(NOW - 10**9, NOW), min_size=1))
def test_one_fast_clock_never_moves_the_watermark_past_the_clock_less_the_delay(ahead, events):
    partitions = {name: at(event) for name, event in events.items()}
    honest = watermark(partitions, NOW, DELAY, IDLE)
    partitions["a"] = at(NOW + ahead)
    moved = watermark(partitions, NOW, DELAY, IDLE)
    assert honest is not None
    assert moved is not None
    assert moved <= NOW - 300 * SECOND
    others = [event for name, event in events.items() if name != "a"]
    assert moved == min([*others, NOW]) - 300 * SECOND


def test_a_span_is_whole_timeslots_between_local_times():
    austin = Slotting(timedelta(hours=1), timedelta(days=1), "America/Chicago")
    span = austin.span("2017-03-12", "2017-03-13")  # the clocks go forward
    assert span.end - span.start == 23 * 3600
    assert len(austin.slots_in(span)) == 23
    assert austin.span("2017-03-21T12:00:00Z", "2017-03-21T08:00").end == span.start + (9 * 24 + 7) * 3600


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("yesterday", "2017-03-22", "is not a time"),
        ("0001-01-01", "2017-03-22", "after 1970"),
        ("2017-03-21T07:30", "2017-03-22", "not the start of a timeslot"),
        ("2017-03-22", "2017-03-22", "is empty"),
        ("2017-03-22", "2017-03-21", "is empty"),
        ("1990-01-01", "2017-03-21", "longer than 3660 days"),
    ],
)
def test_a_span_that_cannot_be_released_is_refused_with_the_remedy(start, end, why):
    with pytest.raises(SpanError, match=why):
        Slotting(timedelta(hours=1), timedelta(days=1), "America/Chicago").span(start, end)


FIJI = BoundingBox(south=-20, west=176, north=-15, east=-178)
POINTS = np.array([[-17.0, 177.0], [-17.0, -179.0], [-17.0, 0.0], [-17.0, -177.9], [-17.0, 175.9]])


def test_a_point_lies_in_the_box_on_both_sides_of_the_meridian_and_nowhere_else():
    assert [FIJI.contains(lat, lng) for lat, lng in POINTS] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("west", "east", "meets", "holds"),
    [(179, -179, True, True), (177, 179, True, True), (-180, -179, True, True), (170, 177, True, False), (-178.5, 10,
    True, False), (0, 10, False, False)],
)  # fmt: skip
def test_boxes_are_compared_around_the_globe(west, east, meets, holds):
    other = BoundingBox(south=-18, west=west, north=-16, east=east)
    assert (FIJI.meets(other), other.meets(FIJI), FIJI.holds(other)) == (meets, meets, holds)


def test_a_grid_of_six_columns_counts_eastwards_over_the_meridian():
    domain = Domain(FIJI.south, FIJI.west, FIJI.north, FIJI.east, 1, 6)
    counted = domain.count(POINTS)
    assert counted.counts.tolist() == [[0, 1, 0, 0, 0, 1]]
    assert counted.outside == 3
    assert domain.in_metres().east == pytest.approx(Domain(-20, 0, -15, 6).in_metres().east)
    assert Domain.from_release(domain.to_release()) == domain


def test_a_box_in_metres_is_not_turned_around():
    with pytest.raises(DomainError, match="no area"):
        Domain(0, 5_000, 10, 1_000)


def test_a_range_may_lie_across_the_meridian_and_one_without_width_is_none():
    assert parse_box("177,-18,-179,-16") == (177, -18, -179, -16)
    with pytest.raises(RangeError, match="is not a box"):
        parse_box("177,-18,177,-16")
    inside, outside = (Cell(h3.latlng_to_cell(-17, lng, 8), "ok", 1) for lng in (-179.5, 0))
    assert is_asked_for(inside, (177, -18, -179, -16), None)
    assert not is_asked_for(outside, (177, -18, -179, -16), None)
