"""The memory of a feed: the state of smoothing over time, and how wide releases show modelled intervals to be.

It is computed from released values alone. A step reads only the bodies of a window's messages, as published. So it
costs no budget under either relation, and every reader of the output topics could compute the same memory. Pure:
encode, decode, step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.errors import ParameterError
from dpcore.interval_calibration import CLASSES, Calibration
from dpcore.relation import NeighbouringRelation
from dpcore.shrinkage import Shrunken
from dpcore.smoothing import CALIBRATION_HOURS, Releases, Smoothed, SmoothingState, smooth
from stream.statistics.plan import Derived
from stream.statistics.shrinkage import shrink_releases
from stream.windows import Window

FloatArray = npt.NDArray[np.float64]

VERSION = 3
"""Version of the stored form. A memory of another version is not used."""
SMOOTHED = "mean_smoothed"
"""Name of the smoothed mean under ``post_processed``."""
_CERTAIN = 3.0
"""If a noisy count is below this many of its scales, the cell may be empty, and its mean is not used."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory after the window that ended at ``end`` (epoch seconds). Columns are little-endian bytes; speeds in km/h."""

    version: int
    end: int
    upper: float
    cells: bytes
    places: bytes
    precision: bytes
    shift: bytes
    trend: bytes
    trend_covariance: bytes
    profile: bytes
    profile_variance: bytes
    hours: float
    calibration: bytes
    shrinkage: bytes
    """Evidence on how wide intervals must be, of smoothed and of shrunk means: see :mod:`dpcore.interval_calibration`."""
    seen: bytes = b""
    low: bytes = b""
    high: bytes = b""
    """Cells of the window, ascending, and the 95 % interval of the smoothed mean of each."""


def encode_memory(memory: Memory) -> bytes:
    """Stored form of a memory."""
    return msgspec.msgpack.encode(memory)


def decode_memory(blob: bytes | None) -> Memory | None:
    """The stored memory; None if there is none or it cannot be read. Smoothing then starts anew, at no loss of privacy."""
    if not blob:
        return None
    try:
        memory = msgspec.msgpack.decode(blob, type=Memory)
        _state(memory)
        _calibration(memory.shrinkage)
        ends = [np.frombuffer(column, "<f8") for column in (memory.low, memory.high)]
    except (msgspec.DecodeError, ParameterError, ValueError):
        return None
    whole = all(8 * len(column) == len(memory.seen) and np.all(np.isfinite(column)) for column in ends)
    return memory if memory.version == VERSION and whole else None


def identity(memory: Memory | None) -> str | None:
    """Digest of a memory, as close markers state it; None if there is no memory."""
    return None if memory is None else f"sha256:{hashlib.sha256(encode_memory(memory)).hexdigest()}"


def shrunk(bodies: Sequence[dict[str, Any]], upper: float) -> dict[str, Derived]:
    """The shrunk mean of each body, shape (C,), by name, from the bodies of this window alone, as published."""
    releases, places = _releases(bodies)
    if not len(places):
        return {}
    columns = shrink_releases(releases, upper, Calibration())
    return {"mean": _derived("empirical-bayes", columns, places, len(bodies))}


def step(
    memory: Memory | None,
    bodies: Sequence[dict[str, Any]],
    window: Window,
    *,
    upper: float,
    timezone: str,
    shrinking: bool,
) -> tuple[Memory | None, dict[str, Derived]]:
    """The memory after ``window``, and the smoothed mean of each body, shape (C,), by name, from the bodies as published; with
    ``shrinking`` also the shrunk mean.

    ``upper``: U in km/h. A window that begins before the memory's end is smoothed without the memory and does not change it,
    because time only goes forward. After a change of U, smoothing starts anew, because earlier means were clipped to another
    bound.
    """
    late = memory is not None and window.start < memory.end
    usable = memory if memory is not None and not late and memory.upper == upper else None
    releases, places = _releases(bodies)
    hours = window.start / 3600
    hour = datetime.fromtimestamp(window.start, ZoneInfo(timezone)).hour
    before, shrinkage = (None, Calibration()) if usable is None else (_state(usable), _faded_shrinkage(usable, hours))
    state, smoothed = smooth(before, releases, hours=hours, hour_of_day=hour, upper=upper)
    derived = {SMOOTHED: _derived("kalman", smoothed, places, len(bodies))}
    if shrinking and len(places):
        columns = shrink_releases(releases, upper, shrinkage)
        shrinkage = columns.calibration
        derived = {"mean": _derived("empirical-bayes", columns, places, len(bodies))} | derived
    if late:
        return memory, derived
    return _memory(state, shrinkage, releases, smoothed, window, upper), derived


def _derived(method: str, columns: Smoothed | Shrunken, places: npt.NDArray[np.int64], bodies: int) -> Derived:
    """A column's (C,) estimates at the ``places`` of their bodies; 0 for bodies without a release."""
    table = np.zeros((3, bodies))
    table[:, places] = columns.value, columns.low, columns.high
    return Derived(method, *table)


