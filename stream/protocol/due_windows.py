"""Which windows of a live feed are to be released now, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import structlog

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.metrics import OperatorMetrics
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import read_through, utc_text, watermark

log = structlog.get_logger()


class ClosingOrder:
    """Which due window of a live feed is closed next: one that is newer than all before it, else the oldest.

    So the newest waits for one other at most, however many are due. One whose closing failed has its next turn after
    all others.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._tried: set[int] = set()

    def following(self, due: Sequence[int]) -> int:
        """The next of ``due`` (ascending, not empty)."""
        self._tried &= set(due)
        waiting = [slot for slot in due if slot not in self._tried]
        if not waiting:
            self._tried.clear()
            waiting = list(due)
        slot = waiting[-1] if waiting[-1] > self._newest else waiting[0]
        self._newest = max(self._newest, slot)
        self._tried.add(slot)
        return slot


class DueWindows:
    """Windows that take no more events, begin after the birth of the ledger and are not set aside."""

    def __init__(
        self, config: Config, rows: RowStore, ledger: Ledger, store: ReleaseStore, metrics: OperatorMetrics
    ) -> None:
        self._config = config
        self._rows = rows
        self._ledger = ledger
        self._store = store
        self._metrics = metrics
        self._slotting = config.slotting
        self._logged_birth: int | None = None

    async def starts(self) -> list[int]:
        """Start of each window that is to be released now, oldest first; updates the gauges."""
        aside = await self._store.slots_set_aside()
        self._metrics.windows_set_aside.set(len(aside))
        open_slots = await self._releasable(sorted(set(await self._rows.open_slots()) - aside))
        birth = await self._birth()
        self._metrics.open_windows.set(len(open_slots))
        mark = await self._mark()
        if mark is not None:
            self._metrics.watermark_seconds.set(mark / 1e6)
        if self._config.relation == NeighbouringRelation.PARTICIPATION:
            due = await self._ticked_slots(open_slots, birth, mark or 0, aside)
        else:
            due = [
                slot
                for slot in open_slots
                if self._slotting.window(slot).end * 1_000_000 <= (mark or 0)
                and self._slotting.period_of(slot).start >= birth
            ]
        self._metrics.outbox_windows.set(len(due))
        return due

    async def _mark(self) -> int | None:
        """Instant (µs UTC) up to which windows that end take no more events; None while that is unknown."""
        window, partitions = self._config.window, await self._rows.partition_times()
        if window.lateness == "event-time":
            return watermark(partitions, await self._rows.now_us(), window.allowed_delay, window.idle_timeout)
        read = read_through(partitions)
        # What was appended at the deadline is in time, so reading has to be past it.
        return None if read is None else read - 1 - window.allowed_delay // timedelta(microseconds=1)

    async def _birth(self) -> float:
        """When the ledger was born, logged once: windows of periods that began before it are not released."""
        birth = await self._ledger.birth()
        if birth != self._logged_birth:
            self._logged_birth = birth
            log.info("windows are released of periods that begin from the birth of the ledger on", birth=birth)
        return math.inf if birth is None else birth

    async def _releasable(self, open_slots: list[int]) -> list[int]:
        """Those that begin a window or are in progress. After a change of ``window.slot`` others begin none: their rows are dropped."""
        kept = []
        for slot in open_slots:
            if await self._begins_a_window(slot):
                kept.append(slot)
                continue
            log.warning("window.slot was changed, rows of an open window are dropped", window=utc_text(slot))
            await self._rows.seal(slot)
            await self._rows.drop_rows(slot)
        return kept

    async def _begins_a_window(self, slot: int) -> bool:
        return self._slotting.window(slot).start == slot or await self._rows.in_progress(slot)

    async def _ticked_slots(self, open_slots: list[int], birth: float, mark: int, aside: set[int]) -> list[int]:
        """Every slot that ended by ``mark`` (µs UTC), visited or not, since this feed first ran."""
        now = await self._rows.now_us()
        slot = await self._rows.first_slot(self._slotting.window(now // 1_000_000).start)
        for before in open_slots:
            if before < slot:  # older than the feed: it will never be released, so it is not kept
                await self._rows.seal(before)
                await self._rows.drop_rows(before)
        due = []
        while (end := self._slotting.window(slot).end) * 1_000_000 <= mark:
            released = slot not in aside and self._slotting.period_of(slot).start >= birth
            if not released or await self._rows.is_closed(slot) or not await self._begins_a_window(slot):
                await self._rows.advance_first_slot(slot, end)
            else:
                due.append(slot)
            slot = end
        return due
