"""Sections ``[feed]`` and ``[window]``: the incoming events, their units, and the timeslots.

Section ``[feed.quality]``: which fixes are refused because a fault of the unit explains them better than a journey.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from dpcore.relation import NeighbouringRelation
from stream.config.section import BoundingBox, Duration, PositiveDuration, Section

PARTICIPATION_FASTEST_KM_H = 400.0
"""Faster than any vehicle on a road or on rails."""
ORIGIN_DEGREES = 0.01
"""Fixes this near to latitude 0, longitude 0, in the Gulf of Guinea, are refused: units without a position say so."""
PARTICIPATION_FROZEN = timedelta(minutes=20)
"""Whoever drives for so long is not at one position to the last digit."""


class QualityConfig(Section):
    """Rules for faulty fixes. Each reads one event, or one user's own events of a window; nobody else's events decide.

    ``fastest_km_h``: faster events are refused; 0: none. ``frozen``: a position that a user repeats to the last digit
    for longer is refused; under "participation" only with a speed above 0, and by default after 20 min.
    ``teleport_km_h``: a fix is refused if the user would have to be faster than this to come from the fix before it,
    and to reach the one after it; under "participation" 400 by default. 0: none.
    ``standing_m``: events of a user who reports only speeds of 0 in a window, and moves by more than this, are refused.
    """

    fastest_km_h: float | None = Field(default=None, ge=0, le=100_000)
    frozen: Duration | None = None
    teleport_km_h: float | None = Field(default=None, ge=0, le=100_000)
    standing_m: float | None = Field(default=None, ge=100, le=1_000_000)

    def _problems(self) -> Iterator[str]:
        if self.fastest_km_h and self.fastest_km_h < 10:
            yield (
                f"fastest_km_h {self.fastest_km_h:g} would refuse ordinary traffic; write 10 or more, or 0 for no such "
                "rule"
            )


_LEAST_MARGIN = timedelta(seconds=1)
_LIVE_MAX_AGE, _ANY_AGE = timedelta(days=1), timedelta(days=36500)
MAX_FUTURE = timedelta(minutes=5)
"""How far ahead of its arrival an event may be."""
MAX_CELLS_PER_USER = 1_000
"""Most cells in which one user may count in a window: three hours at 130 km/h cross fewer than 150 hexagons of
resolution 6, and 1 500 of resolution 9.
"""
MAX_EVENTS_PER_USER = 100_000
"""Most events with which one user may count in a window: one a second for a day, and some."""
SpeedUnit = Literal["km/h", "m/s", "mph", "kn"]
SPEED_TO_KMH: dict[SpeedUnit, float] = {"km/h": 1.0, "m/s": 3.6, "mph": 1.609344, "kn": 1.852}
TIME_UNIT_US = {"epoch-s": 1_000_000, "epoch-ms": 1_000, "epoch-us": 1}
"""Microseconds of one unit of each ``time_format`` that is a number."""
Encoding = Literal["utf-8", "utf-16", "cp1252", "latin-1"]
"""How the text of a recording is encoded."""


_NO_ZONES = ("localtime", "posixrules", "Factory", "posix", "right")
"""Files and folders beside the zones: what they mean differs from machine to machine, and no browser knows them."""


def _known_timezone(name: str) -> str:
    try:
        if name.partition("/")[0] in _NO_ZONES:
            raise ZoneInfoNotFoundError
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, like 'America'
        raise ValueError(f"{name!r} is not an IANA time zone; write one like 'Europe/Paris' or 'UTC'") from None
    return name


def _whole_seconds(slot: timedelta) -> timedelta:
    if slot.microseconds or not _SHORTEST_SLOT <= slot <= _LONGEST_SLOT:
        raise ValueError(
            f"{slot.total_seconds():g} s is not a whole number of seconds from 1s to 31d (workers look once per second "
            "for windows to close, and all rows of a window must fit into memory); write a length like '1h'"
        )
    return slot


def _a_second_or_more(margin: timedelta) -> timedelta:
    if margin < _LEAST_MARGIN:
        raise ValueError(f"{margin.total_seconds():g} s is too little to be kept to; give 1s or more, like '1m'")
    return margin


_SHORTEST_SLOT, _LONGEST_SLOT = timedelta(seconds=1), timedelta(days=31)

TimezoneName = Annotated[str, AfterValidator(_known_timezone)]
FeedName = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9-]{0,31}$",
        description="at most 32 lower-case letters, digits and hyphens, a letter first, like 'bus'",
    ),
]
FieldPath = Annotated[
    str,
    Field(pattern=r"^[^.]+(\.[^.]+)*$", description="the name of a field, dots between levels, like 'location.lat'"),
]
SpeedSource = Literal["missing", "derived", "reported"]
"""Where the speed of an event comes from: derived if none is reported; always derived; always reported."""


def derived_speed_note(relation: NeighbouringRelation, speeds: SpeedSource) -> str | None:
    """What derived speeds mean for privacy under this relation; None if there is nothing to say."""
    if relation != NeighbouringRelation.VALUES or speeds == "reported":
        return None
    return (
        "Under relation 'values' positions and times are public, so a derived speed is public as well and is not "
        "protected. To protect derived speeds, use relation 'participation'."
    )


def _known_form(text: str) -> str:
    if text == "rfc3339" or text in TIME_UNIT_US:
        return text
    if "%" in text:
        with suppress(ValueError):
            if abs(datetime.strptime(_SOME_TIME.strftime(text), text) - _SOME_TIME) < timedelta(minutes=1):
                return text
    raise ValueError(
        f"{text!r} is no form of times; write 'rfc3339', {', '.join(map(repr, TIME_UNIT_US))}, or a pattern with year, "
        "month, day, hour and minute like '%d/%m/%Y %H:%M:%S'"
    )


_SOME_TIME = datetime(2021, 11, 25, 17, 38)
TimeFormat = Annotated[str, AfterValidator(_known_form)]


def _power_of_ten(units: int) -> int:
    if units not in UNITS_PER_DEGREE:
        raise ValueError(f"{units} is no power of ten from 1 to 10000000; write one like 10000000")
    return units


UNITS_PER_DEGREE = tuple(10**power for power in range(8))
UnitsPerDegree = Annotated[int, AfterValidator(_power_of_ten)]


class FeedFields(Section):
    """Paths of the fields of a declared feed. Dots separate levels, a number is a list index
    (``location.coordinates.1``).

    ``time_format``: "rfc3339", a unit of numbers, or a pattern of Python's ``strptime``. ``timezone``: the zone of
    times that have no offset from UTC; without it such times are refused. ``units_per_degree``: by how much latitude
    and longitude are multiplied, as in whole numbers of 10⁻⁷ degree. ``value``: of the speed, or of
    what ``[value]`` names instead; None if the events have none.
    """

    user: FieldPath
    time: FieldPath
    lat: FieldPath
    lng: FieldPath
    value: FieldPath | None = None
    time_format: TimeFormat = "rfc3339"
    timezone: TimezoneName | None = None
    units_per_degree: UnitsPerDegree = 1

    def _problems(self) -> Iterator[str]:
        if "%" in self.time_format and "%z" not in self.time_format and self.timezone is None:
            yield (
                f"times of time_format {self.time_format!r} have no offset from UTC; set timezone to the zone of the "
                "clocks"
            )
        if self.timezone is not None and self.time_format in TIME_UNIT_US:
            yield (
                f"timezone is for texts without an offset, but time_format is {self.time_format!r}, whose numbers "
                "count from 1970 in UTC; remove timezone, or set feed.times_zone if they count local time"
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """Where user, time, latitude, longitude and, if the events have it, value are."""
        position = self.user, self.time, self.lat, self.lng
        return position if self.value is None else (*position, self.value)


class FeedConfig(Section):
    """The incoming feed and its units.

    ``speed_unit``: of the feed's speeds; by default km/h, and in GTFS-realtime m/s, as the format prescribes.
    ``times_zone``: where times claim UTC and are local, the zone of those clocks. ``encoding``, ``records``: of
    recordings, how their text is encoded, and where in a JSON document the list of events is. ``speeds`` other than
    "reported": what sends recordings to the feed derives speeds from positions. What it sends is canonical, so
    ``format`` is, and ``fields`` are those of the recordings that it reads.
    """

    name: FeedName
    topic: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="at most 249 letters, digits, dots, underscores and hyphens, like 'bus.positions'",
    )
    format: Literal["canonical", "capmetro", "capmetro-2015", "itms", "declared"] = "canonical"
    timezone: TimezoneName
    given_speed_unit: SpeedUnit | None = Field(default=None, alias="speed_unit")
    times_zone: TimezoneName | None = None
    encoding: Encoding = "utf-8"
    records: FieldPath | None = None
    speeds: SpeedSource = "reported"
    domain: BoundingBox
    fields: FeedFields | None = None
    quality: QualityConfig = QualityConfig()

    def _problems(self) -> Iterator[str]:
        if self.speeds != "reported":
            if self.format != "canonical":
                yield (
                    f"speeds is {self.speeds!r} and format {self.format!r}; events with derived speeds are canonical: "
                    "set format "
                    "to 'canonical'. [feed.fields] then names the fields of what is read, or --format its format"
                )
        elif (self.format == "declared") != (self.fields is not None):
            yield "[feed.fields] and format = 'declared' go together; give both or neither"
        elif self.fields is not None and self.fields.value is None:
            yield (
                "[feed.fields] names no value; name it, or set format to 'canonical' and speeds to 'derived', which "
                "takes speeds from positions"
            )

    @property
    def speed_unit(self) -> SpeedUnit:
        """The unit of speed of canonical and declared events."""
        return self.given_speed_unit or "km/h"

    @property
    def derives_speeds(self) -> bool:
        """Whether recordings get derived speeds on their way to the feed's topic."""
        return self.speeds != "reported"

    @property
    def derivation(self) -> Literal["missing", "derived"] | None:
        """Which speeds are derived by this configuration; None if it says of none that they are."""
        return None if self.speeds == "reported" else self.speeds

    @property
    def recorded_format(self) -> str:
        """Format of recordings, unless another is named."""
        return self.format if self.fields is None else "declared"


