"""Plans and charges a window: stores the plan, charges it, and replaces it if a user's budget does not cover it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import structlog

from dpcore.arrays import IdArray
from stream.protocol.parts import ContentError, content_of
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
from stream.statistics.window_release import WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import Ledger, LedgerError, TermsError
from stream.storage.release_store import ReleaseStore
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
