"""Parameters of the API: for each its description, for the OpenAPI document, and which function reads its text.

The functions that read a text raise :class:`ValueError` that says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Literal

import h3
from aiohttp import web

from stream.config.geojson import Position, polygons_of
from stream.messages.range_query import Box
from stream.serve.differences import STATISTICS
from stream.serve.ogc.selection import Bounds, read_interval, read_item_id
from stream.serve.responses import Problem

_NUMBER = r"-?[0-9]{1,3}(\.[0-9]{1,17})?"
BOX_PATTERN = f"^{_NUMBER}(,{_NUMBER}){{3}}$"
_FOUR = re.compile(BOX_PATTERN[1:-1])
RING_PATTERN = f"^{_NUMBER}(,{_NUMBER}){{5,}}$"
_RING = re.compile(RING_PATTERN[1:-1])
MOST_CORNERS = 100
"""Corners of a drawn area, which has to fit into an address."""
MOST_NAMES = 200
"""Series of a request at most."""
_REAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.0{1,9})?(Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_HOURS = re.compile(r"([0-9]{1,2})-([0-9]{1,2})", re.ASCII)


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise ValueError(f"is not a whole number from {low} to {high}")
        return int(text)

    return read


def one_of(*names: str) -> Callable[[str], str]:
    """Reads one of the names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"is not one of {', '.join(names)}")
        return text

    return read


def matching(pattern: str, what: str) -> Callable[[str], str]:
    """Reads a text that matches; ``what`` it is says the error."""
    compiled = re.compile(pattern.removesuffix("$") + r"\Z")

    def read(text: str) -> str:
        if not compiled.match(text):
            raise ValueError(f"is no {what}")
        return text

    return read


def start(text: str) -> str:
    """The time in UTC as messages write it, for text with any offset."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("is not a time to the second in RFC 3339") from None
    return moment.isoformat().replace("+00:00", "Z")


def day(text: str) -> date:
    """A local date."""
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a date like 2017-03-14") from None


def cell(text: str) -> str:
    """An H3 cell."""
    if len(text) != 15 or text != text.lower() or not h3.is_valid_cell(text):
        raise ValueError("is no H3 cell of 15 lower-case hexadecimal digits")
    return text


def names(text: str) -> list[str]:
    """Names with | between them."""
    listed = text.split("|")
    if len(listed) > MOST_NAMES or not all(listed):
        raise ValueError(f"is no list of 1 to {MOST_NAMES} names")
    return listed


def hours(text: str) -> tuple[int, int]:
    """First local hour, and the one that does not count any more."""
    matched = _HOURS.fullmatch(text)
    if matched is None or not 0 <= int(matched[1]) < int(matched[2]) <= 24:
        raise ValueError("is no range of hours within 0-24, the first below the last")
    return int(matched[1]), int(matched[2])


def box(text: str) -> Box:
    """West, south, east and north in degrees."""
    if not _FOUR.fullmatch(text):
        raise ValueError("is not four numbers west,south,east,north")
    west, south, east, north = (float(part) for part in text.split(","))
    if not (max(abs(west), abs(east)) <= 180 and west != east and -90 <= south < north <= 90):
        raise ValueError("is no box: needs longitudes from -180 to 180 and -90 <= south < north <= 90")
    return west, south, east, north


def ring(text: str) -> list[Position]:
    """Corners of an area that somebody drew."""
    corners = (text.count(",") + 1) / 2
    if corners > MOST_CORNERS:
        raise ValueError(f"has {corners:.0f} corners, more than {MOST_CORNERS}")
    if not _RING.fullmatch(text) or corners % 1:
        raise ValueError("is not a list of three or more pairs longitude,latitude")
    numbers = [float(part) for part in text.split(",")]
    positions = [list(pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    [[ring]] = polygons_of({"type": "Polygon", "coordinates": [positions]}, "it")
    return ring


def bounds(text: str) -> Bounds:
    """A box as OGC API - Features writes it, with or without heights."""
    parts = text.split(",")
    if len(parts) not in (4, 6) or not all(_REAL.fullmatch(part) for part in parts):
        raise ValueError("is neither four numbers west,south,east,north nor six with heights between them")
    half = len(parts) // 2  # hexagons lie on the ground, so heights select nothing
    west, south, east, north = (float(part) for part in (*parts[:2], *parts[half : half + 2]))
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise ValueError("is no box: needs longitudes from -180 to 180 and -90 <= south <= north <= 90")
    return Bounds(west, south, east, north)


def up_to(high: int) -> Callable[[str], int]:
    """A number of features; the standard wants one that is too large to count as the largest, however long it is."""

    def read(text: str) -> int:
        digits = text.lstrip("0")
        if not (text.isascii() and text.isdigit() and digits):
            raise ValueError("is not a whole number above 0")
        return high if len(digits) > len(str(high)) else min(int(digits), high)

    return read


_FEED = r"^[a-z][a-z0-9-]{0,31}$"
_COLLECTION = r"^[a-z][a-z0-9-]{0,31}\.(newest|all)$"
_MECHANISM = r"^[a-z][a-z0-9-]{0,63}$"
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class Parameter:
    """One parameter. ``read`` turns its text into a value, or raises :class:`ValueError` that says what is allowed."""

    name: str
    description: str
    schema: Mapping[str, Any]
    example: Any
    read: Callable[[str], Any]
    where: Literal["query", "path", "header"] = "query"
    required: bool = False
    default: Any = None
    argument: str = field(default="")

    @property
    def keyword(self) -> str:
        """Name of the argument of the handler."""
        return self.argument or self.name


def read_all(request: web.Request, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Values of all declared parameters; 400 if one is wrong, repeated, missing or not declared."""
    known = [p.name for p in parameters if p.where == "query"]
    for name in request.query:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise Problem(
                400, f"{name[:40]!r} is not a parameter of this path", f"leave it out; this path has: {listed}"
            )
        if len(request.query.getall(name)) > 1:
            raise Problem(400, f"{name} is given more than once", "give it once")
    return {p.keyword: _read(request, p) for p in parameters}


