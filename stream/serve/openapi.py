"""The OpenAPI 3.1 document, generated from the operations that are served and from the schemas of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.messages.tables import FIRST
from stream.serve import schema_parts as s
from stream.serve.alerts.watching import MOST_TOLD
from stream.serve.city.schemas import schemas_of_city, schemas_of_means, schemas_of_schedule, schemas_of_series
from stream.serve.hexagons import REASONS
from stream.serve.ogc.schemas import schemas_of_features
from stream.serve.operations import BASE, Operation
from stream.serve.parameters import Parameter
from stream.serve.responses import PROBLEM

PATH = f"{BASE}/openapi.json"
PAGE_PATH = f"{BASE}/openapi.html"
DESCRIBED = {"service-desc": PATH, "service-doc": PAGE_PATH}
"""Where the API is described, by the relation of a link to it."""

VERSION = "1.4.0"
"""Version of the API. The second number counts additions; a change that breaks clients gets a new path, ``v2``."""

_TAGS = {
    "Feeds": "Whose releases are here.",
    "Windows": "Timeslots and whether they are complete.",
    "Hexagons": "Speed statistics of cells, as they were released.",
    "Series": "Leading means as series, for Prometheus and tables.",
    "Histograms": "Spatial histograms and range queries over them.",
    "Alerts": "Cells whose released means support a rule of the operator, with a bound on false alarms.",
    "Stream": "News of finished windows and of alerts.",
    "Places": "Names of cells, routes and stops from the operator's timetable. Public facts, not released numbers.",
    "Areas": "Named and drawn areas with the released statistics of their cells together.",
    "Features": "The same releases by OGC API - Features, for geographic information systems.",
    "Downloads": "Complete windows as files, one by one or those of a range together.",
}
_ERRORS = {
    400: "A parameter is wrong: title says value and bound, detail the remedy.",
    404: "There is no such window, histogram, mechanism, collection or feature.",
    409: "The window is not complete yet.",
    413: "The range holds more than one answer may: ask for a shorter one.",
    501: "This service cannot write Parquet.",
    503: "Too much is asked at once; Retry-After says when to try again.",
}
_NO_OTHER = (
    "Why there is none. same: the day is that of the window; gone: it was here, but is no longer kept; withheld: "
    "nothing was published about it, which follows from public counts; incomplete: its messages have not all arrived, "
    "or the close marker of the window itself has not; later: it lies after the newest window; settings: it has "
    "another length, another relation or other bounds of clipping; clocks: no window begins and ends at the same local "
    "times, and the clocks changed on one of the two days; none: no such window is here."
)
_ABOVE_0 = s.NUMBER | {"exclusiveMinimum": 0}
_MESSAGES = {"HexagonSpeed": HEXAGON_SPEED, "SpatialHistogram": SPATIAL_HISTOGRAM, "CloseMarker": WINDOW}


def document(operations: Sequence[Operation]) -> s.Schema:
    """The document as data that JSON can hold."""
    paths: s.Schema = {}
    for operation in operations:
        paths[operation.path] = {"get": _operation(operation)}
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Hexveil",
            "version": VERSION,
            "summary": "Differentially private traffic statistics, read only.",
            "description": (
                "Everything here was released under differential privacy before it came here; no request costs "
                "anybody's privacy. Intervals hold the noise of privacy with 95 % confidence."
            ),
        },
        "servers": [{"url": "/", "description": "The service that told this document."}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _operation(operation: Operation) -> s.Schema:
    media = {
        kind: {"schema": _bytes(kind) if name is None else s.ref(name)} for kind, name in operation.content.items()
    }
    answer: s.Schema = {"description": operation.summary + ".", "content": media}
    responses: s.Schema = {"200": answer}
    if operation.conditional:
        answer["headers"] = {
            "ETag": {"description": "Send it back as If-None-Match.", "schema": s.TEXT},
            "Cache-Control": {
                "description": "no-cache: ask again with the ETag.",
                "schema": s.TEXT,
            },
        }
        responses["304"] = {"description": "Nothing changed since the ETag that If-None-Match names."}
    for status in sorted({400, 503, *operation.errors}):
        responses[str(status)] = {
            "description": _ERRORS[status],
            "content": {PROBLEM: {"schema": s.ref("Problem")}},
        }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": responses,
    }


def _parameter(parameter: Parameter) -> s.Schema:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": dict(parameter.schema),
        "example": parameter.example,
    }


def _schemas() -> s.Schema:
    """Every named component: values of the topics unchanged, then the objects that the API builds from them."""
    messages = {name: _message(topic) for name, topic in _MESSAGES.items()}
    return (
        messages
        | _hexagon_schemas(messages["HexagonSpeed"])
        | {
            "Bounds": s.members({"start": s.TIME, "end": s.TIME}),
            "ReleasedNumber": _released(),
            **_feed_schemas(),
            **_window_schemas(),
            **_histogram_schemas(messages["SpatialHistogram"]["properties"]),
            **_file_schemas(),
            **_alert_schemas(),
            **schemas_of_city(_window_fields()),
            **schemas_of_means(),
            **schemas_of_series(),
            **schemas_of_schedule(_window_fields()),
            **schemas_of_features(),
            "EventStream": s.TEXT
            | s.said(
                "Events named window: id is the place of the close marker, data is a Window as JSON. Events named "
                "alert, without id: data is an AlertNews as JSON."
            ),
            "Problem": s.members(
                {
                    "type": s.TEXT,
                    "title": s.TEXT | s.said("What is wrong, with value and bound."),
                    "status": {"type": "integer"},
                    "detail": s.TEXT | s.said("The remedy."),
                }
            ),
        }
    )


_MAP: s.Schema = {
    "enum": ["live", "typical", None],
    "description": "typical: not live. Read estimate.typical, what earlier windows lead to expect at this hour; one "
    "window alone hardly says more. live: read estimate.mean. Null for another feed than the configured one.",
}


def _feed_schemas() -> s.Schema:
    """Components for the feeds."""
    derived = (
        "Which speeds the configuration says are derived from two positions of a vehicle: those that are missing, or "
        "all. Null where it says of none, and for another feed than the configured one."
    )
    feed = {
        "feed": s.TEXT,
        "map": _MAP,
        "derived_speeds": {"enum": ["missing", "derived", None], "description": derived},
        "note": s.or_null(s.TEXT, "What derived speeds mean for privacy under the configured relation."),
    }
    return {
        "Feed": s.members(feed),
        "FeedList": s.members(
            {"feeds": s.array(s.ref("Feed"), "The configured one and all that have windows, by name.")}
        ),
    }


def _window_schemas() -> s.Schema:
    """Components for windows and their cells."""
    window = _window_fields()
    return {
        "Window": s.members(window),
        "OtherDay": s.members(
            {name: window[name] for name in ("feed", "window")}
            | {
                "timezone": s.TEXT | s.said("Zone of the feed, on whose clocks day and time are."),
                "day": {"type": "string", "format": "date", "description": "Local date that was chosen."},
                "other": s.or_null(s.ref("Window"), "Complete; begins and ends on that day at the same local times."),
                "reason": s.or_null({"type": "string", "enum": list(REASONS)}, _NO_OTHER),
                "oldest": s.or_null(s.TIME, "Start of the oldest complete window that is kept."),
                "newest": s.or_null(s.TIME, "Start of the newest complete window."),
            }
        ),
        "WindowList": s.members({"windows": s.array(s.ref("Window"), "Newest first.")}),
        "HexagonList": s.members(window | {"map": _MAP, "hexagons": s.array(s.ref("Hexagon"), "In ascending order.")}),
        "HexagonFeatures": s.features(s.ref("Hexagon"), map=_MAP),
        "CellHistory": s.members({"cell": s.TEXT, "releases": s.array(s.ref("Hexagon"), "Oldest first.")}),
    }


def _hexagon_schemas(message: s.Schema) -> s.Schema:
    """Components for a cell's ``message`` with what the API adds to it."""
    interval = s.numbers(
        2, "Holds the exact number with 95 %, by the model or the noise; absent where a model gives none."
    )
    method = "released: the value as released. Else the model that made it of released values."
    estimate: s.Schema = {
        "type": "object",
        "properties": {
            "value": s.NUMBER,
            "interval": interval,
            "unit": s.TEXT,
            "method": {"type": "string", "description": method},
        },
        "required": ["value", "unit", "method"],
    }
    leading = s.or_null(
        {"type": "object", "additionalProperties": s.ref("Estimate")},
        "By statistic the most accurate number: smoothed, else modelled within the window, else as released. Null "
        "where the "
        "cell was not published, and where nobody is estimated: the released number of users is within its noise.",
    )
    hexagon = message | {
        "properties": message["properties"] | {"estimate": leading},
        "required": [*message["required"], "estimate"],
    }
    return {
        "Estimate": s.with_mark(estimate, "Released values crowd the bound of speeds: read it as 'or more'."),
        "Hexagon": hexagon,
    }


