"""The names of all Redis keys. What is between braces decides on which shard of a Redis Cluster a key is.

Ledger, plans, committed bytes and marks of a feed are on one shard, and so are those of feeds that share a ledger,
because one call reads and writes keys of a feed and of the ledger. The rows of each partition are on a shard of their
own. No name of a feed or ledger has a colon, so no two tags are equal, and a pattern with one feed's name matches no
key of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from stream.config import Config


@dataclass(frozen=True)
class FeedKeys:
    """Names of the keys of one feed; ``slot`` is the start of a timeslot in epoch seconds, ``period`` a period's key.

    ``shared_ledger``: name of the ledger that the feed shares with others; None: the feed has a ledger of its own.
    """

    feed: str
    shared_ledger: str | None = None

    @classmethod
    def of(cls, config: Config) -> Self:
        """The keys of a configured feed."""
        return cls(config.feed.name, config.shared_ledger)

    def beside(self, feed: str) -> Self:
        """The keys of another feed of the same ledger."""
        return type(self)(feed, self.shared_ledger)

    def _named(self, name: str) -> str:
        return f"hv:{{{self.feed}}}:{name}" if self.shared_ledger is None else self._shared(f"feed:{self.feed}:{name}")

    def _shared(self, name: str) -> str:
        """A key that feeds of one ledger have in common. No feed's name has a colon, so none has a key of this slot."""
        return self._named(name) if self.shared_ledger is None else f"hv:{{ledger:{self.shared_ledger}}}:{name}"

    # How far the feed was read.

    @property
    def opened(self) -> str:
        """Hash, partition that may hold rows -> offset from which it is read again should its shard be lost, and who
        opened it.

        Empty until that is known, while the partition is being opened.
        """
        return self._named("opened")

    @property
    def seen(self) -> str:
        """Hash, partition -> when the topic was first listed with it, µs."""
        return self._named("seen")

    @property
    def partitions(self) -> str:
        """Hash, every partition of the topic -> when the topic was last listed, µs."""
        return self._named("partitions")

    @property
    def gone(self) -> str:
        """Set of partitions that the topic had, and no longer has."""
        return self._named("gone")

    @property
    def user_key(self) -> str:
        """Fingerprint of the user key, which makes the pseudonyms."""
        return self._shared("user-key")

    def last_fixes(self, turn: int) -> str:
        """Hash, user -> the fixes with which their next one is compared. Two hashes take turns, so that both expire."""
        return self._named(f"fixes:{turn}")

    # Which windows are open, sealed and released.

    @property
    def sealed(self) -> str:
        """Set of timeslots that take no more rows. Partitions that are opened later copy it."""
        return self._named("sealed")

    @property
    def first_slot(self) -> str:
        """Under "participation": the oldest timeslot that may not be released yet."""
        return self._named("first-slot")

    @property
    def closed(self) -> str:
        """Hash, timeslot -> record of its release."""
        return self._named("closed")

    @property
    def set_aside(self) -> str:
        """Hash, timeslot -> why its window cannot be closed."""
        return self._named("set-aside")

    @property
    def planned(self) -> str:
        """The latest timeslot that was ever planned. No earlier one is planned, charged or committed any more."""
        return self._named("planned")

    @property
    def deaths(self) -> str:
        """The timeslot over which the closing process died last, and how often it did: two numbers."""
        return self._named("deaths")

    @property
    def lease(self) -> str:
        """The worker that is closing windows now; expires some seconds after that worker stops."""
        return self._named("lease")

    @property
    def publication_lease(self) -> str:
        """The worker that is publishing committed windows now."""
        return self._named("publication-lease")

    # A window in progress.

    def plan(self, slot: int) -> str:
        """The stored plan."""
        return self._named(f"plan:{slot}")

    def charged(self, slot: int) -> str:
        """Hash, user -> what they paid for this window; ``plan`` -> digest of the plan that is paid for."""
        return self._named(f"charged:{slot}")

    def outbox(self, slot: int) -> str:
        """The committed bytes."""
        return self._named(f"outbox:{slot}")

    @property
    def memory(self) -> str:
        """State of smoothing over windows."""
        return self._named("memory")

    @property
    def link(self) -> str:
        """Digest of the last committed close marker, and who signed it."""
        return self._named("link")

    # The ledger.

    @property
    def generation(self) -> str:
        """Identity of the ledger."""
        return self._shared("generation")

    @property
    def birth(self) -> str:
        """When the ledger was born, or the feed joined it, epoch seconds: no window of earlier periods is released."""
        return self._named("birth")

    @property
    def retired(self) -> str:
        """Epoch seconds: the charges of periods that began before were deleted, and these periods are not released."""
        return self._shared("retired")

    @property
    def policy(self) -> str:
        """Relation, periods and unit that the ledger is bound to."""
        return self._shared("policy")

    @property
    def user_identity(self) -> str:
        """Field and topic that identify a user."""
        return self._named("user-identity")

    @property
    def sequence(self) -> str:
        """Number of windows of the feed committed."""
        return self._named("sequence")

    @property
    def commits(self) -> str:
        """Number of windows of all feeds of the ledger committed. It is never published."""
        return self.sequence if self.shared_ledger is None else self._shared("commits")

    @property
    def feeds(self) -> str:
        """Of a shared ledger: hash, feed -> start of the oldest period that it may still release, epoch seconds."""
        return self._shared("feeds")

    @property
    def user_field(self) -> str:
        """Of a shared ledger: the field that identifies a user in all of its feeds."""
        return self._shared("user-field")

    @property
    def budgets(self) -> str:
        """Of a shared ledger: hash, feed -> the budget that it states. The least is that of the next period."""
        return self._shared("budgets")

    @property
    def marker_topic(self) -> str:
        """Of a shared ledger: identity of the topic that holds the close markers of all of its feeds."""
        return self._shared("marker-topic")

    @property
    def blocks(self) -> str:
        """Hash, block of the horizon that has charges -> its end, epoch seconds."""
        return self._shared("blocks")

    def ledger(self, period: str) -> str:
        """Hash, user -> units spent in the period, or in the block of a horizon."""
        return self._shared(f"ledger:{period}")

    def terms(self, period: str) -> str:
        """Hash: the lowest budget of the period or block, and whether charges of the period depended on counts."""
        return self._shared(f"terms:{period}")


@dataclass(frozen=True)
class PartKeys:
    """Names of the keys of one partition ("topic/number") of a feed, which are on that partition's shard."""

    keys: FeedKeys
    partition: str

    @classmethod
    def begin(cls, keys: FeedKeys) -> str:
        """How the names of the keys of all partitions of a feed begin."""
        shared = keys.shared_ledger
        return f"hv:{{part:{keys.feed}:" if shared is None else f"hv:{{ledger-part:{shared}:{keys.feed}:"

    def _named(self, name: str) -> str:
        return f"{self.begin(self.keys)}{self.partition}}}:{name}"

    @property
    def progress(self) -> str:
        """Hash. ``offset``: first offset that is not stored yet; missing until the partition is opened. ``read``: time
        before which everything appended has been read, µs. ``event``: largest event time, µs; ``moved``: when it last
        grew. ``mark``: copy of the end of the retired periods. ``opener``: who opened it.
        """
        return self._named("progress")

    @property
    def slots(self) -> str:
        """Hash, timeslot that holds rows -> offset of the first of them."""
        return self._named("slots")

    @property
    def sealed(self) -> str:
        """Hash, timeslot that takes no more rows -> when it was sealed here, µs."""
        return self._named("sealed")

    def rows(self, slot: int) -> str:
        """List of blobs of rows."""
        return self._named(f"rows:{slot}")
