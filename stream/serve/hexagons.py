"""Handlers for windows, their hexagons, the past releases of one cell, and whole windows as files."""

from __future__ import annotations

from datetime import date

import h3
import msgspec
from aiohttp import web

from stream.messages.range_query import Box
from stream.messages.tables import ParquetMissingError, feature, table_of
from stream.serve.city.areas import centre_of
from stream.serve.other_day import other_day
from stream.serve.responses import CSV, GEOJSON, JSON, PARQUET, Answers, Freshness, Problem, key_of
from stream.serve.window_store import View, WindowView

FILES = {"csv": CSV, "parquet": PARQUET, "geojson": GEOJSON}
"""Media type of each file format."""


class _Merged(msgspec.Struct):
    """Of a release, the smaller cells that were released apart from it."""

    excludes: list[str] = []


_MERGED = msgspec.json.Decoder(_Merged)


def known_window(view: View, start: str | None, feed: str) -> WindowView:
    """The window that starts then, or the newest complete one; 404 if there is none."""
    window = view.find(start, feed)
    if window is None:
        which = "complete window" if start is None else f"window {start}"
        raise Problem(404, f"no {which} of feed {feed!r}", "see /api/v1/windows for the starts that are known")
    return window


def freshness_of(window: WindowView, start: str | None) -> Freshness:
    """Cache policy: a complete window that was requested by its start never changes."""
    return "immutable" if start is not None and window.complete else "revalidate"


class Hexagons:
    """Handlers for the hexagon releases in the store."""

    def __init__(self, view: View, answers: Answers) -> None:
        self._view = view
        self._answers = answers

    async def windows(self, request: web.Request, feed: str, limit: int) -> web.Response:
        """All windows, newest first."""
        chosen = self._view.ordered(feed)[:limit]
        body = msgspec.json.encode({"windows": [window.summary() for window in chosen]})
        return await self._answers.answer(request, key_of(body), lambda: body, JSON, "revalidate")

    async def window(self, request: web.Request, feed: str, window: str) -> web.Response:
        """One window with its marker."""
        known = known_window(self._view, window, feed)
        body = msgspec.json.encode(known.summary())
        return await self._answers.answer(request, key_of(body), lambda: body, JSON, freshness_of(known, window))

    async def other_day(self, request: web.Request, feed: str, window: str, day: date | None) -> web.Response:
        """The window of another day that begins at the same local time."""
        body = msgspec.json.encode(other_day(self._view, known_window(self._view, window, feed), day).body())
        # There are as many bodies as dates, which would push out those of hexagons.
        return self._answers.once(request, body, JSON, "revalidate")

    async def hexagons(
        self,
        request: web.Request,
        feed: str,
        window: str | None,
        bbox: Box | None,
        resolution: int | None,
        shape: str,
    ) -> web.Response:
        """Cells of one window in ascending order."""
        known = known_window(self._view, window, feed)
        key = key_of("hexagons", known.tag, bbox, resolution, shape)
        cells = dict(known.cells)
        summary = known.summary()

        def make() -> bytes:
            chosen = [cells[cell] for cell in sorted(cells) if _wanted(cell, cells[cell], bbox, resolution)]
            if shape == "json":
                # Values are JSON that was checked when it arrived, so they are joined and not encoded again.
                head = msgspec.json.encode(summary)[:-1]
                return head + b',"hexagons":[' + b",".join(chosen) + b"]}"
            bodies = map(msgspec.json.decode, chosen)
            features = [feature(body["cell"], body) for body in bodies]
            return msgspec.json.encode({"type": "FeatureCollection", "features": features})

        kind = JSON if shape == "json" else GEOJSON
        return await self._answers.answer(request, key, make, kind, freshness_of(known, window))

    async def cell(self, request: web.Request, feed: str, cell: str, limit: int) -> web.Response:
        """The newest releases of one cell, oldest first."""
        past = self._view.history(cell, feed)[-limit:]
        body = b'{"cell":"' + cell.encode() + b'","releases":[' + b",".join(past) + b"]}"
        return await self._answers.answer(request, key_of(body), lambda: body, JSON, "revalidate")

    async def download(self, request: web.Request, feed: str, window: str, suffix: str) -> web.Response:
        """A complete window as a file."""
        known = known_window(self._view, window, feed)
        if not known.complete:
            raise Problem(409, f"window {window} is not complete yet", "ask again once its close marker has arrived")
        values = known.in_order()
        name = f"hexveil-{feed}-{window.replace('-', '').replace(':', '')}.{suffix}"
        key = key_of("download", known.tag, suffix)
        try:
            return await self._answers.answer(
                request, key, lambda: table_of(values, suffix), FILES[suffix], "immutable", name
            )
        except ParquetMissingError:
            raise no_parquet() from None


def no_parquet() -> Problem:
    """The answer where Parquet is asked of a service without pyarrow."""
    remedy = "install it beside the service: pip install 'hexveil[parquet]'; or download .csv or .geojson"
    return Problem(501, "Parquet needs pyarrow, which this service does not have", remedy)


def _wanted(cell: str, value: bytes, box: Box | None, resolution: int | None) -> bool:
    if resolution is not None and h3.get_resolution(cell) != resolution:
        return False
    if box is None:
        return True
    lat, lng = centre_of(cell, _MERGED.decode(value).excludes)
    return bool(box[0] <= lng <= box[2] and box[1] <= lat <= box[3])
