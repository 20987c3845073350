"""What every source hands to delivery: blocks of messages in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Messages:
    """``due`` is when each message reaches the broker at recorded pace, µs UTC; the key is its vehicle.

    ``unread`` of them are no events of the format: they are passed on for the service to reject, count and report,
    without a key and due with the message before.
    """

    due: NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes]
    unread: int = 0

    def part(self, start: int, stop: int) -> Messages:
        """Messages ``start`` to ``stop - 1``; the unread are counted with the first of a block."""
        return Messages(
            self.due[start:stop], self.keys[start:stop], self.values[start:stop], self.unread if start == 0 else 0
        )
