"""The release protocol: seal, read, plan, charge, draw, commit, publish, confirm, clean. Every step may be repeated.

No lock is needed: a plan and a committed window are stored only once (the first writer wins), and a charge is paid
once. Users are charged before noise is drawn, and only the committed bytes are published, whichever worker drew them.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dpcore.arrays import IdArray
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.chain import ChainError, Signer, SigningKeyError, continued, decode_link, encode_link
from stream.messages.message import Message, decode_outbox, encode_outbox
from stream.statistics.plan import Allowance, Due, Plan, PlanError, decode_plan, encode_plan, spendable
from stream.statistics.window_release import Drawn, WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import AlreadyReleasedError, Ledger, LedgerError, TermsError
from stream.storage.release_store import Carried, ChargesGoneError, CommitOutcome, Released, ReleaseStore
from stream.storage.row_store import NotSealedError
from stream.terms import Terms
from stream.windows import Window, utc_text

log = structlog.get_logger()

NOBODY = np.zeros(0, dtype=np.uint64)


class ContentError(RuntimeError):
    """A step that computes on the rows of a window failed, and would fail again with the same rows."""

    def __init__(self, slot: int, step: str, cause: BaseException) -> None:
        super().__init__(
            f"window {utc_text(slot)} cannot be closed: {step} failed with {type(cause).__name__}: {cause}. "
            "See docs/runbooks.md#windowsetaside"
        )


@contextmanager
def content_of(slot: int, step: str) -> Iterator[None]:
    """Turn errors of the block into :class:`ContentError`, except if rows and plan do not match, or Redis does not
    answer or was set back.
    """
    try:
        yield
    except (ContentError, NotSealedError, PlanError, RedisError):
        raise
    except Exception as error:
        raise ContentError(slot, step, error) from error


class SlotRows(Protocol):
    """The part of :class:`stream.storage.row_store.RowStore` that closing uses."""

    async def seal(self, slot: int) -> None:
        """Make further rows of the slot late."""

    async def read(self, slot: int, *, positions: bool) -> NDArray[np.void]:
        """The rows of the slot; lat and lng may be left out if ``positions`` are not needed."""

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of the slot."""


class Statistics(Protocol):
    """The pure steps of a window, as :class:`stream.statistics.window_release.WindowStatistics`: all that closing knows
    of what is released.
    """

    @property
    def terms(self) -> Terms:
        """The terms of windows that are planned now."""

    @property
    def may_withhold(self) -> bool:
        """Whether it may be published that no plan of a window could be made."""

    def arrange(self, rows: NDArray[np.void], window: Window) -> WindowRows:
        """The rows of ``window``, sorted."""

    def plan(self, rows: WindowRows, due: Due, allowance: Allowance, memory: bytes = b"") -> Plan:
        """The plan of the window that is ``due``."""

    def withhold(self, due: Due, budget: int) -> Plan | None:
        """The plan of a withheld window; None if it must not be withheld publicly."""

    def draw(self, plan: Plan, rows: WindowRows | None, noise: Noise) -> Drawn | None:
        """The drawn window; None for a withheld one."""

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """All messages of a window and the memory after it."""


