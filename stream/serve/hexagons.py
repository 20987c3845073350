"""Handlers for windows, their hexagons, the past releases of one cell, and whole windows as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from functools import partial

import h3
import msgspec
from aiohttp import web

from stream.messages.estimate import with_estimates
from stream.messages.range_query import Box
from stream.messages.shapes import Place, centre_of, places_of
from stream.messages.tables import ParquetMissingError, feature, table_of
from stream.serve import parameters as p
from stream.serve.city.areas import Area
from stream.serve.operations import files, get
from stream.serve.other_day import other_day
from stream.serve.responses import CSV, GEOJSON, JSON, PARQUET, Answers, Problem, key_of
from stream.serve.turns import MOST_WAITING, Turns
from stream.serve.window_store import View, WindowView, history

FILES = {"csv": CSV, "parquet": PARQUET, "geojson": GEOJSON}
"""Media type of each file format."""
MOST_SELECTED = 16
"""Selections of cells that may be made or wait at the same time. There are as many as boxes, so their queue is
short."""


class _Place(msgspec.Struct):
    """Of a release, its cell and the smaller ones that were released apart from it."""

    cell: str
    excludes: list[str] = []


_PLACE = msgspec.json.Decoder(_Place)


def known_window(view: View, start: str | None, feed: str) -> WindowView:
    """The window that starts then, or the newest complete one; 404 if there is none."""
    window = view.find(start, feed)
    if window is None:
        which = "complete window" if start is None else f"window {start}"
        raise Problem(404, f"no {which} of feed {feed!r}", "see /api/v1/windows for the starts that are known")
    return window


def known_area(areas: Mapping[str, Area], name: str) -> Area:
    """The area of this name; 404 if there is none."""
    if name not in areas:
        raise Problem(404, f"there is no area {name[:80]!r}", "see /api/v1/areas for the names that are known")
    return areas[name]


def complete_window(view: View, start: str, feed: str) -> WindowView:
    """The complete window that starts then; 404 if there is none, 409 if it is not complete yet."""
    window = known_window(view, start, feed)
    if not window.complete:
        raise Problem(409, f"window {start} is not complete yet", "ask again once its close marker has arrived")
    return window


class Hexagons:
    """Handlers for the hexagon releases in the store."""

    def __init__(self, view: View, answers: Answers, selections: Answers) -> None:
        """``selections``: of what readers choose freely, which pushes nothing out of ``answers``."""
        self._view, self._answers, self._selections = view, answers, selections
        self._whole, self._selected = Turns("windows", MOST_WAITING), Turns("selections of cells", MOST_SELECTED)
        self._lists = Turns("lists", MOST_WAITING)

    @get("/windows", "listWindows", {JSON: "WindowList"}, p.FEED, p.limit(100, 1000), tag="Windows")
    async def windows(self, request: web.Request, feed: str, limit: int) -> web.Response:
        """Windows, newest first."""
        chosen = [window.described() for window in self._view.ordered(feed)[:limit]]
        key, summaries = key_of("windows", [one.tag for one in chosen]), [one.summary for one in chosen]
        make = partial(_joined, b'{"windows":[', summaries)
        return await self._lists.answer(self._selections, request, key, make, JSON)

    @get("/windows/{window}", "getWindow", {JSON: "Window"}, p.WINDOW_PATH, p.FEED, tag="Windows", errors=(404,))
    async def window(self, request: web.Request, feed: str, window: str) -> web.Response:
        """One window and its close marker."""
        known = known_window(self._view, window, feed)
        return await self._answers.ready(request, known.described().summary, JSON)

    @get(
        "/windows/{window}/other-day", "findOtherDay", {JSON: "OtherDay"}, p.WINDOW_PATH, p.FEED, p.DAY,
        tag="Windows", errors=(404,),
    )  # fmt: skip
    async def other_day(self, request: web.Request, feed: str, window: str, day: date | None) -> web.Response:
        """The window of another day at the same local time, or the reason why there is none."""
        body = msgspec.json.encode(other_day(self._view, known_window(self._view, window, feed), day).body())
        # There are as many bodies as dates, which would push out those of hexagons.
        return self._answers.once(request, body, JSON)

    @get(
        "/hexagons", "listHexagons", {JSON: "HexagonList", GEOJSON: "HexagonFeatures"},
        p.FEED, p.WINDOW_QUERY, p.BBOX, p.RESOLUTION, p.FORMAT, tag="Hexagons", errors=(404,),
    )  # fmt: skip
    async def hexagons(
        self,
        request: web.Request,
        feed: str,
        window: str | None,
        bbox: Box | None,
        resolution: int | None,
        shape: str,
    ) -> web.Response:
        """Releases of the cells of one window."""
        known = known_window(self._view, window, feed)
        key = key_of("hexagons", known.tag, bbox, resolution, shape)
        summary, values = known.described().summary, known.in_order()
        is_whole = bbox is None and resolution is None

        def make() -> bytes:
            chosen = values if is_whole else [value for value in values if _wanted(value, bbox, resolution)]
            if shape == "json":
                return _joined(summary[:-1] + b',"hexagons":[', map(with_estimates, chosen))
            place = dict(zip(values, places_of(values), strict=True))
            return _joined(
                b'{"type":"FeatureCollection","features":[', (_feature_of(place[value], value) for value in chosen)
            )

        kind = JSON if shape == "json" else GEOJSON
        turns, answers = (self._whole, self._answers) if is_whole else (self._selected, self._selections)
        return await turns.answer(answers, request, key, make, kind)

    @get("/cells/{cell}", "getCell", {JSON: "CellHistory"}, p.CELL_PATH, p.FEED, p.limit(1000, 10_000), tag="Hexagons")
    async def cell(self, request: web.Request, feed: str, cell: str, limit: int) -> web.Response:
        """Past releases of one cell, oldest first."""
        windows = self._view.ordered(feed)
        limit = min(limit, len(windows))
        key = key_of("cell", cell, feed, self._view.generation, limit)

        def make() -> bytes:
            past = history(windows, cell)
            return _joined(b'{"cell":"' + cell.encode() + b'","releases":[', map(with_estimates, past[-limit:]))

        return await self._lists.answer(self._selections, request, key, make, JSON)

    @files(
        "/windows/{window}/download", "download", "A complete window as {}", FILES, p.WINDOW_PATH, p.FEED,
        errors=(404, 409),
    )  # fmt: skip
    async def download(self, request: web.Request, feed: str, window: str, suffix: str) -> web.Response:
        """A complete window as a file."""
        known = complete_window(self._view, window, feed)
        values = known.in_order()
        name = f"hexveil-{feed}-{window.replace('-', '').replace(':', '')}.{suffix}"
        key = key_of("download", known.tag, suffix)
        try:
            return await self._whole.answer(
                self._answers, request, key, lambda: table_of(values, suffix), FILES[suffix], name
            )
        except ParquetMissingError:
            raise no_parquet() from None


def no_parquet() -> Problem:
    """The answer where Parquet is asked of a service without pyarrow."""
    remedy = "install it beside the service: pip install 'hexveil[parquet]'; or download .csv or .geojson"
    return Problem(501, "Parquet needs pyarrow, which this service does not have", remedy)


def _joined(head: bytes, values: Iterable[bytes]) -> bytes:
    """An object that ends with a list of these values; ``head``: all before the first one."""
    return head + b",".join(values) + b"]}"


def _feature_of(place: Place, value: bytes) -> bytes:
    """One by one, because all bodies of a window as objects would take many times its bytes."""
    body = msgspec.json.decode(with_estimates(value))
    return msgspec.json.encode(feature(place, body))


def _wanted(value: bytes, box: Box | None, resolution: int | None) -> bool:
    place = _PLACE.decode(value)
    if resolution is not None and h3.get_resolution(place.cell) != resolution:
        return False
    if box is None:
        return True
    return within(box, *centre_of(place.cell, place.excludes))


def within(box: Box, lat: float, lng: float) -> bool:
    """Whether a place lies in the box, which lies across 180 degrees if its west is greater than its east."""
    west, south, east, north = box
    across = lng >= west or lng <= east if west > east else west <= lng <= east
    return bool(across and south <= lat <= north)
