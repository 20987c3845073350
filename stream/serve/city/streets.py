"""Reads the file that ``public.streets`` names: GeoJSON of streets and sensors, which carry the colours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from stream.config import ConfigError
from stream.config.geojson import Position, lines_of, shapes
from stream.serve.city.files import read_bytes

LARGEST = 32 << 20
"""Bytes of the file."""
MOST_POINTS = 500_000
"""Points of all lines together."""


def read_streets(path: Path | None) -> list[list[list[Position]]]:
    """Of each feature its lines; the points of sensors are lines of one position. Without a file there are none.

    Raises :class:`ConfigError`.
    """
    if path is None:
        return []
    body = read_bytes(path, "streets", LARGEST)
    try:
        features = [lines_of(shape, where) for where, shape in shapes(json.loads(body.decode("utf-8")))]
        points = sum(len(line) for lines in features for line in lines)
        if points > MOST_POINTS:
            raise ValueError(f"it has {points} points, more than {MOST_POINTS}; leave out minor streets")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"public.streets {path} is no file of streets: {error}; write a GeoJSON FeatureCollection of lines or "
            "points"
        ) from None
    return features


def street_features(features: list[list[list[Position]]]) -> bytes:
    """Answer of ``/api/v1/streets``: GeoJSON."""
    listed = [{"type": "Feature", "geometry": _shape(lines), "properties": {}} for lines in features]
    return msgspec.json.encode({"type": "FeatureCollection", "features": listed})


def _shape(lines: list[list[Position]]) -> dict[str, Any]:
    if len(lines[0]) == 1:
        return {"type": "MultiPoint", "coordinates": [position for (position,) in lines]}
    return {"type": "MultiLineString", "coordinates": lines}
