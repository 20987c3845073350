"""Whether the field of the user names users: each is promised a budget, so a field that names events voids the promise.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stream.diagnosis.speeds import steps

ONCE = 0.9
"""Share of events whose user occurs once from which on the field names events."""
LEAST_EVENTS, LEAST_SPREAD_US = 50, 60_000_000
"""With fewer events, or if half of them are of one minute as in one snapshot, nothing is said."""
_LARGEST_SHARE = 1 / 3
_PLACEHOLDERS = frozenset(
    {
        "0",
        "-1",
        "-",
        "--",
        "?",
        "null",
        "none",
        "nil",
        "nan",
        "n/a",
        "na",
        "unknown",
        "undefined",
        "unbekannt",
        "test",
        "default",
    }
)
_MOST_ROWS = 20_000


def share_once(users: NDArray[np.generic]) -> float:
    """Share of events whose user has no other one."""
    _, counts = np.unique(users, return_counts=True)
    return float((counts == 1).sum() / len(users)) if len(users) else 0.0


def events_as_users(users: NDArray[np.generic], time_us: NDArray[np.int64], field: str) -> str | None:
    """Why ``field`` cannot name users, with the figure: nearly every value occurs once. None if it may."""
    share = share_once(users)
    if len(users) < LEAST_EVENTS or share < ONCE:
        return None
    if float(np.subtract(*np.quantile(time_us, (0.75, 0.25)))) <= LEAST_SPREAD_US:
        return None
    return (
        f"{field} is no user: {share:.1%} of its values in {len(users)} events occur once, so each event would get a "
        "budget of its "
        "own, and nobody would be protected. Name the field of the vehicle or device in [feed.fields]; if each user "
        "really has "
        "one event, give --yes-users-are-events"
    )


def odd_names(names: Iterable[object]) -> list[str]:
    """Says which identifiers are blank or stand for none, so that many vehicles would share one budget."""
    counts, total = Counter[str](), 0
    for name in names:
        total += 1
        text = "" if name is None else str(name).strip().lower()
        if not text:
            counts["blank"] += 1
        elif text in _PLACEHOLDERS:
            counts[repr(text)] += 1
    return [
        f"{count} of {total} events name their user {name}: "
        + (
            "they are refused as id-empty"
            if name == "blank"
            else "no vehicle's name; they count as one user, whose budget all share"
        )
        for name, count in counts.most_common()
    ]


def everywhere_at_once(
    users: NDArray[np.generic], time_us: NDArray[np.int64], lat: NDArray[np.float64], lng: NDArray[np.float64]
) -> str | None:
    """Says so if one of several users has a third of all events, in places that no vehicle reaches one after the
    other."""
    names, counts = np.unique(users, return_counts=True)
    if len(names) < 2 or counts.max() < LEAST_EVENTS or counts.max() < _LARGEST_SHARE * len(users):
        return None
    own = np.flatnonzero(users == names[counts.argmax()])
    own = own[np.argsort(time_us[own], kind="stable")]
    moves = steps(users[own], time_us[own], lat[own], lng[own])
    jumps = (moves.metres > 1_000) & (3.6 * moves.metres > 200 * np.maximum(moves.seconds, 1))
    if 4 * jumps.sum() < len(jumps):
        return None
    return (
        f"one user has {counts.max() / len(users):.0%} of the events, in many places at once: a placeholder that many "
        "vehicles "
        "send, which share its budget"
    )


class LiveUsers:
    """A sample of the users of a live feed: all events of those with the lowest pseudonyms, which are random."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._parts: list[NDArray[np.void]] = []
        self._limit, self._size = 2**64 - 1, 0
        self._sentence: str | None = None

    def take(self, rows: NDArray[np.void]) -> None:
        """Take rows of the feed."""
        kept = rows[["user", "time"]][rows["user"] <= np.uint64(self._limit)]
        if not len(kept):
            return
        self._parts.append(kept.copy())
        self._size += len(kept)
        while self._size > _MOST_ROWS and self._limit:
            self._limit //= 2
            sample = np.concatenate(self._parts)
            self._parts = [sample[sample["user"] <= np.uint64(self._limit)]]
            self._size = len(self._parts[0])

    def judged(self) -> str | None:
        """Why the field names events, by the events of the last hour or less; withdrawn once later ones repeat
        users."""
        if self._size < LEAST_EVENTS:
            return self._sentence
        sample = np.concatenate(self._parts)
        times = sample["time"].astype(np.int64)
        spread = float(np.subtract(*np.quantile(times, (0.75, 0.25))))
        if spread >= 4 * LEAST_SPREAD_US:
            self._sentence = events_as_users(sample["user"], times, self._field)
        if spread >= 30 * LEAST_SPREAD_US:
            self._parts, self._size, self._limit = [], 0, 2**64 - 1
        return self._sentence
