"""Standard input as a recording: what another program writes, read as it comes."""

from __future__ import annotations

import os
import select
import sys
import tempfile
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, BinaryIO

STDIN = Path("-")
"""The name of standard input among recordings."""

_WAIT_SECONDS = 0.05


class StandardInput:
    """Bytes of standard input. ``peek`` shows the first ones without taking them.

    It reads the descriptor itself, because Python's buffer would keep a line until thousands more follow it.
    """

    def __init__(self) -> None:
        self._stream: BinaryIO = sys.stdin.buffer
        self._descriptor: int | None = None
        with suppress(UnsupportedOperation):  # a test may replace standard input by bytes
            self._descriptor = self._stream.fileno()
        self._head = b""

    def peek(self, size: int) -> bytes:
        """The first ``size`` bytes, or all if there are fewer."""
        while len(self._head) < size and (more := self._take(size - len(self._head))):
            self._head += more
        return self._head[:size]

    def read(self, size: int) -> bytes | None:
        """At most ``size`` bytes; none at the end; None if the other program has written nothing for a moment."""
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        if self._descriptor is not None and not select.select([self._descriptor], [], [], _WAIT_SECONDS)[0]:
            return None
        return self._take(size)

    def read_whole(self, most: int) -> bytes:
        """All of it, at most so many bytes; waits for the other program to end."""
        blocks, left = [self._head[:most]], most - len(self._head)
        self._head = b""
        while left > 0 and (block := self._take(left)):
            blocks.append(block)
            left -= len(block)
        return b"".join(blocks)

    def close(self) -> None:
        """Do nothing: standard input belongs to the process."""

    def spool(self) -> IO[bytes]:
        """All of it in a temporary file, for formats that are not read from front to back."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        file.write(self._head)
        self._head = b""
        while block := self._take(1 << 20):
            file.write(block)
        file.seek(0)
        return file

    def _take(self, size: int) -> bytes:
        return self._stream.read(size) if self._descriptor is None else os.read(self._descriptor, size)
