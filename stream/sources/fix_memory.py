"""Keeps the last fixes of a live feed in Redis, and goes on without if Redis is away. Used in a thread, not in the event loop.

Under "values" only: of whom fixes are kept depends on how many others there are, because memory is bounded, and whether fixes are
kept decides whether a speed is derived after a restart. Positions are public there. Under "participation" no user's events may
depend on another user, so nothing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import structlog
from redis.exceptions import RedisError

from dpcore.relation import NeighbouringRelation
from stream.config import Config, ConfigError
from stream.ingestion.pseudonyms import Pseudonyms, UserKeyError, load_user_key
from stream.sources.derived_speed import DerivationLimits
from stream.storage.client import blocking_client
from stream.storage.last_fixes import LastFixes

log = structlog.get_logger()

TIMEOUT_S = 2.0
"""How long an answer of Redis is waited for."""
PAUSE_S = 10.0
"""After an error Redis is left alone for so long, so that the feed is not held up with every batch."""


class FixMemory:
    """The last fixes of each vehicle, where a later process, or another one of the same feed, recalls them."""

    def __init__(self, fixes: LastFixes, pseudonyms: Pseudonyms, clock: Callable[[], float] = time.monotonic) -> None:
        self._fixes, self._pseudonyms, self._clock = fixes, pseudonyms, clock
        self._again_at: float | None = None
        """When Redis is tried again after an error; None while it answers."""
        self._full = False

    def recall(self, vehicles: Sequence[str]) -> dict[str, bytes]:
        """The fixes of the vehicles of which any are kept; none while Redis is away."""
        users = self._users(vehicles)
        with self._patience():
            if users and self._is_time():
                kept = self._fixes.recall(list(users.values()))
                self._answered()
                return {vehicle: kept[user] for vehicle, user in users.items() if user in kept}
        return {}

    def keep(self, fixes: Mapping[str, bytes]) -> int | None:
        """Keep fixes. Returns of how many vehicles nothing could be kept; None while Redis is away, so that they are kept later."""
        users = self._users(list(fixes))
        with self._patience():
            if self._is_time():
                refused = self._fixes.keep({user: fixes[vehicle] for vehicle, user in users.items()})
                self._answered()
                if refused and not self._full:
                    log.warning("too many vehicles: after a restart, the others' first position has no derived speed")
                self._full = refused > 0
                return refused + len(fixes) - len(users)
        return None

    def _users(self, vehicles: Sequence[str]) -> dict[str, int]:
        """Pseudonyms by vehicle, without those that the service refuses."""
        users = {}
        for vehicle in vehicles:
            with suppress(KeyError):
                users[vehicle] = self._pseudonyms[vehicle]
        return users

    def _is_time(self) -> bool:
        return self._again_at is None or self._clock() >= self._again_at

    def _answered(self) -> None:
        if self._again_at is not None:
            self._again_at = None
            log.info("redis answers again; positions are kept again")

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Whatever error Redis gives: say it once, and wait before the next attempt."""
        try:
            yield
        except (RedisError, OSError) as error:
            if self._again_at is None:
                log.warning(
                    "redis is away: events are sent on, but until it answers, a restart, or another process of this feed, derives "
                    "no speed for the first position of a vehicle",
                    error=type(error).__name__,
                )
            self._again_at = self._clock() + PAUSE_S


def fix_memory(config: Config) -> FixMemory | None:
    """The memory of a configured feed; None, which is logged, under "participation", and if its user key, or a file of
    ``[redis]``, cannot be used.
    """
    if config.relation == NeighbouringRelation.PARTICIPATION:
        log.info(
            "positions are not kept in redis under relation 'participation', so a restart derives no speed for the first one"
        )
        return None
    limits = DerivationLimits()
    try:
        pseudonyms = Pseudonyms(load_user_key(config.privacy.user_key_file))
        client = blocking_client(config.redis, TIMEOUT_S)
    except (UserKeyError, ConfigError) as error:
        log.warning(
            "positions are not kept in redis, so a restart derives no speed for the first one", reason=str(error)
        )
        return None
    return FixMemory(LastFixes(client, config.feed.name, limits.most_s, limits.least_s), pseudonyms)
