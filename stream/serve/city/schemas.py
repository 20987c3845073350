"""Components of the OpenAPI document for places, areas and scheduled speeds."""

from __future__ import annotations

from stream.serve.schema_parts import Schema, array, members, numbers, or_null, ref, with_mark


def schemas_of_schedule(window: Schema) -> Schema:
    """Components; ``window``: the fields of a window."""
    cell: Schema = {"type": "string", "description": "H3 index."}
    kmh: Schema = {"type": "string", "const": "km/h"}
    speed: Schema = {"type": "number", "exclusiveMinimum": 0}
    hours: Schema = {
        "type": "object",
        "patternProperties": {"^(1?[0-9]|2[0-3])$": speed},
        "additionalProperties": False,
        "description": "The speed in each local hour with service.",
    }
    of_window = {name: window[name] for name in ("feed", "window", "complete")}
    return {
        "ScheduledHours": members({"cell": cell, "workday": hours, "saturday": hours, "sunday": hours}),
        "ScheduledTable": members(
            {
                "resolution": or_null(
                    {"type": "integer", "minimum": 0}, "Of all cells; null without scheduled speeds."
                ),
                "unit": kmh,
                "cells": array(ref("ScheduledHours"), "In ascending order."),
            }
        ),
        "ScheduledSpeed": members({"cell": cell, "value": speed, "unit": kmh}),
        "ScheduledSpeeds": members(
            of_window
            | {"cells": array(ref("ScheduledSpeed"), "The released cells in which the timetable has service then.")}
        ),
    }


def schemas_of_city(window: Schema) -> Schema:
    """Components for places, routes, stops and areas. ``window``: properties of a window."""
    position = numbers(2, "Longitude and latitude in degrees.")
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    place = {
        "cell": {"type": "string", "description": "H3 index."},
        "name": or_null(text, "Most frequent name of its stops; null without stops."),
        "stops": count,
        "routes": array(text, "Routes that cross the cell."),
    }
    line = array(array(position, "A line."), "Lines.")
    ring = array(array(array(position, "A closed ring."), "The outer ring, then holes."), "Polygons.")
    area = {"name": text, "kind": {"type": "string", "enum": ["polygon", "route"]}}
    interval = numbers(2, "Holds the number without noise in at least 95 % of releases.")
    number = {"type": "number"}
    mean = {"value": number, "raw": number, "interval": interval, "unit": {"type": "string"}}
    together = {name: window[name] for name in ("feed", "window", "complete")} | {
        "cells": count | {"description": "Released cells that belong to the area."},
        "published": count | {"description": "Those of them with a mean."},
        "events": or_null(ref("AreaCount"), "Null where the feed releases no events but users only."),
        "users": or_null(ref("AreaCount"), "Sum of the cells' users where events are null, else null."),
        "mean": or_null(
            ref("AreaMean"),
            "Mean of the cells as released, weighted by events or else users. Null where no cell is published, and "
            "where so few may have been there that the noise leaves the mean open.",
        ),
        "estimate": or_null(
            ref("Estimate"),
            "The leading mean: of the cells' estimates, with the mean of their intervals, or as released where that is "
            "narrower. Null where nobody is estimated.",
        ),
        "hexagons": array(text, "H3 indexes of these cells."),
        "geometry": _shape("MultiPolygon", ring),
    }
    return schemas_of_ways(window) | {
        "Place": members(place),
        "PlaceList": members(
            {"resolution": or_null(count, "Of all cells."), "cells": array(ref("Place"), "In order of the file.")}
        ),
        "RouteFeatures": _shapes("MultiLineString", line, {"route": text}),
        "StreetFeatures": _streets(line, position),
        "StopFeatures": _shapes("Point", position, {"name": text}),
        "Area": members(area),
        "AreaList": members({"areas": array(ref("Area"), "Polygons in order of the file, then corridors.")}),
        "AreaCount": members(
            {"value": number, "interval": or_null(interval, "Null where events are public and so exact.")}
        ),
        "AreaMean": with_mark(members(mean), "Many reports are in cells at the bound of speeds: read it as 'or more'."),
        "AreaStatistics": members(area | together),
        "DrawnAreaStatistics": members(together),
    }


def _shape(kind: str, coordinates: Schema) -> Schema:
    return members({"type": {"type": "string", "const": kind}, "coordinates": coordinates})


