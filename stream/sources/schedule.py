"""Reads stops, routes and lines of a GTFS schedule (a zip archive of CSV files) within bounds of bytes, rows and
memory.

Source: GTFS Schedule Reference, files stops.txt, routes.txt, trips.txt, shapes.txt and stop_times.txt. A route's lines
are the shapes of its trips; for trips without a shape, straight lines between consecutive stops. All of it is public.

The mode of transport of a route of a GTFS schedule. Pure.

Source: GTFS Schedule Reference, routes.txt, ``route_type``, and Google's extended route types (100 to 1702).
"""

import csv
import lzma
import math
import struct
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path


class Mode(StrEnum):
    """A mode of transport."""

    TRAM = "tram"
    METRO = "metro"
    RAIL = "rail"
    BUS = "bus"
    COACH = "coach"
    TROLLEYBUS = "trolleybus"
    FERRY = "ferry"
    LIFT = "lift"
    OTHER = "other"


_TYPES = {
    Mode.TRAM: (0, 5, 900),
    Mode.METRO: (1, 12, 400, 500, 600),
    Mode.RAIL: (2, 100, 300),
    Mode.BUS: (3, 700),
    Mode.COACH: (200,),
    Mode.TROLLEYBUS: (11, 800),
    Mode.FERRY: (4, 1000, 1200),
    Mode.LIFT: (6, 7, 1300, 1400),
}
"""Of each mode its ``route_type`` and the hundreds of extended ones; a cable tram (5) is a tram, an aerial lift (6) and
a funicular (7) are lifts."""


def mode_of(route_type: str) -> Mode:
    """The mode of a ``route_type`` as it is written; :attr:`Mode.OTHER` for one without a mode, and for none."""
    if not (route_type.isascii() and route_type.isdecimal() and len(route_type) <= 4):
        return Mode.OTHER
    number = int(route_type)
    kind = number if number < 100 else number // 100 * 100
    return next((mode for mode, kinds in _TYPES.items() if kind in kinds), Mode.OTHER)


LARGEST_ARCHIVE = 1 << 30
_LARGEST_DIRECTORY = 1 << 20
"""Bytes of the archive's list of files; a schedule has about thirty files."""
BOUNDS = {
    "stops": (256 << 20, 1_000_000),
    "routes": (64 << 20, 100_000),
    "trips": (1 << 30, 10_000_000),
    "shapes": (4 << 30, 20_000_000),
    "stop_times": (8 << 30, 100_000_000),
    "agency": (1 << 20, 1_000),
    "calendar": (64 << 20, 100_000),
    "calendar_dates": (256 << 20, 3_000_000),
    "frequencies": (64 << 20, 1_000_000),
}
"""Bytes of each file after decompression, and its rows. Files are read line by line."""
MOST_POINTS = 3_000_000
"""Points of lines, calls at stops, and shapes of each route that are kept; each takes about 200 bytes."""
_LONGEST_LINE = 64 << 10
_LONGEST_TEXT = 256
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    UnicodeDecodeError,  # of a file's name
    EOFError,
    RuntimeError,
    NotImplementedError,
    csv.Error,
)
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x07"

Point = tuple[float, float]
"""Latitude and longitude in degrees."""


class ScheduleError(ValueError):
    """A file that is not a GTFS schedule, or exceeds the bounds; the message says what to do."""


@dataclass(frozen=True)
class Stop:
    """A stop or platform with a position; stations, entrances and boarding areas are none."""

    name: str
    lat: float
    lng: float


@dataclass
class Schedule:
    """Public facts of a timetable. ``lines``: by route id the distinct lines of its trips; ``modes``: routes of the
    archive by mode, chosen or not; ``refused``: rows by reason.
    """

    stops: dict[str, Stop] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[list[Point]]] = field(default_factory=dict)
    modes: Counter[Mode] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def read_schedule(path: Path, modes: Collection[Mode] = tuple(Mode)) -> Schedule:
    """Stops of the archive at ``path``, and routes and lines of these modes. Raises :class:`ScheduleError`."""
    with opened(path) as archive:
        return _Reading(archive, modes).schedule()


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive at ``path``. What cannot be read of it raises :class:`ScheduleError`."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror or error}; name a readable GTFS archive") from None
    except _UNREADABLE as error:
        raise ScheduleError(
            f"{path} is not a readable GTFS archive ({str(error)[:160] or type(error).__name__})"
        ) from None


