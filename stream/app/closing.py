"""The service that closes due windows, oldest first: one that fails for its content is set aside, any other failure
blocks the next."""

from __future__ import annotations

import structlog

from stream.app.looking import RETRY_SECONDS, Looking
from stream.app.process import ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.protocol.close_process import close_in_process
from stream.storage.shared_ledger import SharedLedger
from stream.windows import utc_text

log = structlog.get_logger()

_LOOK_SECONDS = 1.0
_MOST_DEATHS = 3
"""How often the closing process may die over a window before it is set aside: its rows may need too much memory."""


class Closing(Looking):
    """Watches how far the feed was read, and lets a separate process close the windows that are due.

    The order never depends on how far reading got or on how long a draw took, because it decides who still has budget,
    and the numbers of windows are published.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._process = WorkProcess()

    async def look(self) -> float:
        """Close what is due."""
        await self._state_lower_budget()
        due = await self.worker.to_close()
        if not due:
            self.worker.metrics.closing_blocked.set(0)
            return _LOOK_SECONDS
        return await self._close_alone(due)

    async def _state_lower_budget(self) -> None:
        """Also while another worker closes all windows, should an operator have raised the budget too early."""
        shared = SharedLedger.of(self.worker.redis, self.worker.config)
        if shared is not None:
            await shared.lower_budget(self.worker.config.privacy.ledger_budget)

    async def _close_alone(self, due: list[int]) -> float:
        """Close what is due unless another worker holds the lease, because one of the two would work in vain."""
        async with self.worker.lease.hold() as mine:
            if not mine:
                self.worker.metrics.closing_blocked.set(0)  # the one that holds it says so
                return _LOOK_SECONDS
            return await self.close(due)

    async def close(self, due: list[int]) -> float:
        """Close ``due``, which ascend, in a separate process, and report; returns the seconds until the next look.

        Windows of a recording are closed in one call, those of a live feed one at a time, so that what becomes due
        meanwhile is seen.
        """
        recorded = self.worker.config.window.lateness == "event-time"
        if not recorded or await self.worker.store.deadly() == due[0]:
            due = due[:1]
        try:
            reports = await self._process.run(close_in_process, self.worker.config, due)
        except ProcessDiedError:
            return await self._count_death(due[0])
        for report in reports:
            self.worker.record(report)
        blocked = any(report.blocks for report in reports)
        self.worker.metrics.closing_blocked.set(blocked)
        return RETRY_SECONDS if blocked else 0.0

    async def _count_death(self, slot: int) -> float:
        """Set a window aside over which the process died repeatedly, as for lack of memory, so that others close."""
        deaths, aside = await self.worker.store.died_over(slot), False
        log.error("window not closed", window=utc_text(slot), reason="closing process died", times=deaths)
        if deaths >= _MOST_DEATHS:
            aside = await self.worker.store.set_aside(slot, f"the closing process died {deaths} times over this window")
        self.worker.metrics.closing_blocked.set(not aside)
        return RETRY_SECONDS

    async def on_stop(self) -> None:
        """Give the closing process some time to finish its step. What it leaves is finished after the next start."""
        self.worker.end_soon()
        await self._process.stop()
