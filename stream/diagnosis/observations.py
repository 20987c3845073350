"""The columns that an inspection looks at, as they were reported, faults included."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream.config.feed import TIME_UNIT_US, FeedFields
from stream.windows import EARLIEST_S, LATEST_S


class InspectionError(ValueError):
    """A source that cannot be inspected; the message says why and what to do."""


@dataclass(frozen=True)
class Observations:
    """Fixes in order of arrival, shape (n,).

    ``user``: number of the vehicle; ``time_us``: µs UTC, 0 if unreadable; ``lat``/``lng``: degrees, NaN if none; ``speed``: in the
    feed's own unit, NaN if none; ``arrived_us``: µs UTC, below 0 if unknown. ``kind``: what the source is, in words. ``format``:
    that of ``feed.format``, "declared" with ``fields``. ``speed_unit``: the unit that the format fixes, or None.
    ``own_fields``: paths of the fields, whatever the format is; None for snapshots. ``unread``: what is no fix, by reason.
    ``local``: times have no zone and are taken as UTC. ``time_format``: in which the times of snapshots would be of this century,
    whatever the format fixes.
    """

    kind: str
    format: str
    fields: FeedFields | None
    user: NDArray[np.int64]
    time_us: NDArray[np.int64]
    lat: NDArray[np.float64]
    lng: NDArray[np.float64]
    speed: NDArray[np.float64]
    arrived_us: NDArray[np.int64]
    own_fields: FeedFields | None = None
    speed_unit: str | None = None
    local: bool = False
    time_format: str | None = None
    unread: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.user)

    @property
    def is_live(self) -> bool:
        """Whether a command of its own reads the feed, and sends canonical events."""
        return self.kind.startswith(("GTFS", "SIRI", "a folder"))

    @property
    def command(self) -> str:
        """The command that reads a live feed."""
        return "hexveil siri-vm" if "SIRI" in self.kind else "hexveil gtfs-rt"


def numbered(users: list[Any]) -> NDArray[np.int64]:
    """Each identifier as a number, in order of first appearance; -1 if there is none."""
    numbers: dict[str, int] = {}
    return np.array(
        [-1 if user is None or user == "" else numbers.setdefault(str(user), len(numbers)) for user in users],
        dtype=np.int64,
    )


def as_numbers(values: list[Any]) -> NDArray[np.float64]:
    """Numbers, also from texts with a decimal point or comma; NaN for anything else."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in values])


def _number(value: Any) -> float:
    try:
        return float(value.replace(",", ".") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def as_times(values: list[Any]) -> tuple[NDArray[np.int64], str, bool]:
    """µs UTC (0 if unreadable), the ``time_format`` that was recognised, and whether texts have no zone."""
    numbers = as_numbers(values)
    known = numbers[np.isfinite(numbers)]
    if len(known) > len(values) / 2:
        unit = _unit_of(float(np.median(known)))
        factor = TIME_UNIT_US[unit]
        sound = np.isfinite(numbers) & (np.abs(numbers) * factor < 2.0**62)
        return np.rint(np.where(sound, numbers, 0.0) * factor).astype(np.int64), unit, False
    times = np.zeros(len(values), dtype=np.int64)
    naive = 0
    for at, value in enumerate(values):
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            continue
        naive += moment.tzinfo is None
        times[at] = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
    return times, "rfc3339", naive > len(values) / 2


def _unit_of(typical: float) -> str:
    """The unit in which a typical time lies between 2000 and 2100; seconds if there is none."""
    return next(
        (unit for unit, us in TIME_UNIT_US.items() if EARLIEST_S <= typical * us / 1e6 < LATEST_S),
        "epoch-s",
    )
