"""Reads lines of a file or of standard input, plain or gzipped, in bounded memory; knows its position for a progress bar."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from stream.sources.standard_input import STDIN, StandardInput

LONGEST_LINE = 16 << 20
"""Only so many bytes of a line are kept, because a file without line ends must not fill the memory."""
_KEPT = 1024

Stored = BufferedReader | StandardInput
"""Bytes of a recording as stored; ``peek`` shows the first ones."""

_READ = 1 << 18
_INFLATE = 1 << 20


class RecordingError(ValueError):
    """A recording that cannot be read to its end; the message says how far it was read."""


def open_stored(path: Path) -> Stored:
    """The bytes of a file as stored, or of standard input if ``path`` is ``-``. Raises :class:`RecordingError`."""
    try:
        return StandardInput() if path == STDIN else path.open("rb")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}; name a readable file") from None


class Lines:
    """Blocks of whole lines, without their ends. ``position`` and ``size`` are bytes of the file as stored.

    An empty block means that standard input is silent at present.

    Raises :class:`RecordingError` after the last readable line if the gzip stream is cut short or damaged.
    """

    def __init__(self, path: Path, stored: Stored | None = None) -> None:
        self.path = path
        self._file = open_stored(path) if stored is None else stored
        self.size = 0 if path == STDIN else path.stat().st_size
        self.position = 0
        self.read = 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[list[bytes]]:
        carry, skipping = b"", False
        failure: RecordingError | None = None
        blocks = self._blocks()
        while True:
            try:
                block = next(blocks, None)
            except RecordingError as error:
                block, failure = None, error
            if block is None:
                break
            if not block:
                yield []
                continue
            if skipping:
                _, end, block = block.partition(b"\n")
                skipping = not end
            lines = (carry + block).split(b"\n")
            carry = lines.pop()
            if len(carry) > LONGEST_LINE:
                lines.append(carry[:_KEPT])
                carry, skipping = b"", True
            self.read += len(lines)
            if lines:
                yield lines
        if carry and failure is None:
            self.read += 1
            yield [carry]
        if failure is not None:
            raise RecordingError(f"{failure} {self.read} lines were read before it") from None

    def peek(self, size: int) -> bytes:
        """The first ``size`` stored bytes of the file, or a little more, before any line was read."""
        return self._file.peek(size)

    def _reads(self) -> Iterator[bytes]:
        """Bytes as stored; empty ones while standard input is silent."""
        while (block := self._file.read(_READ)) != b"":
            self.position += len(block or b"")
            yield block or b""

    def _blocks(self) -> Iterator[bytes]:
        if self.peek(2)[:2] != b"\x1f\x8b":
            yield from self._reads()
            return
        stream = zlib.decompressobj(31)
        for stored in self._reads():
            block = stored
            if not block:
                yield b""
            while block:
                if stream.eof:
                    stream = zlib.decompressobj(31)
                try:
                    text = stream.decompress(block, _INFLATE)
                except zlib.error as error:
                    raise RecordingError(f"{self.path}: damaged gzip near byte {self.position} ({error});") from None
                if text:
                    yield text
                block = stream.unused_data.lstrip(b"\0") if stream.eof else stream.unconsumed_tail
        if not stream.eof:
            raise RecordingError(f"{self.path}: the gzip stream is cut short after {self.position} bytes;")