def _window_fields() -> s.Schema:
    return {
        "feed": s.TEXT,
        "window": s.ref("Bounds"),
        "complete": s.BOOLEAN | s.said("Marker, number of messages and digest agree."),
        "event_id": {
            "anyOf": [s.POSITIVE, {"type": "null"}],
            "description": "Id of its server-sent event; null before its marker came.",
        },
        "cells": s.COUNT,
        "histograms": s.array(s.TEXT, "Mechanisms of its spatial histograms."),
        "marker": {"anyOf": [s.ref("CloseMarker"), {"type": "null"}]},
    }


def _histogram_schemas(released: s.Schema) -> s.Schema:
    """Components for spatial histograms, whose messages have the properties ``released``, and answers to ranges."""
    window = _window_fields()
    return {
        "HistogramSummary": {
            "type": "object",
            "description": "A spatial histogram without its structure.",
            "properties": {name: released[name] for name in released if name not in ("feed", "window", "structure")},
            "required": ["mechanism", "relation", "epsilon", "domain"],
        },
        "WindowHistograms": s.members(
            {name: window[name] for name in ("feed", "window", "complete")}
            | {"histograms": s.array(s.ref("HistogramSummary"), "In order of mechanism.")}
        ),
        "HistogramList": s.members({"windows": s.array(s.ref("WindowHistograms"), "Newest first.")}),
        "HeatFeatures": _heat(),
        "RangeCount": s.members(
            {
                "value": s.NUMBER | s.said("Estimate: raw, moved into the interval."),
                "raw": s.NUMBER | s.said("As if points lay evenly inside blocks; may be negative."),
                "interval": {
                    "oneOf": [
                        s.numbers(2, "Holds the exact number in 95 % of releases, wherever points lie inside blocks."),
                        {"type": "null", "description": "The release does not say how its noise is distributed."},
                    ]
                },
                "unit": s.const("1"),
                "mechanism": s.TEXT,
                "epsilon": _ABOVE_0,
                "relation": s.TEXT,
                "window": s.ref("Bounds"),
                "fixes_per_user": s.POSITIVE | s.said("Users count with at most so many."),
                "bbox": s.numbers(
                    4, "The range that is answered, west, south, east, north; euler's is of whole cells."
                ),
            }
        ),
    }


