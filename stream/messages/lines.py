"""Messages as lines of a file (NDJSON): topic, key, headers and value. The value keeps its committed bytes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import IO, cast

import msgspec

from stream.messages.message import Message

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