def _streets(line: Schema, position: Schema) -> Schema:
    """A GeoJSON FeatureCollection of streets and sensors."""
    shapes = [_shape("MultiLineString", line), _shape("MultiPoint", array(position, "Sensors."))]
    feature = {
        "type": {"type": "string", "const": "Feature"},
        "geometry": {"oneOf": shapes},
        "properties": {"type": "object"},
    }
    listed = array(members(feature), "In order of the file.")
    return members({"type": {"type": "string", "const": "FeatureCollection"}, "features": listed})


def _shapes(kind: str, coordinates: Schema, properties: Schema) -> Schema:
    """A GeoJSON FeatureCollection of shapes of one kind."""
    feature = members(
        {
            "type": {"type": "string", "const": "Feature"},
            "geometry": _shape(kind, coordinates),
            "properties": members(properties),
        }
    )
    return members({"type": {"type": "string", "const": "FeatureCollection"}, "features": array(feature, "Features.")})


_NUMBER: Schema = {"type": "number"}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_OF_WINDOWS: Schema = {
    "feed": _TEXT,
    "from": _TEXT,
    "to": _TEXT,
    "windows": _COUNT | {"description": "That were put together."},
}


def schemas_of_ways(window: Schema) -> Schema:
    """Components for travel times along routes. ``window``: properties of a window."""
    position = numbers(2, "Longitude and latitude in degrees.")
    minutes = {"minutes": _NUMBER, "km_h": _NUMBER}
    open_end = or_null(_NUMBER, "Null where a cell may be as slow as standing still.")
    with_intervals = minutes | {
        "minutes_interval": {"type": "array", "items": open_end, "description": "At 95 %: least, most."},
        "km_h_interval": numbers(2, "At 95 %."),
    }
    stop = or_null(_TEXT, "The stop that was asked for, else the first or last beside the line.")
    way = {
        "line": _COUNT | {"description": "Its number among the lines of the route, of which each has one direction."},
        "from": position,
        "to": position,
        "from_stop": stop,
        "to_stop": stop,
        "stops": array(_TEXT, "Names of the stops beside the whole line, in its direction."),
        "metres": _COUNT,
        "measured_metres": _COUNT | {"description": "Those in cells with a number: what is said is of these."},
        "scheduled": or_null(ref("TravelScheduled"), "Null where the timetable does not know every such cell then."),
    }
    now = or_null(ref("Travel"), "By the cells' estimates; null where there are none.")
    typical = or_null(ref("Travel"), "By what is typical of the cells; null where it is not known of every such cell.")
    mean = or_null(ref("Travel"), "By the means of the cells as released; null where there are none.")
    in_window = {name: window[name] for name in ("feed", "window", "complete")}
    lines = "Those that lead from one stop to the other."
    return {
        "Travel": with_mark(members(with_intervals), "Much of the way is in cells at the bound: read 'or faster'."),
        "TravelScheduled": members(minutes),
        "RouteWay": members(way | {"now": now, "typical": typical}),
        "RouteMean": members(way | {"mean": mean}),
        "RouteSpeed": members({"route": _TEXT} | in_window | {"lines": array(ref("RouteWay"), lines)}),
        "RouteMeans": members({"route": _TEXT} | _OF_WINDOWS | {"lines": array(ref("RouteMean"), lines)}),
    }


def schemas_of_series() -> Schema:
    """Components for estimates as series."""
    row = {
        "time": {"type": "string", "format": "date-time", "description": "End of the window."},
        "kind": {"type": "string", "enum": ["all", "polygon", "route", "cell"]},
        "name": _TEXT,
        "method": _TEXT | {"description": "The model, or released."},
        "unit": _TEXT,
        "mean": _NUMBER,
        "low": _NUMBER,
        "high": _NUMBER | {"description": "Ends of the 95 % interval."},
    }
    return {
        "SeriesRow": members(row),
        "SeriesList": members(_OF_WINDOWS | {"rows": array(ref("SeriesRow"), "Those with an estimate.")}),
    }


def schemas_of_means() -> Schema:
    """Components for means over a range of windows."""
    over = {
        "events": or_null(ref("AreaCount"), "Null where the feed releases no events but users only."),
        "users": or_null(ref("AreaCount"), "Where events are null."),
        "mean": or_null(ref("AreaMean"), "As released, weighted by these; null where the noise leaves it open."),
    }
    mean_cell = {"cell": _TEXT, "excludes": array(_TEXT, "Finer cells apart."), "windows": _COUNT} | over
    return {
        "MeanCell": members(mean_cell),
        "MeanTogether": members(over),
        "MeanList": members(
            _OF_WINDOWS
            | {"cells": array(ref("MeanCell"), "In ascending order.")}
            | {"together": or_null(ref("MeanTogether"), "Of the area's cells; null without an area.")}
        ),
    }
