"""The events of the messages of a batch while they are read: which message each is of, and which are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Leading:
    """Fixes of the first messages of a batch. ``is_cut``: the message after them was tried, and cannot be decoded."""

    fixes: list[Any]
    is_cut: bool = False


@dataclass
class Read:
    """Events as they were read. ``index``: the event of each fix. ``refused``: codes by number of the event."""

    fixes: list[Any] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    arrays: dict[int, int] = field(default_factory=dict)
    """Number of events of each message with an array or a region, by message."""
    corners: dict[int, int] = field(default_factory=dict)
    """The corner for which a message is refused as a whole, by number of the event; -1 without one."""
    events: int = 0
    messages: int = 0

    def add(self, message: int, begin: int, elements: Read) -> None:
        """Add the elements of a message, the first of which is event ``begin``."""
        self.fixes += elements.fixes
        self.index += [begin + at for at in elements.index]
        self.refused |= {begin + at: code for at, code in elements.refused.items()}
        self.arrays[message] = elements.events

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The message of each event, and its index in the array or region of the message; -1 without one."""
        counts, of_array = np.ones(self.messages, dtype=np.int64), np.zeros(self.messages, dtype=bool)
        counts[list(self.arrays)] = list(self.arrays.values())
        of_array[list(self.arrays)] = True
        message = np.repeat(np.arange(self.messages), counts)
        element = np.arange(self.events) - (np.cumsum(counts) - counts)[message]
        element = np.where(of_array[message], element, -1)
        element[list(self.corners)] = list(self.corners.values())
        return message, element
