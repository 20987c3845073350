"""Recognises a feed whose times or speeds are read in another unit or zone than they are sent. Pure.

It looks at a sample of what arrives and tells operators. It decides nothing: what is released must not depend on it, because
speeds are protected. Its sentences contain no value of any event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from stream.config import Config
from stream.config.feed import SPEED_TO_KMH
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.decoding import Arrived, Batch
from stream.ingestion.formats import feed_format, looks_like
from stream.sources.plausibility import check_rows
from stream.storage.row_store import ROW
from stream.windows import EARLIEST_S, LATEST_S

KINDS = ("epoch", "zone", "speed")
_UNITS = {"epoch-s": 1.0, "epoch-ms": 1e3, "epoch-us": 1e6, "epoch-ns": 1e9}
"""Number of each unit of time per second."""
_PER_BATCH, _SAMPLED, _ENOUGH = 10, 400, 10
"""Messages whose times are looked at: of a batch, kept, and without which nothing is said."""
_MOST = 0.8
MOST_ROWS, _KEPT_US = 50_000, 6 * 60_000_000
"""Rows that are kept, and for how long (by event time). Of a larger fleet, those of some users are."""
_QUARTER_S, _LEAST_SHIFT_S, _MOST_SHIFT_S, _TOLERANCE_S = 900, 1_500, 14.25 * 3600, 300

Timed = tuple[Any, float]


class FeedDoubts:
    """A sample of the times and speeds of a feed."""

    def __init__(self, config: Config) -> None:
        feed = config.feed
        self._format = feed_format(feed)
        self._unit = next(unit for unit, kmh in SPEED_TO_KMH.items() if kmh == self._format.kmh)
        self._by_arrival = config.window.lateness == "append-time"
        self._time_format = feed.fields.time_format if feed.format == "declared" and feed.fields else "epoch-ms"
        zone = feed.fields.timezone if feed.format == "declared" and feed.fields else None
        self._timezone = None if zone is None else ZoneInfo(zone)
        self._times: list[Timed] = []
        self._rows: list[NDArray[np.void]] = []
        self._mask = np.uint64(0)

    def observe(self, values: Sequence[bytes | None], batch: Batch, arrived_us: Arrived) -> None:
        """Take a sample of decoded messages. ``arrived_us``: when they arrived, µs UTC."""
        step = max(1, batch.messages // _PER_BATCH)
        for at in range(0, batch.messages, step):
            value, arrived = values[at], arrived_us if isinstance(arrived_us, int) else int(arrived_us[at])
            if value is not None and may_hold_several(value):
                value = next(iter(elements(value) or ()), None)
            if value is not None:
                self._times.append((self._raw_time(value), arrived / 1e6))
        del self._times[:-_SAMPLED]
        rows = batch.rows[(batch.rows["user"] & self._mask) == 0] if self._mask else batch.rows
        if len(rows):
            self._rows.append(rows)
        if self.kept > MOST_ROWS:
            self._thin()

    @property
    def kept(self) -> int:
        """Number of rows that are kept."""
        return sum(map(len, self._rows))

    def found(self) -> dict[str, str]:
        """What seems to be wrong now: for each kind a sentence with the remedy."""
        self._forget()
        sentences = {"epoch": self._epoch(), "zone": self._zone(), "speed": self._speed()}
        return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}

    def _raw_time(self, value: bytes) -> Any:
        """What stands at the path of the time; None if nothing does."""
        return dict(looks_like(value, self._format.fields)[1]).get("time")

    def _thin(self) -> None:
        """Keep the rows of half of the users, whose pseudonyms are random."""
        rows = np.concatenate(self._rows)
        self._mask = np.uint64(2 * int(self._mask) + 1)
        self._rows = [rows[(rows["user"] & self._mask) == 0]]

    def _forget(self) -> None:
        rows = np.concatenate([np.zeros(0, dtype=ROW), *self._rows])
        newest = int(np.quantile(rows["time"], 0.99)) if len(rows) else 0
        self._rows = [rows[rows["time"] >= newest - _KEPT_US]]

    def _epoch(self) -> str | None:
        numbers = [time for time, _ in self._times if isinstance(time, int | float) and not isinstance(time, bool)]
        if len(numbers) < _ENOUGH or len(numbers) < _MOST * len(self._times):
            return None
        for unit, per_second in _UNITS.items():
            fitting = sum(EARLIEST_S <= number / per_second < LATEST_S for number in numbers)
            if fitting >= _MOST * len(numbers) and unit != self._time_format:
                remedy = (
                    "divide them so that they are microseconds"
                    if unit == "epoch-ns"
                    else f"set feed.format = 'declared' and time_format = '{unit}' in [feed.fields]"
                )
                return f"times are read as {self._time_format}, but as {unit} they would be of this century: {remedy}"
        return None

    def _zone(self) -> str | None:
        moments = [(read, arrived) for time, arrived in self._times if (read := self._moment(time)) is not None]
        local = sum(isinstance(time, str) and _is_local(time) for time, _ in self._times)
        if self._timezone is None and local >= max(_ENOUGH, _MOST * len(self._times)):
            return "times have no offset from UTC: declare [feed.fields] with the timezone of the clocks"
        if not self._by_arrival or len(moments) < _ENOUGH:
            return None
        ahead = np.array([read - arrived for read, arrived in moments])
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

    def _moment(self, time: Any) -> float | None:
        """Seconds since 1970 of a time as the feed's format reads it; None for what it refuses."""
        if isinstance(time, str):
            with suppress(ValueError):
                moment = datetime.fromisoformat(time)
                if moment.tzinfo is not None:
                    return moment.timestamp()
                return None if self._timezone is None else moment.replace(tzinfo=self._timezone).timestamp()
        elif isinstance(time, int | float) and not isinstance(time, bool) and self._time_format in _UNITS:
            return time / _UNITS[self._time_format]
        return None

    def _speed(self) -> str | None:
        check = check_rows(self._rows[0], self._unit) if self._rows else None
        if check is None or not check.contradicts:
            return None
        likely = "no known unit fits" if check.unit is None else f"they would fit {check.unit}: set feed.speed_unit"
        return f"the reported speeds, read as {self._unit}, contradict the positions; {likely}"


def _is_local(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False
