"""The release protocol: seal, read, plan, charge, draw, commit, publish, confirm, clean. Every step may be repeated.

No lock is needed: a plan and a committed window are stored only once (the first writer wins), and a charge is paid
once. Users are charged before noise is drawn, and only the committed bytes are published, whichever worker drew them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import structlog
from redis.asyncio import Redis

from dpcore.arrays import IdArray
from dpcore.noise import Noise
from stream.messages.chain import ChainError, Signer, continued, decode_link, encode_link
from stream.messages.message import Message, decode_outbox, encode_outbox
from stream.protocol.parts import ContentError, Publisher, SlotRows, content_of
from stream.statistics.plan import (
    Allowance,
    Due,
    Plan,
    PlanError,
    decode_plan,
    encode_plan,
    require_storable_plan,
    spendable,
)
from stream.statistics.window_release import Drawn, WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import AlreadyReleasedError, Ledger, LedgerError, TermsError
from stream.storage.release_store import Carried, ChargesGoneError, CommitOutcome, Released, ReleaseStore
from stream.terms import Terms
from stream.windows import Window, utc_text

log = structlog.get_logger()


NOBODY = np.zeros(0, dtype=np.uint64)


class StoredPlan(NamedTuple):
    """A plan and its stored bytes in Redis."""

    plan: Plan
    stored: bytes


class DueWindow(NamedTuple):
    """A window to close, with its plan if an earlier attempt or another worker stored one.

    ``positions``: whether a histogram or a rule of fixes reads lat and lng, on the terms of now or of the plan.
    """

    window: Window
    positions: bool
    planned: StoredPlan | None


@dataclass(frozen=True)
class Planning:
    """Makes, stores, charges and replaces plans of one feed. A plan is stored only once: the first writer wins."""

    statistics: WindowStatistics
    store: ReleaseStore
    ledger: Ledger

    @property
    def terms(self) -> Terms:
        """The terms on which windows are planned from now on."""
        return self.statistics.terms

    async def window(self, slot: int) -> DueWindow:
        """The window that begins at ``slot``. A planned window keeps its length, even if ``window.slot`` was changed
        since.

        Raises :class:`PlanError` if no window begins there, and :class:`LedgerError` if its plan counts in another
        unit.
        """
        stored = await self.store.plan(slot)
        planned = None if stored is None else self._read(stored)
        window = self.terms.window_at(slot) if planned is None else planned.plan.window
        if window.start != slot:
            raise PlanError(
                f"no window of {timedelta(seconds=self.terms.slot_s)} begins at {utc_text(slot)}: window.slot was "
                "changed while its rows "
                "were collected; nothing was planned. Restore the old length until it is released"
            )
        planned_by_them = planned is not None and planned.plan.terms.reading.positions
        return DueWindow(window, self.terms.reading.positions or planned_by_them, planned)

    async def first(self, window: Window, rows: WindowRows | None) -> StoredPlan:
        """Make and store a plan of ``window``. If another worker stored one meanwhile, that plan is returned."""
        plan = await self.make(window, rows, NOBODY)
        stored = encode_plan(plan)
        try:
            with content_of(window.start, "the plan"):
                require_storable_plan(len(stored))
        except ContentError as error:
            stored = encode_plan(self._withhold(plan.due, plan.budget, error))
        return self._read(await self.store.store_plan(window.start, stored))

    async def replaced(
        self, window: Window, rows: WindowRows | None, planned: StoredPlan, refused: IdArray
    ) -> StoredPlan:
        """Replace ``planned`` by a plan without the users in ``refused``. Returns the plan that is stored then."""
        plan = encode_plan(await self.make(window, rows, refused))
        stored = await self.store.replace_plan(window.start, planned.stored, plan)
        return await self.first(window, rows) if stored is None else self._read(stored)

    async def make(self, window: Window, rows: WindowRows | None, refused: IdArray) -> Plan:
        """A plan by the ledger and its terms of the period, without the users in ``refused``.

        A higher budget takes effect with the next period; so does any other one if feeds share the ledger. If no plan
        can be made, the window is withheld if the relation permits that; else this raises :class:`ContentError`.
        ``rows``: None if they could not be read.
        """
        generation = await self.ledger.generation()
        if generation is None:
            raise LedgerError(
                f"feed {self.terms.feed!r} has rows to release but Redis holds no ledger generation; what was spent "
                "is unknown. Restore Redis from its append-only file"
            )
        due = Due(self.terms, window, generation)
        terms = await self.ledger.terms(due.period.key)
        allowed = await self.ledger.budget(terms, self.terms.privacy.budget)
        if rows is None:
            return self._withhold(due, allowed, None)
        users = rows.counts.users
        left = allowed - await self.ledger.spent(due.period.key, users, besides=window.start)
        left = spendable(left, users, due, allowed)
        left = np.minimum(left, await self.ledger.left_of_block(due.period, users, besides=window.start))
        left[np.isin(users, refused)] = 0
        memory = await self.store.memory()
        try:
            with content_of(window.start, "plan"):
                return self.statistics.plan(rows, due, Allowance(left, allowed, terms.counts), memory)
        except ContentError as error:
            return self._withhold(due, allowed, error)

    def _withhold(self, due: Due, allowed: int, error: ContentError | None) -> Plan:
        plan = self.statistics.withhold(due, self.terms.privacy.budget if self.terms.ledger is None else allowed)
        if plan is None:
            assert error is not None, "rows that cannot be read are told only where a window may be withheld"
            raise error
        log.error("window withheld", window=utc_text(due.window.start), reason=str(error or "its rows cannot be read"))
        return plan

    async def charge(self, plan: Plan) -> IdArray | None:
        """Charge all users of ``plan``. Returns None once all have paid, else the users whose budget does not cover the
        charge.

        An empty array means that another worker charged the period on other terms meanwhile, so a new plan is needed.
        """
        users, charges = plan.charged_users()
        try:
            refused = await self.ledger.charge(
                plan.window.start,
                plan.period,
                plan.generation,
                users,
                charges,
                plan.budget,
                plan.digest,
                plan.charge_basis,
            )
        except TermsError:
            return NOBODY
        return refused if len(refused) else None

    def _read(self, stored: bytes) -> StoredPlan:
        plan = decode_plan(stored)
        if plan.gaussian != (self.terms.privacy.zcdp is not None):
            accounting = "pure" if self.terms.privacy.zcdp is None else "zcdp"
            raise LedgerError(
                f"the stored plan of window {utc_text(plan.window.start)} counts another unit than accounting "
                f"'{accounting}'; restore the old settings until it is released"
            )
        return StoredPlan(plan, stored)


STEPS = ("seal", "read", "plan", "charge", "draw", "commit", "publish", "confirm", "clean")
"""The steps of the protocol in order. ``after_step`` is called with the name of each."""

PLAN_ATTEMPTS = 5
"""Number of plans that one attempt makes before it gives up, because others are spending the same budgets."""


class _Status(msgspec.Struct):
    status: str = ""


async def _nothing() -> None:
    """The default of ``before_publishing``: there is nothing to check."""


@dataclass(frozen=True)
class ReleaseProtocol:
    """The protocol of one feed, with its state in ``redis``. ``signer``: of its close markers, if they are signed.

    ``before_publishing`` is called once the committed bytes were read, and raises if what was published since
    contradicts them. ``after_step`` is called after each finished step, ``on_redraw`` when a draw was discarded unseen,
    ``on_uncounted`` each time rows are read, with the rows, which know how many of them do not count and why.
    """

    statistics: WindowStatistics
    redis: Redis
    rows: SlotRows
    ledger: Ledger
    publisher: Publisher
    noise: Noise
    signer: Signer | None = None
    before_publishing: Callable[[], Awaitable[None]] = _nothing
    after_step: Callable[[str], Awaitable[None] | None] = lambda _: None
    on_redraw: Callable[[], None] = lambda: None
    on_uncounted: Callable[[WindowRows], None] = lambda _: None
    store: ReleaseStore = field(init=False)
    planning: Planning = field(init=False)

    def __post_init__(self) -> None:
        store = ReleaseStore(self.redis, self.statistics.terms.feed, self.statistics.terms.ledger)
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "planning", Planning(self.statistics, store, self.ledger))

    async def close(self, slot: int) -> Released:
        """Commit one window and publish it; continues after the step that an earlier attempt reached.

        Raises what :meth:`commit` and :meth:`publish` raise.
        """
        await self.commit(slot)
        return await self.publish(slot)

    async def commit(self, slot: int) -> None:
        """Make sure that the outbox contains the bytes of one window. Does nothing if the window was released.

        Raises :class:`LedgerError` if the ledger cannot prove what was spent, and :class:`ContentError` for a window
        that was set aside. Errors of Redis are passed on; the next attempt continues where this one stopped.
        """
        released, outbox = await self.store.released_or_committed(slot)
        if released is None and outbox is None:
            try:
                due = await self.seal(slot)
                rows = await self._read(due)
                planned = await self._plan(due, rows)
                for _ in range(PLAN_ATTEMPTS):
                    refused = await self._charge(planned.plan)
                    if refused is None:
                        break
                    planned = await self._plan_again(due.window, rows, planned, refused)
                else:
                    raise _spent_elsewhere(due.window)
                drawn = await self._draw(planned.plan, rows)
                del rows  # a big window's take hundreds of megabytes, which messages are not made of
                await self._commit(planned.plan, drawn)
            except AlreadyReleasedError:
                return  # another worker released it meanwhile, so only cleaning is left
            except ContentError as error:
                await self.store.set_aside(slot, str(error))
                raise

    async def publish(self, slot: int) -> Released:
        """Publish a committed window, confirm it by reading it back, and delete what closing it needed.

        Errors of Redis and Kafka are passed on. Raises :class:`LedgerError` if the committed bytes are gone before or
        after they were published, and what ``before_publishing`` raises.
        """
        released, outbox = await self.store.released_or_committed(slot)
        if released is None:
            if outbox is None:
                raise _commit_gone(slot)
            messages = decode_outbox(outbox)
            # After the bytes were read: if Redis was set back and this is a second release, the first marker is out by
            # now.
            await self.before_publishing()
            await self._publish(messages)
            await self._confirm(messages)
            released = await self._remember(slot, messages, outbox)
        await self._clean(slot)
        return released

    async def _done(self, step: str) -> None:
        waiting = self.after_step(step)
        if waiting is not None:
            await waiting

    async def seal(self, slot: int) -> DueWindow:
        """Seal the slot, so that later rows are late. Returns the window, with its plan if it was planned."""
        due = await self.planning.window(slot)
        await self.rows.seal(slot)
        await self._done("seal")
        return due

    async def _read(self, due: DueWindow) -> WindowRows | None:
        """The sorted rows, with lat and lng where they are read; None if reading fails because of their content and the
        window may be withheld."""
        window = due.window
        try:
            with content_of(window.start, "reading"):
                stored = await self.rows.read(window.start, positions=due.positions)
                rows = self.statistics.arrange(stored, window)
            self.on_uncounted(rows)
        except ContentError:
            if not self.statistics.may_withhold:
                raise
            rows = None
        await self._done("read")
        return rows

    async def _plan(self, due: DueWindow, rows: WindowRows | None) -> StoredPlan:
        """The stored plan. If another worker stored one, that plan is used."""
        planned = due.planned or await self.planning.first(due.window, rows)
        await self._done("plan")
        return planned

    async def _charge(self, plan: Plan) -> npt.NDArray[np.uint64] | None:
        """Charge the plan. None once all paid, else the users who could not; the plan must then not be drawn."""
        refused = await self.planning.charge(plan)
        if refused is None:
            await self._done("charge")
        return refused

    async def _plan_again(
        self, window: Window, rows: WindowRows | None, planned: StoredPlan, refused: npt.NDArray[np.uint64]
    ) -> StoredPlan:
        """Replace the plan by one without the users in ``refused``. What was paid stays paid."""
        planned = await self.planning.replaced(window, rows, planned, refused)
        await self._done("plan")
        return planned

    async def _draw(self, plan: Plan, rows: WindowRows | None) -> Drawn | None:
        with content_of(plan.window.start, "the draw"):
            drawn = self.statistics.draw(plan, rows, self.noise)
        await self._done("draw")
        return drawn

    async def _commit(self, plan: Plan, drawn: Drawn | None) -> None:
        """Commit the drawn window with its number and the memory after it.

        If the link of the chain was replaced meanwhile, or Redis was set back, the messages are written anew with the
        same noise. Raises :class:`LedgerError`, and commits nothing, if the window's charges are gone from Redis.
        """
        slot = plan.window.start
        while True:
            number = await self.ledger.sequence() + 1
            before = await self.store.carried()
            with content_of(slot, "writing its messages"):
                messages, memory = self.statistics.compose(plan, drawn, before.memory, number)
            messages[-1], link = self._continued(messages[-1], before.link)
            after = Carried(memory, link)
            try:
                outcome = await self.store.commit(slot, encode_outbox(messages), before, after, plan.digest, number)
            except ChargesGoneError:
                raise LedgerError(
                    f"the charges of window {utc_text(slot)} are gone from Redis, so its draw is discarded unseen, and "
                    "the window is "
                    "charged and drawn again. Run Redis with an append-only file that is synced on every write"
                ) from None
            if outcome is not CommitOutcome.STATE_MOVED:
                break
        if outcome is CommitOutcome.COMMITTED:
            self.ledger.committed += 1
        else:
            self.on_redraw()
        if outcome is CommitOutcome.WINDOW_RELEASED:
            raise AlreadyReleasedError(f"window {utc_text(slot)} was released by another worker")
        await self._done("commit")

    def _continued(self, marker: Message, last: bytes) -> tuple[Message, bytes]:
        """The close marker, next in the chain, and the link to it. Raises :class:`LedgerError` for another key."""
        try:
            chained, link = continued(marker, decode_link(last), self.signer)
        except ChainError as error:
            raise LedgerError(str(error)) from None
        return chained, encode_link(link)

    async def _publish(self, messages: Sequence[Message]) -> None:
        await self.publisher.publish(messages)
        await self._done("publish")

    async def _confirm(self, messages: Sequence[Message]) -> None:
        await self.publisher.confirm(messages)
        await self._done("confirm")

    async def _remember(self, slot: int, messages: Sequence[Message], outbox: bytes) -> Released:
        """Record that the window is released. From then on nobody can charge or commit for it.

        Raises :class:`LedgerError` if Redis lost the commit meanwhile.
        """
        marker = msgspec.json.decode(messages[-1].value)
        statuses = [msgspec.json.decode(message.value, type=_Status).status for message in messages]
        suppressed = statuses.count("suppressed")
        retained = marker.get("plan", {}).get("retained", "")
        released = Released(
            len(messages), marker["digest"], suppressed, "withheld" in marker, marker["sequence"], retained
        )
        if not await self.store.remember(slot, released, outbox):
            raise LedgerError(
                f"window {utc_text(slot)} was published, but meanwhile Redis lost its commit: it was set back to an "
                "older state and its budgets with it. Restore the newest append-only file"
            )
        return released

    async def _clean(self, slot: int) -> None:
        await self.rows.drop_rows(slot)
        await self.store.forget(slot)
        await self._done("clean")


def _spent_elsewhere(window: Window) -> LedgerError:
    return LedgerError(
        f"window {utc_text(window.start)}: budgets were spent elsewhere during {PLAN_ATTEMPTS} plans; "
        "the worker tries again later"
    )


def _commit_gone(slot: int) -> LedgerError:
    return LedgerError(
        f"the committed bytes of window {utc_text(slot)} are gone from Redis, and it was not released; nothing is "
        "published. Run Redis with an append-only file that is synced on every write"
    )
