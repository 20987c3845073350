"""Releases as a table with one row per cell and window: CSV, GeoJSON and Parquet. Pure functions.

A released number becomes ``<name>`` (the value), ``<name>_raw_to_average``, of counts ``_raw_to_add``, ``_clamped``,
``_scale``, ``_low`` and ``_high`` (the 95 % interval) and ``_unit``; an exact count is ``<name>`` alone. The header
says what raw numbers are for, because a spreadsheet shows nothing else. The leading estimates carry the prefix
``estimate_``, what models made ``post_processed_``. ``_at_bound`` is true where a value crowds the bound of speeds,
else empty. Every row repeats the totals of its window, ``window_users`` and ``window_events`` (CSV has no place for
them besides). Every field of a message has a column, so no file says less than the message.

A writer iterates over its rows twice, first to find the columns. Rows may be read from a file each time, to save
memory.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from typing import IO, Any

import h3
import msgspec

from dpcore.cdf import ONE_SIDED
from stream.messages.cells import ESTIMATED, estimates_in
from stream.messages.message import HEXAGON_SPEED
from stream.messages.shapes import Place, centre_of, geometry_of

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
"""The first columns of every file, in this order; the columns of the messages follow."""
_ESTIMATE = (
    *(f"estimate_mean{part}" for part in ("", "_low", "_high", "_unit", "_method", "_at_bound")),
    *(
        f"estimate_{name}{part}"
        for name in ("typical", "deviation")
        for part in ("", "_low", "_high", "_unit", "_method")
    ),
)
TO_AVERAGE, TO_ADD = "_raw_to_average", "_raw_to_add"
"""Endings of the columns of raw numbers: those of statistics, and those of counts."""
_NOISE = ("_clamped", "_scale", "_low", "_high", "_unit", "_worst_error", "_mechanism", "_at_bound")
_MEAN = tuple(f"mean{part}" for part in ("", TO_AVERAGE, *_NOISE))
_MODELLED = tuple(
    f"post_processed_{name}{part}"
    for name in ("mean", "typical", "deviation")
    for part in ("_method", "", "_low", "_high", "_unit")
)
ALWAYS = (*FIRST, *_ESTIMATE, "status", "excludes", *_MEAN, *_MODELLED)
"""Columns that every file has, so that files can be put together. Others come by the configuration alone."""
PURE = "pure"
"""The accounting of a message that names none: pure ε, with delta = 0."""
COUNTED = ("users", "events")
"""Numbers of which every row of a file has the window's total."""
_COUNTS = (*COUNTED, "moving")
"""Numbers of users or reports, which may be added."""
TOTALS = tuple(f"window_{name}{part}" for name in COUNTED for part in ("", "_low", "_high"))
"""Columns of the totals and of their 95 % intervals, which are empty where they are exact."""
_NORMAL = 1.96
"""Standard deviations within which 95 % of Gaussian noise lies."""
_ROWS_AT_ONCE = 10_000


class ParquetMissingError(RuntimeError):
    """pyarrow is not installed."""


def row_of(value: bytes) -> Row:
    """One hexagon message as a flat row."""
    return _row(msgspec.json.decode(value))


def rows_of(values: Sequence[bytes]) -> list[Row]:
    """Hexagon messages as flat rows, in the same order. Every row has every column, None without a value."""
    rows = [row_of(value) for value in values]
    columns = _columns(rows)
    return [_filled(row, columns) for row in rows]


def write_csv(rows: Iterable[Row], out: IO[bytes]) -> None:
    """CSV by RFC 4180 in UTF-8 with one header line. A field is empty if the cell has no such number."""
    columns, totals = [*_columns(rows), *TOTALS], _totals(rows)
    write_lines((row | totals[row["window_start"]] for row in rows), columns, out)


def write_lines(rows: Iterable[Row], columns: Sequence[str], out: IO[bytes]) -> None:
    """These ``columns`` of the rows as CSV by RFC 4180 in UTF-8 with one header line."""
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_plain(row.get(name)) for name in columns] for row in rows)
    text.detach()


def write_geojson(rows: Iterable[Row], out: IO[bytes]) -> None:
    """A GeoJSON FeatureCollection (RFC 7946) of hexagons, with the flat rows as properties."""
    columns, totals, finest = [*_columns(rows), *TOTALS], _totals(rows), _finest(rows)
    out.write(b'{"type":"FeatureCollection","features":[')
    between = b""
    for row in rows:
        place = Place(row["cell"], _apart(row), finest[row["window_start"]])
        out.write(between + msgspec.json.encode(feature(place, _filled(row | totals[row["window_start"]], columns))))
        between = b","
    out.write(b"]}")


