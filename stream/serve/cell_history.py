"""The usual value of a cell: the mean of its earlier releases, weighted by precision. Pure; uses released values only."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stream.serve.window_store import View, WindowView

EARLIER = 7 * 24
"""Number of earlier windows that are used."""
_Z95 = 1.959964

FloatArray = npt.NDArray[np.float64]
CellArray = npt.NDArray[np.uint64]


class _Estimate(msgspec.Struct):
    raw: float
    scale: float


class _Derived(msgspec.Struct):
    value: float
    interval: tuple[float, float] | None = None


class _Cell(msgspec.Struct):
    cell: str
    accounting: str | None = None
    mean: _Estimate | None = None
    variance: _Estimate | None = None
    p15: _Estimate | None = None
    p50: _Estimate | None = None
    p85: _Estimate | None = None
    post_processed: dict[str, _Derived] = {}


class _Clipping(msgspec.Struct):
    upper: float


class _Marker(msgspec.Struct):
    clipping: _Clipping


_RELEASED = ("mean", "variance", "p15", "p50", "p85")

Columns = dict[tuple[str, str], tuple[CellArray, FloatArray]]
"""For each ("raw" or "post_processed", statistic): cells, and (2, C) values and standard deviations."""


class Usual:
    """Computes usual values before any window of the store; decodes each window once."""

    def __init__(self) -> None:
        self.decoded: dict[tuple[str, str], Columns] = {}
        """By (feed, start), of windows that the view still holds."""
        self._lock = threading.Lock()

    def earlier(self, view: View, window: WindowView) -> list[WindowView]:
        """Complete windows of the feed before ``window``, newest first, at most ``EARLIER``."""
        with self._lock:
            for key in self.decoded.keys() - view.windows.keys():
                del self.decoded[key]
        before = [other for other in view.ordered(window.feed) if other.complete and other.start < window.start]
        return before[:EARLIER]

    def over(self, window: WindowView, earlier: list[WindowView]) -> bytes:
        """Usual values of every cell over the ``earlier`` complete windows, as JSON. Safe to call from any thread."""
        columns = [self._columns(other) for other in earlier]
        by_cell: dict[int, dict[str, Any]] = {}
        for key in sorted({key for table in columns for key in table}):
            for cell, usual in _weighted([table[key] for table in columns if key in table], _top(key[1], earlier)):
                kinds = by_cell.setdefault(cell, {"cell": f"{cell:x}", "raw": {}, "post_processed": {}})
                kinds[key[0]][key[1]] = usual
        return msgspec.json.encode(
            {
                "feed": window.feed,
                "window": {"start": window.start, "end": window.end},
                "earlier_windows": len(earlier),
                "cells": [by_cell[cell] for cell in sorted(by_cell)],
            }
        )

    def _columns(self, window: WindowView) -> Columns:
        key = (window.feed, window.start)
        with self._lock:
            if key not in self.decoded:
                self.decoded[key] = _columns(window.in_order())
            return self.decoded[key]


def _columns(values: Iterable[bytes]) -> Columns:
    rows: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    decoder = msgspec.json.Decoder(_Cell)
    for body in map(decoder.decode, values):
        cell = int(body.cell, 16)
        to_deviation = 1.0 if body.accounting == "zcdp" else math.sqrt(2.0)
        for name in _RELEASED:
            estimate = getattr(body, name)
            # A scale of 0 means that there was nobody to measure, so the value says nothing about what is usual.
            if estimate is not None and estimate.scale > 0:
                rows.setdefault(("raw", name), []).append((cell, estimate.raw, estimate.scale * to_deviation))
        for name, derived in body.post_processed.items():
            if derived.interval is not None and derived.interval[0] < derived.interval[1]:
                deviation = (derived.interval[1] - derived.interval[0]) / (2 * _Z95)
                rows.setdefault(("post_processed", name), []).append((cell, derived.value, deviation))
    return {
        key: (np.array([row[0] for row in table], dtype=np.uint64), np.array([row[1:] for row in table]).T)
        for key, table in rows.items()
    }


def _weighted(parts: list[tuple[CellArray, FloatArray]], top: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Mean per cell weighted by 1/variance, clamped to [0, top], with a 95 % interval that assumes independent windows."""
    cells, index = np.unique(np.concatenate([part for part, _ in parts]), return_inverse=True)
    values, deviations = np.concatenate([table for _, table in parts], axis=1)
    weights = deviations**-2.0
    total = np.bincount(index, weights)
    mean = np.bincount(index, weights * values) / total
    half = _Z95 / np.sqrt(total)
    for cell, value, low, high, windows in zip(
        cells.tolist(),
        np.clip(mean, 0.0, top).tolist(),
        np.clip(mean - half, 0.0, top).tolist(),
        np.clip(mean + half, 0.0, top).tolist(),
        np.bincount(index).tolist(),
        strict=True,
    ):
        yield cell, {"value": round(value, 3), "interval": [round(low, 3), round(high, 3)], "windows": windows}


def _top(statistic: str, windows: list[WindowView]) -> float:
    """Public upper bound of the statistic, the largest of all windows: U, or U²/4 for a variance."""
    uppers = [msgspec.json.decode(w.marker, type=_Marker).clipping.upper for w in windows if w.marker is not None]
    upper = max(uppers, default=float("inf"))
    return upper**2 / 4 if statistic == "variance" else upper
