"""Decodes large documents in a process of their own: C code that reads 25 MiB lets no other thread run."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from stream.local import die_with_parent
from stream.sources.snapshots import Snapshot, SnapshotError

LARGE_BYTES = 1 << 20
"""Documents from this size on are decoded in another process. Smaller ones take about 20 ms, as for 10 000 vehicles."""

Decode = Callable[[bytes, int | None], Snapshot]


class DecodedApart:
    """``decode`` (a function that can be pickled), of large documents in another process, which is started for the
    first one.

    It ends with the thread that began it, or if memory lacks; then a document is tried once more in a new one.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, body: bytes, received_us: int | None) -> Snapshot:
        """The snapshot; waits for it. Raises what ``decode`` raises, and :class:`SnapshotError` if the process ends."""
        if len(body) < LARGE_BYTES:
            return self._decode(body, received_us)
        try:
            return self._in_pool(body, received_us)
        except BrokenProcessPool:
            self._pool = None
        try:
            return self._in_pool(body, received_us)
        except BrokenProcessPool:
            self._pool = None
            raise SnapshotError(
                f"{len(body)} bytes, and the process that decoded them ended twice; too little memory?"
            ) from None

    def _in_pool(self, body: bytes, received_us: int | None) -> Snapshot:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(os.getpid(),))
        return self._pool.submit(self._decode, body, received_us).result()


def _begin(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
