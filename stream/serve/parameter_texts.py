"""How the texts of parameters are read. Each function raises :class:`ValueError` that says what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime

import h3

from stream.config.geojson import Position, polygons_of
from stream.messages.range_query import Box
from stream.serve.ogc.selection import Bounds

_NUMBER = r"-?[0-9]{1,3}(\.[0-9]{1,17})?"
BOX_PATTERN = f"^{_NUMBER}(,{_NUMBER}){{3}}$"
_BOX = re.compile(BOX_PATTERN[1:-1])
RING_PATTERN = f"^{_NUMBER}(,{_NUMBER}){{5,}}$"
_RING = re.compile(RING_PATTERN[1:-1])
MOST_CORNERS = 100
"""Corners of a drawn area, which has to fit into an address."""
MOST_NAMES = 200
"""Series of a request at most."""
_REAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.0{1,9})?(Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE)
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
        if not _TIME.fullmatch(text):
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
    if not _BOX.fullmatch(text):
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


def page(high: int) -> Callable[[str], int]:
    """A number of features; the standard wants one that is too large to count as the largest, however long it is."""

    def read(text: str) -> int:
        digits = text.lstrip("0")
        if not (text.isascii() and text.isdigit() and digits):
            raise ValueError("is not a whole number above 0")
        return high if len(digits) > len(str(high)) else min(int(digits), high)

    return read
