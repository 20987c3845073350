"""The OpenAPI 3.1 document, generated from the operations that are served and from the schemas of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.messages.tables import FIRST
from stream.serve.alerts.watching import MOST_TOLD
from stream.serve.city.schemas import schemas_of_city, schemas_of_means, schemas_of_schedule, schemas_of_series
from stream.serve.ogc.schemas import schemas_of_features
from stream.serve.operations import BASE, Operation
from stream.serve.other_day import REASONS
from stream.serve.parameters import Parameter
from stream.serve.responses import PROBLEM
from stream.serve.schema_parts import Schema, array, features, members, numbers, or_null, ref, with_mark

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
    "nothing "
    "was published about it, which follows from public counts; incomplete: its messages have not all arrived, or the "
    "close marker of the window itself has not; later: it lies after the newest window; settings: it has another "
    "length, "
    "another relation or other bounds of clipping; clocks: no window begins and ends at the same local times, and the "
    "clocks changed on one of the two days; none: no such window is here."
)
_TIME = {"type": "string", "format": "date-time"}
_MESSAGES = {"HexagonSpeed": HEXAGON_SPEED, "SpatialHistogram": SPATIAL_HISTOGRAM, "CloseMarker": WINDOW}


def document(operations: Sequence[Operation]) -> Schema:
    """The document as data that JSON can hold."""
    paths: Schema = {}
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


def _operation(operation: Operation) -> Schema:
    media = {kind: {"schema": _bytes(kind) if name is None else ref(name)} for kind, name in operation.content.items()}
    answer: Schema = {"description": operation.summary + ".", "content": media}
    responses: Schema = {"200": answer}
    if operation.conditional:
        answer["headers"] = {
            "ETag": {"description": "Send it back as If-None-Match.", "schema": {"type": "string"}},
            "Cache-Control": {
                "description": "no-cache: ask again with the ETag.",
                "schema": {"type": "string"},
            },
        }
        responses["304"] = {"description": "Nothing changed since the ETag that If-None-Match names."}
    for status in sorted({400, 503, *operation.errors}):
        responses[str(status)] = {
            "description": _ERRORS[status],
            "content": {PROBLEM: {"schema": ref("Problem")}},
        }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": responses,
    }


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": dict(parameter.schema),
        "example": parameter.example,
    }


def _schemas() -> Schema:
    """Every named component: values of the topics unchanged, then the objects that the API builds from them."""
    messages = {name: _message(topic) for name, topic in _MESSAGES.items()}
    return (
        messages
        | _hexagon_schemas(messages["HexagonSpeed"])
        | {
            "Bounds": members(
                {
                    "start": {"type": "string", "format": "date-time"},
                    "end": {"type": "string", "format": "date-time"},
                }
            ),
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
            "EventStream": {
                "type": "string",
                "description": "Events named window: id is the place of the close marker, data is a Window as JSON. "
                "Events named "
                "alert, without id: data is an AlertNews as JSON.",
            },
            "Problem": members(
                {
                    "type": {"type": "string"},
                    "title": {"type": "string", "description": "What is wrong, with value and bound."},
                    "status": {"type": "integer"},
                    "detail": {"type": "string", "description": "The remedy."},
                }
            ),
        }
    )


def _feed_schemas() -> Schema:
    """Components for the feeds."""
    derived = (
        "Which speeds the configuration says are derived from two positions of a vehicle: those that are missing, or "
        "all. Null "
        "where it says of none, and for another feed than the configured one."
    )
    feed = {
        "feed": {"type": "string"},
        "derived_speeds": {"enum": ["missing", "derived", None], "description": derived},
        "note": or_null({"type": "string"}, "What derived speeds mean for privacy under the configured relation."),
    }
    return {
        "Feed": members(feed),
        "FeedList": members({"feeds": array(ref("Feed"), "The configured one and all that have windows, by name.")}),
    }


def _window_schemas() -> Schema:
    """Components for windows and their cells."""
    window = _window_fields()
    return {
        "Window": members(window),
        "OtherDay": members(
            {name: window[name] for name in ("feed", "window")}
            | {
                "timezone": {"type": "string", "description": "Zone of the feed, on whose clocks day and time are."},
                "day": {"type": "string", "format": "date", "description": "Local date that was chosen."},
                "other": or_null(ref("Window"), "Complete; begins and ends on that day at the same local times."),
                "reason": or_null({"type": "string", "enum": list(REASONS)}, _NO_OTHER),
                "oldest": or_null(_TIME, "Start of the oldest complete window that is kept."),
                "newest": or_null(_TIME, "Start of the newest complete window."),
            }
        ),
        "WindowList": members({"windows": array(ref("Window"), "Newest first.")}),
        "HexagonList": members(window | {"hexagons": array(ref("Hexagon"), "In ascending order.")}),
        "HexagonFeatures": features(ref("Hexagon")),
        "CellHistory": members({"cell": {"type": "string"}, "releases": array(ref("Hexagon"), "Oldest first.")}),
    }


def _hexagon_schemas(message: Schema) -> Schema:
    """Components for a cell's ``message`` with what the API adds to it."""
    interval = numbers(
        2, "Holds the exact number with 95 %, by the model or the noise; absent where a model gives none."
    )
    method = "released: the value as released. Else the model that made it of released values."
    estimate: Schema = {
        "type": "object",
        "properties": {
            "value": {"type": "number"},
            "interval": interval,
            "unit": {"type": "string"},
            "method": {"type": "string", "description": method},
        },
        "required": ["value", "unit", "method"],
    }
    leading = or_null(
        {"type": "object", "additionalProperties": ref("Estimate")},
        "By statistic the most accurate number: smoothed, else modelled within the window, else as released. Null "
        "where the "
        "cell was not published, and where nobody is estimated: the released number of users is within its noise.",
    )
    hexagon = message | {
        "properties": message["properties"] | {"estimate": leading},
        "required": [*message["required"], "estimate"],
    }
    return {
        "Estimate": with_mark(estimate, "Released values crowd the bound of speeds: read it as 'or more'."),
        "Hexagon": hexagon,
    }


