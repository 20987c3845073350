"""The services that look for work over and over, and outlast an outage of Redis: closing, publishing, retiring.

A child process that runs the tasks of one service one after the other, so that the event loop never stalls.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import structlog
from mode import Service
from redis.exceptions import RedisError

from dpcore.relation import NeighbouringRelation
from stream.app.worker import Worker
from stream.messages.topics import KEPT_PERIODS
from stream.protocol.close_process import (
    PUBLICATION_LEAD_SECONDS,
    begin_anew,
    begin_closing,
    close_in_process,
    publish_in_process,
)
from stream.storage.retirement import Retirement
from stream.storage.shared_ledger import SharedLedger
from stream.windows import Period, utc_text

_STEP_SECONDS = 4.0
"""How long a stopping worker waits for a child to finish its step."""

T = TypeVar("T")


class ProcessDiedError(RuntimeError):
    """The process ended during its task; the next task gets a new process."""


class WorkProcess:
    """A process that is started with its first task and kept for the next ones. It ends with its parent."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._stopped = False

    async def run(self, task: Callable[..., T], *given: object) -> T:
        """Run ``task`` with the given arguments in the process. Raises :class:`ProcessDiedError`, and the errors of the
        task.

        After a stop it begins no task, and waits until its caller is cancelled.
        """
        if self._stopped:
            await asyncio.Event().wait()
        if self._pool is None:
            context, parent = multiprocessing.get_context("spawn"), multiprocessing.current_process().pid or 0
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=begin_closing, initargs=(parent,))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, task, *given)
        except BrokenProcessPool as error:
            if self._stopped:
                await asyncio.Event().wait()
            self._pool = None
            raise ProcessDiedError(str(error)) from None

    async def stop(self) -> None:
        """Give the task some time to finish its step. What it leaves is finished after the next start."""
        self._stopped = True
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        children, clock = multiprocessing.active_children(), asyncio.get_running_loop().time
        deadline = clock() + _STEP_SECONDS
        while any(child.is_alive() for child in children) and clock() < deadline:
            await asyncio.sleep(0.05)
        for child in children:
            child.kill()


log = structlog.get_logger()

RETRY_SECONDS = 5.0
"""How long a service waits after a failure that the next attempt may overcome."""


class Looking(Service):
    """Calls :meth:`look` over and over, once the worker has its partitions. Subclasses implement :meth:`look`."""

    away_seconds = RETRY_SECONDS
    """How long to wait when Redis does not answer."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    async def prepare(self) -> bool:
        """Prepare, once, before the first look. Returns False if there is nothing to look for."""
        return True

    async def look(self) -> float:
        """Do the work that is due now. Returns the seconds until the next look."""
        raise NotImplementedError

    @Service.task
    async def _look_again_and_again(self) -> None:
        await self.worker.ready.wait()
        if not await self.prepare():
            return
        while not self.should_stop:
            try:
                pause = await self.look()
            except RedisError as error:
                self.worker.metrics.redis_errors.inc()
                log.warning("redis unreachable", reason=str(error))
                pause = self.away_seconds
            await self.sleep(pause)


_CLOSING_LOOK_SECONDS = 1.0
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
        """Close what is due unless another worker holds the lease, because one of the two would work in vain."""
        shared = SharedLedger.of(self.worker.redis, self.worker.config)
        if shared is not None:  # also while another worker closes: an operator may have raised the budget too early
            await shared.lower_budget(self.worker.config.privacy.ledger_budget)
        if due := await self.worker.to_close():
            async with self.worker.lease.hold() as mine:
                if mine:
                    return await self.close(due)
        self.worker.metrics.closing_blocked.set(0)  # where another worker holds the lease, that one says so
        return _CLOSING_LOOK_SECONDS

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


_PUBLICATION_LOOK_SECONDS = 0.5


class Publishing(Looking):
    """Publishes committed windows in a process that never draws, so that no draw delays another window."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._process = WorkProcess()
        self._lead_seconds = PUBLICATION_LEAD_SECONDS

    async def prepare(self) -> bool:
        """Start the process now, so that the first window need not wait for it."""
        if self.worker.config.publication is None:
            return False
        with suppress(ProcessDiedError):
            await self._process.run(begin_anew)
        return True

    async def look(self) -> float:
        """Publish what is committed and whose instant is near."""
        slots = await self.worker.to_publish(self._lead_seconds)
        return await self._publish_alone(slots) if slots else _PUBLICATION_LOOK_SECONDS

    async def _publish_alone(self, slots: list[int]) -> float:
        """Publish ``slots`` unless another worker does so. Returns the seconds until the next look."""
        async with self.worker.publication_lease.hold() as mine:
            if not mine:
                return _PUBLICATION_LOOK_SECONDS
            try:
                reports = await self._process.run(publish_in_process, self.worker.config, slots, self._lead_seconds)
            except ProcessDiedError:
                log.error("publishing process died")
                return RETRY_SECONDS
        if not reports:
            self._lead_seconds *= 2
            log.warning(
                "connecting and verifying the ledger took so long that windows missed their instant; it begins earlier "
                "from now on",
                windows=slots,
                lead_seconds=self._lead_seconds,
            )
        for report in reports:
            self.worker.record(report)
        return RETRY_SECONDS if any(report.failure for report in reports) else 0.0

    async def on_stop(self) -> None:
        """Give the publishing process some time to finish. The next worker publishes what it leaves."""
        await self._process.stop()


_RETIREMENT_LOOK_SECONDS = 600.0


class Retiring(Looking):
    """Looks for periods to retire every ten minutes. Every worker does this; repeating it is harmless."""

    away_seconds = _RETIREMENT_LOOK_SECONDS

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._retirement = Retirement(
            worker.redis, worker.config.feed.name, worker.config.slotting, worker.config.shared_ledger
        )
        self._done: tuple[int, int | None] | None = None

    async def look(self) -> float:
        """Retire what can be."""
        await self.retire()
        return _RETIREMENT_LOOK_SECONDS

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
