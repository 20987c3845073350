"""Reads lines of a plain or gzipped file in bounded memory, and knows its position for a progress bar."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LONGEST_LINE = 16 << 20
"""Only so many bytes of a line are kept, because a file without line ends must not fill the memory."""
_KEPT = 1024

_READ = 1 << 18
_INFLATE = 1 << 20


class RecordingError(ValueError):
    """A recording that cannot be read to its end; the message says how far it was read."""


class Lines:
    """Blocks of whole lines, without their ends. ``position`` and ``size`` are bytes of the file as stored.

    Raises :class:`RecordingError` after the last readable line if the gzip stream is cut short or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}; name a readable file") from None
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

    def _blocks(self) -> Iterator[bytes]:
        head = self._file.read(_READ)
        if not head.startswith(b"\x1f\x8b"):
            while head:
                self.position += len(head)
                yield head
                head = self._file.read(_READ)
            return
        stream = zlib.decompressobj(31)
        while head:
            self.position += len(head)
            while head:
                if stream.eof:
                    stream = zlib.decompressobj(31)
                try:
                    text = stream.decompress(head, _INFLATE)
                except zlib.error as error:
                    raise RecordingError(f"{self.path}: damaged gzip near byte {self.position} ({error});") from None
                if text:
                    yield text
                head = stream.unused_data.lstrip(b"\0") if stream.eof else stream.unconsumed_tail
            head = self._file.read(_READ)
        if not stream.eof:
            raise RecordingError(f"{self.path}: the gzip stream is cut short after {self.position} bytes;")
