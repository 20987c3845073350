"""Handlers of OGC API - Features: landing page, conformance, collections, their features page by page, and one feature.

Source: OGC 17-069r4, "OGC API - Features - Part 1: Core". Each feed has two collections: its newest complete window,
and all complete windows, newest first. Features have the flat rows of the downloads as properties.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from stream.config.section import BoundingBox
from stream.messages.cells import cells_of
from stream.messages.shapes import Place, parts_of, places_of, ring_of
from stream.messages.tables import feature, rows_of
from stream.serve import parameters as p
from stream.serve.ogc.selection import Bounds, Interval, bounds_of, extent_of, is_during, item_id, meets
from stream.serve.operations import get
from stream.serve.responses import GEOJSON, JSON, Answers, Problem, Turns, key_of
from stream.serve.sending import base_of
from stream.serve.window_store import View, WindowView, marker_of

ROOT = "/ogc"
NEWEST, ALL = "newest", "all"
CONFORMS_TO = (
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/geojson",
)
_CRS = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
_OPENAPI = "application/vnd.oai.openapi+json;version=3.1"
MOST_FEATURES = 2_000
"""Features of a page at most, some 2 MB; a larger limit counts as this one."""
MOST_SCANNED = 20_000
"""Cells at which one request looks. A page that ends there has a link to the next, even with few features."""
MOST_WAITING = 16
"""Pages that may be made or wait at the same time: anybody may ask for pages that nobody asked for before."""

_get = partial(get, tag="Features", base=ROOT)

Link = dict[str, str]
Body = dict[str, Any]


class Features:
    """Handlers for the complete windows in the store. ``feed`` has collections even before it has windows."""

    def __init__(
        self, feed: str, domain: BoundingBox, view: View, answers: Answers, described: Mapping[str, str]
    ) -> None:
        """``domain``: of that feed. ``described``: paths at which the API is described, by their relation
        ``service-desc`` or ``service-doc``.
        """
        self._feed, self._view, self._answers, self._described = feed, view, answers, described
        west, east = (-180.0, 180.0) if domain.crosses_180 else (domain.west, domain.east)
        self._domain = Bounds(west, domain.south, east, domain.north)
        self._bounding = asyncio.Lock()
        self._turns = Turns("pages", MOST_WAITING)

    @_get("", "getLandingPage", {JSON: "LandingPage"}, "form")
    async def landing(self, request: web.Request, form: str) -> web.Response:
        """Where everything is."""
        here = base_of(request)
        links = [
            _link(f"{here}{ROOT}", "self", JSON, "This page"),
            _link(here + self._described["service-desc"], "service-desc", _OPENAPI, "The API"),
            _link(here + self._described["service-doc"], "service-doc", "text/html", "The API, to read"),
            _link(f"{here}{ROOT}/conformance", "conformance", JSON, "What this service conforms to"),
            _link(f"{here}{ROOT}/collections", "data", JSON, "The collections"),
        ]
        text = "Differentially private traffic statistics by H3 hexagon, read only."
        return await self._told(request, {"title": "Hexveil", "description": text, "links": links})

    @_get("/conformance", "getConformance", {JSON: "Conformance"}, "form")
    async def conformance(self, request: web.Request, form: str) -> web.Response:
        """The classes of requirements that hold."""
        return await self._told(request, {"conformsTo": CONFORMS_TO})

    @_get("/collections", "listCollections", {JSON: "CollectionList"}, "form")
    async def collections(self, request: web.Request, form: str) -> web.Response:
        """The newest window, and all windows, of each feed."""
        here = base_of(request)
        feeds = sorted({self._feed} | self._view.feeds())
        listed = [await self._listed(here, feed, kind) for feed in feeds for kind in (NEWEST, ALL)]
        links = [_link(f"{here}{ROOT}/collections", "self", JSON, "This list")]
        return await self._told(request, {"links": links, "collections": listed})

    @_get("/collections/{collection}", "getCollection", {JSON: "Collection"}, "form")
    async def collection(self, request: web.Request, collection: str, form: str) -> web.Response:
        """One collection."""
        feed, kind = self._known(collection)
        return await self._told(request, await self._listed(base_of(request), feed, kind))

    @_get(
        "/collections/{collection}/items", "listFeatures", {GEOJSON: "FeaturePage"},
        p.page(1000, MOST_FEATURES), "bounds", "interval", "after_item", "form",
    )  # fmt: skip
    async def items(
        self,
        request: web.Request,
        collection: str,
        limit: int,
        bbox: Bounds | None,
        interval: Interval | None,
        after: tuple[str, str] | None,
        form: str,
    ) -> web.Response:
        """Hexagons with their statistics, page by page."""
        feed, kind = self._known(collection)
        here, asked = base_of(request), request.rel_url
        windows = self._windows(feed, kind)
        if kind == NEWEST and after is not None:
            windows = self._continued(feed, collection, after[0])

        def make() -> bytes:
            during = [w for w in windows if interval is None or is_during(w.start, w.end, interval)]
            chosen, last = _chosen(during, bbox, after, limit)
            links = [_link(f"{here}{asked}", "self", GEOJSON, "These features"), _collection_link(here, collection)]
            if last is not None:
                onward = asked.update_query(after=last)
                links.append(_link(f"{here}{onward}", "next", GEOJSON, "The next features"))
            body = {"type": "FeatureCollection", "links": links, "numberReturned": len(chosen)}
            return msgspec.json.encode(body | {"features": _features(chosen)})

        key = key_of("items", self._view.generation, here, str(asked))
        return await self._turns.answer(self._answers, request, key, make, GEOJSON)

    @_get("/collections/{collection}/items/{item}", "getFeature", {GEOJSON: "LinkedFeature"}, "form")
    async def item(self, request: web.Request, collection: str, item: tuple[str, str], form: str) -> web.Response:
        """One hexagon of one window."""
        feed, kind = self._known(collection)
        start, cell = item
        window = next((window for window in self._windows(feed, kind) if window.start == start), None)
        if window is None or cell not in window.cells:
            remedy = f"see {ROOT}/collections/{collection}/items for those that are here"
            raise Problem(404, f"collection {collection} has no feature {item_id(start, cell)}", remedy)
        place = next(place for place in places_of(cells_of(window.in_order())) if place.cell == cell)
        here = base_of(request)
        path = f"{here}{ROOT}/collections/{collection}/items/{item_id(start, cell)}"
        links = [_link(path, "self", GEOJSON, "This"), _collection_link(here, collection)]
        body = msgspec.json.encode(_features([(window, place)])[0] | {"links": links})
        return await self._answers.ready(request, body, GEOJSON)

    def _continued(self, feed: str, collection: str, start: str) -> list[WindowView]:
        """The window in which a page of the newest window's features goes on, though a newer one may have come."""
        window = self._view.find(start, feed)
        if window is None or not window.complete:
            remedy = f"begin again with {ROOT}/collections/{collection}/items"
            raise Problem(404, f"the window of {start} is not kept any more", remedy)
        return [window]

    def _known(self, collection: str) -> tuple[str, str]:
        """Feed and kind of a collection; 404 if there is none of that name."""
        feed, _, kind = collection.rpartition(".")
        if kind in (NEWEST, ALL) and (feed == self._feed or self._view.completed(feed)):
            return feed, kind
        raise Problem(404, f"no collection {collection[:80]!r}", f"see {ROOT}/collections for those that are here")

    def _windows(self, feed: str, kind: str) -> list[WindowView]:
        """The complete windows of a collection, newest first."""
        if kind == NEWEST:
            newest = self._view.find(None, feed)
            return [] if newest is None else [newest]
        return [window for window in self._view.ordered(feed) if window.complete]

    async def _listed(self, here: str, feed: str, kind: str) -> Body:
        """A collection with its extent."""
        windows = self._windows(feed, kind)
        async with self._bounding:
            await asyncio.to_thread(_bound, [window for window in windows if window.bounds is None])
        domain = self._domain if feed == self._feed else None
        return _described(here, feed, kind, windows, extent_of((window.bounds for window in windows), domain))

    async def _told(self, request: web.Request, body: Body) -> web.Response:
        return await self._answers.ready(request, msgspec.json.encode(body), JSON)


