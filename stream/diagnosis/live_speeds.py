"""Compares the newest steps of a feed's vehicles with their reported speeds. Pure; its memory is fixed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream.config.speed import SPEED_QUANTUM_KMH
from stream.diagnosis.speeds import LEAST_PAIRS, LEAST_S, SpeedCheck, Steps, check_speeds, steps
from stream.storage.row_store import ROW

MOST_ROWS = 20_000
"""Rows that are taken between two judgements, and vehicles whose last fix is kept."""
MOST_STEPS = 2 * LEAST_PAIRS
"""Steps that are judged: the newest."""
_APART_US = round(LEAST_S * 1e6)
_KEPT_US = 900_000_000


class SpeedDoubts:
    """What the newest steps of a feed say about its speeds.

    Steps are kept by their number and not by time, so that a small fleet, or one that reports seldom, is judged later but is
    judged. Of more than ``MOST_ROWS`` vehicles, those with the lowest pseudonyms are followed, and pseudonyms are random.
    """

    def __init__(self, unit: str) -> None:
        """``unit``: in which the speeds of the feed are read."""
        self._unit = unit
        self._rows, self._filled = np.zeros(MOST_ROWS, dtype=ROW), 0
        self._last = np.zeros(0, dtype=ROW)
        """The last fix of each vehicle, sorted by pseudonym."""
        self._steps = np.zeros((0, 3))
        """Seconds, metres, and reported km/h at the end; shape (at most MOST_STEPS, 3)."""
        self._wrong: SpeedCheck | None = None
        self._newer = 0
        """Number of steps after those that contradicted or were doubtful."""

    def take(self, rows: NDArray[np.void]) -> None:
        """Take rows of the feed, as many as there is room for until the next judgement."""
        taken = rows[: len(self._rows) - self._filled]
        self._rows[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)

    def judged(self) -> SpeedCheck | None:
        """The comparison, if speeds contradict positions or are doubtful. It is withdrawn once 200 newer steps are neither."""
        if self._filled:
            self._move()
        seconds, metres, reported = self._steps.T
        check = check_speeds(Steps(np.arange(len(seconds)), seconds, metres), reported, self._unit)
        if check.contradicts or check.is_doubtful:
            self._wrong, self._newer = check, 0
        elif check.is_compared and self._newer >= LEAST_PAIRS:
            self._wrong = None
        return self._wrong

    def _move(self) -> None:
        """Make steps of the rows that were taken."""
        taken = self._rows[: self._filled]
        oldest = np.median(taken["time"]) - _KEPT_US
        rows = np.concatenate([self._last, taken])
        rows = rows[np.lexsort((rows["time"], rows["user"]))]
        rows = rows[_first(rows["user"], rows["time"] // _APART_US)]  # of fixes every second, one in 8 s
        moves = steps(rows["user"], rows["time"], rows["lat"] * 1e-7, rows["lng"] * 1e-7)
        order = np.argsort(rows["time"][moves.at], kind="stable")
        order = order[moves.comparable[order]]
        reported = rows["value"][moves.at] * SPEED_QUANTUM_KMH
        made = np.column_stack([moves.seconds, moves.metres, reported])[order]
        self._steps = np.concatenate([self._steps, made])[-MOST_STEPS:]
        self._newer += len(made)
        last = rows[_first(rows["user"][::-1])[::-1]]
        self._last, self._filled = last[last["time"] >= oldest][:MOST_ROWS].copy(), 0


def _first(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """For sorted columns, whether a row is the first with its values."""
    first = np.ones(len(columns[0]), dtype=bool)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first
