"""Decides which windows of a feed are due. They are closed in the order of their time."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import structlog

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import Look, NotSealedError, RowStore
from stream.windows import read_through, utc_text, watermark

log = structlog.get_logger()


class Due(NamedTuple):
    """Starts of windows. ``slots``: due, oldest first. ``open``: with rows and not released. ``aside``: set aside.

    ``watermark_us``: windows that end by this time (µs UTC) take no more events; None while it is unknown.
    ``passed``: never to be released, with the reason. ``first``: the oldest window that may not be released yet, as
    recorded and as found. ``unfinished``: planned, of a period that is not released any more.
    """

    slots: list[int]
    open: list[int]
    aside: set[int]
    watermark_us: int | None
    passed: dict[int, str]
    first: tuple[int, int] | None
    unfinished: int | None


@dataclass
class DueWindows:
    """Finds the windows of one feed that are due: :meth:`ask` changes nothing, :meth:`tidy` acts on what it found."""

    config: Config
    rows: RowStore
    store: ReleaseStore
    ledger: Ledger
    _told_since: float = math.nan

    async def ask(self) -> Due:
        """The windows that are due now."""
        aside, seen = await self.store.slots_set_aside(), await self.rows.look()
        since, watermark_us = await self.since(), await self.watermark_of(seen)
        latest, slotting = await self.store.latest_planned(), self.config.slotting
        over = latest is not None and slotting.period_of(latest).start < since < math.inf
        unfinished = await self.store.unfinished() if over else None
        open_slots, passed = await self._open([slot for slot in seen.slots if slot not in aside], latest)
        reached, first = watermark_us or 0, None
        if self.config.relation == NeighbouringRelation.PARTICIPATION:
            due, first = await self._ticked_slots(since, reached, aside, latest)
            older = (slot for slot in open_slots if slot < first[0])
            passed |= dict.fromkeys(older, "it is older than the feed")
        else:
            over_slots = [slot for slot in open_slots if slotting.window(slot).end * 1_000_000 <= reached]
            due = [slot for slot in over_slots if slotting.period_of(slot).start >= since]
        return Due(due, open_slots, aside, watermark_us, passed, first, unfinished)

    async def tidy(self, due: Due) -> None:
        """Delete rows of windows that are never released, and record which window is the oldest that may be.

        A window of a period that is not released any more is set aside, since those after it would wait for it.
        """
        if due.unfinished is not None:
            await self.store.set_aside(due.unfinished, "its period is not released any more")
        for slot, why in due.passed.items():
            log.warning("rows of a window that is never released are dropped", window=utc_text(slot), why=why)
            await self.rows.discard(slot)
        if due.first is not None:
            await self.rows.advance_first_slot(*due.first)

    async def watermark_us(self) -> int | None:
        """The watermark (µs UTC): windows that end by this time take no more events. None while it is unknown."""
        return await self.watermark_of(await self.rows.look())

    async def watermark_of(self, seen: Look) -> int | None:
        """The watermark by what was ``seen``."""
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
        if self.config.slotting.window(slot).end * 1_000_000 > (await self.watermark_of(seen) or 0):
            raise NotSealedError(slot, [])
        await self.rows.seal(slot, seen.offsets)

    async def _open(self, slots: list[int], latest: int | None) -> tuple[list[int], dict[int, str]]:
        """The slots whose windows may be released, and why the others never are. ``latest``: the latest planned one."""
        passed = {}
        for slot in slots:
            if await self._is_passed(slot, latest):
                passed[slot] = "a later window was planned"
            elif not await self._begins_a_window(slot):
                passed[slot] = "window.slot was changed"
        return [slot for slot in slots if slot not in passed], passed

    async def _is_passed(self, slot: int, latest: int | None) -> bool:
        """Whether a later window was planned before this one, which therefore is never released."""
        if latest is None or slot >= latest:
            return False
        return not (await self.rows.in_progress(slot) or await self.rows.is_closed(slot))

    async def _begins_a_window(self, slot: int) -> bool:
        return self.config.slotting.window(slot).start == slot or await self.rows.in_progress(slot)

    async def _ticked_slots(
        self, since: float, watermark_us: int, aside: set[int], latest: int | None
    ) -> tuple[list[int], tuple[int, int]]:
        """Every slot since the feed first ran that ended by the watermark, also without rows, and :attr:`Due.first`."""
        slotting, now = self.config.slotting, await self.rows.now_us()
        recorded = slot = await self.rows.first_slot(slotting.window(now // 1_000_000).start)
        due: list[int] = []
        while (end := slotting.window(slot).end) * 1_000_000 <= watermark_us:
            released = slot not in aside and slotting.period_of(slot).start >= since
            if released and not await self._is_passed(slot, latest) and await self._to_release(slot):
                due.append(slot)
            slot = end
        return due, (recorded, due[0] if due else slot)

    async def _to_release(self, slot: int) -> bool:
        """Whether a window begins at ``slot`` that was not released, or was not cleaned up after its release."""
        if await self.rows.is_closed(slot):
            return await self.rows.in_progress(slot)
        return await self._begins_a_window(slot)
