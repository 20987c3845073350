"""Decides which windows of a feed are due. They are closed in the order of their time."""

from __future__ import annotations

import math
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
        since, mark_us = await self.since(), await self.mark_of(seen)
        latest = await self.store.latest_planned()
        if latest is not None and self.config.slotting.period_of(latest).start < since < math.inf:
            await self._give_up_unfinished()
        open_slots = await self._releasable([slot for slot in seen.slots if slot not in aside], latest)
        if self.config.relation == NeighbouringRelation.PARTICIPATION:
            due = await self._ticked_slots(open_slots, since, mark_us or 0, aside, latest)
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

        Servers of a cluster are set back one by one, so each partition seals the window only if it still holds what it
        was found due by. Raises :class:`NotSealedError` if one does not, or if the window is no longer due.
        """
        seen = await self.rows.look()
        if self.config.slotting.window(slot).end * 1_000_000 > (await self.mark_of(seen) or 0):
            raise NotSealedError(slot, [])
        await self.rows.seal(slot, seen.offsets)

    async def _give_up_unfinished(self) -> None:
        """Set aside the planned window of a period that is not released any more, since the windows after it would wait
        for it."""
        slot = await self.store.unfinished()
        if slot is not None:
            await self.store.set_aside(slot, "its period is not released any more")

    async def _releasable(self, open_slots: list[int], latest: int | None) -> list[int]:
        """Slots whose windows may be released. Rows of others are deleted: those from before ``window.slot`` was
        changed, and those older than ``latest``, the latest window that was planned.
        """
        kept = []
        for slot in open_slots:
            if await self._is_passed(slot, latest):
                log.warning("a later window was planned, rows of an older one are dropped", window=utc_text(slot))
            elif await self._begins_a_window(slot):
                kept.append(slot)
                continue
            else:
                log.warning("window.slot was changed, rows of an open window are dropped", window=utc_text(slot))
            await self.rows.discard(slot)
        return kept

    async def _is_passed(self, slot: int, latest: int | None) -> bool:
        """Whether a later window was planned before this one, which therefore is never released."""
        if latest is None or slot >= latest:
            return False
        return not (await self.rows.in_progress(slot) or await self.rows.is_closed(slot))

    async def _begins_a_window(self, slot: int) -> bool:
        return self.config.slotting.window(slot).start == slot or await self.rows.in_progress(slot)

    async def _ticked_slots(
        self, open_slots: list[int], since: float, mark_us: int, aside: set[int], latest: int | None
    ) -> list[int]:
        """Every slot since the feed first ran that ended by ``mark_us``, also without rows."""
        slotting, now = self.config.slotting, await self.rows.now_us()
        slot = await self.rows.first_slot(slotting.window(now // 1_000_000).start)
        for before in open_slots:
            if before < slot:  # older than the feed, so it will never be released
                await self.rows.discard(before)
        due = []
        while (end := slotting.window(slot).end) * 1_000_000 <= mark_us:
            released = slot not in aside and slotting.period_of(slot).start >= since
            if released and not await self._is_passed(slot, latest) and await self._to_release(slot):
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
