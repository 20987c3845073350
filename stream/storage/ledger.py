"""The durable per-user budget ledger: what each user has spent in a period, in integer µε, or nρ under zCDP.

The proof needs these invariants of the storage: a user's entry only grows; before noise is drawn, a user has paid at
least the charge of the window's last plan; a charge that would exceed the budget adds nothing; no user's charge depends
on another user's budget; the generation changes only if the ledger is lost; no period is charged that began before the
ledger was born, because another ledger may have granted its budgets. There are no refunds. The charges of a period are
deleted only once it is retired, and a retired period is never charged again (:mod:`stream.storage.retirement`). With a
horizon the same holds of its blocks: what is charged to a period is charged to its block in the same call, and a block
is deleted once all its periods are retired.

Feeds may share a ledger. They have budgets, generation, terms and the mark of retired periods in common; each has a
birth, which is when it joined, and numbers its own windows.
"""

import uuid
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from redis.exceptions import ResponseError

from dpcore.arrays import IdArray, IntArray
from dpcore.budget import ChargeBasis
from stream.storage.client import run
from stream.storage.keys import OfFeed
from stream.windows import Period, Slotting, utc_text

AFRESH = (
    "Where that is impossible, stop every worker of the feed and give it a new name (if feeds share the ledger: each "
    "of them, and the ledger, too): a new ledger releases windows of periods that begin after it was born"
)
"""What an operator can do if the ledger is lost or bound to other settings."""


class LedgerError(RuntimeError):
    """The ledger cannot prove what was spent, so nothing may be released."""


class SetBackError(LedgerError):
    """Redis remembers fewer windows than were committed, so it was set back to an older state of the ledger.

    ``of``: whose windows were counted.
    """

    def __init__(self, remembered: int, committed: int, of: str = "this feed") -> None:
        super().__init__(
            f"{committed} windows of {of} were committed, Redis remembers {remembered}: it was set back to an older "
            f"state and its budgets with it, so nothing is released. Restore the newest append-only file. {AFRESH}"
        )
        self.remembered, self.committed = remembered, committed


class BeforeBirthError(LedgerError):
    """The window belongs to a period that began before the ledger was born, so it is unknown what was spent in it."""

    def __init__(self, period: str, birth: int | None) -> None:
        born = "at a time that is not recorded" if birth is None else utc_text(birth)
        super().__init__(
            f"the ledger was born {born}; windows of period {period}, which began before, are not released, because "
            "another ledger "
            "may have granted its budgets. Wait for the next period, or state with 'hexveil ledger adopt' that none has"
        )


class RetiredError(LedgerError):
    """The window belongs to a retired period, whose charges were deleted, so it can never be released."""

    def __init__(self, period: str) -> None:
        super().__init__(
            f"period {period} is retired: no event of it could come any more, and what was spent in it is deleted, so "
            "its windows are not released. Leave them; 'hexveil ledger show' says which periods are retired"
        )


class TermsError(RuntimeError):
    """Another worker charged the period on other terms meanwhile, so the window has to be planned again."""


class AlreadyReleasedError(RuntimeError):
    """Another worker released the window meanwhile, so there is nothing left to do."""


class OutOfTurnError(LedgerError):
    """It is not the turn of a window: those of a feed are planned, charged and committed in the order of their time.

    ``other``: the window whose turn it is, or was: a later one that is planned already, the one that was planned last,
    or ``slot`` itself if it was set aside.
    """

    def __init__(self, slot: int, other: int) -> None:
        window, beside = f"window {utc_text(slot)}", utc_text(other)
        if other > slot:
            why = (
                f"{window} is never released, because the later window {beside} was planned already: windows are "
                "released in the order of their time, or the order would tell what nobody paid for. Leave it, and "
                "replay recordings oldest first"
            )
        elif other < slot:
            why = (
                f"{window} waits for window {beside}, which was planned last; it is planned once that one is committed"
            )
        else:
            why = f"{window} was set aside; once its cause is removed, 'hexveil ledger retry' lets it be closed again"
        super().__init__(why)
        self.other = other

    @classmethod
    def of(cls, slot: int, why: str) -> Self | None:
        """What a script refused ``slot`` for by ``why``; None if it was for another reason."""
        _, turn, other = why.rpartition("TURN ")
        return cls(slot, int(other)) if turn else None


