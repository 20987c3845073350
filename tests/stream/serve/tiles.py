"""A small PMTiles archive (version 3) of lines, by the specifications of PMTiles and of Mapbox Vector Tiles 2."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

EXTENT = 4096
ZOOM = 9
"""The one zoom of the archive; closer up, its tiles are drawn larger."""

Line = Sequence[tuple[float, float]]
"""(lat, lng) of each corner."""


def write_archive(path: Path, layers: dict[str, Sequence[Line]]) -> Path:
    """The lines of each layer, cut into the tiles that their corners touch."""
    by_tile: dict[tuple[int, int], dict[str, list[Line]]] = {}
    for name, lines in layers.items():
        for line in lines:
            for tile in {tuple(int(part) for part in _world(*corner)) for corner in line}:
                by_tile.setdefault(tile, {}).setdefault(name, []).append(line)  # type: ignore[arg-type]
    tiles = sorted((_identifier(ZOOM, x, y), _tile(x, y, by_layer)) for (x, y), by_layer in by_tile.items())
    directory, data = _directory(tiles), b"".join(tile for _, tile in tiles)
    names = [{"id": name, "fields": {}} for name in layers]
    metadata = json.dumps({"vector_layers": names, "attribution": "<a href='https://example.org'>A made-up city</a>"})
    corners = [corner for lines in layers.values() for line in lines for corner in line]
    path.write_bytes(_header(corners, len(directory), len(metadata), len(data), len(tiles)))
    with path.open("ab") as file:
        file.write(directory + metadata.encode() + data)
    return path


def _header(corners: list[tuple[float, float]], directory: int, metadata: int, data: int, tiles: int) -> bytes:
    root, size = 127, directory + metadata
    none, vector = 1, 1
    lats, lngs = [lat for lat, _ in corners], [lng for _, lng in corners]
    box = (min(lngs), min(lats), max(lngs), max(lats))
    centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    return b"PMTiles\x03" + struct.pack(
        "<11Q6B4iB2i",
        *(root, directory, root + directory, metadata, root + size, 0, root + size, data, tiles, tiles, tiles),
        *(1, none, none, vector, ZOOM, ZOOM),
        *(round(degrees * 1e7) for degrees in box),
        ZOOM,
        *(round(degrees * 1e7) for degrees in centre),
    )


def _directory(tiles: list[tuple[int, bytes]]) -> bytes:
    identifiers = [identifier for identifier, _ in tiles]
    deltas = [b - a for a, b in zip([0, *identifiers], identifiers, strict=False)]
    # Run lengths are one; an offset of zero means "right after the tile before", the first is offset 0 plus one.
    columns = ([len(tiles)], deltas, [1] * len(tiles), [len(tile) for _, tile in tiles], [1] + [0] * (len(tiles) - 1))
    return b"".join(_varint(number) for column in columns for number in column)


def _identifier(zoom: int, x: int, y: int) -> int:
    """Place on the Hilbert curve, after all tiles of lower zooms."""
    place = (4**zoom - 1) // 3
    side = 1 << (zoom - 1)
    while side:
        right, down = int(bool(x & side)), int(bool(y & side))
        place += side * side * ((3 * right) ^ down)
        if not down:
            if right:
                x, y = (1 << zoom) - 1 - x, (1 << zoom) - 1 - y
            x, y = y, x
        side >>= 1
    return place


def _world(lat: float, lng: float) -> tuple[float, float]:
    """Place in units of tiles."""
    y = 0.5 - math.asinh(math.tan(math.radians(lat))) / (2 * math.pi)
    return (lng / 360 + 0.5) * 2**ZOOM, y * 2**ZOOM


def _tile(x: int, y: int, layers: dict[str, list[Line]]) -> bytes:
    return b"".join(_field(3, _layer(name, lines, x, y)) for name, lines in layers.items())


def _layer(name: str, lines: Iterable[Line], x: int, y: int) -> bytes:
    features = b"".join(
        _field(2, _varint(3 << 3) + _varint(2) + _field(4, b"".join(map(_varint, _commands(line, x, y)))))
        for line in lines
    )
    return _varint(15 << 3) + _varint(2) + _field(1, name.encode()) + features + _varint(5 << 3) + _varint(EXTENT)


def _commands(line: Line, x: int, y: int) -> list[int]:
    move, draw = 1, 2
    commands = [move | 1 << 3]
    at = (0, 0)
    for index, corner in enumerate(line):
        if index == 1:
            commands.append(draw | (len(line) - 1) << 3)
        east, south = _world(*corner)
        to = (round((east - x) * EXTENT), round((south - y) * EXTENT))
        commands += [_zigzag(to[0] - at[0]), _zigzag(to[1] - at[1])]
        at = to
    return commands


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
