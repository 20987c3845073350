"""One complete window as a file: a row per cell, a column per number. Pure.

A released number becomes ``<name>`` (the value), ``<name>_raw``, ``_clamped``, ``_scale``, ``_low`` and ``_high`` (the
95 % interval) and ``_unit``; an exact count is ``<name>`` alone. Post-processed estimates carry the prefix
``post_processed_``. Whatever a message holds has a column, so that no file says less than the message.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import h3
import msgspec

from stream.messages.message import HEXAGON_SPEED

Row = dict[str, Any]

FIRST = (
    "window_start",
    "window_end",
    "feed",
    "cell",
    "latitude",
    "longitude",
    "resolution",
    "relation",
    "epsilon",
    "accounting",
    "delta",
    "schema_version",
)
"""Columns of every file, in this order; those of the messages follow."""


PURE = "pure"
"""What is counted where a message names no accounting: epsilon alone, delta = 0."""


class ParquetMissingError(RuntimeError):
    """pyarrow is not installed."""


def rows_of(values: Sequence[bytes]) -> list[Row]:
    """Message values as flat rows, in the same order; every row has every column, None where it says nothing."""
    rows = [_row(msgspec.json.decode(value)) for value in values]
    columns: dict[str, None] = dict.fromkeys(FIRST)
    for row in rows:
        columns.update(dict.fromkeys(row))
    return [{name: row.get(name) for name in columns} for row in rows]


def to_csv(values: Sequence[bytes]) -> bytes:
    """RFC 4180, UTF-8, one header line; an empty field where a cell has no such number."""
    rows = rows_of(values)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(rows[0] if rows else FIRST)
    writer.writerows([_plain(value) for value in row.values()] for row in rows)
    return text.getvalue().encode()


def to_geojson(values: Sequence[bytes]) -> bytes:
    """A FeatureCollection (RFC 7946): hexagons with the flat row as properties."""
    features = [feature(row["cell"], row) for row in rows_of(values)]
    return msgspec.json.encode({"type": "FeatureCollection", "features": features})


def to_parquet(values: Sequence[bytes]) -> bytes:
    """Parquet with typed columns. Raises :class:`ParquetMissingError` without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ParquetMissingError(str(error)) from None
    rows = rows_of(values)
    names = list(rows[0]) if rows else list(FIRST)
    arrays = {name: pa.array([row[name] for row in rows]) for name in names}
    for name in ("window_start", "window_end"):
        arrays[name] = pa.array([datetime.fromisoformat(row[name]) for row in rows], pa.timestamp("s", "UTC"))
    table = pa.table(arrays).replace_schema_metadata({"hexveil.schema_version": HEXAGON_SPEED})
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def feature(cell: str, properties: Row) -> dict[str, Any]:
    """A hexagon as a GeoJSON feature; counter-clockwise, longitudes unbroken where it crosses 180°."""
    ring = [[lng, lat] for lat, lng in h3.cell_to_boundary(cell)]
    if max(lng for lng, _ in ring) - min(lng for lng, _ in ring) > 180:
        ring = [[lng + 360 if lng < 0 else lng, lat] for lng, lat in ring]
    geometry = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    return {"type": "Feature", "id": cell, "geometry": geometry, "properties": properties}


def _row(body: dict[str, Any]) -> Row:
    latitude, longitude = h3.cell_to_latlng(body["cell"])
    window = body["window"]
    row: Row = {
        "window_start": window["start"],
        "window_end": window["end"],
        "feed": body["feed"],
        "cell": body["cell"],
        "latitude": round(latitude, 6),
        "longitude": round(longitude, 6),
        "resolution": body["resolution"],
        "relation": body["relation"],
        "epsilon": body["epsilon"],
        "accounting": body.get("accounting", PURE),
        "delta": body.get("delta", 0.0),
        "schema_version": HEXAGON_SPEED,
    }
    for name, value in body.items():
        if name not in ("window", *row):
            _flatten(row, name, value)
    return row


def _flatten(row: Row, name: str, value: Any) -> None:
    if isinstance(value, dict):
        for part, inner in value.items():
            if part == "value":
                row[name] = inner
            elif part == "interval":
                row[f"{name}_low"], row[f"{name}_high"] = inner
            else:
                _flatten(row, f"{name}_{part}", inner)
    else:
        row[name] = value


def _plain(value: Any) -> Any:
    """Truth in lower case, the members of a list with spaces between them."""
    if isinstance(value, list):
        return " ".join(str(_plain(part)) for part in value)
    return str(value).lower() if isinstance(value, bool) else value
