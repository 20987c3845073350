"""Opens a recording, a file or standard input, as lines (NDJSON, CSV) or Parquet: its content decides, not its name."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Self

from stream.config.feed import FeedConfig, FeedFields
from stream.ingestion.formats import recording_format
from stream.sources.file_kinds import PARQUET
from stream.sources.lines import STDIN, RecordingError, StandardInput, open_stored
from stream.sources.messages import Messages
from stream.sources.recording import Recording, require_format

if TYPE_CHECKING:
    from stream.sources.tables import TableLines


def recordings_in(path: Path) -> list[Path]:
    """The files of a folder and of those in it, in order of name, without hidden ones; else the file itself."""
    if path == STDIN or not path.is_dir():
        return [path]
    files = sorted(entry for entry in path.rglob("*") if entry.is_file() and not entry.name.startswith("."))
    if not files:
        raise RecordingError(f"{path} is a folder without files; name one that contains recordings")
    return files


def together(paths: Sequence[Path]) -> Path:
    """One path for several files and folders: a folder of links to them, which is removed when the process ends."""
    if len(paths) == 1:
        return paths[0]
    folder = TemporaryDirectory(prefix="hexveil-recordings-")
    atexit.register(folder.cleanup)
    for number, file in enumerate(file for path in paths for file in recordings_in(path)):
        (Path(folder.name) / f"{number:06}-{file.name}").symlink_to(file.resolve())
    return Path(folder.name)


class Folder:
    """The recordings of a folder as one, file by file; iterated once. ``position`` and ``size``: bytes as stored."""

    def __init__(self, path: Path, file_format: str, feed: FeedConfig, *, one_each: bool = False) -> None:
        self._files, self._one_each = recordings_in(path), one_each
        self._format, self._feed, self._done = file_format, feed, 0
        self._sizes = [file.stat().st_size for file in self._files]
        self.size = sum(self._sizes)
        self._part: Recording | None = None

    @property
    def position(self) -> int:
        """What of :attr:`size` was read so far."""
        part, done = self._part, sum(self._sizes[: self._done])
        return done if part is None else done + self._sizes[self._done] * part.position // max(part.size, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._part is not None:
            self._part.__exit__()

    def __iter__(self) -> Iterator[Messages]:
        for file in self._files:
            opened = open_recording(file, self._format, self._feed, one_each=self._one_each)
            assert not isinstance(opened, Folder)
            with opened as part:
                self._part = part
                yield from part
            self._part = None
            self._done += 1


def open_recording(path: Path, file_format: str, feed: FeedConfig, *, one_each: bool = False) -> Recording | Folder:
    """The recording at ``path``, a file or a folder, or on standard input if that is ``-``.

    ``one_each``: a line is one event, or refused as a whole, as a message of relation "participation" is, where the
    form of one event must not decide what becomes of another. Raises :class:`RecordingError` for what cannot be read.
    """
    require_format(path, file_format, feed)
    if path != STDIN and path.is_dir():
        return Folder(path, file_format, feed, one_each=one_each)
    stored = open_stored(path)
    if not stored.peek(len(PARQUET)).startswith(PARQUET):
        return Recording(path, file_format, feed, stored, one_each=one_each)
    source = stored.spool() if isinstance(stored, StandardInput) else stored
    rows = table_lines(path, source, recording_format(feed, file_format).fields, any_value=feed.derives_speeds)
    return Recording(path, file_format, feed, lines=rows, one_each=one_each)


def table_lines(
    path: Path, source: Path | IO[bytes], fields: FeedFields | None = None, *, any_value: bool = False
) -> TableLines:
    """The rows of a Parquet file, as :class:`~stream.sources.tables.TableLines` reads them."""
    try:
        from stream.sources.tables import TableLines
    except ModuleNotFoundError:
        raise RecordingError(f"{path}: Parquet needs pyarrow; pip install 'hexveil[parquet]'") from None
    return TableLines(path, source, fields, any_value=any_value)
