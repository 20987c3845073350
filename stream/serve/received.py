"""Checks one message of an output topic and keeps of it what the store needs. Pure: any thread may do it.

Checks spatial histograms against their schema slab by slab.

The schema is checked in native code, which holds up every other thread until it returns: 70 ms for a message of 1 MB.
Between two slabs the event loop answers readers.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import h3
import msgspec

from dpcore.errors import ParameterError
from stream.messages.message import HEXAGON_SPEED, RELEASE_TOPICS, SPATIAL_HISTOGRAM, WINDOW, validator
from stream.messages.range_query import read_histogram
from stream.windows import EARLIEST_S

SLAB = 16_384
"""About so many values are checked at once: some 5 ms of work."""
MAX_ROW = 2_047
"""Most values in one row: components along a domain of 1024 cells, the longest that is allowed."""


def is_histogram(body: Any) -> bool:
    """Whether the value of a message matches the schema of spatial histograms, with no row above :data:`MAX_ROW`
    values.

    The schema says of a long array what each of its elements is, and of no two arrays that they are equally long. So a
    structure matches if and only if copies of it do that hold a slab of each long array and together all of it.
    """
    check = validator(SPATIAL_HISTOGRAM)
    structure = body.get("structure") if isinstance(body, dict) else None
    if not isinstance(structure, dict):
        return False
    nodes = [structure, *(value for value in structure.values() if isinstance(value, dict))]
    arrays = [value for node in nodes for value in node.values() if isinstance(value, list)]
    if any(isinstance(row, list) and len(row) > MAX_ROW for array in arrays for row in array):
        return False
    slabs = max(1, *(-(-_values_in(array) // SLAB) for array in arrays)) if arrays else 1
    return all(check.is_valid(body | {"structure": _slab(structure, slab, slabs)}) for slab in range(slabs))


def _values_in(array: list[Any]) -> int:
    return sum(len(row) if isinstance(row, list) else 1 for row in array)


def _slab(value: Any, slab: int, slabs: int) -> Any:
    """``value`` with the ``slab``-th of ``slabs`` slices of each array above :data:`SLAB` values, all equally long."""
    if isinstance(value, dict):
        return {name: _slab(part, slab, slabs) for name, part in value.items()}
    if not isinstance(value, list) or _values_in(value) <= SLAB:
        return value
    length = -(-len(value) // slabs)
    first = min(slab * length, len(value) - length)
    return value[first : first + length]


MAX_LISTED_BYTES = 16 << 10
"""Longest close marker, and longest summary of a histogram, in bytes: lists repeat them. Ours have about 1 kB."""
MAX_ID_BYTES = 512
"""Longest ``ce_id`` in bytes: the store remembers those of a window until it is complete. Ours have about 100."""

_EARLIEST_YEAR = datetime.fromtimestamp(EARLIEST_S, UTC).year
"""No feed is older than this, so an earlier window must be forged."""


class Received(NamedTuple):
    """A message that matches its schema. ``part``: its cell or its mechanism; empty for a close marker."""

    topic: str
    ce_id: str
    value: bytes
    number: int
    """Position of a close marker among the markers, from 1."""
    feed: str
    start: str
    end: str
    part: str
    summary: bytes
    """Of a histogram: the value as JSON without feed, window and structure. Else empty."""
    promised: tuple[int, str]
    """Of a close marker: the number of messages and the digest that it states. Else (0, "")."""


def received(topic: str, ce_id: str, value: bytes, number: int = 0) -> Received | None:
    """The message if it is one of an output topic and matches its schema and the limits of this module; else None."""
    if topic not in RELEASE_TOPICS or not 0 < len(ce_id.encode(errors="replace")) <= MAX_ID_BYTES:
        return None
    try:
        body = msgspec.json.decode(value)
        matches = is_histogram(body) if topic == SPATIAL_HISTOGRAM else validator(topic).is_valid(body)
        if not matches or not _times_are_possible(body["window"]):
            return None
        part, summary, promised = "", b"", (0, "")
        if topic == HEXAGON_SPEED:
            part = body["cell"]
            if not h3.is_valid_cell(part):
                return None
        elif topic == SPATIAL_HISTOGRAM:
            read_histogram(body)
            kept = {name: body[name] for name in body if name not in ("feed", "window", "structure")}
            part, summary = body["mechanism"], msgspec.json.encode(kept)
        else:
            promised = (body["messages"], body["digest"])
        if len(value if topic == WINDOW else summary) > MAX_LISTED_BYTES:
            return None
    except (msgspec.DecodeError, ParameterError, ValueError, RecursionError):
        return None
    window = body["window"]
    return Received(topic, ce_id, value, number, body["feed"], window["start"], window["end"], part, summary, promised)


def _times_are_possible(window: dict[str, str]) -> bool:
    """Raises :class:`ValueError` for a time that no calendar has."""
    return all(datetime.fromisoformat(window[side]).year >= _EARLIEST_YEAR for side in ("start", "end"))