def _check_directory(path: Path) -> None:
    """Raise :class:`ScheduleError` for an archive whose list of files alone would fill the memory."""
    size = path.stat().st_size
    if size > LARGEST_ARCHIVE:
        raise ScheduleError(
            f"{path} has {size} bytes, more than the {LARGEST_ARCHIVE} of a schedule; divide it by agency"
        )
    with path.open("rb") as file:
        file.seek(max(0, size - (1 << 16) - 64))
        tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise ScheduleError(f"{path} is no zip archive; a GTFS schedule is one")
    (directory,) = struct.unpack_from("<I", tail, at + 12)
    if directory > _LARGEST_DIRECTORY or tail[max(0, at - 20) : at].startswith(_END_64):
        raise ScheduleError(f"{path} holds too many files for a schedule; archive its .txt files alone")


class _Reading:
    """One pass over the files of an archive."""

    def __init__(self, archive: zipfile.ZipFile, modes: Collection[Mode]) -> None:
        self._archive, self._modes = archive, modes
        self._schedule = Schedule()
        self._other_modes: set[str] = set()
        self._kept = 0

    def schedule(self) -> Schedule:
        """Everything that is needed of the archive."""
        names = sorted(self._archive.namelist())
        if "stops.txt" not in names:
            inner = next((name for name in names if name.endswith("/stops.txt")), None)
            hint = (
                f"; its files are in the folder {inner.rpartition('/')[0]!r}: archive them without it" if inner else ""
            )
            raise ScheduleError(f"the archive has no stops.txt, which every GTFS schedule has{hint}")
        self._stops()
        self._routes()
        of_shape, of_trip = self._trips()
        self._shapes(of_shape)
        self._links(of_trip)
        return self._schedule

    def _rows(self, name: str, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[list[str]]:
        return table_rows(self._archive, name, columns, optional, self._schedule.refused)

    def _keep(self, count: int) -> None:
        self._kept += count
        if self._kept > MOST_POINTS:
            raise ScheduleError(f"the lines have more than {MOST_POINTS} points; divide the schedule by agency")

    def _stops(self) -> None:
        columns = ("stop_id", "stop_lat", "stop_lon")
        for stop, lat, lng, name, kind in self._rows("stops", columns, ("stop_name", "location_type")):
            if kind not in ("", "0"):
                continue
            place = point_of(lat, lng)
            if place is None:
                self._schedule.refused["stop-no-place"] += 1
            else:
                self._schedule.stops[stop] = Stop(_printable(name), *place)

    def _routes(self) -> None:
        optional = ("route_short_name", "route_long_name", "route_type")
        for route, short, long, kind in self._rows("routes", ("route_id",), optional):
            mode = mode_of(kind)
            self._schedule.modes[mode] += 1
            if mode in self._modes:
                self._schedule.routes[route] = _printable(short or long or route) or "?"
            else:
                self._other_modes.add(route)

    def _trips(self) -> tuple[dict[str, set[str]], dict[str, str]]:
        """Routes of each shape, and the route of each trip without a shape."""
        of_shape: dict[str, set[str]] = {}
        of_trip: dict[str, str] = {}
        for route, trip, shape in self._rows("trips", ("route_id", "trip_id"), ("shape_id",)):
            if route not in self._schedule.routes:
                reason = "trip-of-other-mode" if route in self._other_modes else "trip-of-no-route"
                self._schedule.refused[reason] += 1
            elif shape:
                routes = of_shape.setdefault(shape, set())
                self._keep(route not in routes)
                routes.add(route)
            else:
                self._keep(1)
                of_trip[trip] = route
        return of_shape, of_trip

    def _shapes(self, of_shape: dict[str, set[str]]) -> None:
        points: dict[str, list[tuple[int, Point]]] = {}
        columns = ("shape_id", "shape_pt_lat", "shape_pt_lon", "shape_pt_sequence")
        for shape, lat, lng, sequence in self._rows("shapes", columns):
            place = point_of(lat, lng)
            if shape not in of_shape:
                continue
            if place is None or not sequence.isdecimal() or len(sequence) > 18:
                self._schedule.refused["shape-no-place"] += 1
                continue
            self._keep(1)
            points.setdefault(shape, []).append((int(sequence), place))
        for shape, routes in of_shape.items():
            line = [place for _, place in sorted(points.get(shape, []))]
            if not line:
                self._schedule.refused["shape-missing"] += 1
                continue
            self._keep(len(line) * (len(routes) - 1))  # what is made of a line is made for each of its routes
            for route in routes:
                self._schedule.lines.setdefault(route, []).append(line)

    def _links(self, of_trip: dict[str, str]) -> None:
        """Add straight lines between consecutive stops of the trips without a shape, each once per route."""
        if not of_trip:
            return
        calls: dict[str, list[tuple[int, str]]] = {}
        for trip, stop, sequence in self._rows("stop_times", ("trip_id", "stop_id", "stop_sequence")):
            if trip in of_trip and stop in self._schedule.stops and sequence.isdecimal() and len(sequence) <= 18:
                self._keep(1)
                calls.setdefault(trip, []).append((int(sequence), stop))
        links: dict[str, set[tuple[str, str]]] = {}
        for trip, visits in calls.items():
            links.setdefault(of_trip[trip], set()).update(pairwise(stop for _, stop in sorted(visits)))
        places = {stop: (place.lat, place.lng) for stop, place in self._schedule.stops.items()}
        for route, pairs in links.items():
            lines = [[places[a], places[b]] for a, b in sorted(pairs)]
            self._schedule.lines.setdefault(route, []).extend(lines)


def table_rows(
    archive: zipfile.ZipFile, name: str, columns: tuple[str, ...], optional: tuple[str, ...], refused: Counter[str]
) -> Iterator[list[str]]:
    """The given columns of every row of a file; "" where an optional one is absent. Nothing without the file."""
    if f"{name}.txt" not in archive.namelist():
        return
    with archive.open(f"{name}.txt") as file:
        rows = csv.reader(_lines(file.readline, name))
        header = [column.strip() for column in next(rows, [])]
        missing = [column for column in columns if column not in header]
        if missing:
            raise ScheduleError(f"{name}.txt has no column {', '.join(missing)}, which GTFS requires here")
        where = [header.index(column) if column in header else -1 for column in columns + optional]
        for number, row in enumerate(rows):
            if number >= BOUNDS[name][1]:
                raise ScheduleError(f"{name}.txt has more than {BOUNDS[name][1]} rows; divide the schedule by agency")
            if len(row) <= max(where):
                refused[f"{name}-too-short"] += bool(row)
                continue
            yield [row[at].strip()[:_LONGEST_TEXT] if at >= 0 else "" for at in where]


def _printable(name: str) -> str:
    """A name for readers: control characters, such as line breaks within quotes, become spaces."""
    if name.isprintable():
        return name
    return "".join(" " if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in name).strip()


def _lines(readline: Callable[[int], bytes], name: str) -> Iterator[str]:
    """Lines as text, at most :data:`_LONGEST_LINE` bytes each, and all at most the bytes of the file's bound."""
    size = 0
    while line := readline(_LONGEST_LINE + 1):
        size += len(line)
        if len(line) > _LONGEST_LINE:
            raise ScheduleError(f"{name}.txt has a line of more than {_LONGEST_LINE} bytes, so it is no table of GTFS")
        if size > BOUNDS[name][0]:
            raise ScheduleError(f"{name}.txt has more than {BOUNDS[name][0]} bytes; divide the schedule by agency")
        text = line.decode(errors="replace").replace("\0", "")
        yield text.removeprefix("\ufeff") if size == len(line) else text


def point_of(lat: str, lng: str) -> Point | None:
    """The position in two texts; None for none, for places outside the globe, and for 0, 0."""
    try:
        place = float(lat), float(lng)
    except ValueError:
        return None
    inside = math.isfinite(place[0]) and abs(place[0]) <= 90 and abs(place[1]) <= 180
    return place if inside and place != (0.0, 0.0) else None