def _chosen(
    windows: Sequence[WindowView], bounds: Bounds | None, after: tuple[str, str] | None, limit: int
) -> tuple[list[tuple[WindowView, Place]], str | None]:
    """At most ``limit`` cells of windows after ``after``; and after which the next page begins, None after the last."""
    chosen: list[tuple[WindowView, Place]] = []
    last: str | None = None
    for scanned, (window, place) in enumerate(_from(windows, after)):
        if len(chosen) == limit or scanned == MOST_SCANNED:
            return chosen, last
        if bounds is None or any(meets(ring_of(part), bounds) for part in parts_of(place)):
            chosen.append((window, place))
        last = item_id(window.start, place.cell)
    return chosen, None


def _from(windows: Sequence[WindowView], after: tuple[str, str] | None) -> Iterator[tuple[WindowView, Place]]:
    """Every cell of every window, newest window first, behind ``after``, whether or not that one is still here."""
    for window in windows:
        if after is not None and window.start > after[0]:
            continue
        for place in places_of(cells_of(window.in_order())):
            if after is None or window.start != after[0] or place.cell > after[1]:
                yield window, place


def _features(chosen: Sequence[tuple[WindowView, Place]]) -> list[Body]:
    """The features with flat rows, all with the same columns."""
    rows = rows_of([window.cells[place.cell] for window, place in chosen])
    made = zip(chosen, rows, strict=True)
    return [feature(place, row) | {"id": item_id(window.start, place.cell)} for (window, place), row in made]


def _bound(windows: Sequence[WindowView]) -> None:
    """Store the box of each window. For all windows of a full store this takes a second or more."""
    for window in windows:
        window.bounds = bounds_of(part for place in places_of(cells_of(window.in_order())) for part in parts_of(place))


def _described(here: str, feed: str, kind: str, windows: Sequence[WindowView], extent: Bounds) -> Body:
    """A collection, with its extent in space and time."""
    name = f"{feed}.{kind}"
    path = f"{here}{ROOT}/collections/{name}"
    which = "the newest complete window" if kind == NEWEST else "all complete windows that are kept, newest first"
    marker = marker_of(windows[0]) if windows else None
    value = "speed" if marker is None else f"{marker.value} ({marker.clipping.unit})"
    span: list[str | None] = [windows[-1].start, windows[0].end] if windows else [None, None]
    return {
        "id": name,
        "title": f"{feed}: {'newest window' if kind == NEWEST else 'all windows'}",
        "description": f"Statistics of {value} in H3 hexagons with their 95 % intervals, as released: {which}.",
        "itemType": "feature",
        "crs": [_CRS],
        "extent": {"spatial": {"bbox": [extent], "crs": _CRS}, "temporal": {"interval": [span]}},
        "links": [
            _link(path, "self", JSON, "This collection"),
            _link(f"{path}/items", "items", GEOJSON, "Its features"),
        ],
    }


def _link(href: str, rel: str, kind: str, title: str) -> Link:
    return {"href": href, "rel": rel, "type": kind, "title": title}


def _collection_link(here: str, collection: str) -> Link:
    return _link(f"{here}{ROOT}/collections/{collection}", "collection", JSON, "The collection")