def write_parquet(rows: Iterable[Row], out: IO[bytes]) -> None:
    """Parquet with typed columns. Raises :class:`ParquetMissingError` if pyarrow is not installed."""
    require_parquet()
    import pyarrow as pa
    from pyarrow import parquet

    columns, totals = [*_columns(rows), *TOTALS], _totals(rows)
    complete = (row | totals[row["window_start"]] for row in rows)
    parts = [_arrow(pa, part, columns) for part in _batched(complete)] or [_arrow(pa, [], columns)]
    table = pa.concat_tables(parts, promote_options="permissive")
    units = {name.removesuffix("_unit"): table.column(name) for name in table.column_names if name.endswith("_unit")}
    kinds = pa.types
    described = [
        field.with_metadata(
            _description(field.name)
            | (_unit(field.name, units) if kinds.is_floating(field.type) or kinds.is_integer(field.type) else {})
        )
        for field in table.schema
    ]
    table = table.cast(pa.schema(described, metadata={"hexveil.schema_version": HEXAGON_SPEED}))
    parquet.write_table(table, out, compression="zstd")


WRITERS: Mapping[str, Callable[[Iterable[Row], IO[bytes]], None]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "geojson": write_geojson,
}
"""Writer of each table format, by suffix."""


def table_of(values: Sequence[bytes], suffix: str) -> bytes:
    """Hexagon messages as one table in memory. Raises :class:`ParquetMissingError`."""
    out = io.BytesIO()
    WRITERS[suffix]([row_of(value) for value in values], out)
    return out.getvalue()


def require_parquet() -> None:
    """Raise :class:`ParquetMissingError` if pyarrow is not installed."""
    if not can_write_parquet():
        raise ParquetMissingError("No module named 'pyarrow'")


