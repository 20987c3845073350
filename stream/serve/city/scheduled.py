"""The scheduled speed of released cells in a window: scheduled metres by scheduled seconds. Public facts. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import h3
import msgspec
import numpy as np

from dpcore.arrays import FloatArray
from stream.serve.city.areas import Released
from stream.serve.city.places import Scheduled
from stream.serve.window_store import local_start

_LONGEST = timedelta(days=31)
"""A longer window is compared with no timetable."""
_TO_KMH = 3.6


def hours_of(start: str, end: str, zone: str) -> FloatArray:
    """How many hours (3, 24) of each kind of day and local hour lie in a window, on the clocks of ``zone``.

    An hour that the clocks repeat counts twice, and one that they skip not at all.
    """
    hours = np.zeros((3, 24))
    at, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    if last - at > _LONGEST:
        return hours
    while at < last:
        local = local_start(at.isoformat(), zone)
        until_next = timedelta(hours=1) - timedelta(
            minutes=local.minute, seconds=local.second, microseconds=local.microsecond
        )
        lasting = min(until_next, last - at)
        hours[max(0, local.weekday() - 4), local.hour] += lasting / timedelta(hours=1)
        at += lasting
    return hours


class ScheduledService:
    """What is scheduled in cells of one resolution. Read only; without any there are no cells."""

    def __init__(self, scheduled: Scheduled | None, resolution: int | None) -> None:
        rows = [] if scheduled is None else scheduled.cells
        self._cells = [row.cell for row in rows]
        self._resolution = resolution or 0
        self._sums = np.zeros((2, len(rows), 3, 24))
        self._parents_at = cache(lambda level: [h3.cell_to_parent(cell, level) for cell in self._cells])
        for number, row in enumerate(rows):
            for day, hour, metres, seconds in row.hours:
                self._sums[:, number, day, hour] = metres, seconds
        if scheduled is not None:
            self._sums /= np.array(msgspec.structs.astuple(scheduled.days), dtype=np.float64)[:, None]

    def __bool__(self) -> bool:
        return bool(self._cells)

    def table(self) -> bytes:
        """Answer of ``/api/v1/scheduled``: km/h of each cell by kind of day and hour of service."""
        metres, seconds = self._sums
        speeds = np.divide(_TO_KMH * metres, seconds, out=np.full_like(metres, np.nan), where=seconds > 0).round(2)
        rows = [
            {"cell": cell} | dict(zip(("workday", "saturday", "sunday"), _by_hour(days), strict=True))
            for cell, days in zip(self._cells, speeds, strict=True)
        ]
        return msgspec.json.encode({"resolution": self._resolution if rows else None, "unit": "km/h", "cells": rows})

    def speeds(self, hours: FloatArray, released: Iterable[Released]) -> list[dict[str, Any]]:
        """Scheduled speed of each released cell that has one, in the given order; ``hours``: (3, 24) of the window.

        That of a merged cell is of the area that it has: its parts without those that were released apart.
        """
        cells = list(released)
        metres, seconds = np.tensordot(self._sums, hours, axes=2)
        owner = self._owners(cells)
        totals = {cell: np.zeros(2) for cell, _ in cells}
        for number in np.flatnonzero(seconds > 0).tolist():
            if (cell := owner.get(number)) in totals:
                totals[cell] += metres[number], seconds[number]
        speeds = {
            cell: round(_TO_KMH * float(total[0] / total[1]), 2) for cell, total in totals.items() if total[1] > 0
        }
        return [{"cell": cell, "value": speed, "unit": "km/h"} for cell, speed in speeds.items() if speed > 0]

    def _owners(self, cells: list[Released]) -> dict[int, str]:
        """By number of a scheduled cell, the smallest released or excluded one that covers it.

        A cell that excludes parts smaller than the scheduled cells owns none, because what remains of these is not
        known.
        """
        cut = {cell for cell, excludes in cells if any(h3.get_resolution(e) > self._resolution for e in excludes)}
        claims = {part for cell, excludes in cells for part in (cell, *excludes)}
        levels = sorted({h3.get_resolution(cell) for cell in claims}, reverse=True)
        owner: dict[int, str] = {}
        for level in (level for level in levels if level <= self._resolution):
            for number, parent in enumerate(self._parents_at(level)):
                if number not in owner and parent in claims:
                    owner[number] = parent
        return {number: cell for number, cell in owner.items() if cell not in cut}


def _by_hour(days: FloatArray) -> list[dict[str, float]]:
    return [{str(hour): float(hours[hour]) for hour in np.flatnonzero(hours > 0).tolist()} for hours in days]
