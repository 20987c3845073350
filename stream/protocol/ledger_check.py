"""Checks before every window, by the close markers, that Redis remembers everything that was published.

Losing Redis means losing privacy, because a ledger without its charges would grant the budgets again. Any doubt stops
releases.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from redis.asyncio import Redis

from stream.config import Config
from stream.ingestion.formats import user_field, user_identity
from stream.ingestion.pseudonyms import UserKeyError, existing_user_key, key_fingerprint, load_user_key
from stream.messages.message import decode_outbox
from stream.protocol.markers import Marker, Published, read_markers
from stream.storage.client import info_of_masters, server_info, spans_servers
from stream.storage.keys import FeedKeys
from stream.storage.ledger import AFRESH, Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.storage.shared_ledger import Common, SharedLedger


@dataclass
class Known:
    """What a process knows about a feed: the close markers that it read, and the number of windows committed."""

    published: Published = field(default_factory=Published)
    committed: int = 0


async def verify_ledger(config: Config, redis: Redis) -> str:
    """Check the ledger as a worker does when it starts, and return its generation.

    Raises :class:`LedgerError` if a window was published under another generation, if Redis remembers fewer windows
    than were published (:class:`stream.storage.ledger.SetBackError`), or if it does not know the last one. In these
    cases charges were lost, and further releases would spend budgets twice. Also raises if the configuration would give
    everybody a second budget. If feeds share the ledger, the windows of all of them count, and this one joins them: the
    user key is created if there is none, and the configured budget is stated unless a lower one is.
    """
    ledger = Ledger.of(redis, config)
    await LedgerCheck(config, redis, ledger, Known()).begin()
    generation = await ledger.generation()
    if generation is None:
        raise LedgerError(
            f"Redis lost the ledger of feed {config.feed.name!r} while it was verified; restore its append-only file"
        )
    return generation


@dataclass(frozen=True)
class LedgerCheck:
    """Compares the ledger of one feed with its close markers, and with those of all feeds that share it.

    ``known`` is updated, so that each marker is read once.
    """

    config: Config
    redis: Redis
    ledger: Ledger
    known: Known

    async def begin(self) -> None:
        """As :meth:`verify`, by a worker that starts; see :func:`verify_ledger`."""
        shared = SharedLedger.of(self.redis, self.config)
        if shared is None:
            await self.verify()
            return
        self.known.published = await self.look()  # before the key, so that a feed that is refused makes none
        load_user_key(self.config.privacy.user_key_file)
        await self.verify()

    async def verify(self) -> None:
        """Check the ledger and bind it to this configuration; raises :class:`LedgerError` like :func:`verify_ledger`.

        A shared ledger needs the user key: one that is not there cannot be the one that charges were made under, and
        none is made.
        """
        published, shared = await self.look(), SharedLedger.of(self.redis, self.config)
        if shared is not None:
            try:
                existing_user_key(self.config.privacy.user_key_file)
            except UserKeyError as error:
                raise LedgerError(str(error)) from None
        await self.ledger.claim_policy(self.config.ledger_policy)
        await self.ledger.claim_identity(user_identity(self.config.feed))
        if shared is not None:
            # It joins last, so that a feed that is refused neither holds periods nor states a budget.
            await shared.bind(self._common(published))
            await self.ledger.start_generation(budget=self.config.privacy.ledger_budget)
        elif published.last(self.config.feed.name) is None:
            await self.ledger.start_generation()
        self.known.published = published

    async def verify_all(self) -> None:
        """As :meth:`verify`, and that no server of a cluster evicts rows: a window would be released without them."""
        await self.verify()
        if spans_servers(self.redis):
            for info in await info_of_masters(self.redis):
                _refuse_eviction(info)

    async def look(self) -> Published:
        """The checks alone, which write nothing: of the close markers, and of what feeds must have in common."""
        _refuse_eviction(await server_info(self.redis, FeedKeys.of(self.config).generation))
        feed, shared = self.config.feed, SharedLedger.of(self.redis, self.config)
        members = {} if shared is None else await shared.feeds()
        published = await read_markers(
            self.config.kafka, feed.name, self.known.published, self.config.shared_ledger, members
        )
        # Redis is read after the topic, so what is committed meanwhile can only make Redis remember more.
        if published.newest:
            await self._remembers(published)
        if shared is not None:
            await self.ledger.kept_under(self.config.ledger_policy)
            await self.ledger.kept_for(user_identity(feed))
            await shared.check(self._common(published))
        return published

    def _common(self, published: Published) -> Common:
        """What this feed would bind a shared ledger to. Raises :class:`LedgerError` for an unusable user key."""
        key_file = self.config.privacy.user_key_file
        try:
            fingerprint = key_fingerprint(existing_user_key(key_file)) if key_file.exists() else ""
        except UserKeyError as error:
            raise LedgerError(str(error)) from None
        return Common(user_field(self.config.feed), published.topic, fingerprint)

    async def _remembers(self, published: Published) -> None:
        """Raise :class:`LedgerError` unless Redis has each marker's generation and knows the last of each feed."""
        generation = await self.ledger.generation()
        foreign = sorted(published.generations - {generation})
        if foreign:
            whom = "feed" if self.config.shared_ledger is None else "ledger"
            feeds = " and ".join(
                f"feed {feed!r} (last window {marker.window.start})" for feed, marker in sorted(published.markers())
            )
            raise LedgerError(
                f"{feeds} released under ledger generation {', '.join(foreign)}, Redis holds {generation or 'none'}: "
                f"spent budgets are lost, or two Redis serve one {whom}, so nothing is released. Restore Redis from "
                f"its append-only file. {AFRESH}"
            )
        await self.ledger.check_published({feed: marker.sequence for feed, marker in published.markers()})
        for feed, marker in published.markers():
            await self._knows(feed, marker)

    async def _knows(self, feed: str, last: Marker) -> None:
        """Raise :class:`LedgerError` unless Redis knows the window of the last close marker of ``feed``."""
        slot = int(datetime.fromisoformat(last.window.start).timestamp())
        store = ReleaseStore(self.redis, feed, self.config.shared_ledger)
        released, outbox = await store.released_or_committed(slot)
        digests = {
            None if released is None else released.digest,
            None if outbox is None else msgspec.json.decode(decode_outbox(outbox)[-1].value, type=Marker).digest,
        }
        if last.digest not in digests:
            raise LedgerError(
                f"window {last.window.start} of feed {feed!r} was published, but Redis does not know it: Redis was set "
                "back to an older "
                "state and its budgets with it, so nothing is released. Restore the newest append-only file"
            )


def _refuse_eviction(info: dict[str, Any]) -> None:
    if int(info["maxmemory"]) > 0 and str(info["maxmemory_policy"]).startswith("allkeys"):
        raise LedgerError(
            f"Redis may evict the ledger, or rows: maxmemory-policy {info['maxmemory_policy']} with maxmemory "
            f"{info['maxmemory']}; an evicted budget is granted again, so nothing is released. CONFIG SET "
            "maxmemory-policy noeviction"
        )
