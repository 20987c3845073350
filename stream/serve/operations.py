"""The paths of the API: for each its description, parameters, answers and handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from stream.serve import parameters as p
from stream.serve.alerts.watching import Alerts
from stream.serve.broadcast import Broadcast
from stream.serve.city.city import City
from stream.serve.feeds import Feeds
from stream.serve.hexagons import FILES, Hexagons
from stream.serve.histograms import Histograms
from stream.serve.means import Means
from stream.serve.ogc.features import MOST_FEATURES, ROOT, Features
from stream.serve.ranges import Ranges
from stream.serve.responses import CSV, GEOJSON, JSON
from stream.serve.series import TEXT, Series

Handler = Callable[..., Awaitable[web.StreamResponse]]

BASE = "/api/v1"


@dataclass(frozen=True)
class Operation:
    """GET (and HEAD) of one path. ``content``: media type -> name of a schema of the document, None for bytes.

    ``errors``: besides 400 and 503, which every path may answer.
    """

    path: str
    name: str
    summary: str
    handler: Handler
    parameters: tuple[p.Parameter, ...]
    content: Mapping[str, str | None]
    errors: tuple[int, ...] = ()
    conditional: bool = True
    tag: str = "Windows"


def operations(
    feed: str,
    feeds: Feeds,
    hexagons: Hexagons,
    ranges: Ranges,
    means: Means,
    series: Series,
    histograms: Histograms,
    broadcast: Broadcast,
    alerts: Alerts,
    city: City,
    features: Features,
) -> list[Operation]:
    """Every path under :data:`BASE` but the document itself, and those of OGC API - Features."""
    named = p.feed(feed)
    return [
        Operation(
            f"{BASE}/feeds",
            "listFeeds",
            "Feeds, and which of their speeds are derived from positions",
            feeds.listed,
            (),
            {JSON: "FeedList"},
            tag="Feeds",
        ),
        *_of_windows(hexagons, named),
        *_of_cells(hexagons, means, named),
        *_of_series(series, named),
        *_of_histograms(histograms, named),
        Operation(
            f"{BASE}/alerts",
            "listAlerts",
            "The operator's rules, and the cells that they name in one window",
            alerts.answer,
            (named, p.WINDOW_QUERY),
            {JSON: "AlertList"},
            (404,),
            tag="Alerts",
        ),
        Operation(
            f"{BASE}/stream",
            "streamWindows",
            "Server-sent events: one per finished window, and one per rule and window with alerts to tell",
            broadcast.stream,
            (named, p.AFTER, p.LAST_EVENT_ID),
            {"text/event-stream": "EventStream"},
            conditional=False,
            tag="Stream",
        ),
        *_of_downloads(hexagons, ranges, city, named),
        *_of_places(city, named),
        *_of_routes(city, named),
        *_of_areas(city, named),
        *_of_features(features),
    ]


def _of_windows(hexagons: Hexagons, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/windows",
            "listWindows",
            "Windows, newest first",
            hexagons.windows,
            (feed, p.limit(100, 1000)),
            {JSON: "WindowList"},
        ),
        Operation(
            f"{BASE}/windows/{{window}}",
            "getWindow",
            "One window and its close marker",
            hexagons.window,
            (p.WINDOW_PATH, feed),
            {JSON: "Window"},
            (404,),
        ),
        Operation(
            f"{BASE}/windows/{{window}}/other-day",
            "findOtherDay",
            "The window of another day at the same local time, or the reason why there is none",
            hexagons.other_day,
            (p.WINDOW_PATH, feed, p.DAY),
            {JSON: "OtherDay"},
            (404,),
        ),
    ]


def _of_cells(hexagons: Hexagons, means: Means, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/hexagons",
            "listHexagons",
            "Releases of the cells of one window",
            hexagons.hexagons,
            (feed, p.WINDOW_QUERY, p.BBOX, p.RESOLUTION, p.FORMAT),
            {JSON: "HexagonList", GEOJSON: "HexagonFeatures"},
            (404,),
            tag="Hexagons",
        ),
        Operation(
            f"{BASE}/cells/{{cell}}",
            "getCell",
            "Past releases of one cell, oldest first",
            hexagons.cell,
            (p.CELL_PATH, feed, p.limit(1000, 10_000)),
            {JSON: "CellHistory"},
            tag="Hexagons",
        ),
        Operation(
            f"{BASE}/means",
            "listMeans",
            "Means of the cells over the windows of a range, and of an area's cells together",
            means.answer,
            (feed, p.FROM, p.TO, p.DAYS, p.HOURS, p.AREA_QUERY, p.RING_QUERY),
            {JSON: "MeanList"},
            (404, 413),
            tag="Hexagons",
        ),
    ]


def _of_series(series: Series, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/series",
            "listSeries",
            "Leading means of areas, routes and cells in the windows of a range, a row for each",
            series.rows,
            (feed, p.FROM, p.TO, p.NAMES),
            {JSON: "SeriesList"},
            (404, 413),
            tag="Series",
        ),
        Operation(
            f"{BASE}/series/newest",
            "scrapeSeries",
            "The same of the newest complete window, in the text format of Prometheus",
            series.newest,
            (feed, p.NAMES),
            {TEXT: None},
            (404,),
            tag="Series",
        ),
    ]


def _of_histograms(histograms: Histograms, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/histograms",
            "listHistograms",
            "Windows with spatial histograms, newest first",
            histograms.listed,
            (feed, p.limit(100, 1000)),
            {JSON: "HistogramList"},
            tag="Histograms",
        ),
        Operation(
            f"{BASE}/histograms/{{window}}/count",
            "countRange",
            "Estimated number in a range, with a 95 % interval of the exact number",
            histograms.count,
            (p.WINDOW_PATH, feed, p.RANGE, p.MECHANISM_QUERY),
            {JSON: "RangeCount"},
            (404,),
            tag="Histograms",
        ),
        Operation(
            f"{BASE}/heat",
            "getHeat",
            "A spatial histogram as boxes on the map, with numbers, intervals and densities",
            histograms.heat,
            (feed, p.WINDOW_QUERY, p.MECHANISM_QUERY),
            {GEOJSON: "HeatFeatures"},
            (404,),
            tag="Histograms",
        ),
        Operation(
            f"{BASE}/histograms/{{window}}/{{mechanism}}",
            "getHistogram",
            "A spatial histogram as released",
            histograms.release,
            (p.WINDOW_PATH, p.MECHANISM_PATH, feed),
            {JSON: "SpatialHistogram"},
            (404,),
            tag="Histograms",
        ),
    ]


def _of_places(city: City, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/places",
            "listPlaces",
            "Names of cells, and the routes that cross them",
            city.places,
            (),
            {JSON: "PlaceList"},
            tag="Places",
        ),
        Operation(f"{BASE}/stops", "listStops", "Stops", city.stops, (), {GEOJSON: "StopFeatures"}, tag="Places"),
        Operation(
            f"{BASE}/scheduled",
            "listScheduledSpeeds",
            "Scheduled speeds of cells by kind of day and local hour",
            city.scheduled,
            (),
            {JSON: "ScheduledTable"},
            tag="Places",
        ),
        Operation(
            f"{BASE}/windows/{{window}}/scheduled",
            "getScheduledSpeeds",
            "Scheduled speeds of the released cells of one window, in its hours",
            city.scheduled_in,
            (p.WINDOW_PATH, feed),
            {JSON: "ScheduledSpeeds"},
            (404,),
            tag="Places",
        ),
    ]


def _of_routes(city: City, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/routes",
            "listRoutes",
            "Lines of the routes, simplified",
            city.routes,
            (),
            {GEOJSON: "RouteFeatures"},
            tag="Places",
        ),
        Operation(
            f"{BASE}/streets",
            "listStreets",
            "Lines of streets, and points of sensors, which carry the colours of the map",
            city.streets,
            (),
            {GEOJSON: "StreetFeatures"},
            tag="Places",
        ),
        Operation(
            f"{BASE}/routes/{{route}}/speed",
            "getRouteSpeed",
            "Speed and travel time along each line of a route in one window, by the estimates of the cells that it "
            "crosses",
            city.ways.speed,
            (p.ROUTE_PATH, feed, p.WINDOW_QUERY, p.FROM_STOP, p.TO_STOP, p.TABLE),
            {JSON: "RouteSpeed", CSV: None},
            (404,),
            tag="Places",
        ),
        Operation(
            f"{BASE}/routes/{{route}}/means",
            "getRouteMeans",
            "The same by the means of the cells over the windows of a range",
            city.ways.means,
            (p.ROUTE_PATH, feed, p.FROM, p.TO, p.DAYS, p.HOURS, p.FROM_STOP, p.TO_STOP, p.TABLE),
            {JSON: "RouteMeans", CSV: None},
            (404, 413),
            tag="Places",
        ),
    ]


def _of_areas(city: City, feed: p.Parameter) -> list[Operation]:
    return [
        Operation(
            f"{BASE}/areas",
            "listAreas",
            "Named areas: polygons, then corridors of routes",
            city.areas,
            (),
            {JSON: "AreaList"},
            tag="Areas",
        ),
        Operation(
            f"{BASE}/areas/{{name}}",
            "getArea",
            "Released statistics of the cells of an area in one window, together",
            city.area,
            (p.AREA_PATH, feed, p.WINDOW_QUERY),
            {JSON: "AreaStatistics"},
            (404,),
            tag="Areas",
        ),
        Operation(
            f"{BASE}/area",
            "measureArea",
            "Released statistics of the cells of a drawn area in one window, together",
            city.drawn_area,
            (p.RING, feed, p.WINDOW_QUERY),
            {JSON: "DrawnAreaStatistics"},
            (404,),
            tag="Areas",
        ),
    ]


def _of_downloads(hexagons: Hexagons, ranges: Ranges, city: City, feed: p.Parameter) -> list[Operation]:
    return (
        [
            Operation(
                f"{BASE}/windows/{{window}}/download.{suffix}",
                f"download{suffix.capitalize()}",
                f"A complete window as {suffix}",
                partial(hexagons.download, suffix=suffix),
                (p.WINDOW_PATH, feed),
                {kind: "DownloadFeatures" if suffix == "geojson" else None},
                (404, 409, 501) if suffix == "parquet" else (404, 409),
                tag="Downloads",
            )
            for suffix, kind in FILES.items()
        ]
        + [
            Operation(
                f"{BASE}/windows/{{window}}/areas.csv",
                "downloadAreas",
                "Every named area in a complete window as csv: sums and means of its cells, with their errors",
                city.areas_file,
                (p.WINDOW_PATH, feed),
                {CSV: None},
                (404, 409),
                tag="Downloads",
            ),
        ]
        + [
            Operation(
                f"{BASE}/download.{suffix}",
                f"downloadRange{suffix.capitalize()}",
                f"Every complete window of a range of time as one {suffix}, oldest first",
                partial(ranges.download, suffix=suffix),
                (p.FROM, p.TO, feed),
                {kind: "DownloadFeatures" if suffix == "geojson" else None},
                (404, 413, 501) if suffix == "parquet" else (404, 413),
                tag="Downloads",
            )
            for suffix, kind in FILES.items()
        ]
    )


def _of_features(features: Features) -> list[Operation]:
    operation, collections = partial(Operation, tag="Features"), f"{ROOT}/collections"
    return [
        operation(
            ROOT,
            "getLandingPage",
            "Where everything is",
            features.landing,
            (p.FORM,),
            {JSON: "LandingPage"},
        ),
        operation(
            f"{ROOT}/conformance",
            "getConformance",
            "The classes of requirements that hold",
            features.conformance,
            (p.FORM,),
            {JSON: "Conformance"},
        ),
        operation(
            collections,
            "listCollections",
            "The newest window, and all windows, of each feed",
            features.collections,
            (p.FORM,),
            {JSON: "CollectionList"},
        ),
        operation(
            f"{collections}/{{collection}}",
            "getCollection",
            "One collection",
            features.collection,
            (p.COLLECTION_PATH, p.FORM),
            {JSON: "Collection"},
            (404,),
        ),
        operation(
            f"{collections}/{{collection}}/items",
            "listFeatures",
            "Hexagons with their statistics, page by page",
            features.items,
            (p.COLLECTION_PATH, p.page(1000, MOST_FEATURES), p.BOUNDS, p.DURING, p.AFTER_ITEM, p.FORM),
            {GEOJSON: "FeaturePage"},
            (404,),
        ),
        operation(
            f"{collections}/{{collection}}/items/{{item}}",
            "getFeature",
            "One hexagon of one window",
            features.item,
            (p.COLLECTION_PATH, p.ITEM_PATH, p.FORM),
            {GEOJSON: "LinkedFeature"},
            (404,),
        ),
    ]


def bound(operation: Operation) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler with its parameters read from the request."""

    async def handle(request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = p.read_all(request, operation.parameters)
        return await operation.handler(request, **given)

    return handle