class Publisher(Protocol):
    """Publishes committed messages."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all messages; the last one (the close marker) is sent after the others were acknowledged."""

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Read the messages back; raises if one is missing or differs."""


def signer_of(config: Config) -> Signer | None:
    """What signs the close markers of a configured feed. Raises :class:`LedgerError` for a key that cannot be used."""
    try:
        return None if config.signing is None else Signer.load(config.signing.key_file)
    except SigningKeyError as error:
        raise LedgerError(str(error)) from None


def statistics_of(config: Config) -> WindowStatistics:
    """The statistics of a configured feed. Raises :class:`stream.config.ConfigError` for a public area that is none."""
    return WindowStatistics(Terms.of(config), public_cells(config))


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


STEPS = ("seal", "read", "plan", "charge", "draw", "commit", "publish", "confirm", "clean")
"""The steps of the protocol in order. ``after_step`` is called with the name of each."""

PLAN_ATTEMPTS = 5
"""Number of plans that one attempt makes before it gives up, because others are spending the same budgets."""


class _Status(msgspec.Struct):
    status: str = ""


@dataclass(frozen=True)
class ReleaseProtocol:
    """The protocol of one feed, with its state in ``redis``. ``signer``: of its close markers, if they are signed.

    ``before_publishing`` is called once the committed bytes were read, and raises if what was published since
    contradicts them. ``sealing`` takes the place of ``rows.seal``. ``after_step`` is called after each finished step,
    ``on_redraw`` when a draw was discarded unseen, ``on_uncounted`` each time rows are read, with the rows, which know
    how many of them do not count and why.
    """

    statistics: Statistics
    redis: Redis
    rows: SlotRows
    ledger: Ledger
    publisher: Publisher
    noise: Noise
    signer: Signer | None = None
    before_publishing: Callable[[], Awaitable[None]] | None = None
    sealing: Callable[[int], Awaitable[None]] | None = None
    after_step: Callable[[str], Awaitable[None] | None] = lambda _: None
    on_redraw: Callable[[], None] = lambda: None
    on_uncounted: Callable[[WindowRows], None] = lambda _: None
    store: ReleaseStore = field(init=False)

    def __post_init__(self) -> None:
        store = ReleaseStore(self.redis, self.statistics.terms.feed, self.statistics.terms.ledger)
        object.__setattr__(self, "store", store)

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
                due = await self.window(slot)
                await (self.sealing or self.rows.seal)(slot)
                await self._done("seal")
                rows = await self._read(due)
                planned = due.planned or await self.plan(due.window, rows)
                await self._done("plan")
                for _ in range(PLAN_ATTEMPTS):
                    refused = await self.charge(planned.plan)
                    if refused is None:
                        break
                    planned = await self.replaced(due.window, rows, planned, refused)
                    await self._done("plan")
                else:
                    raise LedgerError(
                        f"window {utc_text(slot)}: budgets were spent elsewhere during {PLAN_ATTEMPTS} plans; the "
                        "worker tries again later"
                    )
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
                raise LedgerError(
                    f"the committed bytes of window {utc_text(slot)} are gone from Redis, and it was not released; "
                    "nothing is published. Run Redis with an append-only file that is synced on every write"
                )
            messages = decode_outbox(outbox)
            # After the bytes were read: if Redis was set back and this is a second release, the first marker is out by
            # now.
            if self.before_publishing is not None:
                await self.before_publishing()
            await self.publisher.publish(messages)
            await self._done("publish")
            await self.publisher.confirm(messages)
            await self._done("confirm")
            released = await self._remember(slot, messages, outbox)
        await self.rows.drop_rows(slot)
        await self.store.forget(slot)
        await self._done("clean")
        return released

    async def _done(self, step: str) -> None:
        waiting = self.after_step(step)
        if waiting is not None:
            await waiting

    async def window(self, slot: int) -> DueWindow:
        """The window that begins at ``slot``. A planned window keeps its length, even if ``window.slot`` was changed
        since.

        Raises :class:`PlanError` if no window begins there, and :class:`LedgerError` if its plan counts in another
        unit.
        """
        terms, stored = self.statistics.terms, await self.store.plan(slot)
        planned = None if stored is None else self._checked(stored)
        window = terms.window_at(slot) if planned is None else planned.plan.window
        if window.start != slot:
            raise PlanError(
                f"no window of {timedelta(seconds=terms.slot_s)} begins at {utc_text(slot)}: window.slot was changed "
                "while its rows were collected; nothing was planned. Restore the old length until it is released"
            )
        planned_by_them = planned is not None and planned.plan.terms.reading.positions
        return DueWindow(window, terms.reading.positions or planned_by_them, planned)

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

    async def plan(self, window: Window, rows: WindowRows | None) -> StoredPlan:
        """Make and store a plan of ``window``. If another worker stored one meanwhile, that plan is returned."""
        plan = encode_plan(await self.make(window, rows, NOBODY))
        return self._checked(await self.store.store_plan(window.start, plan))

    async def replaced(
        self, window: Window, rows: WindowRows | None, planned: StoredPlan, refused: IdArray
    ) -> StoredPlan:
        """Replace ``planned`` by a plan without the users in ``refused``. What was paid stays paid. Returns the plan
        that is stored then.
        """
        plan = encode_plan(await self.make(window, rows, refused))
        stored = await self.store.replace_plan(window.start, planned.stored, plan)
        return await self.plan(window, rows) if stored is None else self._checked(stored)

    async def make(self, window: Window, rows: WindowRows | None, refused: IdArray) -> Plan:
        """A plan by the ledger and its terms of the period, without the users in ``refused``.

        A higher budget takes effect with the next period; so does any other one if feeds share the ledger. If no plan
        can be made, the window is withheld if the relation permits that; else this raises :class:`ContentError`.
        ``rows``: None if they could not be read.
        """
        generation = await self.ledger.generation()
        if generation is None:
            raise LedgerError(
                f"feed {self.statistics.terms.feed!r} has rows to release but Redis holds no ledger generation; what "
                "was spent is unknown. Restore Redis from its append-only file"
            )
        due = Due(self.statistics.terms, window, generation)
        terms = await self.ledger.terms(due.period.key)
        allowed = await self.ledger.budget(terms, due.terms.privacy.budget)
        if rows is None:
            return self._withhold(due, allowed, None)
        users = rows.counts.users
        left, of_block = await self.ledger.unspent(due.period, users, allowed, besides=window.start)
        left = np.minimum(spendable(left, users, due, allowed), of_block)
        left[np.isin(users, refused)] = 0
        memory = await self.store.memory()
        try:
            with content_of(window.start, "plan"):
                return self.statistics.plan(rows, due, Allowance(left, allowed, terms.counts), memory)
        except ContentError as error:
            return self._withhold(due, allowed, error)

    def _withhold(self, due: Due, allowed: int, error: ContentError | None) -> Plan:
        plan = self.statistics.withhold(due, due.terms.privacy.budget if due.terms.ledger is None else allowed)
        if plan is None:
            assert error is not None, "rows that cannot be read are told only where a window may be withheld"
            raise error
        log.error("window withheld", window=utc_text(due.window.start), reason=str(error or "its rows cannot be read"))
        return plan

    def _checked(self, stored: bytes) -> StoredPlan:
        """A stored plan; raises :class:`LedgerError` if it counts in another unit."""
        plan, zcdp = decode_plan(stored), self.statistics.terms.privacy.zcdp
        if plan.gaussian != (zcdp is not None):
            raise LedgerError(
                f"the stored plan of window {utc_text(plan.window.start)} counts another unit than accounting "
                f"'{'pure' if zcdp is None else 'zcdp'}'; restore the old settings until it is released"
            )
        return StoredPlan(plan, stored)

    async def charge(self, plan: Plan) -> IdArray | None:
        """Charge all users of ``plan``. Returns None once all have paid, else the users whose budget does not cover the
        charge; the plan must then not be drawn.

        An empty array means that another worker charged the period on other terms meanwhile, so a new plan is needed.
        """
        paid = (*plan.charged_users(), plan.budget, plan.digest, plan.charge_basis)
        try:
            refused = await self.ledger.charge(plan.window.start, plan.period, plan.generation, *paid)
        except TermsError:
            return NOBODY
        if len(refused):
            return refused
        await self._done("charge")
        return None

    async def _draw(self, plan: Plan, rows: WindowRows | None) -> Drawn | None:
        with content_of(plan.window.start, "the draw"):
            drawn = self.statistics.draw(plan, rows, self.noise)
        await self._done("draw")
        return drawn

    async def _commit(self, plan: Plan, drawn: Drawn | None) -> None:
        """Commit the drawn window with its number and the memory after it.

        If the link of the chain was replaced meanwhile, or Redis was set back, the messages are written anew with the
        same noise. Raises :class:`LedgerError`, and commits nothing, if the window's charges are gone from Redis, or
        for another signing key than the chain demands.
        """
        slot = plan.window.start
        while True:
            number = await self.ledger.sequence() + 1
            before = await self.store.carried()
            with content_of(slot, "writing its messages"):
                messages, memory = self.statistics.compose(plan, drawn, before.memory, number)
            try:
                messages[-1], link = continued(messages[-1], decode_link(before.link), self.signer)
                after = Carried(memory, encode_link(link))
                outcome = await self.store.commit(slot, encode_outbox(messages), before, after, plan.digest, number)
            except ChainError as error:
                raise LedgerError(str(error)) from None
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
