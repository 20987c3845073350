"""Which windows of a live feed are to be released now, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import structlog

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import read_through, utc_text, watermark

log = structlog.get_logger()


_REST_SECONDS = (5.0, 300.0)
"""How long a window rests whose closing failed: at first, and at most."""


class ClosingOrder:
    """Which due window of a live feed is closed next: one that is newer than all before it, else the oldest.

    So the newest waits for one other at most, however many are due. One whose closing failed has its next turn after
    all others, and rests before that, each time twice as long.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._tried: set[int] = set()
        self._rests: dict[int, tuple[float, float]] = {}

    def ready(self, due: Sequence[int], now: float) -> list[int]:
        """Those of ``due`` that do not rest at ``now`` (seconds of any clock)."""
        self._rests = {slot: rest for slot, rest in self._rests.items() if slot in due}
        return [slot for slot in due if slot not in self._rests or self._rests[slot][0] <= now]

    def rest(self, slot: int, now: float) -> None:
        """Let a window rest whose closing failed for a reason of its own."""
        _, before = self._rests.get(slot, (0.0, _REST_SECONDS[0] / 2))
        length = min(2 * before, _REST_SECONDS[1])
        self._rests[slot] = (now + length, length)

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


class Due(NamedTuple):
    """Starts of windows. ``slots``: due, oldest first; ``open``: with rows, not released; ``aside``: set aside.

    ``mark_us``: windows that end by this instant (µs UTC) take no more events; None while that is unknown.
    """

    slots: list[int]
    open: list[int]
    aside: set[int]
    mark_us: int | None


@dataclass
class DueWindows:
    """Looks into state for the windows of one feed that are due."""

    config: Config
    rows: RowStore
    store: ReleaseStore
    ledger: Ledger
    _told_since: float = math.nan

    async def look(self) -> Due:
        """What is due now. Rows of windows that can never be released are dropped on the way."""
        aside = await self.store.slots_set_aside()
        open_slots = await self._releasable(sorted(set(await self.rows.open_slots()) - aside))
        since, mark_us = await self.since(), await self.mark_us()
        if self.config.relation == NeighbouringRelation.PARTICIPATION:
            due = await self._ticked_slots(open_slots, since, mark_us or 0, aside)
        else:
            slotting = self.config.slotting
            due = [
                slot
                for slot in open_slots
                if slotting.window(slot).end * 1_000_000 <= (mark_us or 0) and slotting.period_of(slot).start >= since
            ]
        return Due(due, open_slots, aside, mark_us)

    async def mark_us(self) -> int | None:
        """Instant (µs UTC) up to which windows that end take no more events; None while that is unknown."""
        window, partitions = self.config.window, await self.rows.partition_times()
        if window.lateness == "event-time":
            return watermark(partitions, await self.rows.now_us(), window.allowed_delay, window.idle_timeout)
        read = read_through(partitions)
        # What was appended at the deadline is in time, so reading has to be past it.
        return None if read is None else read - 1 - window.allowed_delay // timedelta(microseconds=1)

    async def since(self) -> float:
        """Windows are released of periods that begin from here on (epoch seconds). Says so when it changes."""
        found = await self.ledger.releases_since()
        since = math.inf if found is None else found
        if since != self._told_since:
            self._told_since = since
            text = "none: the birth of the ledger is not recorded" if found is None else utc_text(found)
            log.info("windows are released of periods that begin from here on", since=text)
        return since

    async def _releasable(self, open_slots: list[int]) -> list[int]:
        """Those that begin a window or are in progress; others began one before ``window.slot`` was changed: rows are dropped."""
        kept = []
        for slot in open_slots:
            if await self._begins_a_window(slot):
                kept.append(slot)
                continue
            log.warning("window.slot was changed, rows of an open window are dropped", window=utc_text(slot))
            await self.rows.seal(slot)
            await self.rows.drop_rows(slot)
        return kept

    async def _begins_a_window(self, slot: int) -> bool:
        return self.config.slotting.window(slot).start == slot or await self.rows.in_progress(slot)

    async def _ticked_slots(self, open_slots: list[int], since: float, mark_us: int, aside: set[int]) -> list[int]:
        """Every slot that ended by ``mark_us``, visited or not, since this feed first ran."""
        slotting, now = self.config.slotting, await self.rows.now_us()
        slot = await self.rows.first_slot(slotting.window(now // 1_000_000).start)
        for before in open_slots:
            if before < slot:  # older than the feed: it will never be released, so it is not kept
                await self.rows.seal(before)
                await self.rows.drop_rows(before)
        due = []
        while (end := slotting.window(slot).end) * 1_000_000 <= mark_us:
            released = slot not in aside and slotting.period_of(slot).start >= since
            if released and await self._to_release(slot):
                due.append(slot)
            else:
                await self.rows.advance_first_slot(slot, end)
            slot = end
        return due

    async def _to_release(self, slot: int) -> bool:
        """Whether a window begins at ``slot`` that was not released, or not cleaned up after that."""
        if await self.rows.is_closed(slot):
            return await self.rows.in_progress(slot)
        return await self._begins_a_window(slot)
