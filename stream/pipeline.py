"""Where service and mathematics meet: rows and budgets in, a plan out; plan, rows and noise in, messages out.

Pure: no server, no clock. A window is reproducible from its rows, its plan and a noise tape. Relation "values":
everything in :class:`Plan` is a function of public counts, the configuration and the ledger.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.allocation import Allocation, Sensitivities, allocate, stack, uniform_allocation
from dpcore.contributions import Contributions, Counts
from dpcore.moments import (
    cell_variances,
    mean_clipping_bias,
    mean_rows,
    variance_clipping_bias,
    variance_rows,
)
from dpcore.noise import Noise, interval_half_width
from dpcore.suppression import sweep_chop_user
from stream.config import SPEED_QUANTUM_KMH, Config
from stream.releases import HEXAGON_SPEED, WINDOW, Message, cell_text, digest, window_message
from stream.windows import Period, Window, utc_text

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]

VARIANCE_GRID = 100
"""Output grid of the variance in quanta²: 0.01 (km/h)²."""
UNITS = {"mean": "km/h", "variance": "(km/h)^2"}
_DECIMALS = {"mean": 3, "variance": 2}
"""Fixed output granularity per statistic."""
_MANY_PAIRS = 200_000
_FEW_LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Cells per user that the suppression sweep tries in a very large window."""


