"""Checks one message of an output topic and keeps of it what the store needs. Pure: any thread may do it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import h3
import msgspec

from dpcore.errors import ParameterError
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, validator
from stream.messages.range_query import read_histogram
from stream.serve.slabs import is_histogram
from stream.windows import EARLIEST_S

TOPICS = (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)

MAX_LISTED_BYTES = 16 << 10
"""Longest close marker, and longest summary of a histogram, in bytes: lists of windows repeat them. Ours have about 1
kB."""
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
    if topic not in TOPICS or not 0 < len(ce_id.encode(errors="replace")) <= MAX_ID_BYTES:
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
            part, summary = body["mechanism"], _summary_of_histogram(body)
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


def _summary_of_histogram(body: dict[str, Any]) -> bytes:
    """Raises :class:`ParameterError` for a histogram that cannot be built."""
    read_histogram(body)
    return msgspec.json.encode({name: body[name] for name in body if name not in ("feed", "window", "structure")})
