"""Recognises a live feed that is misread: other units, zones or users than declared, or events that are mostly refused.

It looks at a sample of what arrives and tells operators. It decides nothing: what is released must not depend on it,
because speeds are protected. Its sentences contain no value of any event. No event can make it raise, and its memory is
bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import structlog
from numpy.typing import NDArray

from stream.config import Config
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import NEWEST, SpeedCheck, bound_problem, check_rows
from stream.diagnosis.users import LEAST_EVENTS, LEAST_SPREAD_US, events_as_users
from stream.ingestion.decoding import ArrivalTimes, Batch
from stream.ingestion.formats import feed_format, user_field
from stream.sources.timestamps import local_as_utc
from stream.storage.row_store import ROW

log = structlog.get_logger()

DOUBTFUL_SPEED = "doubtful-speed"
"""Speeds that may be right, and would agree with the positions only in another unit. Every other kind is clear."""
KINDS = ("refused", "zone", "speed", DOUBTFUL_SPEED, "bound", "users")
"""Faults that an alarm names."""
MAY_BE_RIGHT = frozenset({DOUBTFUL_SPEED, "bound"})
"""Kinds that are no fault for certain."""
MOST_ROWS = 20_000
_SPAN_US = 1_800_000_000
"""Where there are more rows than :data:`MOST_ROWS`, those of the last half hour are kept, then those of fewer users."""
_LEAST_EVENTS, _LOOKS, _MOST_TIMES, _LEAST_TIMES = 100, 20, 1_000, 10
"""Events since the last judgement of refusals without which there is no new one; refused events of each reason that
are looked at; times that are compared with their arrivals."""
_NO_UNIT = "no known unit fits: let speeds be derived where the feed is read, feed.speeds = 'derived'"


class RowSample:
    """The newest rows of some users, those with the lowest pseudonyms, which are random: all of them, if there is room.

    So a small fleet, or one that reports seldom, is judged later but is judged, and a large one by some of its
    vehicles, each with all of its events.
    """

    def __init__(self) -> None:
        self._parts, self._size, self._limit = list[NDArray[np.void]](), 0, 2**64 - 1

    def take(self, rows: NDArray[np.void]) -> None:
        """Take rows of the feed."""
        self._parts.append(rows[rows["user"] <= np.uint64(self._limit)])
        self._size += len(self._parts[-1])
        if self._size > 2 * MOST_ROWS:
            self.newest()

    def newest(self) -> NDArray[np.void]:
        """The rows that are kept. All users are taken again if those that were have become few: others may have been
        invented."""
        rows = np.concatenate([np.zeros(0, dtype=ROW), *self._parts])
        while len(rows) > MOST_ROWS and self._limit:
            kept = rows["time"] > rows["time"].max() - _SPAN_US
            if kept.all():
                self._limit //= 2
                kept = rows["user"] <= np.uint64(self._limit)
            rows = rows[kept]
        if 2 * (rows["time"] > rows["time"].max(initial=0) - _SPAN_US).sum() < MOST_ROWS:
            self._limit = 2**64 - 1
        self._parts, self._size = [rows], len(rows)
        return rows


class FeedDoubts:
    """What a sample of a feed's events says about its fields, times, users and speeds."""

    def __init__(self, config: Config) -> None:
        self._config, self._unit = config, feed_format(config.feed).unit
        self._begin()
        self.has_failed = False
        """Whether anything could not be judged."""

    def _begin(self) -> None:
        self._refusals, self._sample = Refusals(self._config.feed, sample=_LOOKS), RowSample()
        self._ahead_s = np.zeros(0)
        self._refused: str | None = None
        self._speed: SpeedCheck | None = None

    def observe(self, values: Sequence[bytes | None], batch: Batch, arrived_us: ArrivalTimes) -> None:
        """Take a sample of decoded messages. ``arrived_us``: when they arrived, µs UTC. Never raises."""
        with self._unharmed():
            self._refusals.add(values, batch, arrived_us)
            if not len(batch.rows):
                return
            self._sample.take(batch.rows)
            arrived = arrived_us if isinstance(arrived_us, int) else arrived_us[batch.index]
            ahead = (batch.rows["time"][-_MOST_TIMES:] - np.broadcast_to(arrived, len(batch.rows))[-_MOST_TIMES:]) / 1e6
            self._ahead_s = np.concatenate([self._ahead_s, ahead])[-_MOST_TIMES:]

    def found(self) -> dict[str, str]:
        """What seems to be wrong now: for each kind a sentence with the remedy. Never raises."""
        sentences: dict[str, str | None] = {}
        with self._unharmed():
            sentences = {"refused": self._of_refused(), "zone": self._zone(), **self._of_rows(self._sample.newest())}
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

    def _of_refused(self) -> str | None:
        """Why most events are refused, with the remedy; it stays until enough newer events are judged."""
        newest = self._refusals
        if newest.taken + newest.refused >= _LEAST_EVENTS:
            self._refused = None
            if newest.refused > newest.taken:
                (reason, count), *_ = newest.counts.most_common(1)
                why = newest.cause_of(reason)
                counted = f"{count} of {newest.taken + newest.refused} events are refused as {reason}"
                self._refused = counted if why is None else f"{counted}: {why}"
            self._refusals = Refusals(self._config.feed, sample=_LOOKS)
        return self._refused

    def _zone(self) -> str | None:
        if self._config.window.lateness != "append-time" or len(self._ahead_s) < _LEAST_TIMES:
            return None
        return local_as_utc(self._ahead_s, "the moments when they arrive")

    def _of_rows(self, rows: NDArray[np.void]) -> dict[str, str | None]:
        times, feed = rows["time"].astype(np.int64), self._config.feed
        users = events_as_users(rows["user"], times, user_field(feed), 4 * LEAST_SPREAD_US)
        enough = len(rows) >= LEAST_EVENTS
        bound = bound_problem(rows["value"], self._config.value) if enough else None
        check = check_rows(rows, self._unit, NEWEST)
        if check.is_compared and self._config.value.is_speed:
            self._speed = check if check.contradicts or check.is_doubtful else None
        if self._speed is None:
            return {"users": users, "bound": bound}
        check, sets_unit = self._speed, feed.format in ("canonical", "declared")
        remedy = "set feed.speed_unit" if sets_unit else "set feed.format = 'declared', and declare fields and unit"
        likely = f"they would fit {' or '.join(check.fits)}: {remedy}" if check.fits else _NO_UNIT
        read = f"the reported speeds, read as {self._unit},"
        if not check.is_doubtful:
            return {"users": users, "bound": bound, "speed": f"{read} contradict the positions; {likely}"}
        doubt = f"{read} agree badly with the positions; {likely}, if whoever runs the feed says so"
        return {"users": users, "bound": bound, DOUBTFUL_SPEED: doubt}