def _heat() -> s.Schema:
    """A GeoJSON FeatureCollection of boxes."""
    ring = s.array(s.numbers(2, "Longitude and latitude in degrees."), "A closed ring.")
    end = {"anyOf": [{"type": "integer"}, {"type": "null"}]} | s.said("Of the 95 % interval; null where unknown.")
    number = s.NUMBER | {"minimum": 0}
    properties = {
        "value": number | s.said("Users, or regions of users; at least 0 and within the interval."),
        "low": end,
        "high": end,
        "density": number | s.said("Per square kilometre."),
    }
    box = s.feature(s.shape("Polygon", s.array(ring, "One ring.")), s.members(properties))
    about = {"feed": s.TEXT, "window": s.ref("Bounds"), "mechanism": s.TEXT, "epsilon": _ABOVE_0, "relation": s.TEXT}
    return s.collection(box, "From south to north.", about=s.members(about))


def _file_schemas() -> s.Schema:
    """Components for complete windows as files."""
    return {
        "DownloadFeatures": s.features(s.ref("Row")),
        "Row": {
            "type": "object",
            "description": "A flat row as in the CSV file; a column per number that any cell of the window has.",
            "properties": {
                name: {"type": ["number"] if name in _NUMBERS else ["string"]} for name in (*FIRST, "status")
            },
            "required": [*FIRST, "status"],
            "additionalProperties": True,
        },
    }