def _window_fields() -> Schema:
    return {
        "feed": {"type": "string"},
        "window": ref("Bounds"),
        "complete": {"type": "boolean", "description": "Marker, number of messages and digest agree."},
        "event_id": {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
            "description": "Id of its server-sent event; null before its marker came.",
        },
        "cells": {"type": "integer", "minimum": 0},
        "histograms": array({"type": "string"}, "Mechanisms of its spatial histograms."),
        "marker": {"anyOf": [ref("CloseMarker"), {"type": "null"}]},
    }


def _histogram_schemas(released: Schema) -> Schema:
    """Components for spatial histograms, whose messages have the properties ``released``, and for answers to range
    queries."""
    window = _window_fields()
    return {
        "HistogramSummary": {
            "type": "object",
            "description": "A spatial histogram without its structure.",
            "properties": {name: released[name] for name in released if name not in ("feed", "window", "structure")},
            "required": ["mechanism", "relation", "epsilon", "domain"],
        },
        "WindowHistograms": members(
            {name: window[name] for name in ("feed", "window", "complete")}
            | {"histograms": array(ref("HistogramSummary"), "In order of mechanism.")}
        ),
        "HistogramList": members({"windows": array(ref("WindowHistograms"), "Newest first.")}),
        "HeatFeatures": _heat(),
        "RangeCount": members(
            {
                "value": {"type": "number", "description": "Estimate: raw, moved into the interval."},
                "raw": {"type": "number", "description": "As if points lay evenly inside blocks; may be negative."},
                "interval": {
                    "oneOf": [
                        numbers(2, "Holds the exact number in 95 % of releases, wherever points lie inside blocks."),
                        {"type": "null", "description": "The release does not say how its noise is distributed."},
                    ]
                },
                "unit": {"type": "string", "const": "1"},
                "mechanism": {"type": "string"},
                "epsilon": {"type": "number", "exclusiveMinimum": 0},
                "relation": {"type": "string"},
                "window": ref("Bounds"),
                "fixes_per_user": {"type": "integer", "minimum": 1, "description": "Users count with at most so many."},
                "bbox": numbers(4, "The range that is answered, west, south, east, north; euler's is of whole cells."),
            }
        ),
    }


