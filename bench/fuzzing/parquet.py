"""Parquet files: columns of odd types and values, and files whose bytes are mutated."""

from __future__ import annotations

import io
import math
import random
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from bench.fuzzing.hunting import FolderTarget, Hunt
from bench.fuzzing.messages import NOW_US, feed_config
from bench.fuzzing.mutation import TEXTS, Mutator
from stream.diagnosis.reading import read_recording
from stream.sources.lines import RecordingError
from stream.sources.recording import open_recording

_ROWS, _FILES = 24, 12
_SOUND: dict[str, tuple[pa.DataType, Any]] = {
    "user": (pa.string(), lambda k: f"bus-{k % 5}"),
    "time": (pa.int64(), lambda k: NOW_US // 1000 - 1000 * k),
    "lat": (pa.float64(), lambda k: 30.2 + k / 1e3),
    "lng": (pa.float64(), lambda k: -97.7 - k / 1e3),
    "speed": (pa.float64(), lambda k: float(k)),
}
_FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, 90.0, 180.0, -180.1, 1e18)
_INTEGERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), NOW_US, NOW_US // 1000, NOW_US // 1_000_000)
_NAMES = tuple(text for text in TEXTS if text.isprintable() and len(text) < 300)
_KINDS: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    (pa.float64(), _FLOATS),
    (pa.float32(), (0.0, math.nan, math.inf, 3e38)),
    (pa.int64(), _INTEGERS),
    (pa.uint64(), (0, 2**64 - 1)),
    (pa.int8(), (-128, 0, 127)),
    (pa.string(), _NAMES),
    (pa.large_string(), _NAMES),
    (pa.binary(), (b"", b"\xff\xfe", b"bus-1", b"\0")),
    (pa.bool_(), (True, False)),
    (pa.null(), (None,)),
    (pa.timestamp("us"), _INTEGERS),
    (pa.timestamp("ns"), _INTEGERS),
    (pa.timestamp("s", "UTC"), _INTEGERS),
    (pa.timestamp("ms", "America/Chicago"), _INTEGERS),
    (pa.date32(), (0, 2**31 - 1, -(2**31))),
    (pa.duration("us"), _INTEGERS),
    (pa.list_(pa.float64()), ([], [1.0], [math.nan, 2.0])),
    (pa.struct([("lat", pa.float64())]), ({"lat": 1.0}, {"lat": math.inf})),
    (pa.dictionary(pa.int8(), pa.string()), ("a", "", "bus-1")),
)


class ParquetFiles(FolderTarget):
    """Files of 24 rows. In one half of them some columns are of another type; of the others bytes are mutated."""

    name = "recordings-parquet"
    contract = "a RecordingError that names the file, or as many rows and refusals as the file has rows"

    def __init__(self) -> None:
        self._config = feed_config("canonical", lateness="event-time")

    def __enter__(self) -> Self:
        super().__enter__()
        key = self.folder / "user.key"
        privacy = self._config.privacy.model_copy(update={"user_key_file": key})
        self._config = self._config.model_copy(update={"privacy": privacy})
        return self

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Twelve files of each kind."""
        mutator = Mutator(rng)
        for _ in range(_FILES):
            hunt.attempt(_file(rng, odd=0.3), self._read)
            hunt.attempt(mutator.octets(_file(rng, odd=0.0)), self._read)

    def _read(self, data: bytes) -> None:
        path = self.folder / "day.parquet"
        path.write_bytes(data)
        try:
            rows, refusals = read_recording(self._config, path, "canonical")
            with open_recording(path, "canonical", self._config.feed) as recording:
                messages = sum(len(block.values) for block in recording)
        except RecordingError as error:
            if not str(error).startswith(str(path)):
                raise AssertionError("the error does not name the file") from error
            return
        assert len(rows) + refusals.refused == messages


def _file(rng: random.Random, odd: float) -> bytes:
    """A file in which each column is of another type with probability ``odd``."""
    columns = {}
    for name, (kind, value) in _SOUND.items():
        values = [value(row) for row in range(_ROWS)]
        if rng.random() < odd:
            kind, choices = rng.choice(_KINDS)
            values = [rng.choice((*choices, None)) for _ in range(_ROWS)]
        columns[name] = pa.array(values, kind)
    out = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), out, compression=rng.choice(("none", "snappy", "gzip", "zstd")))
    except pa.ArrowInvalid:  # no file holds such a time
        return _file(rng, odd)
    return out.getvalue()
