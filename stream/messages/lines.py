"""Messages as lines of a file (NDJSON): topic, key, headers and value. The value keeps its committed bytes.

The files of ``--out``: NDJSON with one message per line, or, depending on the suffix, a table of the hexagons.

Releases cost budget and cannot be drawn again, so no file is overwritten without ``--force``. Until the end of the run,
a table's lines are kept in a file beside it; then the table is written in one step. A run that is cut short leaves the
lines.
"""

import gzip
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import IO, TextIO, cast

import msgspec

from stream.messages.message import HEXAGON_SPEED, Message
from stream.messages.tables import WRITERS, Row, require_parquet, row_of

MAX_LINE = (1 << 20) + (1 << 16)
"""Longest line in bytes: a message of 1 MiB, the most that brokers accept, with key and headers."""


class Line(msgspec.Struct):
    """One line; its value is still undecoded bytes."""

    topic: str
    headers: dict[str, str]
    value: msgspec.Raw

    @property
    def ce_id(self) -> str:
        """Identifier by which readers drop duplicates; empty if the line has none."""
        return self.headers.get("ce_id", "")


_DECODER = msgspec.json.Decoder(Line)


class LineError(ValueError):
    """A line that is not a message; the text says why."""


def line_of(message: Message) -> str:
    """The message as one line, newline included."""
    headers = {name: value.decode() for name, value in message.headers}
    head = json.dumps({"topic": message.topic, "key": message.key.decode(), "headers": headers}, separators=(",", ":"))
    return f'{head[:-1]},"value":{message.value.decode()}}}\n'


def read_line(line: bytes) -> Line:
    """Read a line that :func:`line_of` wrote. Raises :class:`LineError` for anything else; the value is not decoded."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LineError(str(error)) from None


def lines_in(file: str | Path) -> Iterator[bytes]:
    """The lines of a file, plain or .gz; "-": of stdin.

    Raises :class:`LineError` for a line that is longer than :data:`MAX_LINE`, :class:`OSError`, :class:`EOFError` and
    :class:`zlib.error`.
    """
    with ExitStack() as opened:
        lines: IO[bytes] = sys.stdin.buffer
        if str(file).endswith(".gz"):
            lines = cast("IO[bytes]", opened.enter_context(gzip.open(file)))
        elif str(file) != "-":
            lines = opened.enter_context(Path(file).open("rb"))
        for number in count(1):
            line = lines.readline(MAX_LINE + 1)
            if len(line) > MAX_LINE:
                raise LineError(f"line {number} of {file} has more than {MAX_LINE} bytes, so it is no release")
            if not line:
                return
            yield line


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
