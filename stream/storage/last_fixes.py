"""The last fixes of a feed's users in Redis, so that a speed is derived from the same two fixes after a restart, too.

They are inside the trust boundary, like rows: users are pseudonyms, and what is kept expires. Losing them costs no privacy,
because no charge follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.storage.keys import FeedKeys

if TYPE_CHECKING:
    from redis import Redis  # only live feeds need it, and importing it takes time

FIX = np.dtype([("time", ">i8"), ("since", ">i8"), ("lat", ">f8"), ("lng", ">f8")])
"""One fix: 32 bytes; times in µs UTC, ``since`` is when the user came to exactly this position; degrees."""
MOST_FIXES = 16
"""Fixes of a user that are kept: two fixes a second, for as long as a reference must be older."""
MOST_USERS = 1 << 17
"""Users of whom fixes are kept; more than any fleet has on the road."""
_AT_ONCE = 500
"""Users of one call, in which Redis serves nobody else: 7 to 13 ms for twice as many with 10 to 16 fixes, one a second."""


OTHER_KEY = "OTHERKEY"
"""With this word Redis's error begins if the feed is bound to another user key."""


class LastFixes:
    """What is kept of one feed. ``life_s``: for how long at least; ``least_s``: how old a fix must be to be compared with.

    ``fingerprint``: that of the user key that makes the pseudonyms. If the feed is bound to another key, every call raises
    ``redis.ResponseError`` with ``OTHER_KEY``, and nothing is read or written, because its pseudonyms are of other users.
    """

    def __init__(
        self,
        redis: Redis,
        feed: str,
        fingerprint: str,
        life_s: float,
        least_s: float,
        shared_ledger: str | None = None,
    ) -> None:
        keys, lua = FeedKeys(feed, shared_ledger), resources.files("stream.storage").joinpath("lua")
        self._keys = [keys.last_fixes(0), keys.last_fixes(1), keys.user_key]
        self._fingerprint = fingerprint
        self._life_ms, self._least_us = round(life_s * 1e3), round(least_s * 1e6)
        self._keep: Any = redis.register_script(lua.joinpath("keep_fixes.lua").read_text(encoding="utf-8"))
        self._recall: Any = redis.register_script(lua.joinpath("recall_fixes.lua").read_text(encoding="utf-8"))

    def recall(self, users: Sequence[int]) -> dict[int, bytes]:
        """The fixes of those users (pseudonyms) of whom any are kept, as bytes of ``FIX`` in order of time."""
        fixes: dict[int, bytes] = {}
        for begin in range(0, len(users), _AT_ONCE):
            asked = users[begin : begin + _AT_ONCE]
            answer = self._recall(self._keys, [self._fingerprint, self._life_ms, *map(_field, asked)])
            fixes |= {
                user: kept
                for user, kept in zip(asked, answer, strict=True)
                if kept is not None and len(kept) % FIX.itemsize == 0
            }
        return fixes

    def keep(self, fixes: Mapping[int, bytes]) -> int:
        """Add the fixes of users (pseudonyms) to what is kept of them. Returns for how many users there was no room."""
        pairs = list(fixes.items())
        limits = [self._fingerprint, self._life_ms, self._least_us, MOST_USERS, MOST_FIXES]
        refused = 0
        for begin in range(0, len(pairs), _AT_ONCE):
            chosen = [part for user, kept in pairs[begin : begin + _AT_ONCE] for part in (_field(user), kept)]
            refused += int(self._keep(self._keys, [*limits, *chosen]))
        return refused


def _field(user: int) -> bytes:
    return user.to_bytes(8, "little")
