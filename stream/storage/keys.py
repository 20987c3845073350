"""The names of all Redis keys. What is between braces decides on which shard of a Redis Cluster a key is.

Ledger, plans, committed bytes and marks of a feed are on one shard, and so are those of feeds that share a ledger,
because one call reads and writes keys of a feed and of the ledger. The rows of each partition are on a shard of their
own. No name of a feed or ledger has a colon, so no two tags are equal, and a pattern with one feed's name matches no
key of another.
"""

from dataclasses import dataclass
from typing import Any, Self

from redis.asyncio import Redis

from stream.config import Config


class _Named:
    """The name of one key; ``shared``: feeds of one ledger have it in common."""

    def __init__(self, name: str, *, shared: bool = False) -> None:
        self._name, self._shared = name, shared

    def __get__(self, keys: Any, owner: type) -> str:
        name: str = (keys._shared if self._shared else keys._named)(self._name)
        return name


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

    opened = _Named("opened")
    """Hash, partition that may hold rows -> offset from which it is read again should its shard be lost, and who
    opened it.

    Empty until that is known, while the partition is being opened.
    """
    seen = _Named("seen")
    """Hash, partition -> when the topic was first listed with it, µs."""
    partitions = _Named("partitions")
    """Hash, every partition of the topic -> when the topic was last listed, µs."""
    gone = _Named("gone")
    """Set of partitions that the topic had, and no longer has."""
    user_key = _Named("user-key", shared=True)
    """Fingerprint of the user key, which makes the pseudonyms."""

    # Which windows are open, sealed and released.

    sealed = _Named("sealed")
    """Set of timeslots that take no more rows. Partitions that are opened later copy it."""
    first_slot = _Named("first-slot")
    """Under "participation": the oldest timeslot that may not be released yet."""
    closed = _Named("closed")
    """Hash, timeslot -> record of its release."""
    set_aside = _Named("set-aside")
    """Hash, timeslot -> why its window cannot be closed."""
    planned = _Named("planned")
    """The latest timeslot that was ever planned. No earlier one is planned, charged or committed any more."""
    deaths = _Named("deaths")
    """The timeslot over which the closing process died last, and how often it did: two numbers."""
    lease = _Named("lease")
    """The worker that is closing windows now; expires some seconds after that worker stops."""
    publication_lease = _Named("publication-lease")
    """The worker that is publishing committed windows now."""

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

    memory = _Named("memory")
    """State of smoothing over windows."""
    link = _Named("link")
    """Digest of the last committed close marker, and who signed it."""

    # The ledger.

    generation = _Named("generation", shared=True)
    """Identity of the ledger."""
    birth = _Named("birth")
    """When the ledger was born, or the feed joined it, epoch seconds: no window of earlier periods is released."""
    retired = _Named("retired", shared=True)
    """Epoch seconds: the charges of periods that began before were deleted, and these periods are not released."""
    policy = _Named("policy", shared=True)
    """Relation, periods and unit that the ledger is bound to."""
    user_identity = _Named("user-identity")
    """Field and topic that identify a user."""
    sequence = _Named("sequence")
    """Number of windows of the feed committed."""
    feeds = _Named("feeds", shared=True)
    """Of a shared ledger: hash, feed -> start of the oldest period that it may still release, epoch seconds."""
    user_field = _Named("user-field", shared=True)
    """Of a shared ledger: the field that identifies a user in all of its feeds."""
    budgets = _Named("budgets", shared=True)
    """Of a shared ledger: hash, feed -> the budget that it states. The least is that of the next period."""
    marker_topic = _Named("marker-topic", shared=True)
    """Of a shared ledger: identity of the topic that holds the close markers of all of its feeds."""
    blocks = _Named("blocks", shared=True)
    """Hash, block of the horizon that has charges -> its end, epoch seconds."""

    @property
    def commits(self) -> str:
        """Number of windows of all feeds of the ledger committed. It is never published."""
        return self.sequence if self.shared_ledger is None else self._shared("commits")

    def ledger(self, period: str) -> str:
        """Hash, user -> units spent in the period, or in the block of a horizon."""
        return self._shared(f"ledger:{period}")

    def terms(self, period: str) -> str:
        """Hash: the lowest budget of the period or block, and whether charges of the period depended on counts."""
        return self._shared(f"terms:{period}")


class OfFeed:
    """State in Redis of one feed; that of a ledger is common to all feeds that share it."""

    def __init__(self, redis: Redis, feed: str, shared_ledger: str | None = None) -> None:
        self._redis: Any = redis  # typed by redis-py as answering str too; this client answers bytes
        self._keys = FeedKeys(feed, shared_ledger)

    @classmethod
    def of(cls, redis: Redis, config: Config) -> Self:
        """The state of a configured feed."""
        return cls(redis, config.feed.name, config.shared_ledger)


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

    progress = _Named("progress")
    """Hash. ``offset``: first offset that is not stored yet; missing until the partition is opened. ``read``: time
    before which everything appended has been read, µs. ``event``: largest event time, µs; ``moved``: when it last
    grew. ``mark``: copy of the end of the retired periods. ``opener``: who opened it.
    """
    slots = _Named("slots")
    """Hash, timeslot that holds rows -> offset of the first of them."""
    sealed = _Named("sealed")
    """Hash, timeslot that takes no more rows -> when it was sealed here, µs."""

    def rows(self, slot: int) -> str:
        """List of blobs of rows."""
        return self._named(f"rows:{slot}")
