"""The release protocol: read, plan, charge, draw, commit, publish, confirm, clean up. Every step may be repeated.

No lock is needed: a stored plan and a committed window are written once, first writer wins, and a charge is paid once.
Charge comes before draw; the bytes that leave are the committed ones, whoever drew them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message, decode_outbox, encode_outbox
from stream.statistics.carried_clipping import carry
from stream.statistics.histograms.fixes import Fixes, fixes_of, histogram_box
from stream.statistics.histograms.histograms import DrawnHistogram, draw_histograms
from stream.statistics.merging import merged
from stream.statistics.pipeline import compose, contributions_of, draw, plan_window
from stream.statistics.plan import Columns, IdArray, Plan, PlanError, decode_plan, encode_plan, within
from stream.statistics.smoothing_state import decode_memory, encode_memory
from stream.storage.ledger import AlreadyReleasedError, Ledger, LedgerError, TermsError
from stream.windows import Slotting, Window, utc_text

STEPS = ("seal", "read", "plan", "charge", "draw", "commit", "publish", "confirm", "clean")
"""Protocol steps in order, as reported to ``after_step``."""

_PLAN_ATTEMPTS = 5
_TAKEN, _MOVED = 1, 2

_COMMIT = resources.files("stream.storage").joinpath("lua", "commit.lua").read_text(encoding="utf-8")

_REPLACE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return redis.call('GET', KEYS[1])
"""


class RowStore(Protocol):
    """What closing needs of :class:`stream.storage.row_store.State`."""

    async def seal(self, slot: int) -> None:
        """Later rows of the slot are late from now on."""

    async def read_rows(self, slot: int) -> npt.NDArray[np.void]:
        """Every row of the slot."""

    async def drop_rows(self, slot: int) -> None:
        """Forget the slot's rows."""