def _heat() -> Schema:
    """A GeoJSON FeatureCollection of boxes."""
    ring = array(numbers(2, "Longitude and latitude in degrees."), "A closed ring.")
    end = {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Of the 95 % interval; null where unknown."}
    number = {"type": "number", "minimum": 0}
    properties = {
        "value": number | {"description": "Users, or regions of users; at least 0 and within the interval."},
        "low": end,
        "high": end,
        "density": number | {"description": "Per square kilometre."},
    }
    polygon = {"type": {"type": "string", "const": "Polygon"}, "coordinates": array(ring, "One ring.")}
    box = {"type": {"type": "string", "const": "Feature"}} | {
        "geometry": members(polygon),
        "properties": members(properties),
    }
    about = {"feed": {"type": "string"}, "window": ref("Bounds"), "mechanism": {"type": "string"}}
    about |= {"epsilon": {"type": "number", "exclusiveMinimum": 0}, "relation": {"type": "string"}}
    listed = array(members(box), "From south to north.")
    kind = {"type": "string", "const": "FeatureCollection"}
    return members({"type": kind, "about": members(about), "features": listed})


def _file_schemas() -> Schema:
    """Components for complete windows as files."""
    return {
        "DownloadFeatures": features(ref("Row")),
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


def _alert_schemas() -> Schema:
    """Components for rules and alerts."""
    number = {"type": "number"}
    speed = {"anyOf": [number, {"type": "null"}]}
    rule = {
        "name": {"type": "string"},
        "below": speed | {"description": "The exact mean is below this; or null."},
        "above": speed | {"description": "The exact mean is above this; or null."},
        "slower_km_h": speed | {"description": "The exact mean is below usual by more than this, in km/h; or null."},
        "slower_percent": speed | {"description": "The same as a share of usual; or null."},
        "windows": {"type": "integer", "minimum": 1, "description": "In so many consecutive windows."},
        "false_alarms_per_day": number | {"description": "Bound on the expected number, of all cells together."},
        "unit": {"type": "string", "description": "Unit of the rule's limit and of its alerts: km/h of speeds."},
        "cells": {"type": "integer", "minimum": 0, "description": "Cells of the window that the rule covers."},
    }
    alert = {
        "id": {"type": "string", "description": "Depends on feed, rule, window and cell only."},
        "rule": {"type": "string"},
        "feed": {"type": "string"},
        "cell": {"type": "string"},
        "window": ref("Bounds"),
        "first_window": {
            "type": "string",
            "format": "date-time",
            "description": "Start of the first of the rule's windows.",
        },
        "new": {"type": "boolean", "description": "Not so one window earlier."},
        "statistic": {"type": "string"},
        "value": {"type": "number", "description": "Released mean."},
        "limit": {"type": "number", "description": "The exact mean is below this, or above it."},
        "usual": speed,
        "unit": {"type": "string"},
    }
    news = {
        "id": {"type": "string", "description": "Depends on feed, rule and window only."},
        "rule": {"type": "string"},
        "feed": {"type": "string"},
        "window": ref("Bounds"),
        "count": {
            "type": "integer",
            "minimum": 1,
            "description": f"Alerts that are told; at most {MOST_TOLD} are listed.",
        },
        "alerts": array(ref("Alert"), "In order of cell."),
    }
    listed = {
        "feed": {"type": "string"},
        "window": ref("Bounds"),
        "rules": array(
            ref("AlertRule"), "As configured; empty if the window is not complete or of a feed without rules."
        ),
        "alerts": array(ref("Alert"), "By rule, in order of cell."),
    }
    return {
        "AlertRule": members(rule),
        "Alert": members(alert),
        "AlertNews": members(news),
        "AlertList": members(listed),
    }


_NUMBERS = {"latitude", "longitude", "resolution", "epsilon", "delta"}


def _message(topic: str) -> Schema:
    """The schema of a topic's values as a component. Repeated parts get names, and additional fields are allowed.

    Rules on which fields require or exclude each other are only in the topic's own schema, because generators of
    clients do not support them.
    """
    value = schema(topic)
    named = {name: value[name] for name in ("type", "properties", "required")}
    eased: Schema = _eased(named, value["properties"].get("mean"))
    return {"description": value["title"]} | eased


def _eased(node: Any, released: Any) -> Any:
    """``node`` with references to repeated parts, and without the rule that forbids additional fields."""
    if isinstance(node, list):
        return [_eased(part, released) for part in node]
    if not isinstance(node, dict):
        return node
    properties = node.get("properties", {})
    if properties.keys() == {"start", "end"}:
        return ref("Bounds")
    if released is not None and properties.keys() == released["properties"].keys():
        return ref("ReleasedNumber")
    return {
        name: _eased(part, released) for name, part in node.items() if (name, part) != ("additionalProperties", False)
    }


def _released() -> Schema:
    """A number with its noise, in any unit."""
    mean = schema(HEXAGON_SPEED)["properties"]["mean"]
    properties = mean["properties"] | {
        "unit": {"type": "string", "description": "That of the value (km/h of speeds), its square, or 1 (a count)."}
    }
    return {"type": "object", "properties": properties, "required": mean["required"]}


def _bytes(kind: str) -> Schema:
    """A file. Client generators recognise binary content by a format that OpenAPI no longer defines since 3.1."""
    return {"type": "string"} if kind.startswith("text/") else {"type": "string", "format": "binary"}
