"""Components of the OpenAPI document for scheduled speeds."""

from __future__ import annotations

from stream.serve.schema_parts import Schema, array, members, or_null, ref


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
