"""Follows files of releases (NDJSON) as they grow, from ``hexveil replay --out`` or a run without Kafka.

Close markers are numbered in the order of reading: files by name, lines in file order. Other lines are counted and
skipped.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import structlog

from stream.messages.lines import MAX_LINE, LineError, read_line
from stream.messages.message import OUTPUT_TOPICS, RELEASE_TOPICS, WINDOW
from stream.serve.reading.intake import Arrival, Intake
from stream.serve.received import received

log = structlog.get_logger()

MAX_FILES = 1024
"""Number of files of a folder that are followed; each is an open file."""
_CHUNK = 256 << 10
_BEFORE = 4096
"""Number of last bytes that are kept, to notice that a file was written anew."""
_POLL_SECONDS = 0.25
_PEEK = 4 << 20


class ReleaseSourceError(ValueError):
    """A path without releases; the message says why and what to give instead."""


class Follower:
    """Reads complete lines of one file as it grows.

    If the file is truncated or written anew, reading begins again. If another file takes its name, reading changes to
    that file once the old one was read to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed_over = 0
        """Number of lines that were too long or incomplete at the end of their file."""
        self._file: int | None = None
        self._reset()

    def _reset(self) -> None:
        self.position, self._before, self._rest, self._too_long = 0, b"", b"", False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def size(self) -> int:
        """Present size of the file in bytes; 0 if it does not exist."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def lines(self) -> list[bytes]:
        """The next complete lines, a few hundred kilobytes at most; empty if there is nothing new. Raises
        :class:`OSError`."""
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        if os.pread(self._file, len(self._before), self.position - len(self._before)) != self._before:
            log.warning("file was truncated or written anew; it is read from its beginning", file=str(self.path))
            self._abandon()
        chunk = os.pread(self._file, _CHUNK, self.position)
        if not chunk and self._replaced():
            self._abandon()
            self.close()
            return self.lines()
        self.position += len(chunk)
        self._before = (self._before + chunk)[-_BEFORE:]
        return self._split(chunk)

    def _open(self) -> bool:
        try:
            # Opened without blocking, because a pipe with this name must not stop the reader.
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            raise OSError(f"{self.path} is not a regular file")
        return True

    def _replaced(self) -> bool:
        assert self._file is not None
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False  # between two files of a rotation, while the old one may still grow
        mine = os.fstat(self._file)
        return (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino)

    def _abandon(self) -> None:
        self.passed_over += bool(self._rest)
        self._reset()

    def _split(self, chunk: bytes) -> list[bytes]:
        first, *others = chunk.split(b"\n")
        if not others:
            self._rest += first
            self._bound()
            return []
        lines = [self._rest + first, *others[:-1]]
        if self._too_long:
            lines = lines[1:]  # the end of a line that was skipped
        self._rest, self._too_long = others[-1], False
        self._bound()
        return lines

    def _bound(self) -> None:
        if self._too_long or len(self._rest) > MAX_LINE:
            self.passed_over += not self._too_long
            self._rest, self._too_long = b"", True


class FileSource:
    """Follows a file of releases, or every ``*.ndjson`` in a folder, while files grow, appear and disappear."""

    open_files = MAX_FILES

    def __init__(self, path: Path) -> None:
        self._path = path
        self._followers: dict[Path, Follower] = {}
        self._markers = 0
        self._refused = False
        self._said = ""

    async def run(self, intake: Intake) -> None:
        """Read for ever. If a file cannot be read, try again."""
        try:
            await self._take_present(intake)
            intake.caught_up.set()
            while True:
                grew = False
                for follower in self._present():
                    grew |= await self._take(intake, follower)
                if not grew:
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            for follower in self._followers.values():
                follower.close()

    async def _take_present(self, intake: Intake) -> None:
        for follower in self._present():
            size = follower.size()
            while follower.position < size and await self._take(intake, follower):
                pass

    def _present(self) -> list[Follower]:
        try:
            paths = _files(self._path)
        except OSError as error:
            self._say(str(error))
            paths = list(self._followers)
        for gone in self._followers.keys() - set(paths):
            self._followers.pop(gone).close()
        return [self._followers.setdefault(path, Follower(path)) for path in paths]

    async def _take(self, intake: Intake, follower: Follower) -> bool:
        """Whether the file had anything new."""
        position, passed_over = follower.position, follower.passed_over
        try:
            arrivals, refusals, reason = await intake.in_thread(self._next, follower)
        except OSError as error:
            self._say(f"{follower.path}: {error.strerror or error}")
            return False
        if follower.passed_over > passed_over:
            intake.refuse(follower.passed_over - passed_over)
            self._tell_refused(follower.path, f"longer than {MAX_LINE} bytes, or cut short")
        if refusals:
            intake.refuse(refusals)
            self._tell_refused(follower.path, reason)
        await intake.take(arrivals)
        return follower.position != position

    def _next(self, follower: Follower) -> tuple[list[Arrival], int, str]:
        """The next messages of a file, the number of lines that are none, and what is wrong with the first of these."""
        arrivals: list[Arrival] = []
        refusals, reason = 0, ""
        for text in filter(None, follower.lines()):
            try:
                line = read_line(text)
            except LineError as error:
                refusals, reason = refusals + 1, reason or str(error)
                continue
            if line.topic in RELEASE_TOPICS or line.topic not in OUTPUT_TOPICS:
                number = self._markers + 1
                self._markers += line.topic == WINDOW
                arrivals.append(Arrival(line.topic, line.ce_id, bytes(line.value), number))
        return arrivals, refusals, reason

    def _tell_refused(self, path: Path, reason: str) -> None:
        if not self._refused:
            log.warning("a line is not a release; further ones are only counted", file=str(path), reason=reason[:200])
        self._refused = True

    def _say(self, problem: str) -> None:
        if problem != self._said:
            log.warning("releases cannot be read, trying again", reason=problem)
            self._said = problem


def _files(path: Path) -> list[Path]:
    """The file, or the NDJSON files of a folder by name."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix == ".ndjson")
    if len(files) > MAX_FILES:
        raise OSError(f"{path} holds {len(files)} files, {MAX_FILES} can be followed; join some of them")
    return files


def feed_in(path: Path) -> str | None:
    """Feed of the first release in ``path``; None where nothing is there yet. Raises :class:`ReleaseSourceError`."""
    try:
        if not path.exists():
            raise ReleaseSourceError(
                f"{path}: no such file or folder; 'hexveil replay FILE --offline --out {path}' makes one"
            )
        if not (path.is_dir() or path.is_file()):
            raise ReleaseSourceError(f"{path} is neither a file nor a folder; give a file that replay --out wrote")
        seen = False
        for line in (line for file in _files(path) for line in _beginning(file)):
            seen = True
            try:
                read = read_line(line)
            except LineError:
                continue
            if (message := received(read.topic, read.ce_id, bytes(read.value))) is not None:
                return message.feed
    except OSError as error:
        raise ReleaseSourceError(f"{path}: {error.strerror or error}; give a file that can be read") from None
    if seen:
        raise ReleaseSourceError(
            f"{path} begins with lines that are no releases; give what 'hexveil replay FILE --offline --out "
            f"{path.stem}.ndjson' writes"
        )
    return None


def _beginning(file: Path) -> Iterator[bytes]:
    """Complete lines among the first bytes of a file."""
    with file.open("rb") as opened:
        yield from opened.read(_PEEK).split(b"\n")[:-1]