CHUNK = 200
"""Users charged per Lua call, which takes Redis about a millisecond, in which it serves nobody else."""
_READ = 2_000
"""Users whose charges are read per Lua call. Lua hands at most 7 999 arguments to a command."""


class Terms(NamedTuple):
    """The terms of a period so far: its lowest budget (None: uncharged), and whether charges depended on counts."""

    budget: int | None
    counts: bool


class Ledger(OfFeed):
    """Spent budgets of one feed, or of all feeds that share a ledger with it.

    Counts are exact below 2^53 (Lua numbers), far above any configurable budget.
    """

    committed = 0
    """Number of windows known to be committed, of all feeds of the ledger. If Redis remembers fewer, it neither charges
    nor commits."""

    async def generation(self) -> str | None:
        """Identity of this ledger; None if there is none, because it was never started or was lost."""
        generation = await self._redis.get(self._keys.generation)
        return None if generation is None else generation.decode()

    async def start_generation(self, birth: int | None = None, budget: int | None = None) -> str:
        """The ledger's identity; created if there is none. Only for a feed that has never released anything, or shares
        a ledger.

        ``birth``: birth of a new ledger in epoch seconds; default: the time of Redis. If the feed shares a ledger that
        other feeds began, it joins it, and ``birth`` is when it does: another ledger may have granted the budgets of
        earlier periods to it. ``budget``: the budget that it states to the others if it stated none yet, or a higher
        one.
        """
        if birth is None:
            birth = int((await run(self._redis, "clock", [self._keys.generation]))[0])
        keys, given = [self._keys.generation, self._keys.birth], (str(uuid.uuid4()), birth)
        if self._keys.shared_ledger is None:
            await run(self._redis, "begin_ledger", keys, *given)
        else:
            keys += [self._keys.feeds, self._keys.budgets]
            await run(self._redis, "join_ledger", keys, *given, self._keys.feed, "" if budget is None else budget)
        generation = await self.generation()
        if generation is None:
            raise LedgerError("Redis did not keep the ledger generation it was given; check its memory policy and AOF")
        return generation

    async def birth(self) -> int | None:
        """When this ledger was born, or the feed joined it, in epoch seconds. Windows of periods that began before are
        not released.

        None if it is not recorded; then nothing is released.
        """
        birth = await self._redis.get(self._keys.birth)
        return None if birth is None else int(birth)

    async def retired(self) -> int | None:
        """The time (epoch seconds) before which periods are retired; None if no period was retired yet."""
        retired = await self._redis.get(self._keys.retired)
        return None if retired is None else int(retired)

    async def releases_since(self, slotting: Slotting) -> int | None:
        """The time (epoch seconds) from which periods are released: the birth, with a horizon the start of its next
        block, or the end of the retired periods if later. None if the birth is not recorded; then nothing is released.
        """
        birth, retired = await self.birth(), await self.retired()
        return None if birth is None else max(slotting.whole_from(birth), retired or birth)

    async def adopt(self, since: int) -> int:
        """Move the birth back, so that periods from ``since`` (epoch seconds) on are released. Returns the resulting
        time.

        Only for an operator who knows that no other ledger released anything in these periods. Retired periods stay
        retired.
        """
        await run(self._redis, "adopt", [self._keys.birth], since)
        birth, retired = await self.birth(), await self.retired()
        if birth is None:
            raise LedgerError("Redis did not keep the ledger's birth it was given; check its memory policy and AOF")
        return max(birth, retired or birth)

    async def sequence(self) -> int:
        """Number of windows of this feed committed so far.

        Raises :class:`SetBackError` if Redis remembers fewer windows of the ledger than this process knows.
        """
        (sequence,) = await self._remembered([self._keys.feed])
        return sequence

    async def check_published(self, published: Mapping[str, int]) -> None:
        """Check that Redis remembers what was published. ``published``: number of the last published window of each
        feed.

        Raises :class:`SetBackError` if Redis remembers fewer windows of a feed.
        """
        self.committed = max(self.committed, sum(published.values()))
        for feed, remembered in zip(published, await self._remembered(list(published)), strict=True):
            if remembered < published[feed]:
                raise SetBackError(remembered, published[feed], f"feed {feed!r}, which has its budgets in this ledger,")

    async def _remembered(self, feeds: list[str]) -> list[int]:
        """Number of windows of each of ``feeds`` committed, read at the same moment as the number of all."""
        keys = [self._keys.commits, *(self._keys.beside(feed).sequence for feed in feeds)]
        commits, *sequences = [int(count or 0) for count in await run(self._redis, "counts", keys)]
        if commits < self.committed:
            raise SetBackError(commits, self.committed, self._whose)
        self.committed = commits
        return sequences

    @property
    def _whose(self) -> str:
        shared = self._keys.shared_ledger
        return "this feed" if shared is None else f"the feeds of ledger {shared!r}"

    async def claim_policy(self, policy: str) -> None:
        """Bind the ledger to a relation, unit and periods, because other ones would give everybody new budgets.

        Raises :class:`LedgerError` if the ledger is bound to another policy.
        """
        await self._claim(self._keys.policy, policy)
        await self.kept_under(policy)

    async def kept_under(self, policy: str) -> None:
        """Raise :class:`LedgerError` if the ledger is bound to another policy."""
        known = await self._bound(self._keys.policy)
        if known not in ("", policy):
            raise LedgerError(
                f"the ledger was kept with {known}, the configuration says {policy}; under other "
                f"periods or units spent budgets would be forgotten. Restore the old settings. {AFRESH}"
            )

    async def claim_identity(self, identity: str) -> None:
        """Bind the ledger to the field that identifies users, because with another field everybody would have a second
        budget.

        Raises :class:`LedgerError` if the ledger is bound to another field.
        """
        await self._claim(self._keys.user_identity, identity)
        await self.kept_for(identity)

    async def kept_for(self, identity: str) -> None:
        """Raise :class:`LedgerError` if the ledger is bound to another field that identifies users."""
        known = await self._bound(self._keys.user_identity)
        if known not in ("", identity):
            raise LedgerError(
                f"the users of this ledger are what {known} names, the configuration says {identity}; by another name "
                "everybody would get a second budget in the same period. Restore feed.topic, feed.format and user in "
                f"[feed.fields]. {AFRESH}"
            )

    async def _claim(self, key: str, value: str) -> None:
        await self._redis.set(key, value, nx=True)
        if not await self._bound(key):
            raise LedgerError(f"Redis did not keep {key}, which it was given; check its memory policy and AOF")

    async def _bound(self, key: str) -> str:
        return (await self._redis.get(key) or b"").decode()

    async def terms(self, period: str) -> Terms:
        """The terms on which users were charged in ``period``."""
        budget, counts = await self._redis.hmget(self._keys.terms(period), ["budget", "counts"])
        return Terms(None if budget is None else int(budget), counts is not None)

    async def budget(self, terms: Terms, configured: int) -> int:
        """The budget of a period with ``terms``, for a feed with the budget ``configured``.

        A feed's own ledger takes the lower one. In a shared ledger the first charge fixes the budget of a period, for
        all feeds and until its end: the least that any of them states, or this worker is configured with, if its feed
        states more. So all close markers of the period state the same.
        """
        if self._keys.shared_ledger is None:
            return configured if terms.budget is None else min(configured, terms.budget)
        if terms.budget is not None:
            return terms.budget
        return min([configured, *map(int, await self._redis.hvals(self._keys.budgets))])

    async def spent(self, period: str, users: IdArray, *, besides: int) -> IntArray:
        """Units that each of ``users`` spent in ``period``, except in the window ``besides`` (a slot), shape (L,)."""
        keys, spent = [self._keys.ledger(period), self._keys.charged(besides)], np.zeros(len(users), dtype=np.int64)
        for start in range(0, len(users), _READ):
            part = slice(start, start + _READ)
            named = " ".join(map(str, users[part].tolist()))
            for sign, stored in zip((1, -1), await run(self._redis, "spent", keys, named), strict=True):
                if stored:
                    spent[part] += sign * np.array([int(value or 0) for value in stored], dtype=np.int64)
        return spent

    async def unspent(self, period: Period, users: IdArray, budget: int, *, besides: int) -> tuple[IntArray, IntArray]:
        """Units that each of ``users`` has left of ``budget`` in ``period``, and in its block, shape (L,) each; without
        a horizon a block has no limit.

        What they paid in the window ``besides`` (a slot) counts as not spent.
        """
        left = budget - await self.spent(period.key, users, besides=besides)
        if (block := period.block) is None:
            return left, np.full(len(users), np.iinfo(np.int64).max)
        known = (await self.terms(block.key)).budget
        allowed = block.budget if known is None else min(known, block.budget)
        return left, allowed - await self.spent(block.key, users, besides=besides)

    async def charge(
        self,
        slot: int,
        period: Period,
        generation: str,
        users: IdArray,
        charges: IntArray,
        budget: int,
        plan: str = "",
        basis: ChargeBasis = "own",
    ) -> IdArray:
        """Charge ``users`` for the window ``slot``. Returns the users whose budget does not cover the charge.

        If any user is returned, the plan must not be drawn. A user who has paid for this window before pays only the
        difference, so a repeated or replaced plan charges nobody twice. Once all have paid, the window is marked as
        paid for ``plan`` (its digest); its commit requires this mark. ``budget`` applies unless the period was charged
        under a lower one. Raises :class:`TermsError` for histograms after charges that depended on counts, and in a
        shared ledger if ``budget`` is not that of the period (:meth:`budget`); :class:`LedgerError` if the ledger is
        not the one of the plan, was set back, was born after the period began, or has retired the period, or if a later
        window was planned; and :class:`AlreadyReleasedError` if another worker released the window meanwhile.
        """
        keys, refused, block = self._keys_of_a_charge(slot, period), list[int](), period.block
        fixed = [basis, period.start, self._keys.shared_ledger or "", period.begun]
        fixed += ["", "", ""] if block is None else [block.budget, block.key, block.end]
        for start in range(0, max(1, len(users)), CHUNK):
            part = slice(start, start + CHUNK)
            paid = "" if start + CHUNK < len(users) or refused else plan
            of_users, of_charges = users[part].tolist(), charges[part].tolist()
            charged = "".join([f"{user} {charge} " for user, charge in zip(of_users, of_charges, strict=True)])
            given = [slot, budget, generation, self.committed, paid, *fixed, charged]
            try:
                answer = await run(self._redis, "charge", keys, *given)
            except ResponseError as error:
                if "UNBORN" in str(error):
                    raise BeforeBirthError(period.key, await self.birth()) from None
                if (known := self._refusal(str(error), slot, period)) is None:
                    raise
                raise known from None
            refused += [int(user) for user in answer]
        return np.array(refused, dtype=np.uint64)

    def _keys_of_a_charge(self, slot: int, period: Period) -> list[str]:
        """The keys of the script that charges. Without a horizon those of the period stand for a block's."""
        named, block = self._keys, period.key if period.block is None else period.block.key
        keys = [named.ledger(period.key), named.charged(slot), named.generation, named.closed, named.commits]
        keys += [named.terms(period.key), named.birth, named.retired, named.budgets]
        return [*keys, named.ledger(block), named.terms(block), named.blocks, named.planned]

    def _refusal(self, said: str, slot: int, period: Period) -> Exception | None:
        """What the script's error means; None for an error that is not its own."""
        if (passed := OutOfTurnError.of(slot, said)) is not None:
            return passed
        if "TERMS" in said:
            return TermsError(f"histograms begin with the period after {period.key}")
        if "RETIRED" in said:
            return RetiredError(period.key)
        if "SETBACK" in said:  # others may commit meanwhile, so the number is the script's
            return SetBackError(int(said.rpartition(" ")[2]), self.committed, self._whose)
        if "BUDGET" in said:
            return TermsError(f"period {period.key} has another budget now")
        if "RELEASED" in said:
            return AlreadyReleasedError(f"window {slot} was released by another worker")
        if "GENERATION" in said:
            return LedgerError(
                "the ledger generation of the plan is gone from Redis; budgets spent are unknown, so nothing is "
                "released. Restore Redis from its append-only file"
            )
        return None

    async def total(self, period: str) -> tuple[int, int]:
        """Number of users charged in ``period``, and the sum of their charges; inside the trust boundary only."""
        users = total = 0
        async for _, value in self._redis.hscan_iter(self._keys.ledger(period), count=5_000):
            users += 1
            total += int(value)
        return users, total

    async def periods(self) -> list[str]:
        """Periods with charges, oldest first."""
        prefix = self._keys.ledger("").encode()
        pattern = prefix.replace(b"[", b"\\[") + b"*"
        return sorted([key.removeprefix(prefix).decode() async for key in self._redis.scan_iter(match=pattern)])
