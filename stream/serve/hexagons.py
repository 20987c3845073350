"""Handlers for feeds, windows, their hexagons, the past releases of one cell, and whole windows as files.

The complete windows of a range of time are one file, bounded in size and in number at a time. Beside a window stands
that of another day which begins at the same local time.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from functools import partial
from itertools import compress
from typing import Literal, NamedTuple

import h3
import msgspec
from aiohttp import web

from stream.config import Config
from stream.config.feed import derived_speed_note
from stream.messages.cells import Cell, cells_of, with_estimates
from stream.messages.range_query import Box
from stream.messages.shapes import centre_of, places_of
from stream.messages.tables import feature, table_of
from stream.serve import parameters as p
from stream.serve.city.areas import Area
from stream.serve.city.combining import totals
from stream.serve.differences import beside, from_typical
from stream.serve.operations import files, get
from stream.serve.responses import CSV, GEOJSON, JSON, MOST_WAITING, PARQUET, Answers, Problem, Turns, attached, key_of
from stream.serve.window_store import (
    CloseMarker,
    View,
    WindowView,
    elapsed,
    local_length,
    local_start,
    marker_of,
    start_at,
    stated_by,
)

Reason = Literal["same", "gone", "withheld", "incomplete", "later", "settings", "clocks", "none"]
"""Why there is no window to compare with; ``OtherDay`` of ``schemas.toml`` says what each means."""
_DAY = timedelta(days=1)
_DEFAULTS = (7 * _DAY, _DAY)
"""How far back to look where no day is chosen, in this order."""


class OtherDay(NamedTuple):
    """What stands beside a window: a complete window of ``day``, a local date, or the reason why there is none."""

    day: date
    other: WindowView | None
    reason: Reason | None


def other_day(view: View, window: WindowView, day: date | None) -> OtherDay:
    """The window that begins on ``day`` at the local time at which ``window`` begins, on the clocks of its feed.

    Without ``day``, it is that of a week before, where it can be compared with, else that of the day before. Of a local
    time that the clocks repeat, the first is compared with the first and the second with the second.
    """
    zone = stated_by(window).period.timezone
    local = local_start(window.start, zone)
    days = [local.date() - back for back in _DEFAULTS if local.date().toordinal() > back.days] if day is None else [day]
    beside = [_on(view, window, local, zone, one) for one in days or [local.date()]]
    return next((one for one in beside if one.other is not None), beside[-1])


def _on(view: View, window: WindowView, local: datetime, zone: str, day: date) -> OtherDay:
    start = start_at(local.replace(year=day.year, month=day.month, day=day.day))
    marker = marker_of(window)
    other = None if start is None else view.windows.get((window.feed, start))
    reason: Reason | None
    if start == window.start:
        reason = "same"
    elif marker is None:
        reason = "incomplete"
    elif other is None:
        reason = _absent(view, window, start, local, day)
    else:
        reason = _unlike(window, marker, other, zone)
    return OtherDay(day, other if reason is None else None, reason)


def _absent(view: View, window: WindowView, start: str | None, local: datetime, day: date) -> Reason:
    """Why no window that starts then is here."""
    if (window.feed, start) in view.forgotten:
        return "gone"
    kept = view.span(window.feed)
    if start is not None and kept is not None and start > kept[1]:
        return "later"
    return "clocks" if _clocks_change(day, local) or _clocks_change(local.date(), local) else "none"


def _unlike(window: WindowView, marker: CloseMarker, other: WindowView, zone: str) -> Reason | None:
    """Why a window at the same local time cannot be compared with ``window``; None if it can."""
    known = marker_of(other)
    if not other.complete or known is None:
        return "incomplete"
    if known.withheld:
        return "withheld"
    if (known.relation, known.clipping) != (marker.relation, marker.clipping):
        return "settings"
    if local_length(other, zone) != local_length(window, zone):
        return "clocks" if elapsed(other) == elapsed(window) else "settings"
    return None


def _clocks_change(day: date, local: datetime) -> bool:
    """Whether the offset from UTC at the local start of ``day`` is not that at its end."""
    if day == date.max:
        return False
    midnight = datetime(day.year, day.month, day.day, tzinfo=local.tzinfo)
    return midnight.utcoffset() != (midnight + _DAY).utcoffset()


FILES = {"csv": CSV, "parquet": PARQUET, "geojson": GEOJSON}
"""Media type of each file format."""
MOST_SELECTED = 16
"""Selections of cells that may be made or wait at the same time. There are as many as boxes: a short queue."""


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
    """Handlers for the hexagon releases in the store. A configuration describes its own feed only.

    One range is written after the other, so that many requests for large ones cannot fill the memory.
    """

    def __init__(self, config: Config, view: View, answers: Answers, selections: Answers) -> None:
        """``selections``: of what readers choose freely, which pushes nothing out of ``answers``."""
        self._view, self._answers, self._selections = view, answers, selections
        note = derived_speed_note(config.relation, config.feed.speeds)
        described = {"map": config.public.map, "derived_speeds": config.feed.derivation, "note": note}
        self._described = {config.feed.name: described}
        self._whole, self._selected = Turns("windows", MOST_WAITING), Turns("selections of cells", MOST_SELECTED)
        self._lists, self._ranges = Turns("lists", MOST_WAITING), Turns("ranges", MAX_WAITING, 30)

    @get("/feeds", "listFeeds", {JSON: "FeedList"}, tag="Feeds")
    async def feeds(self, request: web.Request) -> web.Response:
        """Feeds, what their maps are for, and which of their speeds are derived from positions."""
        names = sorted(self._view.feeds() | self._described.keys())
        unknown = {"map": None, "derived_speeds": None, "note": None}
        body = msgspec.json.encode({"feeds": [{"feed": name} | self._described.get(name, unknown) for name in names]})
        return await self._answers.ready(request, body, JSON)

    @get("/windows", "listWindows", {JSON: "WindowList"}, "feed", p.limit(100, 1000), tag="Windows")
    async def windows(self, request: web.Request, feed: str, limit: int) -> web.Response:
        """Windows, newest first."""
        chosen = [window.described() for window in self._view.ordered(feed)[:limit]]
        key, summaries = key_of("windows", [one.tag for one in chosen]), [one.summary for one in chosen]
        make = partial(joined, b'{"windows":[', summaries)
        return await self._lists.answer(self._selections, request, key, make, JSON)

    @get("/windows/{window}", "getWindow", {JSON: "Window"}, "feed", tag="Windows")
    async def window(self, request: web.Request, feed: str, window: str) -> web.Response:
        """One window and its close marker."""
        known = known_window(self._view, window, feed)
        return await self._answers.ready(request, known.described().summary, JSON)

    @get("/windows/{window}/other-day", "findOtherDay", {JSON: "OtherDay"}, "feed", "day", "statistic", tag="Windows")
    async def other_day(
        self, request: web.Request, feed: str, window: str, day: date | None, statistic: str
    ) -> web.Response:
        """The window of another day at the same local time and what it says of the cells, or why there is none."""
        known = known_window(self._view, window, feed)
        then, other, reason = other_day(self._view, known, day)
        oldest, newest = self._view.span(feed) or (None, None)
        said = {
            "timezone": stated_by(known).period.timezone,
            "day": then.isoformat(),
            "other": other and other.summary(),
            "reason": reason,
        }
        body = known.named | said | {"oldest": oldest, "newest": newest, "statistic": statistic}
        here, there = known.in_order(), None if other is None else other.in_order()

        def make() -> bytes:
            cells = None if there is None else beside(cells_of(here), cells_of(there), statistic)
            return msgspec.json.encode(body | {"cells": cells})

        key = key_of("other day", known.tag, body)
        return await self._selected.answer(self._selections, request, key, make, JSON)

    @get(
        "/hexagons", "listHexagons", {JSON: "HexagonList", GEOJSON: "HexagonFeatures"},
        "feed", "window", "bbox", "resolution", "shape", tag="Hexagons",
    )  # fmt: skip
    async def hexagons(
        self, request: web.Request, feed: str, window: str | None, bbox: Box | None, resolution: int | None, shape: str
    ) -> web.Response:
        """Releases of the cells of one window."""
        known = known_window(self._view, window, feed)
        key = key_of("hexagons", known.tag, bbox, resolution, shape)
        summary, values = known.described().summary, known.in_order()
        is_whole = bbox is None and resolution is None
        map_of_feed = msgspec.json.encode(self._described.get(feed, {}).get("map"))

        def make() -> bytes:
            cells = cells_of(values)
            errors = from_typical(cells)
            wanted = [is_whole or is_asked_for(cell, bbox, resolution) for cell in cells]
            bodies = (
                with_estimates(value, cell, errors.get(cell.cell))
                for value, cell in compress(zip(values, cells, strict=True), wanted)
            )
            if shape == "json":
                sums = msgspec.json.encode(totals(list(compress(cells, wanted))))
                return joined(summary[:-1] + b',"map":' + map_of_feed + b',"totals":' + sums + b',"hexagons":[', bodies)
            head = b'{"type":"FeatureCollection","map":' + map_of_feed + b',"features":['
            # One by one, because all bodies of a window as objects would take many times its bytes.
            placed = zip(compress(places_of(cells), wanted), map(msgspec.json.decode, bodies), strict=True)
            return joined(head, (msgspec.json.encode(feature(place, body)) for place, body in placed))

        kind = JSON if shape == "json" else GEOJSON
        turns, answers = (self._whole, self._answers) if is_whole else (self._selected, self._selections)
        return await turns.answer(answers, request, key, make, kind)

    @get("/cells/{cell}", "getCell", {JSON: "CellHistory"}, "feed", p.limit(1000, 10_000), tag="Hexagons")
    async def cell(self, request: web.Request, feed: str, cell: str, limit: int) -> web.Response:
        """Past releases of one cell, oldest first."""
        windows = self._view.ordered(feed)
        limit = min(limit, len(windows))
        key = key_of("cell", cell, feed, self._view.generation, limit)

        def make() -> bytes:
            past = [one.cells[cell] for one in reversed(windows) if one.complete and cell in one.cells][-limit:]
            return joined(b'{"cell":"' + cell.encode() + b'","releases":[', map(with_estimates, past, cells_of(past)))

        return await self._lists.answer(self._selections, request, key, make, JSON)

    @files("/windows/{window}/download", "download", "A complete window as {}", FILES, "feed", errors=(409,))
    async def download(self, request: web.Request, feed: str, window: str, suffix: str) -> web.Response:
        """A complete window as a file."""
        known = complete_window(self._view, window, feed)
        values = known.in_order()
        headers = attached(f".{suffix}", feed, window)
        key = key_of("download", known.tag, suffix)
        make = partial(table_of, values, suffix)
        return await self._whole.answer(self._answers, request, key, make, FILES[suffix], headers)

    @files(
        "/download", "downloadRange", "Every complete window of a range of time as one {}, oldest first", FILES,
        "from", "to", "feed",
    )  # fmt: skip
    async def download_range(self, request: web.Request, feed: str, first: str, last: str, suffix: str) -> web.Response:
        """The cells of every complete window that begins in [first, last), oldest first."""
        windows = bounded(feed, begun_in(self._view, feed, first, last)[::-1])
        key = key_of("range", suffix, [window.tag for window in windows])
        headers = attached(f".{suffix}", feed, first, last)

        def make() -> bytes:
            return table_of([value for window in windows for value in window.in_order()], suffix)

        return await self._ranges.answer(self._answers, request, key, make, FILES[suffix], headers)


def joined(head: bytes, values: Iterable[bytes]) -> bytes:
    """An object that ends with a list of these values; ``head``: all before the first one."""
    return head + b",".join(values) + b"]}"


def is_asked_for(place: Cell, box: Box | None, resolution: int | None) -> bool:
    """Whether a cell has its centre in the box, and the resolution, where one is asked for."""
    if resolution is not None and h3.get_resolution(place.cell) != resolution:
        return False
    if box is None:
        return True
    lat, lng = centre_of(place.cell, place.excludes)
    west, south, east, north = box  # across 180 degrees if its west is greater than its east
    across = lng >= west or lng <= east if west > east else west <= lng <= east
    return bool(across and south <= lat <= north)


MAX_RANGE_BYTES = 16 << 20
"""Bytes of message values in one range: some 40 000 cells. As rows in memory they take ten times as much."""
MAX_WAITING = 4
"""Ranges that may be written or wait at the same time."""


def begun_in(view: View, feed: str, first: str, last: str) -> list[WindowView]:
    """The complete windows of a feed that begin in [first, last), newest first."""
    return [window for window in view.ordered(feed) if window.complete and first <= window.start < last]


def bounded(feed: str, windows: list[WindowView]) -> list[WindowView]:
    """The windows of a range; 404 without any, 413 for more than one answer may be of."""
    if not windows:
        remedy = "see /api/v1/windows for starts; choose a longer range, or other days or hours"
        raise Problem(404, f"no complete window of feed {feed!r} begins then", remedy)
    size = sum(window.size for window in windows)
    if size > MAX_RANGE_BYTES:
        title = f"the {len(windows)} windows of this range hold {size} bytes, above {MAX_RANGE_BYTES}"
        raise Problem(413, title, "ask for a shorter range, for fewer hours, or for the windows one by one")
    return windows
