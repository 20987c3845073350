"""Decides which windows of a feed are due, and in which order windows of a live feed are closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import Look, RowStore
from stream.storage.sealed_rows import NotSealedError
from stream.windows import read_through, utc_text, watermark

log = structlog.get_logger()


_REST_SECONDS = (5.0, 300.0)
"""Seconds for which a window rests after its closing failed: the first time, and at most."""


class ClosingOrder:
    """Chooses the due window of a live feed that is closed next: one that is newer than all before it, else the oldest.

    So the newest window waits for at most one other, however many are due. A window whose closing failed gets its next turn
    after all others; before that it rests, each time twice as long.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._tried: set[int] = set()
        self._rests: dict[int, tuple[float, float]] = {}

    def ready(self, due: Sequence[int], now: float) -> list[int]:
        """The windows of ``due`` that do not rest at ``now`` (seconds of any clock)."""
        self._rests = {slot: rest for slot, rest in self._rests.items() if slot in due}
        return [slot for slot in due if slot not in self._rests or self._rests[slot][0] <= now]

    def rest(self, slot: int, now: float) -> None:
        """Let a window rest after its closing failed for a reason that concerns only this window."""
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
    """Starts of windows. ``slots``: due, oldest first. ``open``: with rows and not released. ``aside``: set aside.

    ``mark_us``: windows that end by this time (µs UTC) take no more events; None while it is unknown.
    """

    slots: list[int]
    open: list[int]
    aside: set[int]
    mark_us: int | None


@dataclass
class DueWindows:
    """Finds the windows of one feed that are due."""

    config: Config
    rows: RowStore
    store: ReleaseStore
    ledger: Ledger
    _told_since: float = math.nan

    async def look(self) -> Due:
        """The windows that are due now. Also deletes rows of windows that can never be released."""
        aside, seen = await self.store.slots_set_aside(), await self.rows.look()
        open_slots = await self._releasable([slot for slot in seen.slots if slot not in aside])
        since, mark_us = await self.since(), await self.mark_of(seen)
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
        """The mark (µs UTC): windows that end by this time take no more events. None while it is unknown."""
        return await self.mark_of(await self.rows.look())

    async def mark_of(self, seen: Look) -> int | None:
        """The mark by what was ``seen``."""
        window, partitions = self.config.window, seen.times
        if window.lateness == "event-time":
            return watermark(partitions, await self.rows.now_us(), window.allowed_delay, window.idle_timeout)
        read = read_through(partitions)
        # An event that was appended exactly at the deadline is in time, so reading must have passed the deadline.
        return None if read is None else read - 1 - window.allowed_delay // timedelta(microseconds=1)

    async def since(self) -> float:
        """The time (epoch seconds) from which periods are released. Logs it when it changes."""
        recorded = await self.ledger.releases_since(self.config.slotting)
        since = math.inf if recorded is None else recorded
        if since != self._told_since:
            self._told_since = since
            text = "none: the birth of the ledger is not recorded" if recorded is None else utc_text(recorded)
            log.info("windows are released of periods that begin from this time on", since=text)
        return since

    async def seal(self, slot: int) -> None:
        """Seal a window on a cluster by a look of this moment.

        Servers of a cluster are set back one by one, so each partition seals the window only if it still holds what it was found due
        by. Raises :class:`NotSealedError` if one does not, or if the window is no longer due.
        """
        seen = await self.rows.look()
        if self.config.slotting.window(slot).end * 1_000_000 > (await self.mark_of(seen) or 0):
            raise NotSealedError(slot, [])
        await self.rows.seal(slot, seen.offsets)

    async def _releasable(self, open_slots: list[int]) -> list[int]:
        """Slots that begin a window or are in progress. Others are from before ``window.slot`` was changed; their rows are deleted."""
        kept = []
        for slot in open_slots:
            if await self._begins_a_window(slot):
                kept.append(slot)
                continue
            log.warning("window.slot was changed, rows of an open window are dropped", window=utc_text(slot))
            await self.rows.discard(slot)
        return kept

    async def _begins_a_window(self, slot: int) -> bool:
        return self.config.slotting.window(slot).start == slot or await self.rows.in_progress(slot)

    async def _ticked_slots(self, open_slots: list[int], since: float, mark_us: int, aside: set[int]) -> list[int]:
        """Every slot since the feed first ran that ended by ``mark_us``, also without rows."""
        slotting, now = self.config.slotting, await self.rows.now_us()
        slot = await self.rows.first_slot(slotting.window(now // 1_000_000).start)
        for before in open_slots:
            if before < slot:  # older than the feed, so it will never be released
                await self.rows.discard(before)
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
        """Whether a window begins at ``slot`` that was not released, or was not cleaned up after its release."""
        if await self.rows.is_closed(slot):
            return await self.rows.in_progress(slot)
        return await self._begins_a_window(slot)


@dataclass(frozen=True)
class RowsOfCluster:
    """The rows of a feed on a cluster, as the release protocol uses them."""

    due: DueWindows

    async def seal(self, slot: int) -> None:
        """As :meth:`DueWindows.seal`."""
        await self.due.seal(slot)

    async def read(self, slot: int, *, positions: bool) -> npt.NDArray[np.void]:
        """As :meth:`SealedRows.read`."""
        return await self.due.rows.read(slot, positions=positions)

    async def drop_rows(self, slot: int) -> None:
        """As :meth:`SealedRows.drop_rows`."""
        await self.due.rows.drop_rows(slot)