class WindowConfig(Section):
    """The timeslots, and the rule for which events are in time.

    ``lateness`` "append-time": an event is in time if the broker appended it by the end of its window plus
    ``allowed_delay``. "event-time", for recordings: the largest event time of each partition decides; one that was read
    to its end and brought nothing newer for ``idle_timeout`` is ignored. ``publication_margin``: windows are published
    at their end plus ``allowed_delay`` plus this, or a multiple of it, however long their draw took.
    """

    slot: Annotated[PositiveDuration, AfterValidator(_whole_seconds)] = timedelta(hours=1)
    lateness: Literal["append-time", "event-time"] = "append-time"
    allowed_delay: Duration = timedelta(minutes=5)
    idle_timeout: PositiveDuration = timedelta(minutes=5)
    publication_margin: Annotated[PositiveDuration, AfterValidator(_a_second_or_more)] | None = None
    given_max_age: PositiveDuration | None = Field(default=None, alias="max_age")

    def _problems(self) -> Iterator[str]:
        if self.publication_margin is not None and self.lateness == "event-time":
            yield (
                "publication_margin is for live feeds: the windows of a recording ended long ago and are published at "
                "once; leave it out, or set lateness to 'append-time'"
            )

    @property
    def max_age(self) -> timedelta:
        """Events that are older on arrival are refused. Default: a day for live feeds, 36 500 days for recordings."""
        return self.given_max_age or (_LIVE_MAX_AGE if self.lateness == "append-time" else _ANY_AGE)
