"""Recognises a live feed that is misread: other units, zones, fields or users than declared, or events that are mostly
refused.

It looks at a sample of what arrives and tells operators. It decides nothing: what is released must not depend on it,
because speeds are protected. Its sentences contain no value of any event. No event can make it raise, and its memory is
bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import structlog

from stream.config import Config
from stream.diagnosis.refusals import ROLES, LiveRefusals, Look, look
from stream.diagnosis.speeds import SpeedDoubts, bound_problem
from stream.diagnosis.times import LONGEST_TEXT, MOSTLY, UNITS, time_form
from stream.diagnosis.users import LiveUsers
from stream.ingestion.arrays import MAX_ARRAY_BYTES, first_element, may_hold_several
from stream.ingestion.decoding import MAX_MESSAGE_BYTES, ArrivalTimes, Batch
from stream.ingestion.formats import feed_format, time_reader, time_us, user_field
from stream.sources.timestamps import local_as_utc

log = structlog.get_logger()

DOUBTFUL_SPEED = "doubtful-speed"
"""Speeds that may be right, and would agree with the positions only in another unit. Every other kind is clear."""
KINDS = ("epoch", "zone", "speed", DOUBTFUL_SPEED, "bound", "users", "fields", "refused")
"""What may be wrong. ``refused``: most events are, for a reason that none of the others is about."""
MAY_BE_RIGHT = frozenset({DOUBTFUL_SPEED, "bound"})
"""Kinds that are no fault for certain."""
_PER_BATCH, _PER_JUDGEMENT, _SAMPLED, _ENOUGH = 10, 100, 400, 10
"""Messages whose fields are looked at: of a batch, until the next judgement, kept, and without which nothing is
said."""
_NO_UNIT = "no known unit fits: let speeds be derived where the feed is read, feed.speeds = 'derived'"


class _Seen(NamedTuple):
    """What was looked at of a message, None if it is no JSON, and when it arrived, in seconds since 1970."""

    look: Look | None
    arrived: float

    @property
    def time(self) -> float | str | None:
        return None if self.look is None else self.look.values.get("time")


class FeedDoubts:
    """A sample of the fields, times, users and speeds of a feed."""

    def __init__(self, config: Config) -> None:
        self._config, self._feed = config, config.feed
        self._format = feed_format(config.feed)
        self._paths = dict(zip(ROLES, self._format.fields.paths, strict=False))
        self._sets_unit = config.feed.format in ("canonical", "declared")
        self._read_time = time_reader(self._format.fields, declared=config.feed.format == "declared")
        self._clocks = None if config.feed.times_zone is None else ZoneInfo(config.feed.times_zone)
        self._begin()
        self.has_failed = False
        """Whether anything could not be judged."""

    def _begin(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_SAMPLED)
        self._looks = _PER_JUDGEMENT
        self._speeds, self._refusals = SpeedDoubts(self._format.unit), LiveRefusals(self._feed)
        self._users = LiveUsers(user_field(self._feed))
        self._bound: str | None = None

    def observe(self, values: Sequence[bytes | None], batch: Batch, arrived_us: ArrivalTimes) -> None:
        """Take a sample of decoded messages. ``arrived_us``: when they arrived, µs UTC. Never raises."""
        with self._unharmed():
            self._sample(values[: batch.messages], arrived_us)
            self._speeds.take(batch.rows)
            self._users.take(batch.rows)
            self._refusals.take(batch)
            if len(batch.rows) >= _PER_JUDGEMENT:
                self._bound = bound_problem(batch.rows["value"], self._config.speed.upper_quanta)

    def found(self) -> dict[str, str]:
        """What seems to be wrong now: for each kind a sentence with the remedy. Never raises."""
        sentences: dict[str, str | None] = {}
        with self._unharmed():
            self._looks = _PER_JUDGEMENT
            looks = [seen.look for seen in self._seen if seen.look is not None]
            refused = self._refusals.judged(looks)
            sentences = {"epoch": self._epoch(), "zone": self._zone(), "fields": self._fields(), **self._speed()}
            sentences |= {"users": self._users.judged(), "bound": self._bound}
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

    def _sample(self, values: Sequence[bytes | None], arrived_us: ArrivalTimes) -> None:
        for at in range(0, len(values), max(1, len(values) // _PER_BATCH)):
            if self._looks <= 0:
                return
            value = values[at]
            if value is not None and len(value) <= MAX_ARRAY_BYTES:
                self._looks -= 1
                arrived = arrived_us if isinstance(arrived_us, int) else int(arrived_us[at])
                if not self._format.positional and may_hold_several(value):
                    value = first_element(value)
                seen = look(value, self._format.fields) if len(value) <= MAX_MESSAGE_BYTES else None
                self._seen.append(_Seen(seen, arrived / 1e6))

    def _fields(self) -> str | None:
        """Which fields most of the events lack."""
        enough = max(_ENOUGH, MOSTLY * len(self._seen))
        looks = [seen.look for seen in self._seen if seen.look is not None]
        lacking = [role for role in self._paths if sum(role not in each.present for each in looks) >= enough]
        if not lacking:
            return None
        named = ", ".join(f"'{self._paths[role]}' ({role})" for role in lacking)
        remedy = (
            "name their field in [feed.fields]; if they have none, derive speeds before the worker's topic, because "
            "workers derive "
            "none: docs/feeds/derived.md"
            if lacking == ["speed"]
            else "set feed.format to that of the events, or to 'declared' and name their fields in [feed.fields]"
        )
        return f"most events have no {named}, so they are refused as missing-field: {remedy}"

    def _epoch(self) -> str | None:
        times = [seen.time for seen in self._seen if seen.time is not None]
        known = time_form(times) if len(times) >= _ENOUGH else None
        declared = self._format.fields.time_format if self._feed.format == "declared" else "epoch-ms"
        if known is None or known.time_format not in UNITS or known.time_format == declared:
            return None
        remedy = (
            "divide them so that they are microseconds"
            if known.time_format == "epoch-ns"
            else f"set feed.format = 'declared' and time_format = '{known.time_format}' in [feed.fields]"
        )
        return f"times are read as {declared}, but as {known.time_format} they would be of this century: {remedy}"

    def _zone(self) -> str | None:
        times = [seen.time for seen in self._seen if seen.time is not None]
        read = [(moment, seen.arrived) for seen in self._seen if (moment := self._moment(seen.time)) is not None]
        known = time_form(times) if len(times) >= _ENOUGH else None
        if (
            known is not None
            and known.time_format == "rfc3339"
            and known.local >= MOSTLY
            and not self._format.fields.timezone
        ):
            return "times have no offset from UTC: declare [feed.fields] with the timezone of the clocks"
        if self._config.window.lateness != "append-time" or len(read) < _ENOUGH:
            return None
        return local_as_utc(np.array([moment - arrived for moment, arrived in read]), "the moments when they arrive")

    def _moment(self, time: float | str | None) -> float | None:
        """Seconds since 1970 of a time as the feed's format reads it; None for what it refuses."""
        if time is None or (isinstance(time, str) and len(time) > LONGEST_TEXT):
            return None
        with suppress(ValueError, OverflowError, ArithmeticError):
            value: Any = self._read_time(time)
            if self._clocks is not None and not (isinstance(value, datetime) and value.utcoffset()):
                local = datetime.fromtimestamp(time_us(value) / 1e6, ZoneInfo("UTC"))
                value = local.replace(tzinfo=self._clocks)
            return time_us(value) / 1e6
        return None

    def _speed(self) -> dict[str, str]:
        """What seems to be wrong with speeds, by its kind."""
        check, unit = self._speeds.judged(), self._format.unit
        if check is None:
            return {}
        remedy = (
            "set feed.speed_unit"
            if self._sets_unit
            else "set feed.format = 'declared', and declare the fields and the unit in [feed]"
        )
        likely = f"they would fit {' or '.join(check.units)}: {remedy}" if check.units else _NO_UNIT
        if check.is_doubtful:
            sentence = (
                f"the reported speeds, read as {unit}, agree badly with the positions; {likely}, "
                "if "
                "whoever runs the feed says so"
            )
            return {DOUBTFUL_SPEED: sentence}
        return {"speed": f"the reported speeds, read as {unit}, contradict the positions; {likely}"}
