"""The last fixes of a feed's users in Redis, so that a speed is derived from the same two fixes after a restart, too.

They are inside the trust boundary, like rows: users are pseudonyms, and what is kept expires. Losing them costs no
privacy, because no charge follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.storage.client import text_of
from stream.storage.keys import FeedKeys
from stream.windows import EARLIEST_US, LATEST_S

if TYPE_CHECKING:
    from redis import Redis  # only live feeds need it, and importing it takes time

FIX = np.dtype([("time", ">i8"), ("since", ">i8"), ("lat", ">f8"), ("lng", ">f8")])
"""One fix: 32 bytes; times in µs UTC, ``since`` is when the user came to exactly this position; degrees."""
MOST_FIXES = 16
"""Fixes of a user that are kept: two fixes a second, for as long as a reference must be older."""
MOST_USERS = 1 << 17
"""Users of whom fixes are kept; more than any fleet has on the road."""
_AT_ONCE = 500
"""Users of one call, in which Redis serves nobody else: 7 to 13 ms for twice as many with 10 to 16 fixes."""


OTHER_KEY = "OTHERKEY"
"""The word with which the script's error begins if the feed is bound to another user key."""


class LastFixes:
    """What is kept of one feed. ``life_s``: for how long at least; ``least_s``: how old a fix must be to be compared
    with.

    ``fingerprint``: that of the user key that makes the pseudonyms. If the feed is bound to another key, every call
    raises ``redis.ResponseError`` with ``OTHER_KEY``, and nothing is read or written, because its pseudonyms are of
    other users.
    """

    def __init__(
        self, redis: Redis, feed: str, fingerprint: str, life_s: float, least_s: float, shared_ledger: str | None = None
    ) -> None:
        keys = FeedKeys(feed, shared_ledger)
        self._redis = redis
        self.damaged = 0
        """Number of records that were damaged."""
        self._keys = [keys.last_fixes(0), keys.last_fixes(1), keys.user_key]
        self._fingerprint = fingerprint
        self._life_ms, self._least_us = round(life_s * 1e3), round(least_s * 1e6)
        self._keep: Any = redis.register_script(text_of("keep_fixes"))
        self._recall: Any = redis.register_script(text_of("recall_fixes"))

    def recall(self, users: Sequence[int]) -> dict[int, bytes]:
        """The fixes of those users (pseudonyms) of whom any are kept, as bytes of ``FIX`` in order of time.

        Records that :meth:`keep` would not have written are deleted, and counted in ``damaged``.
        """
        fixes: dict[int, bytes] = {}
        for begin in range(0, len(users), _AT_ONCE):
            asked = users[begin : begin + _AT_ONCE]
            answer = self._recall(self._keys, [self._fingerprint, self._life_ms, *map(_field, asked)])
            kept = {user: octets for user, octets in zip(asked, answer, strict=True) if octets is not None}
            damaged = [user for user, sound in zip(kept, _sound(list(kept.values())), strict=True) if not sound]
            if damaged:
                self.damaged += len(damaged)
                self.forget(damaged)
            fixes |= {user: kept[user] for user in kept.keys() - set(damaged)}
        return fixes

    def forget(self, users: Sequence[int]) -> None:
        """Delete what is kept of those users (pseudonyms)."""
        if users:
            for key in self._keys[:2]:
                self._redis.hdel(key, *map(_field, users))

    def keep(self, fixes: Mapping[int, bytes]) -> int:
        """Add the fixes of users (pseudonyms) to what is kept of them. Returns for how many users there was no room."""
        pairs = list(fixes.items())
        limits = [self._fingerprint, self._life_ms, self._least_us, MOST_USERS, MOST_FIXES]
        refused = 0
        for begin in range(0, len(pairs), _AT_ONCE):
            chosen = [part for user, kept in pairs[begin : begin + _AT_ONCE] for part in (_field(user), kept)]
            refused += int(self._keep(self._keys, [*limits, *chosen]))
        return refused


def _sound(records: Sequence[bytes]) -> list[bool]:
    """Which records are one to ``MOST_FIXES`` fixes in order of time, each at a time and a place that there are."""
    size, lengths = FIX.itemsize, np.array([len(octets) for octets in records], dtype=np.int64)
    sound = (lengths > 0) & (lengths % size == 0) & (lengths <= size * MOST_FIXES)
    chosen = np.flatnonzero(sound)
    if len(chosen):
        fixes = np.frombuffer(b"".join(records[at] for at in chosen.tolist()), FIX)
        begins = np.concatenate([[0], np.cumsum(lengths[chosen] // size)[:-1]])
        time, since = fixes["time"].astype(np.int64), fixes["since"].astype(np.int64)
        good = (since >= EARLIEST_US) & (since <= time) & (time < LATEST_S * 1_000_000)
        good &= (np.abs(fixes["lat"]) <= 90) & (np.abs(fixes["lng"]) <= 180)
        rises = np.concatenate([[True], time[1:] > time[:-1]])
        rises[begins] = True
        sound[chosen] = np.logical_and.reduceat(good & rises, begins)
    return [bool(each) for each in sound]


def _field(user: int) -> bytes:
    return user.to_bytes(8, "little")
