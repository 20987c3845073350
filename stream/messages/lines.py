"""Messages as lines of a file (NDJSON): topic, key, headers and value. The value keeps its committed bytes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stream.messages.message import Message


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
    """The lines of a file, plain or .gz; "-": of stdin. Raises :class:`OSError`, :class:`EOFError` and :class:`zlib.error`."""
    if str(file) == "-":
        yield from sys.stdin.buffer
    elif str(file).endswith(".gz"):
        with gzip.open(file) as unpacked:
            yield from unpacked
    else:
        with Path(file).open("rb") as plain:
            yield from plain