def can_write_parquet() -> bool:
    """Whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def _columns(rows: Iterable[Row]) -> list[str]:
    """The columns of all rows. Where any cell of the feed may have a number, there is a column, even if none has it."""
    columns: dict[str, None] = dict.fromkeys(ALWAYS)
    for row in rows:
        columns.update(dict.fromkeys(row))
    return list(columns)


def _totals(rows: Iterable[Row]) -> dict[str, Row]:
    """The columns of totals of each window, by its start."""
    windows: dict[str, dict[str, _Sum]] = {}
    for row in rows:
        for name, one in windows.setdefault(row["window_start"], {name: _Sum() for name in COUNTED}).items():
            one.add(name, row)
    return {
        start: {f"window_{name}{part}": number for name, one in sums.items() for part, number in one.stated().items()}
        for start, sums in windows.items()
    }


class _Sum:
    """The sum of one number of a window's cells, from raw values: sums of clamped ones are too large where cells are
    empty.

    Noise of cells is independent, so variances add.
    """

    def __init__(self) -> None:
        self._total, self._variance, self._quantile, self._any = 0.0, 0.0, ONE_SIDED, False

    def add(self, name: str, row: Row) -> None:
        if row.get(name) is None:
            return
        noisy, gaussian = f"{name}{TO_ADD}" in row, row["accounting"] == "zcdp"
        self._any = True
        self._total += row[f"{name}{TO_ADD}"] if noisy else row[name]
        if noisy:
            self._variance += row[f"{name}_scale"] ** 2 * (1.0 if gaussian else 2.0)
            self._quantile = _NORMAL if gaussian else ONE_SIDED

    def stated(self) -> dict[str, float | None]:
        """The sum and its 95 % interval, which an exact sum has not; nothing where no row has the number."""
        half = self._quantile * math.sqrt(self._variance)
        if not self._any or not half:
            return {"": round(self._total) if self._any else None, "_low": None, "_high": None}
        ends = (round(max(self._total + end, 0.0), 1) for end in (-half, half))
        return {"": round(max(self._total, 0.0), 1), **dict(zip(("_low", "_high"), ends, strict=True))}


def _type(pa: Any, name: str) -> Any:
    """The type of a column of which no row has a value."""
    if name.endswith(("_clamped", "_at_bound")):
        return pa.bool_()
    texts = ("_unit", "_method", "_mechanism", "status", "excludes")
    return pa.string() if name in FIRST or name.endswith(texts) else pa.float64()


_MEANINGS = {
    TO_AVERAGE: "As the mechanism released it: average or model this one.",
    TO_ADD: "As the mechanism released it: add or average this one.",
    "_clamped": "Whether the value differs from the raw one.",
    "_scale": "Scale of the noise.",
    "_low": "Lower end of the 95 % interval.",
    "_high": "Upper end of the 95 % interval.",
    "_at_bound": "True where the value is to be read as 'or more': it crowds the bound that speeds are clipped to.",
}
"""Meaning of a column, by the end of its name."""


def _description(name: str) -> dict[str, str]:
    """The metadata of a Parquet field, which readers show beside its name."""
    if name.startswith("window_") and name not in FIRST:
        what = "a user counts in each of their cells, unless users are divided over them"
        return {"description": f"Of all cells of the window in this file, the same in each row ({what}): never add it."}
    ends = [meaning for end, meaning in _MEANINGS.items() if name.endswith(end)]
    if not ends and name in ESTIMATED:
        ends = ["Clamped to the public range: show this one. Averages and sums of it are biased; take the raw one."]
    if not ends and name in _COUNTS:
        ends = ["Where there is a raw column, add that one: this is clamped to 0, so empty cells add up to many."]
    return {"description": ends[0]} if ends else {}


def _unit(name: str, units: Mapping[str, Any]) -> dict[str, str]:
    """The unit of a number, as metadata of its Parquet field, where all rows have the same. ``units``: columns of
    units by the name of what is measured."""
    of = max((base for base in units if f"{name}_".startswith(f"{base}_")), key=len, default=None)
    known = [] if of is None else units[of].drop_null().unique().to_pylist()
    return {"unit": known[0]} if len(known) == 1 else {}


def _apart(row: Row) -> tuple[str, ...]:
    return tuple((row["excludes"] or "").split())


def _finest(rows: Iterable[Row]) -> dict[str, int]:
    """The finest resolution of a window's cells and of what they exclude, by the window's start."""
    finest: dict[str, int] = {}
    for row in rows:
        levels = [row["resolution"], *map(h3.get_resolution, _apart(row))]
        finest[row["window_start"]] = max(finest.get(row["window_start"], 0), *levels)
    return finest


def _filled(row: Row, columns: Sequence[str]) -> Row:
    return {name: row.get(name) for name in columns}


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while part := list(islice(waiting, _ROWS_AT_ONCE)):
        yield part


def _arrow(pa: Any, rows: Sequence[Row], columns: Sequence[str]) -> Any:
    arrays = {name: pa.array([row.get(name) for row in rows]) for name in columns}
    arrays |= {name: array.cast(_type(pa, name)) for name, array in arrays.items() if array.type == pa.null()}
    for name in ("window_start", "window_end"):
        arrays[name] = pa.array([datetime.fromisoformat(row[name]) for row in rows], pa.timestamp("s", "UTC"))
    return pa.table(arrays)


def feature(place: Place, properties: Row) -> dict[str, Any]:
    """A released cell as a GeoJSON feature."""
    return {"type": "Feature", "id": place.cell, "geometry": geometry_of(place), "properties": properties}


def _row(body: dict[str, Any]) -> Row:
    latitude, longitude = centre_of(body["cell"], body.get("excludes", ()))
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
    row |= dict.fromkeys(_ESTIMATE)
    flatten(row, "estimate", estimates_in(body) or {})
    row |= {"status": body["status"], "excludes": " ".join(body.get("excludes", ())) or None}
    for name, value in body.items():
        if name not in ("window", *row):
            flatten(row, name, value)
    return row


def flatten(row: Row, name: str, value: Any) -> None:
    """Add a released number, or any other ``value``, to a row as the columns of its parts."""
    if isinstance(value, dict):
        for part, inner in value.items():
            if part == "value":
                row[name] = inner
            elif part == "raw":
                row[name + (TO_ADD if name in _COUNTS else TO_AVERAGE)] = inner
            elif part == "interval":
                row[f"{name}_low"], row[f"{name}_high"] = inner or (None, None)
            else:
                flatten(row, f"{name}_{part}", inner)
    else:
        row[name] = value


def _plain(value: Any) -> Any:
    """A value as CSV text: booleans in lower case, members of a list separated by spaces."""
    if isinstance(value, list):
        return " ".join(str(_plain(part)) for part in value)
    return str(value).lower() if isinstance(value, bool) else value
