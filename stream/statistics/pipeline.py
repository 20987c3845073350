"""Where service and mathematics meet: makes a plan from rows and budgets, and messages from plan, rows, noise and memory.

Pure: no server, no clock. A window can be reproduced from its rows, its plan, a tape of entropy and the memory before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.accounting import NANO, epsilon_of_rho
from dpcore.budget import from_micro
from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.speed import CLIPPED_NORMAL, MOMENTS, SPEED_QUANTUM_KMH
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, Message, cell_text, digest, window_message
from stream.statistics.distributions import distribution_bodies, too_large
from stream.statistics.fix_rules import FixRules
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.histograms.histograms import (
    DrawnHistogram,
    asked_of,
    histogram_body,
    plan_histograms,
)
from stream.statistics.merging import excluded
from stream.statistics.modelled_percentiles import modelled_percentiles
from stream.statistics.participation.draw import AREA_MEAN, AREA_USERS, draw_participation
from stream.statistics.participation.plan import plan_participation
from stream.statistics.plan import CDF, DECIMALS, Columns, Derived, Plan
from stream.statistics.shrinkage import shrinks, too_costly
from stream.statistics.smoothing_state import SMOOTHED, Memory, identity, shrunk, step
from stream.statistics.values.draw import draw_values
from stream.statistics.values.plan import plan_values
from stream.statistics.values.worst_bias import worst_biases
from stream.windows import Period, Window, utc_text

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
Body = dict[str, Any]

_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose bits look random: products of different users rarely differ by a difference of times."""
UNITS = {
    "mean": "km/h",
    "mean_smoothed": "km/h",
    "variance": "(km/h)^2",
    "p15": "km/h",
    "p50": "km/h",
    "p85": "km/h",
    "events": "1",
    "users": "1",
}


def contributions_of(rows: npt.NDArray[np.void], config: Config) -> Contributions:
    """Remove duplicates of (user, time), clip to [0, U] and sort by (cell, user, time). The order of ``rows`` does not matter.

    Of rows with equal (user, time), the one with the lowest (cell, value) is kept. Whatever the values, this is one sample of
    that user, so sensitivities are unchanged.
    """
    repeated = _repeated(rows["user"], rows["time"])
    kept = rows
    if len(repeated):
        candidates = rows[repeated]
        order = np.lexsort((candidates["value"], candidates["cell"], candidates["time"], candidates["user"]))
        user, time = candidates["user"][order], candidates["time"][order]
        keep = np.ones(len(rows), dtype=bool)
        keep[repeated[order[1:]]] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
        kept = rows[keep]
    return Contributions.group(kept["cell"], kept["user"], kept["time"], kept["value"], upper=config.speed.upper_quanta)


def _repeated(user: IdArray, time: IntArray) -> IntArray:
    """Indices of the rows that share their (user, time) with another, and perhaps of a few more."""
    ordered = _mixed(user, time)
    ordered.sort()
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.isin(_mixed(user, time), np.unique(ordered[1:][again])))


def _mixed(user: IdArray, time: IntArray) -> IdArray:
    """One number per row, modulo 2^64; rows of equal (user, time) have equal ones."""
    mixed: IdArray = user * _MIXER
    mixed += time.view(np.uint64)
    return mixed


def plan_window(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    fixes: Fixes | None = None,
) -> Plan:
    """Decide who takes part, which samples are retained, the noise scales and every user's charge, before any noise is drawn.

    ``left``: (L,) what each user of ``counts`` has left in ``period``, in the ledger's unit. ``fixes``: fixes of the same rows,
    required if histograms are configured; else raises :class:`stream.statistics.plan.PlanError`.
    """
    decide = plan_values if config.relation == NeighbouringRelation.VALUES else plan_participation
    histogram = plan_histograms(fixes, config)
    asked = 0 if histogram is None else asked_of(histogram, fixes, counts.users)
    plan = decide(counts, left, config, window, period, generation, asked)
    limits = config.window
    return msgspec.structs.replace(
        plan,
        histogram=histogram,
        max_cells_per_user=limits.max_cells_per_user,
        max_events_per_user=limits.max_events_per_user,
        fix_rules=FixRules.of(config),
    )


