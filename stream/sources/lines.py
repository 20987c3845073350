"""Reads lines of a file or of standard input, plain or gzipped, in bounded memory.

JSON over several lines is read as if each object were one line, and of an array each element.

Standard input as a recording: what another program writes, read as it comes.
"""

import codecs
import os
import select
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import IO, BinaryIO

from stream.ingestion.arrays import Cutter, may_hold_several
from stream.sources.file_kinds import BOM, GZIP, records_at

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


LONGEST_LINE = 16 << 20
"""Only so many bytes of a line are kept, because a file without line ends must not fill the memory."""
LARGEST_DOCUMENT = 256 << 20
"""Bytes of a JSON document of which a list is read, and of a text in which no line ends: a device may never end one."""
_AT_ONCE = 4096
_KEPT = 1024
_LOOKED_AT = 1_000
"""Lines by which it is recognised whether JSON is over several lines."""

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


def _is_gzip(begin: bytes) -> bool:
    """Whether the first four bytes are those of a gzip stream (RFC 1952, 2.3.1): method 8, and no flag that is
    reserved.

    A damaged first line of text may begin with the first three of them; after these, letters and brackets set reserved
    flags.
    """
    return len(begin) == 4 and begin[:3] == GZIP + b"\x08" and not begin[3] & 0xE0