def _read(request: web.Request, parameter: Parameter) -> Any:
    sources: dict[str, Mapping[str, str]] = {
        "query": request.query,
        "path": request.match_info,
        "header": request.headers,
    }
    text = sources[parameter.where].get(parameter.name)
    if text is None:
        if parameter.required:
            raise Problem(400, f"{parameter.name} is missing", f"give {parameter.name}={parameter.example}")
        return parameter.default
    try:
        return parameter.read(text)
    except ValueError as error:
        remedy = "correct it" if parameter.required else "correct it or leave it out"
        raise Problem(
            400, f"{parameter.name}={text[:80]!r} {error}", f"{remedy}; for example {parameter.example}"
        ) from None


_TIME = {"type": "string", "format": "date-time"}
_START = "2017-03-21T12:00:00Z"
_BOX = "-97.8,30.2,-97.7,30.3"
_MECHANISM_NAME = ({"type": "string", "pattern": _MECHANISM}, "ug", matching(_MECHANISM, "name of a mechanism"))
_ITEM = (
    {"type": "string", "pattern": "^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{15}$"},
    "20170321T120000Z-87489e342ffffff",
    read_item_id,
)
_in_path = partial(Parameter, where="path", required=True)


def _text(most: int) -> Mapping[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def _pattern(pattern: str) -> Mapping[str, Any]:
    return {"type": "string", "pattern": pattern}


def _choice(name: str, description: str, *names: str, argument: str) -> Parameter:
    """One of the names, by default the first."""
    schema = {"type": "string", "enum": list(names), "default": names[0]}
    return Parameter(name, description, schema, names[0], one_of(*names), default=names[0], argument=argument)


def limit(default: int, high: int) -> Parameter:
    """The parameter for the number of entries of a list."""
    schema = {"type": "integer", "minimum": 1, "maximum": high, "default": default}
    return Parameter("limit", "Entries at most, newest first.", schema, default, whole(1, high), default=default)


def page(default: int, high: int) -> Parameter:
    """The parameter for the number of features of a page."""
    schema, said = {"type": "integer", "minimum": 1, "default": default}, f"Features at most; more than {high} count as"
    return Parameter("limit", f"{said} {high}.", schema, default, up_to(high), default=default)


def feed(configured: str) -> Parameter:
    """The parameter for the feed; default: the configured one."""
    schema, read = {"type": "string", "pattern": _FEED, "default": configured}, matching(_FEED, "feed name")
    return Parameter("feed", "Name of the feed.", schema, configured, read, default=configured)


# fmt: off
FEED = feed("bus")
"""With another default for every service: :func:`stream.serve.operations.operations` puts its configured feed here."""
WINDOW_QUERY = Parameter("window", "Start of the window; default: the newest complete one.", _TIME, _START, start)
WINDOW_PATH = _in_path("window", "Start of the window.", _TIME, _START, start)
DAY = Parameter(
    "day", "Local date, on the clocks of the feed; default: a week before, where a window of then can be compared "
    "with, else the day before.", {"type": "string", "format": "date"}, "2017-03-14", day)
FROM = Parameter(
    "from", "Windows that begin at this time or later.", _TIME, _START, start, required=True, argument="first")
TO = Parameter(
    "to", "Windows that begin before this time.", _TIME, "2017-03-22T12:00:00Z", start, required=True,
    argument="last")
_DAYS = ("workday", "saturday", "sunday", "weekend")
DAYS = Parameter(
    "days", "Windows that begin on such days, on the clocks of the feed; default: on any.",
    {"type": "string", "enum": list(_DAYS)}, "workday", one_of(*_DAYS))
HOURS = Parameter(
    "hours", "Windows that begin in these local hours: the first, and the one that does not count any more; default: "
    "in any.", _pattern("^[0-9]{1,2}-[0-9]{1,2}$"), "7-9", hours)
AREA_QUERY = Parameter(
    "area", "Name of an area, as /api/v1/areas lists it: its cells alone, and all of them together.", _text(300),
    "route:10", str)
NAMES = Parameter(
    "of", f"Names of areas or H3 cells, or all, with | between them; at most {MOST_NAMES}. Default: all areas and "
    "routes.", _text(600), "all|route:10", names, argument="names")
ROUTE_PATH = _in_path("route", "Name of the route, as /api/v1/routes has it.", _text(256), "10", str)
FROM_STOP = Parameter(
    "from_stop", "Name of the stop at which the way begins; default: the start of each line.", _text(256),
    "Congress / 6th", str)
TO_STOP = Parameter(
    "to_stop", "Name of the stop at which the way ends; default: the end of each line.", _text(256),
    "Guadalupe / 21st", str)
CELL_PATH = _in_path("cell", "H3 index.", _pattern("^[0-9a-f]{15}$"), "87489e342ffffff", cell)
AREA_PATH = _in_path("name", "Name of the area, as /api/v1/areas lists it.", _text(300), "route:10", str)
RING = Parameter(
    "ring", f"Corners of the area, longitude,latitude,longitude,latitude,… in degrees; 3 to {MOST_CORNERS} of them.",
    _pattern(RING_PATTERN), "-97.8,30.2,-97.7,30.2,-97.7,30.3", ring, required=True)
RING_QUERY = replace(RING, description=f"{RING.description} Its cells, and all of them together.", required=False)
STATISTIC = _choice("statistic", "Whose released values are compared.", *STATISTICS, argument="statistic")
RESOLUTION = Parameter(
    "resolution", "Only cells of this H3 resolution.", {"type": "integer", "minimum": 0, "maximum": 15}, 7,
    whole(0, 15))
FORMAT = _choice(
    "format", "Plain JSON, or a GeoJSON FeatureCollection of the hexagons.", "json", "geojson", argument="shape")
TABLE = _choice("format", "JSON, or a table with one row for each line.", "json", "csv", argument="form")
FORM = _choice("f", "The format, which is always JSON.", "json", argument="form")
BBOX = Parameter(
    "bbox", "west,south,east,north in degrees: only cells whose centre lies in it.", _pattern(BOX_PATTERN), _BOX,
    box)
RANGE = Parameter(
    "bbox", "The range, west,south,east,north in degrees, inside the histogram's domain.", _pattern(BOX_PATTERN),
    _BOX, box, required=True)
BOUNDS = Parameter(
    "bbox", "west,south,east,north in degrees: only hexagons that meet it; with west above east it crosses 180°. "
    "Heights, as the third and sixth of six numbers, select nothing.", {"type": "string"}, _BOX, bounds)
MECHANISM_PATH = _in_path("mechanism", "Name of the mechanism that made the histogram.", *_MECHANISM_NAME)
MECHANISM_QUERY = Parameter(
    "mechanism", "Name of the mechanism; may be left out where the window has one histogram.", *_MECHANISM_NAME)
AFTER = Parameter(
    "after", "Windows after this event id, as Last-Event-ID; for a first connection, which cannot send that header.",
    {"type": "integer", "minimum": 0, "maximum": _MAX_NUMBER}, 41, whole(0, _MAX_NUMBER))
LAST_EVENT_ID = Parameter(
    "Last-Event-ID", "Id of the last event received; events after it are sent first.", _pattern("^[0-9]{1,19}$"), "41",
    whole(0, _MAX_NUMBER), where="header", argument="last_event_id")
COLLECTION_PATH = _in_path(
    "collection", "A feed and which of its windows: newest or all.", _pattern(_COLLECTION), "bus.newest",
    matching(_COLLECTION, "name of a collection"))
ITEM_PATH = _in_path("item", "Identifier of a feature: start of the window and cell.", *_ITEM)
AFTER_ITEM = Parameter("after", "Features behind this one; the link to the next page has it.", *_ITEM)
DURING = Parameter(
    "datetime", "Only windows that hold this time, or share one with this interval; `..` for an open end.",
    {"type": "string"}, "2017-03-21T12:00:00Z/..", read_interval, argument="interval")
# fmt: on
