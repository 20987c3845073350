"""Output messages: topics, CloudEvents 1.0 headers (binary mode), deterministic identifiers, JSON bytes.

The leading estimate of a cell: for each statistic one number, which every reader shows first. Pure.

A message holds what was drawn and, under ``post_processed``, what models made of it. The modelled value leads, else the
released one. It is chosen here and nowhere else, from the released message alone, so it costs no budget. Beside it
stand what is typical of the cell at this hour, as earlier releases have it, and the deviation of the mean from that.

Under "participation" every cell of a public list is released, also where nobody was. A cell has no estimate where
nobody is estimated in it: where its released number of users is at most one standard deviation of its own noise. Of
empty cells one in eight exceeds that (12 %; Gaussian noise: 16 %). By the same rule a cell has no mean of moving
reports where none is estimated to move.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from stream.windows import Window, utc_text

ESTIMATED = ("mean", "moving_mean", "variance", "p15", "p50", "p85", "typical", "deviation")
"""Numbers of which a message may hold an estimate. The last two exist as such only."""
RELEASED = "released"
"""``method`` of an estimate that no model made."""

Estimates = dict[str, dict[str, Any]]
"""For each statistic: ``value``, ``interval`` (95 %; absent where the model gives none), ``unit`` and ``method``;
``at_bound``, which is true, where the released value crowds the bound of speeds, whatever a model made of it."""


def estimates_of(body: Mapping[str, Any]) -> Estimates | None:
    """The leading estimates of a cell's message; None where it was not published, and where nobody is estimated."""
    if body["status"] != "published" or not is_anybody(body):
        return None
    modelled = body.get("post_processed", {})
    leading = {name: modelled.get(name) or _released(body, name) for name in ESTIMATED}
    return {
        name: estimate | ({"at_bound": True} if body.get(name, {}).get("at_bound") else {})
        for name, estimate in leading.items()
        if estimate is not None
    }


def with_estimates(value: bytes, clear_error: float | None = None) -> bytes:
    """A cell's message with its leading estimates as ``estimate``; its other bytes stay as they were released.

    ``clear_error``: of a ``deviation`` that noise does not explain, its error (:mod:`stream.serve.differences`).
    """
    estimates = estimates_of(msgspec.json.decode(value))
    if estimates and clear_error is not None:
        estimates["deviation"]["clear_error"] = clear_error
    return value.rstrip()[:-1] + b',"estimate":' + msgspec.json.encode(estimates) + b"}"


def _released(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    drawn = body.get(name)
    if drawn is None or (name == "moving_mean" and not _stands_out(body, body["moving"])):
        return None
    return {part: drawn[part] for part in ("value", "interval", "unit")} | {"method": RELEASED}


def is_anybody(body: Mapping[str, Any]) -> bool:
    """Whether the released number of users exceeds the standard deviation of its noise; an exact number does."""
    users = body.get("users", body.get("events"))
    return _stands_out(body, users) if isinstance(users, Mapping) else True


def _stands_out(body: Mapping[str, Any], number: Mapping[str, Any]) -> bool:
    """Whether a noisy number exceeds the standard deviation of its noise."""
    deviation = number["scale"] * (1.0 if body.get("accounting") == "zcdp" else math.sqrt(2.0))
    return bool(number["raw"] > deviation)


HEXAGON_SPEED = "hexveil.hexagon-speed.v1"
SPATIAL_HISTOGRAM = "hexveil.spatial-histogram.v1"
WINDOW = "hexveil.window.v1"
REJECTED = "hexveil.rejected.v1"
OUTPUT_TOPICS = (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, REJECTED)


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
