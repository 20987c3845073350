"""Whether the field of the user names users: each has a budget, so one that names events voids the promise. Pure."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpcore.arrays import FloatArray, IntArray
from stream.diagnosis.speeds import steps

ONCE = 0.9
"""Share of events whose user occurs once from which on the field names events."""
LEAST_EVENTS, LEAST_SPREAD_US = 50, 60_000_000
"""With fewer events, or if half of them lie in one minute as in a snapshot, the field is not judged."""
_LARGEST_SHARE = 1 / 3
_PLACEHOLDERS = frozenset(["0", "-1", "-", "--", "?", "null", "none", "nil", "nan", "n/a", "na", "unknown", "undefined",
                           "unbekannt", "test", "default"])  # fmt: skip


def events_as_users(
    users: NDArray[np.generic], time_us: IntArray, field: str, least_spread_us: int = LEAST_SPREAD_US
) -> str | None:
    """Why ``field`` cannot name users, with the figure: nearly every value occurs once. None if it may."""
    _, counts = np.unique(users, return_counts=True)
    once = int((counts == 1).sum())
    if len(users) < LEAST_EVENTS or once < ONCE * len(users):
        return None
    if float(np.subtract(*np.quantile(time_us, (0.75, 0.25)))) <= least_spread_us:
        return None
    return (
        f"{field} is no user: {once / len(users):.1%} of its values in {len(users)} events occur once, so each event "
        "would get a budget of its own, and nobody would be protected. Name the field of the vehicle or device in "
        "[feed.fields]; if each user really has one event, give --yes-users-are-events"
    )


def odd_names(names: Iterable[object]) -> list[str]:
    """Says which identifiers stand for none, so that many vehicles would share one budget."""
    counts = Counter("" if name is None else str(name).strip().lower() for name in names)
    return [
        f"{count} of {counts.total()} events name their user "
        + (f"{name!r}: no vehicle's name; they count as one user, whose budget all share." if name else
           "blank: they are refused as id-empty.")
        for name, count in counts.most_common() if name in _PLACEHOLDERS or not name
    ]  # fmt: skip


def everywhere_at_once(users: NDArray[np.generic], time_us: IntArray, lat: FloatArray, lng: FloatArray) -> str | None:
    """Says so if one of several users has a third of all events, in places that no vehicle reaches in turn."""
    names, counts = np.unique(users, return_counts=True)
    if len(names) < 2 or counts.max() < max(LEAST_EVENTS, _LARGEST_SHARE * len(users)):
        return None
    own = np.flatnonzero(users == names[counts.argmax()])
    own = own[np.argsort(time_us[own], kind="stable")]
    moves = steps(users[own], time_us[own], lat[own], lng[own])
    jumps = (moves.metres > 1_000) & (3.6 * moves.metres > 200 * np.maximum(moves.seconds, 1))
    if 4 * jumps.sum() < len(jumps):
        return None
    return (
        f"one user has {counts.max() / len(users):.0%} of the events, in many places at once: a placeholder that many "
        "vehicles send, which share its budget."
    )
