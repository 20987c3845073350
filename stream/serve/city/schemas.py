"""Components of the OpenAPI document for places, areas and scheduled speeds."""

from __future__ import annotations

from stream.serve import schema_parts as s


def schemas_of_schedule(window: s.Schema) -> s.Schema:
    """Components; ``window``: the fields of a window."""
    cell: s.Schema = s.TEXT | s.said("H3 index.")
    kmh: s.Schema = s.const("km/h")
    speed: s.Schema = {"type": "number", "exclusiveMinimum": 0}
    hours: s.Schema = {
        "type": "object",
        "patternProperties": {"^(1?[0-9]|2[0-3])$": speed},
        "additionalProperties": False,
        "description": "The speed in each local hour with service.",
    }
    of_window = {name: window[name] for name in ("feed", "window", "complete")}
    return {
        "ScheduledHours": s.members({"cell": cell, "workday": hours, "saturday": hours, "sunday": hours}),
        "ScheduledTable": s.members(
            {
                "resolution": s.or_null(s.COUNT, "Of all cells; null without scheduled speeds."),
                "unit": kmh,
                "cells": s.array(s.ref("ScheduledHours"), "In ascending order."),
            }
        ),
        "ScheduledSpeed": s.members(
            {
                "cell": cell,
                "value": speed,
                "unit": kmh,
                "error": s.or_null(
                    s.NUMBER,
                    "Of the difference of the released mean, by its noise; null where the two are not compared.",
                ),
                "clear": s.BOOLEAN | s.said("Noise does not explain the difference, although there are many cells."),
            }
        ),
        "ScheduledSpeeds": s.members(
            of_window
            | {"cells": s.array(s.ref("ScheduledSpeed"), "The released cells in which the timetable has service then.")}
        ),
    }


def schemas_of_city(window: s.Schema) -> s.Schema:
    """Components for places, routes, stops and areas. ``window``: properties of a window."""
    position = s.numbers(2, "Longitude and latitude in degrees.")
    place = {
        "cell": s.TEXT | s.said("H3 index."),
        "name": s.or_null(s.TEXT, "Most frequent name of its stops; null without stops."),
        "stops": s.COUNT,
        "routes": s.array(s.TEXT, "Routes that cross the cell."),
    }
    line = s.shape("MultiLineString", s.array(s.array(position, "A line."), "Lines."))
    sensors = s.shape("MultiPoint", s.array(position, "Sensors."))
    stop, street = s.shape("Point", position), {"oneOf": [line, sensors]}
    ring = s.array(s.array(s.array(position, "A closed ring."), "The outer ring, then holes."), "Polygons.")
    area = {"name": s.TEXT, "kind": {"type": "string", "enum": ["polygon", "route"]}}
    interval = s.numbers(2, "Holds the number without noise in at least 95 % of releases.")
    mean = {"value": s.NUMBER, "raw": s.NUMBER, "interval": interval, "unit": s.TEXT}
    together = {name: window[name] for name in ("feed", "window", "complete")} | {
        "cells": s.COUNT | s.said("Released cells that belong to the area."),
        "published": s.COUNT | s.said("Those of them with a mean."),
        "events": s.or_null(s.ref("AreaCount"), "Null where the feed releases no events but users only."),
        "users": s.or_null(s.ref("AreaCount"), "Sum of the cells' users where events are null, else null."),
        "mean": s.or_null(
            s.ref("AreaMean"),
            "Mean of the cells as released, weighted by events or else users. Null where no cell is published, and "
            "where so few may have been there that the noise leaves the mean open.",
        ),
        "estimate": s.or_null(
            s.ref("Estimate"),
            "The leading mean: of the cells' estimates, with the mean of their intervals, or as released where that is "
            "narrower. Null where nobody is estimated.",
        ),
        "hexagons": s.array(s.TEXT, "H3 indexes of these cells."),
        "geometry": s.shape("MultiPolygon", ring),
    }
    return schemas_of_ways(window) | {
        "Place": s.members(place),
        "PlaceList": s.members(
            {
                "resolution": s.or_null(s.COUNT, "Of all cells."),
                "cells": s.array(s.ref("Place"), "In order of the file."),
            }
        ),
        "RouteFeatures": s.collection(s.feature(line, s.members({"route": s.TEXT})), "Features."),
        "StreetFeatures": s.collection(s.feature(street, {"type": "object"}), "In order of the file."),
        "StopFeatures": s.collection(s.feature(stop, s.members({"name": s.TEXT})), "Features."),
        "Area": s.members(area),
        "AreaList": s.members({"areas": s.array(s.ref("Area"), "Polygons in order of the file, then corridors.")}),
        "AreaCount": s.members(
            {"value": s.NUMBER, "interval": s.or_null(interval, "Null where events are public and so exact.")}
        ),
        "AreaMean": s.with_mark(
            s.members(mean), "Many reports are in cells at the bound of speeds: read it as 'or more'."
        ),
        "AreaStatistics": s.members(area | together),
        "DrawnAreaStatistics": s.members(together),
    }


