"""The memory of a feed: the state of smoothing over time, and how wide releases show modelled intervals to be.

It is computed from released values alone. A step reads only the bodies of a window's messages and the mean of the area
in its close marker, as published. So it costs no budget under either relation, and every reader of the output topics
could compute the same memory. Pure: encode, decode, step.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import h3
import msgspec
import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.errors import ParameterError
from dpcore.interval_calibration import CLASSES, Calibration
from dpcore.occupancy import FORGOTTEN_HOURS, Occupancy, users_in
from dpcore.residual import Response, widened
from dpcore.smoothing import Foretold, Releases, SmoothingState, foretell, smooth
from stream.messages.message import cell_text
from stream.statistics.columns import Derived
from stream.statistics.observed_means import ObservedMeans, crowding, observed_means
from stream.statistics.plan import Due
from stream.windows import Window

VERSION = 8
"""Version of the stored form. A memory of another version is not used."""
TYPICAL = "typical"
"""Name of the typical mean under ``post_processed``."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory after the window that ended at ``end`` (epoch s). Columns are little-endian bytes; speeds in km/h."""

    version: int
    end: int
    upper: float
    lower: float = 0.0
    cells: bytes
    places: bytes
    precision: bytes
    shift: bytes
    passing: bytes
    passing_variance: bytes
    trend: bytes
    trend_covariance: bytes
    profile: bytes
    profile_variance: bytes
    hours: float
    calibration: bytes
    """Evidence on how wide intervals must be: see :mod:`dpcore.interval_calibration`."""
    seen: bytes = b""
    """Cells of the window, ascending."""
    widening: bytes = b""
    """Of each of ``seen``, by how much its next range is wider, with residual clipping
    (:func:`dpcore.residual.widened`)."""
    counted: bytes = b""
    counted_sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Under "participation": what noisy counts said about the users of each of ``seen``
    (:class:`dpcore.occupancy.Occupancy`)."""


def encode_memory(memory: Memory) -> bytes:
    """Stored form of a memory."""
    return msgspec.msgpack.encode(memory)


def decode_memory(blob: bytes | None) -> Memory | None:
    """The stored memory; None if there is none or it cannot be read. Smoothing then starts anew, at no privacy loss."""
    if not blob:
        return None
    try:
        memory = msgspec.msgpack.decode(blob, type=Memory)
        _state(memory)
        counted = _occupancy(memory).total
        wide = np.frombuffer(memory.widening, "<f8")
    except (msgspec.DecodeError, ParameterError, ValueError):
        return None
    whole = 8 * len(counted) in (0, len(memory.seen)) and len(memory.widening) in (0, len(memory.seen))
    whole = whole and bool(np.all(np.isfinite(wide) & (wide >= 1)))
    return memory if memory.version == VERSION and whole else None


def identity(memory: Memory | None) -> str | None:
    """Digest of a memory, as close markers state it; None if there is no memory."""
    return None if memory is None else f"sha256:{hashlib.sha256(encode_memory(memory)).hexdigest()}"


def step(
    memory: Memory | None,
    bodies: Sequence[dict[str, Any]],
    window: Window,
    *,
    upper: float,
    lower: float = 0.0,
    timezone: str,
    typical: float | None = None,
    area: dict[str, Any] | None = None,
    ranged: tuple[Response, FloatArray] | None = None,
) -> tuple[Memory, dict[str, Derived]]:
    """The memory after ``window``, and the modelled mean of each body, shape (C,), from the bodies and the ``area``'s
    users and mean as published; beside it what is typical, unless there is no memory of earlier releases.

    ``ranged``: with residual clipping, the response of each body's cell and half its range, (C,).
    ``upper``: U, from ``lower`` on. After a change of either, smoothing starts anew, because earlier means were
    clipped to another bound. Windows come in the order of their time.
    """
    usable = memory if memory is not None and (memory.lower, memory.upper) == (lower, upper) else None
    hours = window.start / 3600
    hour = datetime.fromtimestamp(window.start, ZoneInfo(timezone)).hour
    before = None if usable is None else _state(usable)
    observed = _observed(bodies, usable, hours, upper / 3 if typical is None else typical, upper, area)
    state, smoothed = smooth(
        before,
        observed.releases,
        hours=hours,
        hour_of_day=hour,
        upper=upper,
        typical=typical,
        dynamics=observed.dynamics,
    )
    ends = {"mean": (smoothed.value, smoothed.low, smoothed.high)}
    if before is not None:
        ends[TYPICAL] = (smoothed.typical.value, *smoothed.typical.interval(upper))
    derived = {name: _derived(columns, observed.places, len(bodies)) for name, columns in ends.items()}
    widening = None if ranged is None else _widened(memory, observed, *ranged)
    return _memory(state, observed, window, (lower, upper), widening), derived


def _widened(memory: Memory | None, observed: ObservedMeans, response: Response, half: FloatArray) -> FloatArray:
    """By how much the next range of each observed cell is wider, (C,)."""
    releases, at = observed.releases, observed.places
    here = Response(response.forecast[at], response.expected[at], response.gain[at], response.open[at])
    clipped = here.expected + (releases.means - here.forecast) * here.gain
    noise = np.sqrt(2) * releases.scales * here.gain
    return widened(widening_of(memory, releases.cells), clipped, here, half[at], noise)


class Crowd(NamedTuple):
    """The public numbers of ``events`` and ``users`` of each of ``cells``, ascending, and their covariate, (C,)."""

    cells: IdArray
    events: FloatArray
    users: FloatArray
    covariate: FloatArray


def expected_crowd(memory: Memory, cells: IdArray, due: Due, variance: float) -> Crowd | None:
    """Under "participation" the users of each of ``cells`` that earlier noisy counts let expect; None if the memory
    does not know them, or from one window alone: the next one may have many times its users.

    ``variance``: of the noise of one window's counts.
    """
    hours = due.window.start / 3600 - memory.hours
    known = memory.counted and hours <= FORGOTTEN_HOURS and memory.seen == cells.astype("<u8").tobytes()
    past = _occupancy(memory).faded(hours) if known else None
    if past is None or past.precision * variance < _WINDOWS or (pooled := past.pooled()) is None:
        return None
    users = users_in(None, pooled).mean
    return Crowd(cells, np.maximum(users, 1.0), users, crowding(users))


_WINDOWS = 1.1
"""Least evidence on the users of cells by which ranges are chosen, in windows."""


def foretold_of(memory: Memory | None, crowd: Crowd, due: Due) -> Foretold:
    """What the ``memory`` says about the mean of each cell of ``crowd`` in the window that is ``due``, in km/h, (C,).

    As for :func:`step`, a memory of another U is not used.
    """
    speed, window = due.terms.speed, due.window
    bounds = due.terms.value.lower, speed.upper
    usable = memory if memory is not None and (memory.lower, memory.upper) == bounds else None
    cells = crowd.cells
    places = np.array([h3.cell_to_latlng(cell_text(cell)) for cell in cells.tolist()], dtype=np.float64).reshape(-1, 2)
    nothing = np.zeros(len(cells)), np.full(len(cells), np.inf)
    at = Releases(cells, places, *nothing, crowd.events, np.maximum(crowd.users, 1.0), crowd.covariate[:, None])
    return foretell(
        None if usable is None else _state(usable),
        at,
        hours=window.start / 3600,
        hour_of_day=datetime.fromtimestamp(window.start, ZoneInfo(due.terms.timezone)).hour,
        upper=speed.upper,
        typical=speed.typical,
    )


def widening_of(memory: Memory | None, cells: IdArray) -> FloatArray:
    """By how much the range of each of ``cells`` (C,) is wider, at least 1, after the last window."""
    wider = np.ones(len(cells))
    if memory is None or not memory.widening:
        return wider
    seen = np.frombuffer(memory.seen, "<u8")
    at = np.minimum(np.searchsorted(seen, cells), len(seen) - 1)
    known = seen[at] == cells
    wider[known] = np.frombuffer(memory.widening, "<f8")[at[known]]
    return wider


def _observed(
    bodies: Sequence[dict[str, Any]],
    memory: Memory | None,
    hours: float,
    level: float,
    upper: float,
    area: dict[str, Any] | None,
) -> ObservedMeans:
    """What a window says beside the memory before it; ``level``: the mean of all cells if there is no memory."""
    if memory is None:
        return observed_means(bodies, None, level, upper, area)
    known = None
    if memory.counted and hours - memory.hours <= FORGOTTEN_HOURS:
        counted = _occupancy(memory).faded(hours - memory.hours)
        known = np.frombuffer(memory.seen, "<u8").astype(np.uint64), counted
    return observed_means(bodies, known, float(np.frombuffer(memory.trend, "<f8")[0]), upper, area)


def _derived(columns: tuple[FloatArray, FloatArray, FloatArray], places: IntArray, bodies: int) -> Derived:
    """(Value, low, high), (C,) each, at the ``places`` of their bodies; 0 for bodies without a release."""
    value, low, high = np.zeros((3, bodies))
    value[places], low[places], high[places] = columns
    return Derived("kalman", value, (low, high))


def _state(memory: Memory) -> SmoothingState:
    trend = np.frombuffer(memory.trend, "<f8")
    return SmoothingState(
        np.frombuffer(memory.cells, "<u8").astype(np.uint64),
        np.frombuffer(memory.places, "<f8").reshape(-1, 2),
        np.frombuffer(memory.precision, "<f8"),
        np.frombuffer(memory.shift, "<f8"),
        np.frombuffer(memory.passing, "<f8"),
        np.frombuffer(memory.passing_variance, "<f8"),
        trend,
        np.frombuffer(memory.trend_covariance, "<f8").reshape(len(trend), len(trend)),
        np.frombuffer(memory.profile, "<f8"),
        np.frombuffer(memory.profile_variance, "<f8"),
        memory.hours,
        Calibration(np.frombuffer(memory.calibration, "<f8").reshape(len(CLASSES), -1)),
    )


def _occupancy(memory: Memory) -> Occupancy:
    return Occupancy(np.frombuffer(memory.counted, "<f8"), *memory.counted_sums)


def _memory(
    state: SmoothingState,
    observed: ObservedMeans,
    window: Window,
    bounds: tuple[float, float],
    widening: FloatArray | None,
) -> Memory:
    occupancy = observed.occupancy
    return Memory(
        version=VERSION,
        end=window.end,
        lower=bounds[0],
        upper=bounds[1],
        cells=state.cells.astype("<u8").tobytes(),
        places=state.places.astype("<f8").tobytes(),
        precision=state.precision.astype("<f8").tobytes(),
        shift=state.shift.astype("<f8").tobytes(),
        passing=state.passing.astype("<f8").tobytes(),
        passing_variance=state.passing_variance.astype("<f8").tobytes(),
        trend=state.trend.astype("<f8").tobytes(),
        trend_covariance=state.trend_covariance.astype("<f8").tobytes(),
        profile=state.profile.astype("<f8").tobytes(),
        profile_variance=state.profile_variance.astype("<f8").tobytes(),
        hours=state.hours,
        calibration=state.calibration.evidence.astype("<f8").tobytes(),
        seen=observed.releases.cells.astype("<u8").tobytes(),
        widening=b"" if widening is None else widening.astype("<f8").tobytes(),
        counted=b"" if occupancy is None else occupancy.total.astype("<f8").tobytes(),
        counted_sums=(0.0, 0.0, 0.0)
        if occupancy is None
        else (occupancy.precision, occupancy.square, occupancy.fourth),
    )