class _Lines:
    def __init__(self) -> None:
        self._carry, self._skipping = b"", False

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that are complete with ``block``."""
        if self._skipping:
            _, end, block = block.partition(b"\n")
            self._skipping = not end
        lines = (self._carry + block).split(b"\n")
        self._carry = lines.pop()
        if len(self._carry) > LONGEST_LINE:
            lines.append(self._carry[:_KEPT])
            self._carry, self._skipping = b"", True
        return lines

    def rest(self) -> list[bytes]:
        return [self._carry] if self._carry else []


class _Values(Cutter):
    def __init__(self) -> None:
        super().__init__(LONGEST_LINE)
        self.fed = self._complete = 0

    def feed(self, text: bytes) -> list[bytes]:
        values = super().feed(text)
        self.fed += len(text)
        if not self.is_skipping:
            self._complete = self.fed - self.kept_bytes
        return values

    @property
    def unread_bytes(self) -> int:
        """Bytes from where a value was begun that is not complete."""
        return self.fed - self._complete if self.is_skipping or self.rest() else 0


def _begun(beginning: bytes, whole: bool) -> _Lines | _Values | None:
    over_lines = _is_over_lines(beginning, whole)
    return None if over_lines is None else _Values() if over_lines else _Lines()


def _is_over_lines(beginning: bytes, whole: bool) -> bool | None:
    """Whether JSON continues on the next line: the first line is but the beginning of an array or an object.

    A damaged first line is no such beginning: whole objects and arrays that no comma or bracket follows are the lines
    of a recording. None if three lines must be known for it and are not. ``whole``: nothing more will be known.
    """
    text = beginning.lstrip()
    first, ended, rest = text.partition(b"\n")
    first = first.strip()
    if first[:1] not in b"[{" or (first[:1] == b"{" and first != b"{"):
        return False
    if (ended or whole) and (not first or may_hold_several(first)):
        return False
    if not whole and rest.count(b"\n") < 2:
        return None
    lines = [first, *(line.strip() for line in rest.split(b"\n")[:_LOOKED_AT])]
    complete = sum(line[:1] + line[-1:] in (b"{}", b"[]") and len(line) > 1 for line in lines)
    return complete <= 1 + sum(line[:1] == b"]" for line in lines)


class Lines:
    """Blocks of whole lines in UTF-8, without their ends. ``position``: bytes that were read, as stored.

    An empty block means that standard input is silent at present. ``encoding``: of the file's text. ``records``: the
    path of a list in a JSON document, whose elements are the lines. ``over_lines``: whether a value of JSON may go over
    several lines, and so be cut by what others before it hold.

    Raises :class:`RecordingError` after the last readable line if the gzip stream is cut short or damaged.
    """

    def __init__(
        self,
        path: Path,
        stored: Stored | None = None,
        encoding: str = "utf-8",
        records: str | None = None,
        *,
        over_lines: bool = True,
    ) -> None:
        self.path = path
        self._encoding, self._records, self._over_lines = encoding, records, over_lines
        self._file = open_stored(path) if stored is None else stored
        self.position = 0
        self.read = 0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[list[bytes]]:
        return self._cut() if self._records is None else self._listed(self._records)

    def _listed(self, path: str) -> Iterator[list[bytes]]:
        parts, size = list[bytes](), 0
        for block in self._text():
            parts.append(block)
            size += len(block)
            if size > LARGEST_DOCUMENT:
                raise RecordingError(
                    f"{self.path}: a JSON document of more than {LARGEST_DOCUMENT >> 20} MiB; write one event a line"
                )
        elements = records_at(b"".join(parts), path)
        if elements is None:
            raise RecordingError(f"{self.path}: no list at {path!r} in its JSON; correct feed.records")
        for at in range(0, len(elements), _AT_ONCE):
            self.read += len(part := elements[at : at + _AT_ONCE])
            yield part

    def _text(self) -> Iterator[bytes]:
        decoder = None if self._encoding == "utf-8" else codecs.getincrementaldecoder(self._encoding)("replace")
        begin: bytes | None = b""
        for block in self.blocks():
            if decoder is not None:
                yield decoder.decode(block).encode("utf-8", "replace")
            elif begin is None:
                yield block
            else:
                begin += block
                if len(begin) >= len(BOM) or not BOM.startswith(begin):
                    yield begin.removeprefix(BOM)
                    begin = None
                elif not block:
                    yield b""
        if begin:
            yield begin

    def _cut(self) -> Iterator[list[bytes]]:
        cut: _Lines | _Values | None = None if self._over_lines else _Lines()
        beginning, unended = b"", 0
        damage: RecordingError | None = None
        try:
            for block in self._text():
                if cut is None:
                    beginning += block
                    too_long = len(beginning) > LONGEST_LINE
                    cut = _begun(beginning, too_long) if too_long or b"\n" in block or beginning == block else None
                    block = beginning if block else b""
                lines = cut.feed(block) if cut and block else []
                self.read += len(lines)
                unended = 0 if lines else unended + len(block)
                if unended > LARGEST_DOCUMENT:
                    raise RecordingError(
                        f"{self.path}: no line ends in {LARGEST_DOCUMENT >> 20} MiB; write one event a line."
                    )
                if lines or not block:
                    yield lines
        except RecordingError as error:
            damage = error
        if cut is None and beginning:
            cut = _begun(beginning, True)
            assert cut is not None
            lines = cut.feed(beginning)
            self.read += len(lines)
            yield lines
        self.read += len(rest := cut.rest() if cut else [])
        if rest:
            yield rest
        if damage is not None:
            raise RecordingError(f"{damage} {self.read} lines were read before it") from None
        if isinstance(cut, _Values) and cut.unread_bytes:
            raise RecordingError(
                f"{self.path}: brackets do not match from byte {cut.fed - cut.unread_bytes} of its text; "
                f"{cut.unread_bytes} bytes after it are unread; correct it there, or write one event a line"
            )

    def peek(self, size: int) -> bytes:
        """The first ``size`` stored bytes of the file, or a little more, before any line was read."""
        return self._file.peek(size)

    def _reads(self) -> Iterator[bytes]:
        """Bytes as stored; empty ones while standard input is silent."""
        while (block := self._file.read(_READ)) != b"":
            self.position += len(block or b"")
            yield block or b""

    def blocks(self) -> Iterator[bytes]:
        """The decompressed bytes, as they come."""
        # Of text in a pipe, more than two bytes may not have been written yet.
        if self.peek(2)[:2] != GZIP or not _is_gzip(self.peek(4)[:4]):
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
