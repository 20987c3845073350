"""What the input topic says that every window must contain, counted without any code of the service's ingestion.

Pure: records go in, counts come out. The rules are those of the documents (docs/operators.md, docs/feeds): which
messages are events, which events are in time, and what one user may count for. Only feeds in the canonical format are
counted, with speeds in km/h, slots and periods that divide a day in UTC, and no rules on several fixes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import IdArray, IntArray
from stream.config import Config
from stream.config.feed import MAX_CELLS_PER_USER, MAX_EVENTS_PER_USER, MAX_FUTURE

DAY = 86_400
_OLDEST_US = 946_684_800_000_000
"""2000-01-01: no event is older."""
_MOST_BYTES, _MOST_BYTES_OF_A_USER = 1 << 16, 256


class InputRecord(NamedTuple):
    """One message of the input topic. ``appended_us``: the broker's append time, µs UTC."""

    appended_us: int
    value: bytes | None


class WindowCounts(NamedTuple):
    """Who sent how many events where: shape (P,) each, one entry per (cell, user), ascending. ``user``: pseudonym."""

    cell: IdArray
    user: IdArray
    samples: IntArray

    def by_cell(self) -> dict[str, tuple[int, int]]:
        """Events and users of every cell, by its hexadecimal name."""
        cells, start, users = np.unique(self.cell, return_index=True, return_counts=True)
        events = np.add.reduceat(self.samples, start) if len(start) else start
        return {
            f"{cell:x}": (int(n), int(of_users))
            for cell, n, of_users in zip(cells.tolist(), events, users, strict=True)
        }


class _Event(msgspec.Struct):
    user: str
    time: int
    lat: float
    lng: float
    speed: float


