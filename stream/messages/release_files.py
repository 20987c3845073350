"""The files of ``--out``: NDJSON with one message per line, or, depending on the suffix, a table of the hexagons.

Releases cost budget and cannot be drawn again, so no file is overwritten without ``--force``. Until the end of the run,
a table's lines are kept in a file beside it; then the table is written in one step. A run that is cut short leaves the
lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from stream.messages.lines import read_line
from stream.messages.message import HEXAGON_SPEED
from stream.messages.tables import WRITERS, Row, require_parquet, row_of

NDJSON = "ndjson"
SUFFIXES = (NDJSON, *WRITERS)


class ReleaseFileError(ValueError):
    """A file to which releases cannot be written; the message says why and what to do."""


class _Rows:
    """Hexagon rows of a file of lines; every iteration reads the file again."""

    def __init__(self, lines: Path) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[Row]:
        with self._lines.open("rb") as file:
            for line in map(read_line, file):
                if line.topic == HEXAGON_SPEED:
                    yield row_of(bytes(line.value))


@contextmanager
def release_file(path: Path, *, force: bool = False) -> Iterator[TextIO]:
    """A file to write lines of releases to. When the context ends, also by an error, ``path`` holds the lines or their
    table.

    ``force``: replace an existing file. Raises :class:`ReleaseFileError`,
    :class:`stream.messages.tables.ParquetMissingError`, and :class:`OSError` if writing fails.
    """
    suffix = path.suffix.removeprefix(".")
    if suffix not in SUFFIXES:
        known = ", ".join(f".{name}" for name in SUFFIXES)
        raise ReleaseFileError(f"{path} has none of the suffixes {known}, which choose the format; give it one")
    if suffix == "parquet":
        require_parquet()
    lines = path if suffix == NDJSON else path.with_name(f"{path.name}.lines.ndjson")
    for taken in {path, lines}:
        if taken.exists() and not force:
            raise ReleaseFileError(
                f"{taken} exists, and its releases cannot be drawn again; name another file, or overwrite it with "
                "--force"
            )
    with lines.open("w", encoding="utf-8") as out:
        try:
            yield out
        except BaseException:
            out.flush()
            if not lines.stat().st_size:
                lines.unlink()  # nothing was released, so the next run may use the name
            elif lines != path:
                _make_table(lines, path, suffix)
            raise
        out.flush()
        if lines != path:
            _make_table(lines, path, suffix)


def _make_table(lines: Path, path: Path, suffix: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("wb") as table:
            WRITERS[suffix](_Rows(lines), table)
            table.flush()
            os.fsync(table.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    lines.unlink()
