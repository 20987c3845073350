"""The service that closes due windows, in an order in which no window delays the others."""

from __future__ import annotations

import time

import structlog

from stream.app.looking import RETRY_SECONDS, Looking
from stream.app.process import ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.protocol.close_process import close_in_process
from stream.protocol.due_windows import ClosingOrder
from stream.storage.shared_ledger import SharedLedger
from stream.windows import utc_text

log = structlog.get_logger()

_LOOK_SECONDS = 1.0
_MOST_DEATHS = 3
"""How often a window may end the closing process, or fail for an unexpected reason, before it is set aside."""


class Closing(Looking):
    """Watches how far the feed was read, and lets a separate process close the windows that are due."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._process = WorkProcess()
        self.order = ClosingOrder()
        """Which window is next, and which ones rest after a failure."""
        self._deaths: dict[int, int] = {}

    async def look(self) -> float:
        """Close what is due and does not rest."""
        await self._state_lower_budget()
        due = await self.worker.to_close()
        self._deaths = {slot: times for slot, times in self._deaths.items() if slot in due}
        due = self.order.ready(due, time.monotonic())
        return await self._close_alone(due) if due else _LOOK_SECONDS

    async def _state_lower_budget(self) -> None:
        """Also while another worker of the feed closes all windows, should an operator have raised the budget too early."""
        shared = SharedLedger.of(self.worker.redis, self.worker.config)
        if shared is not None:
            await shared.lower_budget(self.worker.config.privacy.ledger_budget)

    async def _close_alone(self, due: list[int]) -> float:
        """Close what is due unless another worker holds the lease, because the work of one of the two would be wasted."""
        async with self.worker.lease.hold() as mine:
            if not mine:
                return _LOOK_SECONDS
            # A recording is released in its own order: smoothing goes forward in time, and early windows spend budgets first.
            recorded = self.worker.config.window.lateness == "event-time"
            return await self.close(due if recorded else [self.order.following(due)])

    async def close(self, due: list[int]) -> float:
        """Close ``due`` in a separate process, and note what failed; returns the seconds until the next look."""
        if self._deaths:
            due = due[:1]  # one at a time, to find the window over which the process dies
        try:
            reports = await self._process.run(close_in_process, self.worker.config, due)
        except ProcessDiedError:
            await self._count_death(due[0], "closing process died")
            return RETRY_SECONDS
        for report in reports:
            self.worker.record(report)
            if report.failure == "unexpected":
                await self._count_death(report.slot, report.reason)
            elif not report.shared:
                self._deaths.pop(report.slot, None)
            if report.failure is not None and not report.shared:
                self.order.rest(report.slot, time.monotonic())
        return RETRY_SECONDS if any(report.shared for report in reports) else 0.0

    async def _count_death(self, slot: int, reason: str) -> None:
        """Set a window aside if its process ends repeatedly, for example for lack of memory, so that others can close."""
        self._deaths[slot] = deaths = self._deaths.get(slot, 0) + 1
        self.order.rest(slot, time.monotonic())
        log.error("window not closed", window=utc_text(slot), reason=reason, times=deaths)
        if deaths >= _MOST_DEATHS:
            await self.worker.store.set_aside(slot, f"{reason} {deaths} times over this window")
            del self._deaths[slot]

    async def on_stop(self) -> None:
        """Give the closing process some time to finish its step. What it leaves is finished after the next start."""
        self.worker.end_soon()
        await self._process.stop()
