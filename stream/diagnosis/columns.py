"""Guesses from the names of fields which of them hold user, time, latitude, longitude and speed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from stream.config.feed import FeedFields
from stream.ingestion.formats import known_fields

ROLES = ("user", "time", "lat", "lng", "speed")

_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        "user", "vehicleid", "vehicleref", "vehicle", "licenseplate", "licenceplate", "plate", "busid", "bus", "taxi", "taxiid",
        "deviceid", "device", "trackerid", "tracker", "unitid", "unit", "vehiclelabel", "label", "veh", "name", "id",
    ),
    "time": (
        "time", "timestamp", "observationdatetime", "recordedattime", "recordedat", "datetime", "eventtime", "gpstime", "observedat", "ts",
        "tst", "date", "seen", "at", "when", "t",
    ),
    "lat": ("lat", "latitude", "y", "gpslat", "locationlat", "coordinates1", "1"),
    "lng": ("lng", "longitude", "lon", "long", "x", "gpslon", "locationlng", "coordinates0", "0"),
    "speed": ("speed", "velocity", "kmh", "speedkmh", "mph", "spd", "gpsspeed", "v"),
}  # fmt: skip
"""Names of each role without punctuation, in lower case, the surest first."""
_DEEPEST = 6


def paths_of(tree: Any, prefix: str = "", depth: int = 0) -> list[str]:
    """Paths of all values in a JSON object; of lists, only of the first two numbers."""
    if depth >= _DEEPEST:
        return []
    if isinstance(tree, dict):
        entries: Iterable[tuple[str, Any]] = tree.items()
    elif isinstance(tree, list) and len(tree) in (2, 3) and all(isinstance(value, int | float) for value in tree):
        entries = ((str(at), value) for at, value in enumerate(tree[:2]))
    else:
        return [prefix] if prefix else []
    paths: list[str] = []
    for name, value in entries:
        if name and "." not in name:
            paths += paths_of(value, f"{prefix}.{name}" if prefix else name, depth + 1)
    return paths


def guess_fields(paths: Iterable[str]) -> dict[str, str]:
    """The likely path of each role, for the roles that have one; every path at most once."""
    names = {path: _plain(path) for path in paths}
    roles: dict[str, str] = {}
    for role in ("lat", "lng", "time", "speed", "user"):
        ranked = [
            (min(_NAMES[role].index(name) for name in fitting), len(path), path)
            for path, plain in names.items()
            if path not in roles.values() and (fitting := [name for name in plain if name in _NAMES[role]])
        ]
        if ranked:
            roles[role] = min(ranked)[2]
    return roles


def _plain(path: str) -> tuple[str, str, str]:
    """The name, the name with that of its parent, and, of an id or an NGSI-LD value, the parent's.

    All are in lower case and have only letters and digits.
    """
    parts = [re.sub(r"[^a-z0-9]", "", part.lower()) for part in path.split(".")]
    parent = parts[-2] if len(parts) > 1 else ""
    return parts[-1], parent + parts[-1], {"id": f"{parent}id", "value": parent}.get(parts[-1], "")


def format_of(paths: set[str], roles: dict[str, str]) -> tuple[str, FeedFields | None]:
    """The known format that has these paths, else "declared" with the guessed fields."""
    for name, known in known_fields().items():
        if set(known.paths) <= paths:
            return name, None
    return "declared", FeedFields.model_validate(roles)
