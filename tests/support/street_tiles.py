"""Street maps of vector tiles, made by GDAL."""

import gzip
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import shapely
from pyogrio.raw import write

Road = tuple[Sequence[tuple[float, float]], dict[str, str]]
"""Latitude and longitude of its places, and its tags ``name`` and ``kind``."""


def archive(path: Path, roads: Sequence[Road], zooms: range, attribution: str = "") -> Path:
    """A PMTiles archive whose layer ``roads`` has these lines."""
    lines = [shapely.LineString([(lng, lat) for lat, lng in places]) for places, _ in roads]
    columns = [np.array([tags.get(name) for _, tags in roads], dtype=object) for name in ("name", "kind")]
    path.unlink(missing_ok=True)
    write(
        path, np.array(shapely.to_wkb(lines), dtype=object), columns, np.array(["name", "kind"]), layer="roads",
        geometry_type="LineString", crs="EPSG:4326", driver="PMTiles", MINZOOM=zooms[0], MAXZOOM=zooms[-1],
    )  # fmt: skip
    # GDAL writes no attribution: the metadata with one stand at the end, and the header says so. The page refuses a box
    # without area, which GDAL writes of one straight road.
    body = bytearray(path.read_bytes())
    start, length = struct.unpack_from("<2Q", body, 24)
    metadata = json.loads(gzip.decompress(body[start : start + length])) | {"attribution": attribution}
    described = gzip.compress(json.dumps(metadata).encode())
    struct.pack_into("<2Q", body, 24, len(body), len(described))
    west, south, east, north = struct.unpack_from("<4i", body, 102)
    struct.pack_into("<4i", body, 102, west - 10, south - 10, east + 10, north + 10)
    path.write_bytes(body + described)
    return path
