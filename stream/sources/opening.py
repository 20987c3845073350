"""Opens a recording by what it contains, whatever its name: lines (NDJSON, CSV) or Parquet, from a file or standard input."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stream.config.feed import FeedConfig
from stream.sources.file_kinds import PARQUET
from stream.sources.lines import RecordingError, open_stored
from stream.sources.recording import Recording, require_format
from stream.sources.standard_input import StandardInput

if TYPE_CHECKING:
    from stream.sources.tables import Table


def open_recording(
    path: Path, file_format: str, feed: FeedConfig, shift: timedelta = timedelta(0), *, one_each: bool = False
) -> Recording | Table:
    """The recording at ``path``, or on standard input if that is ``-``; ``shift`` is added to every event time.

    ``one_each``: a line is one event, or refused as a whole, as a message of relation "participation" is, where the form of one event
    must not decide what becomes of another.
    Raises :class:`RecordingError` for what cannot be read.
    """
    require_format(path, file_format, feed)
    stored = open_stored(path)
    if not stored.peek(len(PARQUET)).startswith(PARQUET):
        return Recording(path, file_format, feed, shift, stored, one_each=one_each)
    try:
        from stream.sources.tables import Table
    except ModuleNotFoundError:
        raise RecordingError(f"{path}: Parquet needs pyarrow; pip install 'hexveil[parquet]'") from None
    if isinstance(stored, StandardInput):
        return Table(path, stored.spool(), file_format, feed, shift)
    stored.close()
    return Table(path, path, file_format, feed, shift)