def draw(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Draw every statistic of the plan's cells. ``draw_histograms`` draws the histograms.

    Raises :class:`stream.statistics.plan.PlanError` if the rows are not those that were planned and charged.
    """
    if plan.relation == NeighbouringRelation.VALUES:
        return draw_values(plan, contributions, noise)
    return draw_participation(plan, contributions, noise)


def post_process(
    plan: Plan, bodies: list[Body], config: Config, memory: Memory | None, area: Body | None = None
) -> tuple[dict[str, Derived], Memory | None]:
    """Estimates from released values and public facts alone, and the memory after the window; they cost no budget.

    They depend only on ``bodies`` and ``area``, as published, and on ``memory``: see :mod:`stream.statistics.smoothing_state`.
    """
    upper = plan.upper_quanta * SPEED_QUANTUM_KMH
    derived, after = _modelled_means(plan, bodies, config, memory, area)
    if CLIPPED_NORMAL in config.speed.post_processing and set(MOMENTS) <= set(plan.statistics):
        derived = derived | modelled_percentiles(bodies, derived, upper)
    return derived, after


def _modelled_means(
    plan: Plan, bodies: list[Body], config: Config, memory: Memory | None, area: Body | None
) -> tuple[dict[str, Derived], Memory | None]:
    """Shrunk and smoothed means, where they are configured, and the memory after the window."""
    shrinking, upper = shrinks(plan, config), plan.upper_quanta * SPEED_QUANTUM_KMH
    if "kalman" not in config.speed.post_processing or "mean" not in plan.statistics:
        return shrunk(bodies, upper) if shrinking else {}, memory
    zone, typical = config.feed.timezone, _typical(plan, config)
    after, derived = step(
        memory, bodies, plan.window, upper=upper, timezone=zone, shrinking=shrinking, typical=typical, area=area
    )
    return derived, after


def _typical(plan: Plan, config: Config) -> float | None:
    """The mean speed that smoothing expects before any release, at most U, in km/h; None if the prior is as wide as U."""
    if config.participation is None or plan.relation != NeighbouringRelation.PARTICIPATION:
        return None
    typical = config.participation.typical_km_h
    return None if typical is None else min(typical, plan.upper_quanta * SPEED_QUANTUM_KMH)


def compose(
    plan: Plan,
    counts: Counts,
    columns: dict[str, Columns],
    config: Config,
    memory: Memory | None,
    histograms: Sequence[DrawnHistogram] = (),
    *,
    sequence: int,
) -> tuple[list[Message], Memory | None]:
    """Every message of a drawn window, close marker last, and the memory after it.

    ``sequence``: position of the window among those committed, from 1.
    """
    bodies = release_bodies(plan, counts, columns, config)
    before, area = identity(memory), area_body(columns)
    derived, memory = post_process(plan, bodies, config, memory, area)
    remembered: Body = {"memory": {"before": before, "after": identity(memory)}} if SMOOTHED in derived else {}
    if remembered and (typical := _typical(plan, config)) is not None:
        remembered["memory"]["typical_km_h"] = typical
    if derived:
        for g, body in enumerate(bodies):
            if body["status"] == "published":
                body["post_processed"] = {name: _derived_estimate(name, column, g) for name, column in derived.items()}
    together = {} if area is None else {"area": area}
    return _messages(plan, bodies, histograms, config, {**together, "sequence": sequence, **remembered}), memory


def compose_withheld(plan: Plan, config: Config, sequence: int) -> list[Message]:
    """The close marker of a withheld window; it is the window's only message."""
    return _messages(plan, [], (), config, {"sequence": sequence})


def _estimate(name: str, column: Columns, g: int) -> dict[str, Any]:
    decimals = DECIMALS[name]
    raw, value = float(column.raw[g]), float(column.value[g])
    return {
        "value": round(value, decimals),
        "raw": round(raw, decimals),
        "clamped": value != raw,
        "scale": float(f"{column.scale[g]:.6g}"),
        "interval": [round(min(max(float(end[g]), 0.0), column.top), decimals) for end in (column.low, column.high)],
        "unit": UNITS[name],
    }


def area_body(columns: dict[str, Columns]) -> Body | None:
    """Users and mean of all cells together, for the close marker; None if they are not released."""
    if AREA_MEAN not in columns:
        return None
    return {"users": _estimate("users", columns[AREA_USERS], 0), "mean": _estimate("mean", columns[AREA_MEAN], 0)}


def _derived_estimate(name: str, column: Derived, g: int) -> dict[str, Any]:
    decimals, ends = DECIMALS[name], column.interval
    return {
        "method": column.method,
        "value": round(float(column.value[g]), decimals),
        **({} if ends is None else {"interval": [round(float(end[g]), decimals) for end in ends]}),
        "unit": UNITS[name],
    }


def _how_many(plan: Plan, counts: Counts, columns: dict[str, Columns]) -> dict[str, list[Any]]:
    """Events and users per cell: exact if counts are public, else noisy estimates."""
    if plan.relation == NeighbouringRelation.VALUES:
        return {"events": counts.by_cell(counts.samples).tolist(), "users": np.diff(counts.cell_start).tolist()}
    names = [name for name in ("events", "users") if name in columns]
    return {name: [_estimate(name, columns[name], g) for g in range(len(columns[name].raw))] for name in names}


def _zcdp_fields(plan: Plan) -> dict[str, Any]:
    """The fields that say that epsilon is converted from rho, for an (epsilon, delta) promise. Empty under pure ε."""
    if plan.zcdp is None:
        return {}
    return {"accounting": "zcdp", "rho": plan.zcdp.rho, "delta": plan.zcdp.delta}


def release_bodies(plan: Plan, counts: Counts, columns: dict[str, Columns], config: Config) -> list[Body]:
    """The body of every cell's message, without post-processed values."""
    window = {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}
    how_many = _how_many(plan, counts, columns)
    published, coarser = plan.published, plan.merged is not None
    ranges = None if plan.ranges is None else plan.ranges.T * SPEED_QUANTUM_KMH
    bodies = []
    cells = [cell_text(cell) for cell in plan.cells.tolist()]
    inside = excluded(cells) if coarser else {}
    distributions = [] if CDF not in columns else distribution_bodies(plan, columns[CDF])
    for g, cell in enumerate(cells):
        body: Body = {
            "feed": config.feed.name,
            "window": window,
            "cell": cell,
            "resolution": h3.get_resolution(cell) if coarser else plan.resolution,
            **({"excludes": inside[cell]} if cell in inside else {}),
            "relation": plan.relation,
            **({"weight": plan.weight} if plan.relation == NeighbouringRelation.PARTICIPATION else {}),
            "epsilon": plan.epsilon,
            **_zcdp_fields(plan),
            "status": "published" if published[g] else "suppressed",
        } | {name: column[g] for name, column in how_many.items()}
        if ranges is not None:
            lower, upper = ranges[g].round(2).tolist()
            body["clipping"] = {"lower": lower, "upper": upper, "unit": UNITS["mean"]}
        if published[g]:
            body |= {name: _estimate(name, columns[name], g) for name in plan.statistics if name != CDF}
            body |= {CDF: distributions[g]} if distributions else {}
        bodies.append(body)
    if plan.relation == NeighbouringRelation.VALUES:
        _state_worst_errors(plan, counts, columns, bodies)
    return bodies


def _state_worst_errors(plan: Plan, counts: Counts, columns: dict[str, Columns], bodies: list[Body]) -> None:
    """Add the worst-case error to each mean and variance, and its mechanism to the mean."""
    for name, bias in worst_biases(plan, counts).items():
        errors = bias + columns[name].scale
        for body, error in zip(bodies, errors.tolist(), strict=True):
            if name in body:
                body[name]["worst_error"] = round(error, DECIMALS[name])
                if name == "mean":
                    body[name]["mechanism"] = plan.mean_mechanism


def _cut_short(plan: Plan, config: Config) -> list[str]:
    """Steps that were left out because public counts made them too costly: those of the plan, shrinkage, distributions.
    Markers name them.
    """
    left_out = {"empirical-bayes": too_costly(plan, config), CDF: too_large(plan)}
    return [*plan.cut_short, *(name for name, out in left_out.items() if out)]


def _horizon(plan: Plan) -> Body:
    """The field that names the block of the horizon and its budget; empty without a horizon."""
    block = plan.period.block
    if block is None:
        return {}
    stated: Body = {"start": utc_text(block.start), "end": utc_text(block.end)}
    if plan.zcdp is None:
        return {"horizon": stated | {"budget": from_micro(block.budget)}}
    return {
        "horizon": stated | {"budget": epsilon_of_rho(block.budget, plan.zcdp.delta), "rho_budget": block.budget / NANO}
    }


def worst_errors(bodies: list[Body]) -> dict[str, float]:
    """The largest worst-case error over published cells, by statistic: what a client of all cells is told."""
    worst: dict[str, float] = {}
    for body in bodies:
        for name in ("mean", "variance"):
            if (error := body.get(name, {}).get("worst_error")) is not None:
                worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _chosen(plan: Plan) -> Body:
    """Which samples the plan retains, and the most cells of one user before and after: functions of public counts."""
    before, after = plan.most_cells
    return {"retained": plan.chosen, "cells_per_user": {"before": before, "after": after}}


def _messages(
    plan: Plan, bodies: list[Body], histograms: Sequence[DrawnHistogram], config: Config, carried: Body
) -> list[Message]:
    feed = config.feed.name
    window = {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}
    messages = [window_message(HEXAGON_SPEED, feed, plan.window, body["cell"], body["cell"], body) for body in bodies]
    for drawn in histograms:
        body = histogram_body(drawn, feed, window)
        messages.append(window_message(SPATIAL_HISTOGRAM, feed, plan.window, drawn.mechanism, feed, body))
    marker = {
        "feed": feed,
        "window": window,
        "relation": plan.relation,
        "epsilon": plan.epsilon,
        "budget": plan.budget,
        **_zcdp_fields(plan),
        **({} if plan.zcdp is None else {"rho_budget": plan.zcdp.rho_budget}),
        "period": {
            "start": utc_text(plan.period.start),
            "end": utc_text(plan.period.end),
            "timezone": config.feed.timezone,
        },
        **_horizon(plan),
        "clipping": {
            "lower": 0.0,
            "upper": plan.upper_quanta * SPEED_QUANTUM_KMH,
            **({"sum_upper": plan.sum_cap * SPEED_QUANTUM_KMH} if plan.sum_cap else {}),
            "unit": "km/h",
        },
        "resolution": plan.resolution,
        "statistics": list(plan.statistics),
        "messages": len(messages),
        "digest": digest(message.value for message in messages),
        "generation": plan.generation,
        **({} if config.shared_ledger is None else {"ledger": config.shared_ledger}),
        **({"withheld": True} if plan.withheld else {}),
        **({"cut_short": list(cut_short)} if (cut_short := _cut_short(plan, config)) else {}),
        **({"plan": _chosen(plan)} if plan.chosen else {}),
        **({"worst_error": worst} if (worst := worst_errors(bodies)) else {}),
        **carried,
    }
    if plan.histogram is not None:
        marker |= {
            "histogram_epsilon": from_micro(plan.histogram.epsilon_micro),
            "mechanisms": list(plan.histogram.mechanisms),
        }
    messages.append(window_message(WINDOW, feed, plan.window, "close", feed, marker))
    return messages
