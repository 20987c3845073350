"""Output messages: topics, CloudEvents 1.0 headers (binary mode), deterministic identifiers, JSON bytes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from stream.windows import Window, utc_text

HEXAGON_SPEED = "hexveil.hexagon-speed.v1"
SPATIAL_HISTOGRAM = "hexveil.spatial-histogram.v1"
WINDOW = "hexveil.window.v1"
REJECTED = "hexveil.rejected.v1"
RELEASE_TOPICS = (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)
OUTPUT_TOPICS = (*RELEASE_TOPICS, REJECTED)


class Message(NamedTuple):
    """One Kafka record, ready to send; the bytes are final once committed."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int | None

    @property
    def ce_id(self) -> str:
        """Deterministic identifier, by which consumers drop duplicates."""
        return dict(self.headers)["ce_id"].decode()


def cell_text(cell: int) -> str:
    """H3 index in hexadecimal."""
    return f"{cell:x}"


def window_message(topic: str, feed: str, window: Window, part: str, key: str, body: Mapping[str, Any]) -> Message:
    """A message about one window. Its ``ce_id`` depends on topic, feed, window and part only; its time is the window's
    end."""
    headers = _headers(topic, feed, identifier(topic, feed, window, part), part, utc_text(window.end))
    return Message(topic, key.encode(), msgspec.json.encode(body), headers, window.end * 1000)


def identifier(topic: str, feed: str, window: Window, part: str) -> str:
    """The ``ce_id`` of a message about one window."""
    start = utc_text(window.start).replace("-", "").replace(":", "")
    return f"{topic}/{feed}/{start}/{window.end - window.start}/{part}"


def rejected_message(
    feed: str,
    reason: str,
    topic: str,
    partition: int,
    first_offset: int,
    last_offset: int,
    count: int,
    first_element: int = -1,
) -> Message:
    """A report of refused input: its offsets and the reason, never its content or the user.

    ``first_element``: the index of the first refused event in its message; of a declared region
    the first refused corner. Below 0 if the message was refused for something else.
    """
    body = {
        "feed": feed,
        "reason": reason,
        "topic": topic,
        "partition": partition,
        "first_offset": first_offset,
        "last_offset": last_offset,
        "count": count,
    } | ({"first_element": first_element} if first_element >= 0 else {})
    ce_id = f"{REJECTED}/{feed}/{topic}/{partition}/{first_offset}-{last_offset}/{reason}"
    headers = _headers(REJECTED, feed, ce_id, reason, None)
    return Message(REJECTED, reason.encode(), msgspec.json.encode(body), headers, None)


def _headers(topic: str, feed: str, ce_id: str, subject: str, time: str | None) -> tuple[tuple[str, bytes], ...]:
    pairs = [
        ("ce_specversion", "1.0"),
        ("ce_id", ce_id),
        ("ce_source", f"/hexveil/{feed}"),
        ("ce_type", topic),
        ("ce_subject", subject),
        ("content-type", "application/json"),
    ]
    if time is not None:
        pairs.append(("ce_time", time))
    return tuple((name, text.encode()) for name, text in pairs)


def digest(values: Iterable[bytes]) -> str:
    """SHA-256 over the message values in publication order, as ``sha256:`` and hex digits."""
    state = hashlib.sha256()
    for value in values:
        state.update(value)
    return f"sha256:{state.hexdigest()}"


def encode_outbox(messages: Iterable[Message]) -> bytes:
    """The messages of a window as one value, in the form in which they are committed."""
    return msgspec.msgpack.encode(list(messages))


def decode_outbox(blob: bytes) -> list[Message]:
    """The messages of a committed window, byte for byte."""
    return msgspec.msgpack.decode(blob, type=list[Message])


LARGEST_NUMBER = 1e15
"""Largest magnitude of a number in a message that is read; larger ones are forged, and overflow."""
LEAST_NOISE = 1e-12
"""Least scale or variance of noise in a message that is read, apart from 0."""
_OF_NOISE = ("scale", "variance", "variances")


@cache
def validator(topic: str) -> Any:
    """Checks decoded values of an output topic: ``is_valid`` and ``iter_errors``.

    They must match the JSON Schema, no number may be above :data:`LARGEST_NUMBER` in magnitude, and scales and
    variances of noise are 0 or at least :data:`LEAST_NOISE`.
    """
    import jsonschema_rs  # not for those who only send

    return jsonschema_rs.validator_for(_bounded(schema(topic)))


def _bounded(node: Any, name: str = "") -> Any:
    """A schema with bounds on every number. ``name``: the property that ``node`` describes."""
    if isinstance(node, list):
        return [_bounded(part, name) for part in node]
    if not isinstance(node, dict):
        return node
    bounded = {
        key: {inner: _bounded(part, inner) for inner, part in value.items()}
        if key == "properties"
        else _bounded(value, name)
        for key, value in node.items()
    }
    if node.get("type") in ("number", "integer"):
        least = 0 if name in _OF_NOISE else -LARGEST_NUMBER
        bounded |= {"minimum": node.get("minimum", least), "maximum": node.get("maximum", LARGEST_NUMBER)}
        if name in _OF_NOISE:
            bounded["anyOf"] = [{"const": 0}, {"minimum": LEAST_NOISE}]
    return bounded


def schema(topic: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of the values of an output topic."""
    text = resources.files("stream.messages").joinpath("schemas", f"{topic}.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed
