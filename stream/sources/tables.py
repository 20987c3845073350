"""Reads Parquet as rows in JSON, one object a line, so that all that is said of JSON holds for it.

A timestamp becomes text of ISO 8601, with an offset if its type has a zone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from stream.config.feed import FeedFields
from stream.sources.file_kinds import wrong_header
from stream.sources.lines import RecordingError

_ROWS_AT_ONCE = 16_384
_LONGEST_METADATA = 64 << 20


class TableLines:
    """Blocks of the rows of one Parquet file, in its order; iterated once.

    ``fields``: read only their columns, which must be there; that of the value need not with ``any_value``. Raises
    :class:`~stream.sources.lines.RecordingError` for a file that is no Parquet, and for a missing column.
    """

    def __init__(
        self, path: Path, source: Path | IO[bytes], fields: FeedFields | None = None, *, any_value: bool = False
    ) -> None:
        """``source``: the file, or its bytes; ``path`` names it in errors."""
        self._path, self.position = path, 0
        try:
            self._file = ParquetFile(source, thrift_string_size_limit=_LONGEST_METADATA)
            names = self._file.schema_arrow.names
        except Exception as error:  # whatever error hostile bytes cause
            raise RecordingError(f"{path}: not a readable Parquet file ({_first_line(error)})") from None
        self._columns = names
        if fields is not None:
            roots = {name.split(".")[0] for name in fields.paths}
            needed = {name.split(".")[0] for name in fields.paths[: 4 if any_value else None]}
            self._columns = sorted(roots & set(names))
            if missing := needed - set(names):
                raise RecordingError(f"{path}: {wrong_header(names, missing, fields)}")

    def __iter__(self) -> Iterator[list[bytes]]:
        encode = msgspec.json.Encoder(enc_hook=str).encode
        try:
            for batch in self._file.iter_batches(_ROWS_AT_ONCE, columns=self._columns):
                self.position += batch.num_rows
                columns = [_values(batch.column(name)) for name in self._columns]
                yield [encode(dict(zip(self._columns, row, strict=True))) for row in zip(*columns, strict=True)]
        except Exception as error:  # whatever error hostile bytes cause
            raise RecordingError(
                f"{self._path}: damaged after row {self.position} ({_first_line(error)}); write it again"
            ) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _values(array: pa.Array) -> list[object]:
    """A column as Python has it, with times to the microsecond."""
    if pa.types.is_timestamp(array.type):
        array = pc.cast(array, pa.timestamp("us", array.type.tz and "UTC"), safe=False)
    values: list[object] = array.to_pylist()
    return values


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
