"""Handler for the complete windows of a range of time as one file, bounded in size and in number at a time."""

from __future__ import annotations

from aiohttp import web

from stream.messages.tables import ParquetMissingError, table_of
from stream.serve import parameters as p
from stream.serve.hexagons import FILES, no_parquet
from stream.serve.operations import files
from stream.serve.responses import Answers, Problem, key_of
from stream.serve.turns import Turns
from stream.serve.window_store import View

MAX_RANGE_BYTES = 16 << 20
"""Bytes of message values in one range: some 40 000 cells. As rows in memory they take ten times as much."""
MAX_WAITING = 4
"""Ranges that may be written or wait at the same time."""


class Ranges:
    """Writes one range after the other, so that many requests for large ranges cannot fill the memory."""

    def __init__(self, view: View, answers: Answers) -> None:
        self._view = view
        self._answers = answers
        self._turns = Turns("ranges", MAX_WAITING, 30)

    @files(
        "/download", "downloadRange", "Every complete window of a range of time as one {}, oldest first", FILES,
        p.FROM, p.TO, p.FEED, errors=(404, 413),
    )  # fmt: skip
    async def download(self, request: web.Request, feed: str, first: str, last: str, suffix: str) -> web.Response:
        """The cells of every complete window that begins in [first, last), oldest first."""
        windows = [
            window for window in reversed(self._view.ordered(feed)) if window.complete and first <= window.start < last
        ]
        if not windows:
            raise Problem(
                404,
                f"no complete window of feed {feed!r} begins in [{first}, {last})",
                "see /api/v1/windows for starts",
            )
        size = sum(window.size for window in windows)
        if size > MAX_RANGE_BYTES:
            raise Problem(
                413,
                f"the {len(windows)} windows of this range hold {size} bytes, above {MAX_RANGE_BYTES}",
                "ask for a shorter range, or for the windows one by one",
            )
        key = key_of("range", suffix, [window.tag for window in windows])
        compact = [moment.replace("-", "").replace(":", "") for moment in (first, last)]
        name = f"hexveil-{feed}-{compact[0]}-{compact[1]}.{suffix}"

        def make() -> bytes:
            return table_of([value for window in windows for value in window.in_order()], suffix)

        try:
            return await self._turns.answer(self._answers, request, key, make, FILES[suffix], name)
        except ParquetMissingError:
            raise no_parquet() from None
