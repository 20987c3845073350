"""Vector tiles in one file that a map reads by byte ranges. Pure.

Source: "PMTiles Version 3 Specification" (Protomaps).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence

from stream.tiles.vector_tile import Feature, tile_of, varint

_ROOT = 127
"""Bytes of the header; the directory follows it."""
_LARGEST_START = 16_384
"""Bytes in which header and directory have to end."""
_UNCOMPRESSED, _VECTOR, _IN_ORDER = 1, 1, 1
_AIR = 1e-6
"""Degrees around everything, because readers refuse a box without area."""

Box = tuple[float, float, float, float]


def archive_of(layers: Mapping[str, Sequence[Feature]], zooms: range, attribution: str) -> bytes:
    """The archive of ``layers`` at every one of ``zooms``; closer up, a map enlarges the last. The same layers give the
    same bytes.

    Raises :class:`ValueError` where there is nothing to draw, or where the tiles are too many for one directory.
    """
    features = [feature for layer in layers.values() for feature in layer]
    tiles = sorted(
        (_identifier(zoom, x, y), tile)
        for zoom in zooms
        for x, y in (_covered(features, zoom) if features else ())
        if (tile := tile_of(layers, zoom, x, y))
    )
    if not tiles:
        raise ValueError("there is nothing to draw on the street map; give lines, polygons or points")
    directory = _directory(tiles)
    if _ROOT + len(directory) > _LARGEST_START:
        raise ValueError(f"{len(tiles)} tiles are too many for one directory; leave out the closest zooms")
    fields = [
        {"id": name, "fields": {key: "String" for one in layer for key in one.tags}} for name, layer in layers.items()
    ]
    metadata = json.dumps({"vector_layers": fields, "attribution": attribution}).encode()
    data = b"".join(tile for _, tile in tiles)
    header = _header(_box(features), zooms, len(directory), len(metadata), len(data), len(tiles))
    return header + directory + metadata + data


def _covered(features: Sequence[Feature], zoom: int) -> Iterator[tuple[int, int]]:
    """Columns and rows of the tiles that the box around all features meets."""
    side = 1 << zoom
    lowest = [math.floor(min(feature.bounds[part] for feature in features) * side) for part in (0, 1)]
    highest = [math.floor(max(feature.bounds[part] for feature in features) * side) for part in (2, 3)]
    columns, rows = (range(max(low, 0), min(high, side - 1) + 1) for low, high in zip(lowest, highest, strict=True))
    return ((x, y) for x in columns for y in rows)


def _box(features: Sequence[Feature]) -> Box:
    lats, lngs = zip(*(corner for feature in features for corner in feature.corners), strict=True)
    return min(lngs) - _AIR, min(lats) - _AIR, max(lngs) + _AIR, max(lats) + _AIR


def _header(box: Box, zooms: range, directory: int, metadata: int, data: int, tiles: int) -> bytes:
    start = _ROOT + directory
    west, south, east, north = box
    return b"PMTiles\x03" + struct.pack(
        "<11Q6B4iB2i",
        *(_ROOT, directory, start, metadata, start + metadata, 0, start + metadata, data, tiles, tiles, tiles),
        *(_IN_ORDER, _UNCOMPRESSED, _UNCOMPRESSED, _VECTOR, zooms[0], zooms[-1]),
        *(round(degrees * 1e7) for degrees in box),
        zooms[0],
        *(round(degrees * 1e7) for degrees in ((west + east) / 2, (south + north) / 2)),
    )


def _directory(tiles: Sequence[tuple[int, bytes]]) -> bytes:
    identifiers = [identifier for identifier, _ in tiles]
    steps = [after - before for before, after in zip([0, *identifiers], identifiers, strict=False)]
    # Every run has one tile. An offset of 0 is that behind the tile before; that of the first tile is 0, written as 1.
    columns = ([len(tiles)], steps, [1] * len(tiles), [len(tile) for _, tile in tiles], [1] + [0] * (len(tiles) - 1))
    return b"".join(varint(number) for column in columns for number in column)


def _identifier(zoom: int, x: int, y: int) -> int:
    """Place on the Hilbert curve, after all tiles of lower zooms."""
    place = ((1 << 2 * zoom) - 1) // 3
    side = 1 << zoom >> 1
    while side:
        right, down = int(bool(x & side)), int(bool(y & side))
        place += side * side * ((3 * right) ^ down)
        if not down:
            if right:
                x, y = (1 << zoom) - 1 - x, (1 << zoom) - 1 - y
            x, y = y, x
        side >>= 1
    return place
