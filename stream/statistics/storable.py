"""Whether a window can be stored: plan and committed bytes are one value each, so bounded before the charge."""

from __future__ import annotations

LARGEST_VALUE = 500_000_000
"""Bytes. A Redis in its default configuration closes the connection that sends 512 MiB or more
(``proto-max-bulk-len``)."""
LARGEST_MESSAGE = 4_000
"""Bytes of a cell's message with key and headers, without the distribution, with all statistics, counts and models."""
MOST_CELLS = 100_000
"""Cells of a window. Their messages, the distributions (:data:`stream.statistics.distributions.MAX_NUMBERS`) and a
message of each kind of histogram stay below :data:`LARGEST_VALUE`."""


class TooLargeError(ValueError):
    """A window that could be drawn and charged, but not stored."""


def require_storable(cells: int) -> None:
    """Raise :class:`TooLargeError` for more cells than :data:`MOST_CELLS`."""
    if cells > MOST_CELLS:
        raise TooLargeError(
            f"the window has {cells} cells, and Redis can store the messages of {MOST_CELLS}; nobody was charged. "
            "Lower hexagons.resolution or window.slot, or narrow feed.domain"
        )


def require_storable_plan(size: int) -> None:
    """Raise :class:`TooLargeError` for a plan of more bytes than :data:`LARGEST_VALUE`."""
    if size > LARGEST_VALUE:
        raise TooLargeError(
            f"the plan of the window takes {size} bytes, and Redis can store {LARGEST_VALUE}; nobody was charged. "
            "Lower hexagons.resolution or window.slot, or split the feed"
        )