_OF_WINDOWS: s.Schema = {
    "feed": s.TEXT,
    "from": s.TEXT,
    "to": s.TEXT,
    "windows": s.COUNT | s.said("That were put together."),
}


def schemas_of_ways(window: s.Schema) -> s.Schema:
    """Components for travel times along routes. ``window``: properties of a window."""
    position = s.numbers(2, "Longitude and latitude in degrees.")
    minutes = {"minutes": s.NUMBER, "km_h": s.NUMBER}
    open_end = s.or_null(s.NUMBER, "Null where a cell may be as slow as standing still.")
    with_intervals = minutes | {
        "minutes_interval": {"type": "array", "items": open_end, "description": "At 95 %: least, most."},
        "km_h_interval": s.numbers(2, "At 95 %."),
    }
    stop = s.or_null(s.TEXT, "The stop that was asked for, else the first or last beside the line.")
    way = {
        "line": s.COUNT | s.said("Its number among the lines of the route, of which each has one direction."),
        "from": position,
        "to": position,
        "from_stop": stop,
        "to_stop": stop,
        "stops": s.array(s.TEXT, "Names of the stops beside the whole line, in its direction."),
        "metres": s.COUNT,
        "measured_metres": s.COUNT | s.said("Those in cells with a number: what is said is of these."),
        "scheduled": s.or_null(
            s.ref("TravelScheduled"), "Null where the timetable does not know every such cell then."
        ),
    }
    now = s.or_null(s.ref("Travel"), "By the cells' estimates; null where there are none.")
    typical = s.or_null(
        s.ref("Travel"), "By what is typical of the cells; null where it is not known of every such cell."
    )
    mean = s.or_null(s.ref("Travel"), "By the means of the cells as released; null where there are none.")
    in_window = {name: window[name] for name in ("feed", "window", "complete")}
    lines = "Those that lead from one stop to the other."
    return {
        "Travel": s.with_mark(s.members(with_intervals), "Much of the way is in cells at the bound: read 'or faster'."),
        "TravelScheduled": s.members(minutes),
        "RouteWay": s.members(way | {"now": now, "typical": typical}),
        "RouteMean": s.members(way | {"mean": mean}),
        "RouteSpeed": s.members({"route": s.TEXT} | in_window | {"lines": s.array(s.ref("RouteWay"), lines)}),
        "RouteMeans": s.members({"route": s.TEXT} | _OF_WINDOWS | {"lines": s.array(s.ref("RouteMean"), lines)}),
    }


def schemas_of_series() -> s.Schema:
    """Components for estimates as series."""
    row = {
        "time": s.TIME | s.said("End of the window."),
        "kind": {"type": "string", "enum": ["all", "polygon", "route", "cell"]},
        "name": s.TEXT,
        "method": s.TEXT | s.said("The model, or released."),
        "unit": s.TEXT,
        "mean": s.NUMBER,
        "low": s.NUMBER,
        "high": s.NUMBER | s.said("Ends of the 95 % interval."),
    }
    return {
        "SeriesRow": s.members(row),
        "SeriesList": s.members(_OF_WINDOWS | {"rows": s.array(s.ref("SeriesRow"), "Those with an estimate.")}),
    }


def schemas_of_means() -> s.Schema:
    """Components for means over a range of windows."""
    over = {
        "events": s.or_null(s.ref("AreaCount"), "Null where the feed releases no events but users only."),
        "users": s.or_null(s.ref("AreaCount"), "Where events are null."),
        "mean": s.or_null(s.ref("AreaMean"), "As released, weighted by these; null where the noise leaves it open."),
    }
    mean_cell = {"cell": s.TEXT, "excludes": s.array(s.TEXT, "Finer cells apart."), "windows": s.COUNT} | over
    return {
        "MeanCell": s.members(mean_cell),
        "MeanTogether": s.members(over),
        "MeanList": s.members(
            _OF_WINDOWS
            | {"cells": s.array(s.ref("MeanCell"), "In ascending order.")}
            | {"together": s.ref("MeanTogether")}
        ),
    }