class Publisher(Protocol):
    """Where committed messages go."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all, the last one (the close marker) after the others are acknowledged."""

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Read them back from the output; raises where one is missing or differs."""


class Closed(msgspec.Struct, frozen=True):
    """What Redis remembers of a released window."""

    messages: int
    digest: str
    period: str
    suppressed: int = 0


class _Status(msgspec.Struct):
    status: str = ""


@dataclass(frozen=True)
class Closing:
    """The parts of the protocol for one feed. ``after_step`` is told of every finished step."""

    config: Config
    redis: Redis
    rows: RowStore
    ledger: Ledger
    publisher: Publisher
    noise: Noise
    after_step: Callable[[str], Awaitable[None] | None] = lambda _: None
    on_redraw: Callable[[], None] = lambda: None

    def _key(self, name: str) -> str:
        return f"hv:{{{self.config.feed.name}}}:{name}"

    @property
    def slotting(self) -> Slotting:
        """Timeslots and periods of the feed."""
        return self.config.slotting

    async def _done(self, step: str) -> None:
        waiting = self.after_step(step)
        if waiting is not None:
            await waiting

    async def closed(self, slot: int) -> Closed | None:
        """What is remembered of a released window; None while it is open."""
        found = await self.redis.hget(self._key("closed"), str(slot))
        return None if found is None else msgspec.json.decode(found, type=Closed)

    async def close(self, slot: int) -> Closed:
        """Release one window, from whatever step an earlier attempt reached.

        Raises :class:`LedgerError` where budgets cannot be vouched for; errors of Redis and Kafka pass through, and
        the next attempt goes on where this one stopped.
        """
        known = await self.closed(slot)
        if known is not None:
            await self._clean(slot)
            return known
        outbox = await self.redis.get(self._key(f"outbox:{slot}"))
        if outbox is None:
            try:
                outbox = await self._commit(slot)
            except AlreadyReleasedError:
                await self._clean(slot)
                known = await self.closed(slot)
                assert known is not None, "a released window is remembered for good"
                return known
        messages = decode_outbox(outbox)
        await self.publisher.publish(messages)
        await self._done("publish")
        await self.publisher.confirm(messages)
        await self._done("confirm")
        marker = msgspec.json.decode(messages[-1].value)
        statuses = [msgspec.json.decode(message.value, type=_Status).status for message in messages]
        period = self.slotting.period_of(slot).key
        result = Closed(len(messages), marker["digest"], period, statuses.count("suppressed"))
        await self.redis.hset(self._key("closed"), str(slot), msgspec.json.encode(result))
        await self._clean(slot)
        return result

    async def _commit(self, slot: int) -> bytes:
        generation = await self.ledger.generation()
        if generation is None:
            raise LedgerError(
                f"feed {self.config.feed.name!r} has rows to release but Redis holds no ledger generation; what was spent "
                "is unknown. Restore Redis from its append-only file"
            )
        await self.rows.seal(slot)
        await self._done("seal")
        window, rows = await self._window(slot), await self.rows.read_rows(slot)
        rows = rows[(rows["time"] >= window.start * 1_000_000) & (rows["time"] < window.end * 1_000_000)]
        contributions, fixes = contributions_of(rows, self.config), fixes_of(rows, histogram_box(self.config))
        await self._done("read")
        plan = await self._charged_plan(slot, contributions, generation, fixes)
        contributions = merged(plan, contributions)
        planned_box = None if plan.histogram is None else plan.histogram.box
        if planned_box != histogram_box(self.config):
            fixes = fixes_of(rows, planned_box)  # of a plan made under an earlier configuration
        columns, histograms = draw(plan, contributions, self.noise), draw_histograms(plan, fixes, self.noise)
        await self._done("draw")
        answer = await self._commit_drawn(slot, plan, contributions.counts, columns, histograms)
        if not answer or not answer[0]:
            self.on_redraw()
        if not answer:
            raise AlreadyReleasedError(f"window {utc_text(slot)} was released by another worker")
        stored: bytes = answer[1]
        await self._done("commit")
        return stored

    async def _commit_drawn(
        self,
        slot: int,
        plan: Plan,
        counts: Counts,
        columns: dict[str, Columns],
        histograms: Sequence[DrawnHistogram],
    ) -> list[Any]:
        """Commit the drawn window, numbered, with the memory it leaves; where another was faster, compose again.

        Ends: whoever took the number committed another window, and of those there are finitely many. Raises
        :class:`LedgerError` where the window's charges are gone from Redis: then nothing is committed.
        """
        keys = [self._key(name) for name in (f"outbox:{slot}", "closed", "memory", f"charged:{slot}", "sequence")]
        while True:
            number = await self.ledger.sequence() + 1
            stored: bytes = await self.redis.get(keys[2]) or b""
            before = decode_memory(stored)
            messages, after = compose(plan, counts, columns, self.config, before, histograms, sequence=number)
            left = b"" if after is None or after is before else encode_memory(after)
            arguments = (slot, encode_outbox(messages), stored, left, plan.digest, number)
            try:
                answer: list[Any] = await self.redis.eval(_COMMIT, len(keys), *keys, *arguments)
            except ResponseError as error:
                if "CHARGES" not in str(error):
                    raise
                raise LedgerError(
                    f"the charges of window {utc_text(slot)} are gone from Redis; its draw is thrown away unseen, and it is "
                    "charged and drawn again. Let Redis keep an append-only file, synced always"
                ) from None
            if answer and answer[0] == _TAKEN:
                self.ledger.committed = number
            if not answer or answer[0] != _MOVED:
                return answer

    async def _charged_plan(
        self, slot: int, contributions: Contributions, generation: str, fixes: Fixes | None = None
    ) -> Plan:
        """The stored plan with every charge made; a plan that meets an exhausted budget is replaced, never refunded."""
        key, period = self._key(f"plan:{slot}"), self.slotting.period_of(slot).key
        blob: bytes | None = await self.redis.get(key)
        for _ in range(_PLAN_ATTEMPTS):
            if blob is None:
                mine = await self._planned(slot, contributions.counts, generation, fixes)
                await self.redis.set(key, mine, nx=True)
                blob = await self.redis.get(key) or mine
            plan = decode_plan(blob)
            if (plan.zcdp is not None) != (self.config.privacy.accounting == "zcdp"):
                raise LedgerError(
                    f"the stored plan of window {utc_text(slot)} counts another unit than accounting "
                    f"'{self.config.privacy.accounting}'; restore the old settings until it is released"
                )
            await self._done("plan")
            users, charges = plan.charged_users()
            refused = np.zeros(0, dtype=np.uint64)
            try:
                refused = await self.ledger.charge(
                    slot, period, plan.generation, users, charges, plan.ledger_budget, plan.digest, plan.charge_basis
                )
            except TermsError:
                paid = False
            else:
                paid = not len(refused)
            if paid:
                await self._done("charge")
                return plan
            mine = await self._planned(slot, contributions.counts, generation, fixes, refused)
            blob = await self.redis.eval(_REPLACE, 1, key, blob, mine)
        raise LedgerError(
            f"window {utc_text(slot)}: budgets were spent elsewhere during {_PLAN_ATTEMPTS} plans; "
            "it is tried again later"
        )

    async def _planned(
        self, slot: int, counts: Counts, generation: str, fixes: Fixes | None, refused: IdArray | None = None
    ) -> bytes:
        """A plan as it is stored, with the ranges that the memory of released values gives, on the terms of the period.

        A budget that was raised holds from the next period on. Under "values" so do histograms that were switched on: in
        a period whose charges followed from counts, admission would show in them who else was there.
        """
        window, period = await self._window(slot), self.slotting.period_of(slot)
        terms = await self.ledger.terms(period.key)
        config = self.config.model_copy(update={"histogram": None}) if terms.counts else self.config
        budget = config.privacy.ledger_budget
        left = min(budget, budget if terms.budget is None else terms.budget) - await self.ledger.spent(
            period.key, counts.users, besides=slot
        )
        if refused is not None:
            left[np.isin(counts.users, refused)] = 0
        plan = within(plan_window(counts, left, config, window, period, generation, fixes), terms.budget)
        return encode_plan(carry(plan, decode_memory(await self.redis.get(self._key("memory"))), config))

    async def _window(self, slot: int) -> Window:
        """The window that begins at ``slot``, as it was planned where it was: ``window.slot`` may have changed since.

        Raises :class:`PlanError` where none begins there.
        """
        blob = await self.redis.get(self._key(f"plan:{slot}"))
        window = self.slotting.window(slot) if blob is None else decode_plan(blob).window
        if window.start != slot:
            raise PlanError(
                f"no window of {self.config.window.slot} begins at {utc_text(slot)}: window.slot was changed while its rows "
                "were collected; nothing was planned. Restore the old length until it is released"
            )
        return window

    async def _clean(self, slot: int) -> None:
        await self.rows.drop_rows(slot)
        await self.redis.delete(*(self._key(f"{name}:{slot}") for name in ("plan", "charged", "outbox")))
        await self._done("clean")