class PlanError(RuntimeError):
    """Rows and plan that do not belong together; nothing may be released."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything decided about a window before any noise is drawn. Arrays are little-endian int64 bytes.

    ``users``/``charges``: (L,) ids and µε, 0 for users who take no part. ``retained``: (P,) samples kept per pair.
    ``published``: (C,) 0/1. ``numerators``/``denominators``: (S, C) noise scales, numerator 0 = nothing to hide.
    """

    window: Window
    period: Period
    generation: str
    epsilon: float
    budget: float
    budget_micro: int
    statistics: tuple[str, ...]
    upper_quanta: int
    resolution: int
    counts_digest: str
    users: bytes
    charges: bytes
    retained: bytes
    published: bytes
    numerators: bytes
    denominators: bytes

    @property
    def digest(self) -> str:
        """Identity of this plan; charges are marked under it."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()

    def charged_users(self) -> tuple[IdArray, IntArray]:
        """Users with a charge above 0, and their charges in µε."""
        users, charges = np.frombuffer(self.users, "<u8"), np.frombuffer(self.charges, "<i8")
        return users[charges > 0], charges[charges > 0]


def encode_plan(plan: Plan) -> bytes:
    """Stored form of a plan."""
    return msgspec.msgpack.encode(plan)


def decode_plan(blob: bytes) -> Plan:
    """A stored plan, exactly."""
    return msgspec.msgpack.decode(blob, type=Plan)


def contributions_of(rows: npt.NDArray[np.void], config: Config) -> Contributions:
    """De-duplicate (user, time), clip to [0, U] and sort by (cell, user, time); the order of ``rows`` is immaterial.

    Of rows with equal (user, time) the one of lowest (cell, value) counts: still one sample of that user, whatever
    his values, so sensitivities are unchanged.
    """
    order = np.lexsort((rows["value"], rows["cell"], rows["time"], rows["user"]))
    ordered = rows[order]
    keep = np.ones(len(ordered), dtype=bool)
    keep[1:] = (ordered["user"][1:] != ordered["user"][:-1]) | (ordered["time"][1:] != ordered["time"][:-1])
    kept = ordered[keep]
    return Contributions.group(
        kept["cell"].astype(np.uint64),
        kept["user"].astype(np.uint64),
        kept["time"].astype(np.int64),
        kept["value"].astype(np.int64),
        upper=config.speed.upper_quanta,
    )


def plan_window(
    counts: Counts, left: IntArray, config: Config, window: Window, period: Period, generation: str
) -> Plan:
    """Decide who takes part, what is retained, the noise scales and every user's charge.

    ``left``: (L,) µε each user of ``counts`` has left in ``period``. A user takes part if a whole window's grant is
    left, so that one nearly exhausted user cannot inflate the noise of everybody in his cells.
    """
    grant = config.privacy.epsilon_micro
    statistics = config.speed.statistics
    admitted = np.where(left[counts.pair_user] >= grant, counts.samples, 0)
    retained, allocation = _least_error(counts, admitted, config)
    return Plan(
        window=window,
        period=period,
        generation=generation,
        epsilon=config.privacy.epsilon,
        budget=config.privacy.budget,
        budget_micro=config.privacy.budget_micro,
        statistics=statistics,
        upper_quanta=config.speed.upper_quanta,
        resolution=config.hexagons.resolution,
        counts_digest=_counts_digest(counts),
        users=counts.users.astype("<u8").tobytes(),
        charges=allocation.charges.astype("<i8").tobytes(),
        retained=retained.astype("<i8").tobytes(),
        published=(counts.by_cell(retained) > 0).astype(np.uint8).tobytes(),
        numerators=allocation.numerator.astype("<i8").tobytes(),
        denominators=allocation.denominator.astype("<i8").tobytes(),
    )


def _enough_users(counts: Counts, samples: IntArray, min_users: int) -> IntArray:
    """``samples`` with every pair of a cell below ``min_users`` contributors set to 0: a public rule on counts."""
    contributors = counts.by_cell((samples > 0).astype(np.int64))
    return np.where(contributors[counts.pair_cell] >= min_users, samples, 0)


def _least_error(counts: Counts, admitted: IntArray, config: Config) -> tuple[IntArray, Allocation]:
    """Retained counts and scales of the least predicted error among the configured candidates; public counts only."""
    speed = config.speed
    plain = _enough_users(counts, admitted, speed.min_users)
    candidates = [plain]
    if speed.suppression == "chop-user" and plain.any():
        candidates.append(_suppressed(counts, plain, config))
    best: tuple[float, IntArray, Allocation] | None = None
    for retained in candidates:
        allocation = _allocation(counts, retained, config)
        error = _predicted_error(counts, admitted, retained, allocation, config)
        if best is None or error < best[0]:
            best = error, retained, allocation
    assert best is not None, "the plain candidate is always there"
    return best[1], best[2]


def _suppressed(counts: Counts, samples: IntArray, config: Config) -> IntArray:
    active = samples > 0
    cells, pair_cell = np.unique(counts.pair_cell[active], return_inverse=True)
    users, pair_user = np.unique(counts.pair_user[active], return_inverse=True)
    part = Counts(counts.cells[cells], counts.users[users], pair_cell, pair_user, samples[active])
    found = sweep_chop_user(
        part,
        config.privacy.epsilon_micro,
        statistics=config.speed.statistics,
        min_users=config.speed.min_users,
        limits=_FEW_LIMITS if len(part.samples) > _MANY_PAIRS else None,
    )
    retained = np.zeros_like(samples)
    retained[active] = found.samples
    return retained


def _allocation(counts: Counts, retained: IntArray, config: Config) -> Allocation:
    upper = config.speed.upper_quanta
    rows: dict[str, Sensitivities] = {
        "mean": mean_rows(counts, retained, upper),
        "variance": variance_rows(counts, retained, upper, VARIANCE_GRID),
    }
    program = stack([rows[name] for name in config.speed.statistics])
    allowances = np.full(counts.n_users, config.privacy.epsilon_micro, dtype=np.int64)
    solve = allocate if config.speed.allocation == "exact-loss" else uniform_allocation
    return solve(program, allowances)


def _predicted_error(
    counts: Counts, admitted: IntArray, retained: IntArray, allocation: Allocation, config: Config
) -> float:
    """Σ over published cells and statistics of events × (noise scale + clipping bias) in units of the full range."""
    total, kept = counts.by_cell(admitted), counts.by_cell(retained)
    scales = (allocation.numerator / np.maximum(allocation.denominator, 1)).reshape(-1, counts.n_cells)
    upper = config.speed.upper_quanta
    bias = {
        "mean": mean_clipping_bias(total, kept, 1.0),
        "variance": 4 * variance_clipping_bias(total, kept, 1.0),
    }
    error = 0.0
    for name, scale in zip(config.speed.statistics, scales, strict=True):
        span = np.maximum(kept * upper, 1) if name == "mean" else upper * upper / 4 / VARIANCE_GRID
        error += float((total * np.where(kept > 0, np.minimum(scale / span + bias[name], 1.0), 1.0)).sum())
    return error


def _counts_digest(counts: Counts) -> str:
    state = hashlib.sha256()
    for column in (counts.cells, counts.users, counts.pair_cell, counts.pair_user, counts.samples):
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()


def build_messages(plan: Plan, contributions: Contributions, noise: Noise, config: Config) -> list[Message]:
    """Draw all noise of the window in one batch and write every message, close marker last.

    Raises :class:`PlanError` if the rows are not those that were planned and charged.
    """
    counts = contributions.counts
    if _counts_digest(counts) != plan.counts_digest:
        raise PlanError(
            f"the rows of window {utc_text(plan.window.start)} changed after they were planned; nothing was drawn. "
            "Restore Redis from its append-only file"
        )
    kept = contributions.retain(np.frombuffer(plan.retained, "<i8"))
    shape = (len(plan.statistics), counts.n_cells)
    numerators = np.frombuffer(plan.numerators, "<i8").reshape(shape)
    denominators = np.maximum(np.frombuffer(plan.denominators, "<i8").reshape(shape), 1)
    sums = {"mean": kept.cell_sums(), "variance": cell_variances(kept, VARIANCE_GRID)}
    exact = np.array([sums[name] for name in plan.statistics], dtype=np.int64).reshape(shape)
    noisy = exact.copy()
    hidden = numerators > 0
    noisy[hidden] += noise.discrete_laplace(numerators[hidden], denominators[hidden])
    widths = np.zeros(shape)
    widths[hidden] = interval_half_width(numerators[hidden], denominators[hidden])
    retained_n = np.maximum(kept.counts.by_cell(kept.counts.samples), 1)
    upper_kmh = plan.upper_quanta * SPEED_QUANTUM_KMH
    columns: dict[str, list[dict[str, Any]]] = {}
    for index, name in enumerate(plan.statistics):
        unit, top = (
            (SPEED_QUANTUM_KMH / retained_n, upper_kmh)
            if name == "mean"
            else (np.full(counts.n_cells, VARIANCE_GRID * SPEED_QUANTUM_KMH**2), upper_kmh**2 / 4)
        )
        columns[name] = _estimates(
            name, noisy[index], numerators[index] / denominators[index], widths[index], unit, top
        )
    return _messages(plan, counts, columns, config)


def _estimates(
    name: str, noisy: IntArray, scale: FloatArray, width: FloatArray, unit: FloatArray, top: float
) -> list[dict[str, Any]]:
    """One JSON object per cell: raw value, value clamped to [0, ``top``], scale and interval in released units."""
    decimals = _DECIMALS[name]
    raw = np.round(noisy * unit, decimals)
    value = np.clip(raw, 0.0, top)
    # Rounding moved the released value by up to half its granularity; the interval covers that too.
    half = np.where(width > 0, width * unit + 0.5 * 10.0**-decimals, 0.0)
    low, high = np.clip(raw - half, 0.0, top), np.clip(raw + half, 0.0, top)
    released_scale = scale * unit
    return [
        {
            "value": round(float(value[g]), decimals),
            "raw": round(float(raw[g]), decimals),
            "clamped": bool(value[g] != raw[g]),
            "scale": float(f"{released_scale[g]:.6g}"),
            "interval": [round(float(low[g]), decimals), round(float(high[g]), decimals)],
            "unit": UNITS[name],
        }
        for g in range(len(raw))
    ]


def _messages(plan: Plan, counts: Counts, columns: dict[str, list[dict[str, Any]]], config: Config) -> list[Message]:
    feed = config.feed.name
    window = {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}
    events = counts.by_cell(counts.samples)
    users = np.diff(counts.cell_start)
    published = np.frombuffer(plan.published, np.uint8)
    messages = []
    for g, cell in enumerate(counts.cells.tolist()):
        body: dict[str, Any] = {
            "feed": feed,
            "window": window,
            "cell": cell_text(cell),
            "resolution": plan.resolution,
            "relation": "values",
            "epsilon": plan.epsilon,
            "status": "published" if published[g] else "suppressed",
            "events": int(events[g]),
            "users": int(users[g]),
        }
        if published[g]:
            body |= {name: columns[name][g] for name in plan.statistics}
        messages.append(window_message(HEXAGON_SPEED, feed, plan.window, body["cell"], body["cell"], body))
    marker = {
        "feed": feed,
        "window": window,
        "relation": "values",
        "epsilon": plan.epsilon,
        "budget": plan.budget,
        "period": {
            "start": utc_text(plan.period.start),
            "end": utc_text(plan.period.end),
            "timezone": config.feed.timezone,
        },
        "clipping": {"lower": 0.0, "upper": plan.upper_quanta * SPEED_QUANTUM_KMH, "unit": "km/h"},
        "resolution": plan.resolution,
        "statistics": list(plan.statistics),
        "messages": len(messages),
        "digest": digest(message.value for message in messages),
        "generation": plan.generation,
    }
    messages.append(window_message(WINDOW, feed, plan.window, "close", feed, marker))
    return messages
