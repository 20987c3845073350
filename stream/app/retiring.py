"""The service that deletes periods from Redis once nothing of them can be released any more."""

from __future__ import annotations

import time
from datetime import timedelta

import structlog

from dpcore.relation import NeighbouringRelation
from stream.app.looking import Looking
from stream.app.worker import Worker
from stream.messages.topics import KEPT_PERIODS
from stream.storage.retirement import Retirement
from stream.windows import Period, utc_text

log = structlog.get_logger()

_LOOK_SECONDS = 600.0


class Retiring(Looking):
    """Looks for periods to retire every ten minutes. Every worker does this; repeating it is harmless."""

    away_seconds = _LOOK_SECONDS

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._retirement = Retirement(
            worker.redis, worker.config.feed.name, worker.config.slotting, worker.config.shared_ledger
        )
        self._done: tuple[int, int | None] | None = None

    async def look(self) -> float:
        """Retire what can be."""
        await self.retire()
        return _LOOK_SECONDS

    async def retire(self) -> None:
        """Retire the periods of which nothing can be released any more. Also deletes what an earlier attempt left."""
        worker = self.worker
        retired = await worker.ledger.retired()
        period = await self._oldest_kept()
        if period is None or (retired is not None and retired > period.start):
            period = None if retired is None else worker.config.slotting.period_of(retired)
        if period is None or (period.start, retired) == self._done:
            return
        mark = await self._retirement.retire(period.start)
        self._done = period.start, mark
        if mark is None:
            return
        worker.metrics.ledger_retired_seconds.set(mark)
        if retired != mark:
            log.info("periods are retired", before=utc_text(mark))

    async def _oldest_kept(self) -> Period | None:
        """The oldest period of which something may still be released, or that ended recently; None if unknown.

        Two clocks must agree that earlier periods are over, so that one clock that is ahead cannot retire a period too
        early.
        """
        worker, slotting = self.worker, self.worker.config.slotting
        watermark_us, now_us = await worker.due.watermark_us(), await worker.rows.now_us()
        if watermark_us is None:
            return None
        now = min(now_us // 1_000_000, int(time.time()))
        oldest = [min(now, watermark_us // 1_000_000) - KEPT_PERIODS // timedelta(seconds=1)]
        if worker.config.window.lateness == "event-time":
            oldest.append(now - worker.config.window.max_age // timedelta(seconds=1))
        since = await worker.due.since()
        aside = await worker.store.slots_set_aside()
        waiting = [slot for slot in await worker.rows.open_slots() if slot not in aside]
        oldest += [slot for slot in waiting if slotting.period_of(slot).start >= since]
        if worker.config.relation == NeighbouringRelation.PARTICIPATION:
            oldest.append(await worker.rows.first_slot(slotting.window(now_us // 1_000_000).start))
        return slotting.period_of(max(0, min(oldest)))
