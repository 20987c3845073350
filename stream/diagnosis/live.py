"""Recognises a feed whose times or speeds are read in another unit or zone than they are sent, or whose events are mostly refused.

It looks at a sample of what arrives and tells operators. It decides nothing: what is released must not depend on it, because
speeds are protected. Its sentences contain no value of any event. No event can make it raise, and its memory is bounded.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import structlog

from stream.config import Config
from stream.diagnosis.live_refusals import RefusalDoubts
from stream.diagnosis.live_speeds import SpeedDoubts
from stream.ingestion.arrays import MAX_ARRAY_BYTES, first_element, may_hold_several
from stream.ingestion.decoding import MAX_MESSAGE_BYTES, Arrived, Batch
from stream.ingestion.formats import feed_format, looks_like
from stream.windows import EARLIEST_S, LATEST_S

log = structlog.get_logger()

DOUBTFUL_SPEED = "doubtful-speed"
"""Speeds that may be right, and would agree with the positions only in another unit. Every other kind is clear."""
KINDS = ("epoch", "zone", "speed", DOUBTFUL_SPEED, "fields", "refused")
"""What may be wrong. ``refused``: most events are, for a reason that none of the others is about."""
_UNITS = {"epoch-s": 1.0, "epoch-ms": 1e3, "epoch-us": 1e6, "epoch-ns": 1e9}
"""Number of each unit of time per second."""
_PER_BATCH, _PER_JUDGEMENT, _SAMPLED, _ENOUGH = 10, 100, 400, 10
"""Messages whose fields are looked at: of a batch, until the next judgement, kept, and without which nothing is said."""
LONGEST_TEXT = 64
"""Characters of the longest text that may be a time."""
_MOST = 0.8
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,9})?")
_NO_UNIT = "no known unit fits: where hexveil gtfs-rt or hfp sends the feed, whose unit is fixed, set feed.speeds = 'derived' there"
_QUARTER_S, _LEAST_SHIFT_S, _MOST_SHIFT_S, _TOLERANCE_S = 900, 1_500, 14.25 * 3600, 300
_FAR_S = 1e12

Timed = tuple[float | str | None, float]


class FeedDoubts:
    """A sample of the fields, times and speeds of a feed."""

    def __init__(self, config: Config) -> None:
        self._feed = feed = config.feed
        self._format = feed_format(feed)
        self._paths = dict(zip(("user", "time", "lat", "lng", "speed"), self._format.fields.paths, strict=False))
        self._unit = self._format.unit
        self._sets_unit = feed.format in ("canonical", "declared")
        self._by_arrival = config.window.lateness == "append-time"
        self._time_format = feed.fields.time_format if feed.format == "declared" and feed.fields else "epoch-ms"
        zone = feed.fields.timezone if feed.format == "declared" and feed.fields else None
        self._timezone = None if zone is None else ZoneInfo(zone)
        self._begin()
        self.has_failed = False
        """Whether anything could not be judged."""

    def _begin(self) -> None:
        self._times: deque[Timed] = deque(maxlen=_SAMPLED)
        self._lacking: deque[frozenset[str]] = deque(maxlen=_SAMPLED)
        self._looks = _PER_JUDGEMENT
        self._speeds, self._refusals = SpeedDoubts(self._unit), RefusalDoubts(self._feed)

    def observe(self, values: Sequence[bytes | None], batch: Batch, arrived_us: Arrived) -> None:
        """Take a sample of decoded messages. ``arrived_us``: when they arrived, µs UTC. Never raises."""
        with self._unharmed():
            self._sample_times(values[: batch.messages], arrived_us)
            self._speeds.take(batch.rows)
            self._refusals.take(batch)

    def found(self) -> dict[str, str]:
        """What seems to be wrong now: for each kind a sentence with the remedy. Never raises."""
        sentences: dict[str, str | None] = {}
        with self._unharmed():
            self._looks = _PER_JUDGEMENT
            refused = self._refusals.judged()
            sentences = {"epoch": self._epoch(), "zone": self._zone(), "fields": self._fields(), **self._speed()}
            if not any(sentences[kind] for kind in ("epoch", "zone", "fields")):
                sentences["refused"] = refused
        return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Whatever fails inside: say so once, begin a new sample, and go on, because reading must not end by it."""
        try:
            yield
        except Exception as error:
            if not self.has_failed:
                log.error(
                    "whether the feed is misread could not be judged; reading goes on", error=type(error).__name__
                )
            self.has_failed = True
            self._begin()

    def _sample_times(self, values: Sequence[bytes | None], arrived_us: Arrived) -> None:
        for at in range(0, len(values), max(1, len(values) // _PER_BATCH)):
            if self._looks <= 0:
                return
            value = values[at]
            if value is not None and len(value) <= MAX_ARRAY_BYTES:
                self._looks -= 1
                arrived = arrived_us if isinstance(arrived_us, int) else int(arrived_us[at])
                is_readable, present = self._present(value)
                self._refusals.look(present)
                self._times.append((_raw_time(present.get("time")), arrived / 1e6))
                self._lacking.append(frozenset(self._paths.keys() - present.keys() if is_readable else ()))

    def _present(self, value: bytes) -> tuple[bool, dict[str, Any]]:
        """Whether a message, or the first event in it, is JSON, and the fields that it has."""
        if not self._format.positional and may_hold_several(value):
            value = first_element(value)
        if len(value) > MAX_MESSAGE_BYTES:
            return False, {}
        is_readable, present = looks_like(value, self._format.fields)
        return is_readable, dict(present)

    def _fields(self) -> str | None:
        """Which fields most of the events lack."""
        enough = max(_ENOUGH, _MOST * len(self._lacking))
        lacking = [role for role in self._paths if sum(role in roles for roles in self._lacking) >= enough]
        if not lacking:
            return None
        named = ", ".join(f"'{self._paths[role]}' ({role})" for role in lacking)
        remedy = (
            "name their field in [feed.fields]; if they have none, derive speeds before the worker's topic, because workers derive "
            "none: docs/feeds/derived.md"
            if lacking == ["speed"]
            else "set feed.format to that of the events, or to 'declared' and name their fields in [feed.fields]"
        )
        return f"most events have no {named}, so they are refused as missing-field: {remedy}"

    def _epoch(self) -> str | None:
        texts = [float(time) for time, _ in self._times if isinstance(time, str) and _NUMBER.fullmatch(time)]
        numbers = [time for time, _ in self._times if isinstance(time, float)] + texts
        if len(numbers) < _ENOUGH or len(numbers) < _MOST * len(self._times):
            return None
        are_texts = 2 * len(texts) > len(numbers)
        for unit, per_second in _UNITS.items():
            fitting = sum(EARLIEST_S <= number / per_second < LATEST_S for number in numbers)
            if fitting < _MOST * len(numbers) or (unit == self._time_format and not are_texts):
                continue
            remedies = ["send them as numbers, without quotes"] if are_texts else []
            if unit == "epoch-ns":
                remedies.append("divide them so that they are microseconds")
            elif unit != self._time_format:
                remedies.append(f"set feed.format = 'declared' and time_format = '{unit}' in [feed.fields]")
            sent = "times are texts of digits" if are_texts else f"times are read as {self._time_format}"
            return f"{sent}, but as {unit} they would be of this century: {', and '.join(remedies)}"
        return None

    def _zone(self) -> str | None:
        moments = [(read, arrived) for time, arrived in self._times if (read := self._moment(time)) is not None]
        local = sum(isinstance(time, str) and _is_local(time) for time, _ in self._times)
        if self._timezone is None and local >= max(_ENOUGH, _MOST * len(self._times)):
            return "times have no offset from UTC: declare [feed.fields] with the timezone of the clocks"
        if not self._by_arrival or len(moments) < _ENOUGH:
            return None
        ahead = np.clip([read - arrived for read, arrived in moments], -_FAR_S, _FAR_S)
        low, middle, high = np.quantile(ahead, (0.25, 0.5, 0.75))
        shift = round(middle / _QUARTER_S) * _QUARTER_S
        steady = high - low <= 2 * _TOLERANCE_S and abs(middle - shift) <= _TOLERANCE_S
        if not steady or not _LEAST_SHIFT_S <= abs(shift) <= _MOST_SHIFT_S:
            return None
        hours, minutes = divmod(abs(shift) // 60, 60)
        shown = f"{hours} h {minutes} min" if minutes else f"{hours} h"
        return (
            f"most times are about {shown} {'ahead of' if shift > 0 else 'behind'} the moments when they arrive, as local "
            "times read in another zone are: correct their offset, or timezone in [feed.fields]"
        )

    def _moment(self, time: float | str | None) -> float | None:
        """Seconds since 1970 of a time as the feed's format reads it; None for what it refuses."""
        if isinstance(time, str):
            with suppress(ValueError, OverflowError):
                moment = datetime.fromisoformat(time)
                if moment.tzinfo is not None:
                    return moment.timestamp()
                return None if self._timezone is None else moment.replace(tzinfo=self._timezone).timestamp()
        elif time is not None and self._time_format in _UNITS:
            return time / _UNITS[self._time_format]
        return None

    def _speed(self) -> dict[str, str]:
        """What seems to be wrong with speeds, by its kind."""
        check = self._speeds.judged()
        if check is None:
            return {}
        remedy = (
            "set feed.speed_unit"
            if self._sets_unit
            else "set feed.format = 'declared', and declare the fields and the unit in [feed]"
        )
        likely = f"they would fit {' or '.join(check.units)}: {remedy}" if check.units else _NO_UNIT
        if check.is_doubtful:
            sentence = f"the reported speeds, read as {self._unit}, agree badly with the positions; {likely}, if whoever runs the feed says so"
            return {DOUBTFUL_SPEED: sentence}
        return {"speed": f"the reported speeds, read as {self._unit}, contradict the positions; {likely}"}


def _raw_time(time: Any) -> float | str | None:
    """A number or text that can be a time; None for anything else."""
    if isinstance(time, str):
        return time if len(time) <= LONGEST_TEXT else None
    return time if isinstance(time, float) and math.isfinite(time) else None


def _is_local(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False
