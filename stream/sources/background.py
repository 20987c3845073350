"""Reads a source in a thread, so that what delivers its messages is not held up while the source computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from stream.sources.messages import Messages

AHEAD = 4
"""Blocks that are read before they are asked for: a nap of delivery after an empty block holds up none."""
_WAIT_SECONDS = 0.01


def in_background(blocks: Iterable[Messages]) -> Iterator[Messages]:
    """The same blocks, up to :data:`AHEAD` of them read in advance; an empty block whenever the next one is not ready.

    Errors of the source are raised in their place. When the iterator is closed, it waits for the block that is being
    read.
    """
    source = iter(blocks)
    reader = ThreadPoolExecutor(1, thread_name_prefix="source")
    try:
        ahead = deque(reader.submit(next, source, None) for _ in range(AHEAD))
        while True:
            while not wait([ahead[0]], _WAIT_SECONDS).done:
                yield Messages(np.zeros(0, dtype=np.int64), [], [])
            block = ahead.popleft().result()
            if block is None:
                return
            ahead.append(reader.submit(next, source, None))
            yield block
    finally:
        reader.shutdown(cancel_futures=True)