def intervals(memory: Memory, cells: npt.NDArray[np.uint64]) -> tuple[FloatArray, FloatArray]:
    """Interval of the smoothed mean of each of ``cells`` (C,) in the last window, in km/h; [0, U] if unknown."""
    seen = np.frombuffer(memory.seen, "<u8")
    low, high = np.zeros(len(cells)), np.full(len(cells), memory.upper)
    if len(seen):
        at = np.minimum(np.searchsorted(seen, cells), len(seen) - 1)
        known = seen[at] == cells
        low[known] = np.frombuffer(memory.low, "<f8")[at[known]]
        high[known] = np.frombuffer(memory.high, "<f8")[at[known]]
    return low, high


def _releases(bodies: Sequence[dict[str, Any]]) -> tuple[Releases, npt.NDArray[np.int64]]:
    """The observations in published bodies, sorted by cell, and the position of each in ``bodies``."""
    cells = np.array([int(body["cell"], 16) for body in bodies], dtype=np.uint64)
    order = np.argsort(cells, kind="stable")
    order = order[np.array(["mean" in bodies[g] for g in order], dtype=bool)]
    bodies = [bodies[g] for g in order]
    means = np.array([body["mean"]["raw"] for body in bodies], dtype=np.float64)
    scales = np.array([body["mean"]["scale"] * _laplace_share(body) for body in bodies], dtype=np.float64)
    if bodies and bodies[0]["relation"] == NeighbouringRelation.PARTICIPATION:
        counted = [body.get("events", body["users"]) for body in bodies]
        events = np.array([count["raw"] for count in counted], dtype=np.float64)
        # The scale of such a mean includes the noise of its divisor; if the divisor may be 0, nothing is known.
        certain = events > _CERTAIN * np.array([count["scale"] for count in counted], dtype=np.float64)
        events, scales = np.maximum(events, 1.0), np.where(certain, scales, np.inf)
        covariates = np.zeros((len(bodies), 1))
    else:
        events = np.array([body["events"] for body in bodies], dtype=np.float64)
        users = np.array([body["users"] for body in bodies], dtype=np.float64)
        # Vehicles report at regular intervals, so those with more fixes in a cell drive more slowly through it.
        covariates = np.log(events / users)[:, None]
    places = np.array([h3.cell_to_latlng(body["cell"]) for body in bodies], dtype=np.float64).reshape(-1, 2)
    return Releases(cells[order], places, means, scales, events, covariates), order


def _laplace_share(body: dict[str, Any]) -> float:
    """Laplace scale with the same variance as noise of scale 1: 1 for Laplace noise, 1/√2 for Gaussian noise."""
    return 0.5**0.5 if body.get("accounting") == "zcdp" else 1.0


def _state(memory: Memory) -> SmoothingState:
    trend = np.frombuffer(memory.trend, "<f8")
    return SmoothingState(
        np.frombuffer(memory.cells, "<u8").astype(np.uint64),
        np.frombuffer(memory.places, "<f8").reshape(-1, 2),
        np.frombuffer(memory.precision, "<f8"),
        np.frombuffer(memory.shift, "<f8"),
        trend,
        np.frombuffer(memory.trend_covariance, "<f8").reshape(len(trend), len(trend)),
        np.frombuffer(memory.profile, "<f8"),
        np.frombuffer(memory.profile_variance, "<f8"),
        memory.hours,
        _calibration(memory.calibration),
    )


def _calibration(stored: bytes) -> Calibration:
    return Calibration(np.frombuffer(stored, "<f8").reshape(len(CLASSES), -1))


def _faded_shrinkage(memory: Memory, hours: float) -> Calibration:
    """What earlier windows said about the intervals of shrunk means, as much of it as counts at ``hours``."""
    return _calibration(memory.shrinkage).faded(float(np.exp((memory.hours - hours) / CALIBRATION_HOURS)))


def _memory(
    state: SmoothingState, shrinkage: Calibration, releases: Releases, smoothed: Smoothed, window: Window, upper: float
) -> Memory:
    return Memory(
        version=VERSION,
        end=window.end,
        upper=upper,
        cells=state.cells.astype("<u8").tobytes(),
        places=state.places.astype("<f8").tobytes(),
        precision=state.precision.astype("<f8").tobytes(),
        shift=state.shift.astype("<f8").tobytes(),
        trend=state.trend.astype("<f8").tobytes(),
        trend_covariance=state.trend_covariance.astype("<f8").tobytes(),
        profile=state.profile.astype("<f8").tobytes(),
        profile_variance=state.profile_variance.astype("<f8").tobytes(),
        hours=state.hours,
        calibration=state.calibration.evidence.astype("<f8").tobytes(),
        shrinkage=shrinkage.evidence.astype("<f8").tobytes(),
        seen=releases.cells.astype("<u8").tobytes(),
        low=smoothed.low.astype("<f8").tobytes(),
        high=smoothed.high.astype("<f8").tobytes(),
    )
