"""The feeds of a shared ledger: what they must have in common, which joined, what each states and holds."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from redis.asyncio import Redis

from stream.config import Config
from stream.storage.client import run
from stream.storage.keys import FeedKeys
from stream.storage.ledger import LedgerError
from stream.windows import utc_text

NO_TOPIC = "no topic"
"""Where releases go that are lines of a file: no worker sees them."""


class Common(NamedTuple):
    """What all feeds of a ledger have in common: the field that identifies users, the identity of the topic that holds
    their close markers, and the fingerprint of the user key (empty: there is none yet).
    """

    user_field: str
    marker_topic: str
    user_key: str


class SharedLedger:
    """A shared ledger as one of its feeds sees it."""

    def __init__(self, redis: Redis, feed: str, name: str) -> None:
        self._redis: Any = redis
        self._name = name
        self._keys = FeedKeys(feed, name)

    @classmethod
    def of(cls, redis: Redis, config: Config) -> Self | None:
        """The shared ledger of a configured feed; None if it has a ledger of its own."""
        return None if config.shared_ledger is None else cls(redis, config.feed.name, config.shared_ledger)

    async def check(self, common: Common) -> None:
        """Raise :class:`LedgerError` if the ledger is bound to other facts than ``common``. Writes nothing."""
        for key, value, sentence in self._bindings(common):
            known = await self._redis.get(key)
            if known is not None and known.decode() != value:
                raise LedgerError(sentence.format(name=self._name, known=known.decode(), given=value))

    async def bind(self, common: Common) -> None:
        """Bind the ledger to ``common``. Raises :class:`LedgerError` if it is bound to other facts."""
        for key, value, _ in self._bindings(common):
            await self._redis.set(key, value, nx=True)
        await self.check(common)

    def _bindings(self, common: Common) -> Iterator[tuple[str, str, str]]:
        """Each key with its value, and why another value is refused."""
        yield (
            self._keys.user_field,
            common.user_field,
            "the users of ledger {name!r} are what {known} names, in this feed it is {given}; a user who is named "
            "otherwise would "
            "spend two budgets. Send the identifier under the same name, or give this feed a ledger of its own",
        )
        yield (
            self._keys.marker_topic,
            common.marker_topic,
            "the feeds of ledger {name!r} write their close markers to the topic with identity {known}, this one to "
            "{given}: it could not be seen there what the others have released. Set kafka.bootstrap to the same "
            "cluster, or give this feed a ledger of its own. If the topic was deleted, give every feed and the ledger "
            "a new name",
        )
        yield (
            self._keys.user_key,
            common.user_key,
            "the pseudonyms of ledger {name!r} are made with another user key than this feed has, if it has one; so a "
            "user would have "
            "two budgets. Give all feeds the same privacy.user_key_file, or give this feed a ledger of its own",
        )

    async def feeds(self) -> dict[str, int]:
        """The feeds that joined, with the oldest period that each may still release (epoch seconds; 0: any)."""
        kept = await self._redis.hgetall(self._keys.feeds)
        return {feed.decode(): int(oldest) for feed, oldest in sorted(kept.items())}

    async def budgets(self) -> dict[str, int]:
        """The budget that each feed states, in the ledger's unit."""
        stated = await self._redis.hgetall(self._keys.budgets)
        return {feed.decode(): int(budget) for feed, budget in sorted(stated.items())}

    async def state_budget(self, budget: int) -> None:
        """State ``budget`` for this feed, also a higher one than before; only for an operator. Workers never raise what
        is stated.

        Raises :class:`LedgerError` if the feed did not join.
        """
        if not await self._state(budget, raises=True):
            raise await self._stranger(self._keys.feed)

    async def lower_budget(self, budget: int) -> None:
        """State ``budget`` for this feed if it states a higher one, which an operator may have raised meanwhile."""
        await self._state(budget, raises=False)

    async def _state(self, budget: int, *, raises: bool) -> bool:
        keys = (self._keys.feeds, self._keys.budgets)
        return bool(await run(self._redis, "state_budget", keys, self._keys.feed, budget, int(raises)))

    async def _stranger(self, feed: str) -> LedgerError:
        joined = ", ".join(await self.feeds()) or "none"
        return LedgerError(f"feed {feed!r} did not join ledger {self._name!r}; its feeds are: {joined}")

    async def leave(self, feed: str) -> None:
        """Let ``feed`` hold nothing any more: it has no birth, so it releases nothing until it joins anew.

        Raises :class:`LedgerError` if it did not join, or has windows that are charged or committed and not published.
        """
        keys = self._keys.beside(feed)
        named = [keys.feeds, keys.budgets, keys.birth, keys.sealed, keys.closed, keys.set_aside]
        begins = (keys.charged(0).removesuffix("0"), keys.outbox(0).removesuffix("0"))
        waiting = await run(self._redis, "leave_ledger", named, feed, *begins)
        if waiting is None:
            raise await self._stranger(feed)
        if waiting:
            windows = ", ".join(utc_text(slot) for slot in sorted(map(int, waiting)))
            raise LedgerError(
                f"feed {feed!r} has windows that are charged or committed and not published: {windows}. Let its worker "
                "publish them, then stop it and repeat the command"
            )


def retirement_held_by(feeds: dict[str, int]) -> str:
    """Which of ``feeds`` hold the mark of retired periods, for people; empty if there is none."""
    if not feeds:
        return ""
    oldest = min(feeds.values())
    names = " and ".join(f"'{feed}'" for feed, start in feeds.items() if start == oldest)
    since = (
        f"periods from {utc_text(oldest)} on"
        if oldest
        else "every period, because it was not said yet which are over there"
    )
    return f"retirement waits for {names}, of which may still be released {since}"


def configured_otherwise(feed: str, stated: int | None, configured: int, per_one: float) -> str:
    """That ``feed`` states another budget than ``configured``, and what changes that, for people; empty if it does not.

    ``stated``: None if it states nothing.
    """
    if stated is None or stated == configured:
        return ""
    remedy = (
        "no worker raises it; once none with the lower one runs, run 'hexveil ledger budget'"
        if stated < configured
        else "a worker that starts lowers it"
    )
    return f"'{feed}' states the budget {stated / per_one:g}, the configuration {configured / per_one:g}: {remedy}"


def budgets_that_differ(stated: dict[str, int], charged_under: int | None, per_one: float) -> str:
    """The budgets that feeds state, and that of the present period (None: uncharged); empty if all are equal."""
    least = min(stated.values())
    present = charged_under or least
    if {*stated.values(), present} == {least}:
        return ""
    figures = ", ".join(f"'{feed}' {budget / per_one:g}" for feed, budget in sorted(stated.items()))
    return (
        f"budgets differ ({figures}): the first charge of a period fixes the least of them, so this period has "
        f"{present / per_one:g}, and the next one gets {least / per_one:g}"
    )
