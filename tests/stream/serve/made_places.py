"""Files of places and areas for the small city of the tests, with names that would do harm if they were not shown as
text."""

import json
from pathlib import Path
from typing import Any

import h3

from tests.stream.serve.city import BUSY, LONELY, STEADY, UNCERTAIN

HOSTILE = '<img src=x onerror="document.title=1"> / 6th'
ARABIC = "شارع العرب \u202eabc"
WEST_SIDE = "West & Süd / #1"
STOP = "Congress / 7th"
STOP_NORTH = 0.005
"""Degrees between the centre of BUSY and its stop."""


def city_files(folder: Path) -> dict[str, str]:
    """The configuration keys of files in ``folder``: BUSY and STEADY are named, route "10" crosses BUSY and
    UNCERTAIN."""
    named: dict[str, dict[str, Any]] = {
        BUSY: {"name": HOSTILE, "stops": 2, "routes": ["10", "<b>2</b>"]},
        STEADY: {"name": ARABIC, "stops": 1, "routes": []},
        UNCERTAIN: {"name": None, "stops": 0, "routes": ["10"]},
    }
    line = [h3.cell_to_latlng(cell)[::-1] for cell in (BUSY, UNCERTAIN)]
    lat, lng = h3.cell_to_latlng(BUSY)
    places = {
        "resolution": 7,
        "cells": [{"cell": cell} | place for cell, place in named.items()],
        "stops": [{"name": STOP, "lat": lat + STOP_NORTH, "lng": lng}],
        "lines": [{"route": "10", "lines": [line]}],
    }
    south = h3.cell_to_latlng(BUSY)[0] - 0.02
    north = h3.cell_to_latlng(STEADY)[0] + 0.02
    ring = [[-97.8, south], [-97.6, south], [-97.6, north], [-97.8, north], [-97.8, south]]
    area = {
        "type": "Feature",
        "properties": {"name": WEST_SIDE},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }
    assert LONELY not in named
    (folder / "places.json").write_text(json.dumps(places), encoding="utf-8")
    (folder / "areas.geojson").write_text(
        json.dumps({"type": "FeatureCollection", "features": [area]}), encoding="utf-8"
    )
    return {"public.places": str(folder / "places.json"), "public.areas": str(folder / "areas.geojson")}
