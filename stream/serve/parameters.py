"""Parameters of the API, as ``parameters.toml`` describes them for the OpenAPI document, and what reads their text.

The functions that read a text raise :class:`ValueError` that says what is allowed.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from typing import Any

import h3
from aiohttp import web

from stream.config.geojson import Position, polygons_of
from stream.messages.range_query import Box
from stream.serve.ogc.selection import Bounds, read_interval, read_item_id
from stream.serve.responses import Problem

MOST_CORNERS = 100
"""Corners of a drawn area, which has to fit into an address."""
MOST_NAMES = 200
"""Series of a request at most."""
_DESCRIBED: dict[str, dict[str, Any]] = tomllib.loads(
    (resources.files("stream.serve") / "parameters.toml").read_text("utf-8")
)
_FOUR, _RING = (re.compile(_DESCRIBED[name]["schema"]["pattern"][1:-1]) for name in ("bbox", "ring"))
_FEED = r"^[a-z][a-z0-9-]{0,31}$"
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


@dataclass(frozen=True)
class Parameter:
    """One parameter. ``read`` turns its text into a value, or raises :class:`ValueError` that says what is allowed."""

    name: str
    description: str
    schema: Mapping[str, Any]
    example: Any
    read: Callable[[str], Any]
    keyword: str
    """Name of the argument of the handler."""
    where: str = "query"
    required: bool = False
    errors: tuple[int, ...] = ()
    """How paths with it answer where what it names is not there, or is too much."""


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
        return parameter.schema.get("default")
    try:
        return parameter.read(text)
    except ValueError as error:
        remedy = "correct it" if parameter.required else "correct it or leave it out"
        raise Problem(
            400, f"{parameter.name}={text[:80]!r} {error}", f"{remedy}; for example {parameter.example}"
        ) from None


_READERS: dict[str, Callable[[str], Any]] = {
    "start": start,
    "day": day,
    "cell": cell,
    "names": names,
    "hours": hours,
    "box": box,
    "ring": ring,
    "bounds": bounds,
    "event": whole(0, 2**63 - 1),
    "item": read_item_id,
    "interval": read_interval,
}


def feed(configured: str) -> Parameter:
    """The parameter for the feed; default: the configured one."""
    schema, read = {"type": "string", "pattern": _FEED, "default": configured}, matching(_FEED, "feed name")
    return Parameter("feed", "Name of the feed.", schema, configured, read, "feed")


FEED = feed("bus")
"""With another default for every service: :func:`stream.serve.operations.operations` puts its configured feed here."""


def described(path: str, name: str) -> Parameter:
    """The parameter of that name in ``parameters.toml``, as it is of this path."""
    if name == "feed":
        return FEED
    said = _DESCRIBED[name]
    schema = said["schema"]
    where = next(one for one in ("path", "header", "query") if one in said and (one != "path" or f"{{{name}}}" in path))
    if "read" in said:
        read = _READERS[said["read"]]
    elif "enum" in schema:
        read = one_of(*schema["enum"])
    elif "maximum" in schema:
        read = whole(schema["minimum"], schema["maximum"])
    else:
        read = matching(schema["pattern"], said["what"]) if "what" in said else str
    required = where == "path" or said.get("required", False)
    shown, argument, errors = said.get("name", name), said.get("argument", name), tuple(said.get("errors", ()))
    return Parameter(shown, said[where], schema, said["example"], read, argument, where, required, errors)


def limit(default: int, high: int) -> Parameter:
    """The parameter for the number of entries of a list."""
    schema = {"type": "integer", "minimum": 1, "maximum": high, "default": default}
    return Parameter("limit", "Entries at most, newest first.", schema, default, whole(1, high), "limit")


def page(default: int, high: int) -> Parameter:
    """The parameter for the number of features of a page."""
    schema, said = {"type": "integer", "minimum": 1, "default": default}, f"Features at most; more than {high} count as"
    return Parameter("limit", f"{said} {high}.", schema, default, up_to(high), "limit")
