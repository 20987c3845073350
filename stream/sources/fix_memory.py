"""Keeps the last fixes of a live feed in Redis, and goes on without if Redis is away. Used in a thread, not in the
event loop.

Under "values" only: of whom fixes are kept depends on how many others there are, because memory is bounded, and whether
fixes are kept decides whether a speed is derived after a restart. Positions are public there. Under "participation" no
user's events may depend on another user, so nothing is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import structlog
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from dpcore.relation import NeighbouringRelation
from stream.config import Config, ConfigError
from stream.ingestion.pseudonyms import Pseudonyms, UserKeyError, existing_user_key, key_fingerprint
from stream.sources.derived_speed import LEAST_S, MOST_S
from stream.storage.client import blocking_client
from stream.storage.last_fixes import OTHER_KEY, LastFixes

log = structlog.get_logger()

TIMEOUT_S = 2.0
"""How long an answer of Redis is waited for."""
PAUSE_S = 10.0
"""After an error Redis is left alone for so long, so that the feed is not held up with every batch."""
_MEANWHILE = (
    ": events are sent on, but until it is mended, a restart, or another process of this feed, derives no speed for "
    "the first position of a vehicle"
)


class Opened(NamedTuple):
    """What is kept of a feed, and the pseudonyms of its users."""

    fixes: LastFixes
    pseudonyms: Pseudonyms


class FixMemory:
    """The last fixes of each vehicle, where a later process, or another one of the same feed, recalls them.

    ``opens`` raises :class:`UserKeyError` or :class:`ConfigError` while the user key, or a file of ``[redis]``, cannot
    be used; it is called again whenever there are fixes to keep. ``key_file``: that of the user key, which a warning
    names.
    """

    def __init__(
        self, opens: Callable[[], Opened], key_file: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._opens, self._key_file, self._clock = opens, key_file, clock
        self._opened: Opened | None = None
        self._trouble: str | None = None
        """Why nothing is kept at present, as it was said; None since something was kept."""
        self._again_at = -math.inf
        """When Redis is tried again after an error."""
        self._full = self._saw_damage = False
        self._open()

    @property
    def damaged(self) -> int:
        """Number of records that were damaged, and are deleted."""
        return 0 if self._opened is None else self._opened.fixes.damaged

    def recall(self, vehicles: Sequence[str]) -> dict[str, bytes]:
        """The fixes of the vehicles of which any are kept; none while Redis gives errors."""
        users, kept = self._users(vehicles), dict[int, bytes]()
        with self._patience():
            if self._opened is not None and users and self._clock() >= self._again_at:
                kept = self._opened.fixes.recall(list(users.values()))
        if self.damaged and not self._saw_damage:
            self._saw_damage = True
            log.warning(
                "kept positions were damaged and are deleted: the next position of these vehicles has no derived "
                "speed; see who else writes to this redis",
                vehicles=self.damaged,
            )
        return {vehicle: kept[user] for vehicle, user in users.items() if user in kept}

    def keep(self, fixes: Mapping[str, bytes], anew: Collection[str] = ()) -> int | None:
        """Keep fixes, those of the vehicles in ``anew`` in place of what was kept of them.

        Returns of how many vehicles nothing could be kept; None after an error, so that they are kept later.
        """
        if self._opened is None:
            self._open()
        if self._opened is None:
            return None
        users = self._users(list(fixes))
        if not users:
            return len(fixes)
        with self._patience():
            if self._clock() >= self._again_at:
                self._opened.fixes.forget([users[vehicle] for vehicle in anew if vehicle in users])
                refused = self._opened.fixes.keep({user: fixes[vehicle] for vehicle, user in users.items()})
                if self._trouble is not None:
                    self._trouble = None
                    log.info("positions are kept in redis again")
                if refused and not self._full:
                    log.warning("too many vehicles: after a restart, the others' first position has no derived speed")
                self._full = refused > 0
                return refused + len(fixes) - len(users)
        return None

    def _open(self) -> None:
        """Try to get the user key and the client; say why not if it is another reason than before."""
        if self._clock() < self._again_at:
            return
        try:
            self._opened = self._opens()
        except (UserKeyError, ConfigError, RedisError, OSError) as error:
            if not isinstance(error, UserKeyError | ConfigError):  # a client of a cluster connects as it is made
                self._again_at = self._clock() + PAUSE_S
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning(
                    "positions are not kept in redis, so a restart derives no speed for the first one; this is tried "
                    "again with every batch",
                    reason=str(error),
                )

    def _users(self, vehicles: Sequence[str]) -> dict[str, int]:
        """Pseudonyms by vehicle, without those that the service refuses."""
        users: dict[str, int] = {}
        if self._opened is None:
            return users
        for vehicle in vehicles:
            with suppress(KeyError):
                users[vehicle] = self._opened.pseudonyms[vehicle]
        return users

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Whatever error Redis gives: say it if it is another one than before, and wait before the next attempt."""
        try:
            yield
        except (RedisError, OSError) as error:
            trouble = self._named(error)
            if trouble != self._trouble:
                self._trouble = trouble
                log.warning(trouble + _MEANWHILE, error=f"{type(error).__name__}: {error}"[:200])
            self._again_at = self._clock() + PAUSE_S

    def _named(self, error: Exception) -> str:
        if not isinstance(error, ResponseError | AuthenticationError):
            return "redis is away"
        if str(error).startswith(OTHER_KEY):
            return (
                f"{self._key_file} is not the user key of this feed in redis; copy the workers' privacy.user_key_file "
                "there and start this command again"
            )
        return (
            "redis refuses to keep positions; see its error: rights (docs/security.md), maxmemory, or a replica's "
            "address"
        )


def fix_memory(config: Config) -> FixMemory | None:
    """The memory of a configured feed; None, which is logged, under "participation"."""
    if config.relation == NeighbouringRelation.PARTICIPATION:
        log.info(
            "positions are not kept in redis under relation 'participation', so a restart derives no speed for the "
            "first one"
        )
        return None

    def opened() -> Opened:
        key = existing_user_key(config.privacy.user_key_file)
        client = blocking_client(config.redis, TIMEOUT_S)
        fixes = LastFixes(client, config.feed.name, key_fingerprint(key), MOST_S, LEAST_S, config.shared_ledger)
        return Opened(fixes, Pseudonyms(key))

    return FixMemory(opened, config.privacy.user_key_file)