@dataclass
class Recount:
    """Counts one feed of ``config``, whose user key is ``key``. Records are added partition by partition, in order."""

    config: Config
    key: bytes
    events: int = 0
    """Messages of the topic, refused ones included."""
    accepted: int = 0
    """Events that count unless their window was never due."""
    _latest: dict[int, int] = field(default_factory=dict)
    _columns: list[npt.NDArray[Any]] = field(default_factory=list)
    _cells: dict[tuple[float, float], int] = field(default_factory=dict)
    _users: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slot, period = self.config.window.slot.total_seconds(), self.config.privacy.period.total_seconds()
        if self.config.feed.timezone != "UTC" or DAY % period or period % slot:
            raise ValueError("only slots and periods that divide a day in UTC are recounted")
        self._fast = msgspec.json.Decoder(_Event).decode

    def add(self, partition: int, records: Sequence[InputRecord]) -> None:
        """The next records of ``partition``. An event's arrival is the latest append time of its partition so far."""
        window = self.config.window
        slot_us = int(window.slot.total_seconds() * 1e6)
        delay, age, ahead = (
            int(span.total_seconds() * 1e6) for span in (window.allowed_delay, window.max_age, MAX_FUTURE)
        )
        arrival = self._latest.get(partition, 0)
        rows = []
        for appended, value in records:
            arrival = max(arrival, appended)
            event = self._event(value)
            if event is None:
                continue
            time_us, cell, user = event
            oldest = max(appended - age, _OLDEST_US)
            slot = time_us // slot_us
            if oldest <= time_us <= appended + ahead and arrival <= (slot + 1) * slot_us + delay:
                rows.append((slot * slot_us // 1_000_000, user, time_us, cell))
        self._latest[partition] = arrival
        self.events += len(records)
        self.accepted += len(rows)
        if rows:
            self._columns.append(np.array(rows, dtype=np.uint64))

    def _event(self, value: bytes | None) -> tuple[int, int, int] | None:
        """Time in µs, cell and pseudonym of a sound event; None for a message that is refused."""
        if value is None or len(value) > _MOST_BYTES:
            return None
        try:
            event = self._fast(value)
            moment: Any = event.time
        except (msgspec.MsgspecError, UnicodeDecodeError):
            loose = _loosely(value)
            if loose is None:
                return None
            event, moment = loose
        domain = self.config.feed.domain
        inside = domain.south <= event.lat <= domain.north and domain.west <= event.lng <= domain.east
        user = event.user.encode(errors="replace")
        fastest = self.config.fastest_km_h or math.inf
        # Under "values" every finite speed counts, because none decides whether there is an event.
        possible = abs(event.speed) < math.inf if self.config.relation == "values" else 0 <= event.speed <= fastest
        if not (inside and possible and 0 < len(user) <= _MOST_BYTES_OF_A_USER and abs(moment) < 1e15):
            return None
        place = (event.lat, event.lng)
        cell = self._cells.get(place)
        if cell is None:
            cell = self._cells[place] = h3.str_to_int(h3.latlng_to_cell(*place, self.config.hexagons.resolution))
        return round(moment * 1000), cell, self.pseudonym(event.user)

    def pseudonym(self, user: str) -> int:
        """What the ledger calls a user: BLAKE2b under the feed's key, 64 bits."""
        known = self._users.get(user)
        if known is None:
            hashed = hashlib.blake2b(user.encode(), key=self.key, digest_size=8).digest()
            known = self._users[user] = int.from_bytes(hashed, "little")
        return known

    def windows(self) -> dict[int, WindowCounts]:
        """The counts of every window with events, by the start of its timeslot (epoch seconds)."""
        if not self._columns:
            return {}
        table = np.concatenate(self._columns)
        table = table[np.lexsort((table[:, 3], table[:, 2], table[:, 1], table[:, 0]))]
        first = np.ones(len(table), dtype=bool)  # of equal (user, time), the lowest cell counts
        first[1:] = (table[1:, :3] != table[:-1, :3]).any(axis=1)
        table = table[first]
        slots, start = np.unique(table[:, 0], return_index=True)
        parts = np.split(table[:, 1:], start[1:])
        return {slot: self._counts(part) for slot, part in zip(slots.astype(np.int64).tolist(), parts, strict=True)}

    def _counts(self, part: npt.NDArray[np.uint64]) -> WindowCounts:
        """Counts of one window from its (user, time, cell), sorted by user and time."""
        user = part[:, 0]
        rank = np.arange(len(user)) - np.searchsorted(user, user)
        part = part[rank < MAX_EVENTS_PER_USER]
        pairs, samples = np.unique(part[:, [0, 2]], axis=0, return_counts=True)
        order = np.lexsort((pairs[:, 1], -samples, pairs[:, 0]))
        pairs, samples = pairs[order], samples[order]
        rank = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
        pairs, samples = pairs[rank < MAX_CELLS_PER_USER], samples[rank < MAX_CELLS_PER_USER]
        order = np.lexsort((pairs[:, 0], pairs[:, 1]))
        return WindowCounts(pairs[order, 1], pairs[order, 0], samples[order])


def _loosely(value: bytes) -> tuple[_Event, float] | None:
    """An event whose user is a number, whose time is RFC 3339 text or a fraction, or whose numbers are texts; else
    None."""
    try:
        tree = msgspec.json.decode(value)
        user, time, *numbers = (tree[name] for name in ("user", "time", "lat", "lng", "speed"))
        if isinstance(user, bool) or not isinstance(user, str | int):
            return None
        moment = _milliseconds(time)
        if any(isinstance(number, bool) or not isinstance(number, int | float | str) for number in numbers):
            return None
        lat, lng, speed = map(float, numbers)
        sound = math.isfinite(moment) and all(map(math.isfinite, (lat, lng, speed)))
        return (_Event(str(user), 0, lat, lng, speed), moment) if sound else None
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _milliseconds(time: Any) -> float:
    if isinstance(time, str):
        moment = datetime.fromisoformat(time)
        if moment.tzinfo is None:
            raise ValueError("a local time")
        return moment.timestamp() * 1000
    if isinstance(time, bool):
        raise TypeError("not a time")
    return float(time)
