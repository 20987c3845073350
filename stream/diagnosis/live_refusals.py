"""Says why most events of a feed are refused, and the remedy. Pure; its memory is fixed; no sentence has a value of an event."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from stream.config.feed import FeedConfig
from stream.ingestion.decoding import REASONS, Batch, Reason
from stream.ingestion.formats import parse_time

LEAST_EVENTS = 100
"""Events since the last judgement without which there is no new one."""
_KEPT, _LONGEST = 400, 64
_DEGREES = {10**power: f"degrees x 10^{power}" for power in (7, 6, 5, 4, 3)}
_NUMBERS = ("lat", "lng", "speed")
_REMEDIES = {
    Reason.NOT_JSON: "send one JSON object, or an array of them, in a message",
    Reason.MISSING_FIELD: "set feed.format to that of the events, or to 'declared' and name their fields in [feed.fields]",
    Reason.WRONG_TYPE: "a field has no value of its type: docs/feeds/declared.md",
    Reason.SWAPPED_AXES: "latitude and longitude are exchanged: exchange them where they are sent, or in [feed.fields]",
    Reason.OUT_OF_DOMAIN: "they are of another place than feed.domain: correct the domain, or read another topic",
    Reason.AT_ORIGIN: "they are at 0, 0, as units without reception report",
    Reason.TOO_OLD: "they are older than window.max_age, as those of a recording or of a clock that was never set are",
    Reason.IN_FUTURE: "they are further ahead than window.max_future: correct the clocks that stamp them",
    Reason.NOT_STAMPED: "set message.timestamp.type of the topic to LogAppendTime",
    Reason.SEVERAL_EVENTS: "send each event as a message of its own",
}


class RefusalDoubts:
    """Counts refused events by reason, and keeps the forms of the fields of some events."""

    def __init__(self, feed: FeedConfig) -> None:
        self._domain = feed.domain
        self._is_zoned = feed.format == "declared" and feed.fields is not None and feed.fields.timezone is not None
        self._looked: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._counts, self._events = np.zeros(len(REASONS), dtype=np.int64), 0
        self._sentence: str | None = None

    def take(self, batch: Batch) -> None:
        """Count the events of a batch."""
        self._counts += np.bincount(batch.reason, minlength=len(REASONS))
        self._events += len(batch.rows) + len(batch.reason)

    def look(self, fields: Mapping[str, Any]) -> None:
        """Take the fields of an event: numbers and short texts are kept."""
        self._looked.append(
            {
                name: value
                for name, value in fields.items()
                if name != "user" and (isinstance(value, float) or (isinstance(value, str) and len(value) <= _LONGEST))
            }
        )

    def judged(self) -> str | None:
        """For which reason most events are refused, with the remedy. A sentence stays until enough newer events are judged."""
        if self._events >= LEAST_EVENTS:
            self._sentence = self._judge() if 2 * self._counts.sum() > self._events else None
            self._counts[:], self._events = 0, 0
            self._looked.clear()
        return self._sentence

    def _judge(self) -> str:
        reason = REASONS[int(self._counts.argmax())]
        refused = f"{self._counts.max()} of {self._events} events are refused as {reason.value}"
        cause = self._wrong_type() if reason == Reason.WRONG_TYPE else None
        cause = self._elsewhere() if reason == Reason.OUT_OF_DOMAIN else cause
        cause = cause or _REMEDIES.get(reason)
        return refused if cause is None else f"{refused}: {cause}"

    def _wrong_type(self) -> str | None:
        texts = [name for name in _NUMBERS if self._mostly(isinstance(fix.get(name), str) for fix in self._looked)]
        if texts:
            return (
                f"{' and '.join(texts)} {'is' if len(texts) == 1 else 'are'} sent as text: send numbers without quotes"
            )
        unread = [
            fix["time"] for fix in self._looked if isinstance(fix.get("time"), str) and not self._is_time(fix["time"])
        ]
        if 2 * len(unread) <= len(self._looked):
            return None
        return (
            f"times are texts like {_form(unread[-1])!r} (9 is any digit, a any letter), which is not RFC 3339: send them like "
            "'2017-03-21T07:00:00-05:00', or as numbers"
        )

    def _is_time(self, text: str) -> bool:
        with suppress(ValueError, OverflowError):
            if self._is_zoned:
                datetime.fromisoformat(text)
            else:
                parse_time(text)
            return True
        return False

    def _elsewhere(self) -> str | None:
        places = [(fix.get("lat"), fix.get("lng")) for fix in self._looked]
        numbers = [(lat, lng) for lat, lng in places if isinstance(lat, float) and isinstance(lng, float)]
        for factor, unit in _DEGREES.items():
            if self._mostly(self._domain.contains(lat / factor, lng / factor) for lat, lng in numbers):
                return f"latitude and longitude are in {unit}: send degrees"
        if self._mostly(abs(lat) > 90 or abs(lng) > 180 for lat, lng in numbers):
            return "they are outside the globe: send latitude and longitude in degrees of WGS 84"
        return None

    def _mostly(self, answers: Iterator[bool]) -> bool:
        return 2 * sum(answers) > len(self._looked)


def _form(text: str) -> str:
    """A text without its content: each digit as 9, each letter but T and Z as a, anything but ASCII as ?."""
    plain = text.encode("ascii", "replace").decode()
    return re.sub(r"\d", "9", re.sub(r"[A-SU-Ya-z]", "a", plain))
