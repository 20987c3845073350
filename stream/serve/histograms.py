"""Handlers for spatial histograms: a list, each one as released, and range queries."""

from functools import lru_cache, partial

import msgspec
from aiohttp import web

from dpcore.spatial import histogram_from_release
from dpcore.spatial.release import Released
from stream.messages.range_query import Box, RangeError, count_in, heat_of
from stream.serve import parameters as p
from stream.serve.hexagons import joined, known_window
from stream.serve.operations import get
from stream.serve.responses import GEOJSON, JSON, MOST_WAITING, Answers, Problem, Turns, key_of
from stream.serve.window_store import View, WindowView


@lru_cache(maxsize=8)  # a grid of 1 024 × 1 024 takes 16 MB
def _histogram(value: bytes) -> Released:
    return histogram_from_release(msgspec.json.decode(value))


class Histograms:
    """Handlers for the histogram releases in the store."""

    def __init__(self, view: View, answers: Answers, selections: Answers) -> None:
        """``selections``: of what readers choose freely, which pushes nothing out of ``answers``."""
        self._view, self._answers, self._selections = view, answers, selections
        self._turns = Turns("histograms", MOST_WAITING)

    @get("/histograms", "listHistograms", {JSON: "HistogramList"}, "feed", p.limit(100, 1000), tag="Histograms")
    async def listed(self, request: web.Request, feed: str, limit: int) -> web.Response:
        """Windows with spatial histograms, newest first."""
        chosen = [window.described() for window in self._view.ordered(feed) if window.histograms][:limit]
        key, listed = key_of("histograms", [one.tag for one in chosen]), [one.histograms for one in chosen]
        make = partial(joined, b'{"windows":[', listed)
        return await self._turns.answer(self._selections, request, key, make, JSON)

    @get("/heat", "getHeat", {GEOJSON: "HeatFeatures"}, "feed", "window", "mechanism", tag="Histograms")
    async def heat(self, request: web.Request, feed: str, window: str | None, mechanism: str | None) -> web.Response:
        """A spatial histogram as boxes on the map, with numbers, intervals and densities."""
        known = known_window(self._view, window, feed)
        name, value = _chosen(known, mechanism)

        def make() -> bytes:
            about = msgspec.json.decode(value)
            said = {key: about[key] for key in ("feed", "window", "mechanism", "epsilon", "relation")}
            body = {"type": "FeatureCollection", "about": said, "features": heat_of(_histogram(value))}
            return msgspec.json.encode(body)

        return await self._turns.answer(self._answers, request, key_of("heat", known.tag, name), make, GEOJSON)

    @get(
        "/histograms/{window}/count", "countRange", {JSON: "RangeCount"},
        "feed", "range", "mechanism", tag="Histograms",
    )  # fmt: skip
    async def count(
        self, request: web.Request, feed: str, window: str, bbox: Box, mechanism: str | None
    ) -> web.Response:
        """Estimated number in a range, with a 95 % interval of the exact number."""
        known = known_window(self._view, window, feed)
        name, value = _chosen(known, mechanism)
        key = key_of("count", known.tag, name, bbox)

        def make() -> bytes:
            return msgspec.json.encode(count_in(msgspec.json.decode(value), bbox, _histogram(value)))

        try:
            return await self._turns.answer(self._selections, request, key, make, JSON)
        except RangeError as error:
            raise Problem(400, error.message, error.remedy) from None

    @get("/histograms/{window}/{mechanism}", "getHistogram", {JSON: "SpatialHistogram"}, "feed", tag="Histograms")
    async def release(self, request: web.Request, feed: str, window: str, mechanism: str) -> web.Response:
        """A spatial histogram as released."""
        known = known_window(self._view, window, feed)
        name, value = _chosen(known, mechanism)
        key = key_of("histogram", known.tag, name)
        return await self._turns.answer(self._answers, request, key, lambda: value, JSON)


def _chosen(window: WindowView, mechanism: str | None) -> tuple[str, bytes]:
    """Mechanism and message of the requested histogram; raises :class:`Problem` if there is none or several."""
    known = ", ".join(sorted(window.histograms))
    if mechanism is None:
        if len(window.histograms) == 1:
            return next(iter(window.histograms.items()))
        if not known:
            raise Problem(404, f"window {window.start} has no histogram", "see /api/v1/histograms for those that have")
        raise Problem(400, f"window {window.start} has several histograms", f"give mechanism, one of: {known}")
    value = window.histograms.get(mechanism)
    if value is None:
        remedy = f"it has: {known}" if known else "it has none; see /api/v1/histograms"
        raise Problem(404, f"window {window.start} has no histogram {mechanism!r}", remedy)
    return mechanism, value