def _alert_schemas() -> s.Schema:
    """Components for rules and alerts."""
    speed = {"anyOf": [s.NUMBER, {"type": "null"}]}
    rule = {
        "name": s.TEXT,
        "below": speed | s.said("The exact mean is below this; or null."),
        "above": speed | s.said("The exact mean is above this; or null."),
        "slower_km_h": speed | s.said("The exact mean is below usual by more than this, in km/h; or null."),
        "slower_percent": speed | s.said("The same as a share of usual; or null."),
        "windows": s.POSITIVE | s.said("In so many consecutive windows."),
        "false_alarms_per_day": s.NUMBER | s.said("Bound on the expected number, of all cells together."),
        "unit": s.TEXT | s.said("Unit of the rule's limit and of its alerts: km/h of speeds."),
        "cells": s.COUNT | s.said("Cells of the window that the rule covers."),
    }
    alert = {
        "id": s.TEXT | s.said("Depends on feed, rule, window and cell only."),
        "rule": s.TEXT,
        "feed": s.TEXT,
        "cell": s.TEXT,
        "window": s.ref("Bounds"),
        "first_window": s.TIME | s.said("Start of the first of the rule's windows."),
        "new": s.BOOLEAN | s.said("Not so one window earlier."),
        "statistic": s.TEXT,
        "value": s.NUMBER | s.said("Released mean."),
        "limit": s.NUMBER | s.said("The exact mean is below this, or above it."),
        "usual": speed,
        "unit": s.TEXT,
    }
    news = {
        "id": s.TEXT | s.said("Depends on feed, rule and window only."),
        "rule": s.TEXT,
        "feed": s.TEXT,
        "window": s.ref("Bounds"),
        "count": s.POSITIVE | s.said(f"Alerts that are told; at most {MOST_TOLD} are listed."),
        "alerts": s.array(s.ref("Alert"), "In order of cell."),
    }
    listed = {
        "feed": s.TEXT,
        "window": s.ref("Bounds"),
        "rules": s.array(
            s.ref("AlertRule"), "As configured; empty if the window is not complete or of a feed without rules."
        ),
        "alerts": s.array(s.ref("Alert"), "By rule, in order of cell."),
    }
    return {
        "AlertRule": s.members(rule),
        "Alert": s.members(alert),
        "AlertNews": s.members(news),
        "AlertList": s.members(listed),
    }


_NUMBERS = {"latitude", "longitude", "resolution", "epsilon", "delta"}


def _message(topic: str) -> s.Schema:
    """The schema of a topic's values as a component. Repeated parts get names, and additional fields are allowed.

    Rules on which fields require or exclude each other are only in the topic's own schema, because generators of
    clients do not support them.
    """
    value = schema(topic)
    named = {name: value[name] for name in ("type", "properties", "required")}
    eased: s.Schema = _eased(named, value["properties"].get("mean"))
    return {"description": value["title"]} | eased


def _eased(node: Any, released: Any) -> Any:
    """``node`` with references to repeated parts, and without the rule that forbids additional fields."""
    if isinstance(node, list):
        return [_eased(part, released) for part in node]
    if not isinstance(node, dict):
        return node
    properties = node.get("properties", {})
    if properties.keys() == {"start", "end"}:
        return s.ref("Bounds")
    if released is not None and properties.keys() == released["properties"].keys():
        return s.ref("ReleasedNumber")
    return {
        name: _eased(part, released) for name, part in node.items() if (name, part) != ("additionalProperties", False)
    }


def _released() -> s.Schema:
    """A number with its noise, in any unit."""
    mean = schema(HEXAGON_SPEED)["properties"]["mean"]
    properties = mean["properties"] | {
        "unit": s.TEXT | s.said("That of the value (km/h of speeds), its square, or 1 (a count).")
    }
    return {"type": "object", "properties": properties, "required": mean["required"]}


def _bytes(kind: str) -> s.Schema:
    """A file. Client generators recognise binary content by a format that OpenAPI no longer defines since 3.1."""
    return s.TEXT if kind.startswith("text/") else {"type": "string", "format": "binary"}
