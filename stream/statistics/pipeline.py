"""What a window publishes: post-processed estimates, the body of each cell, and all messages, from plan, columns and
memory.

Pure: no server, no clock. A window can be reproduced from its rows, its plan, a tape of entropy and the memory before
it.
"""

from collections.abc import Sequence
from typing import Any

import h3
import numpy as np

from dpcore.accounting import NANO
from dpcore.arrays import FloatArray
from dpcore.budget import from_micro
from stream.messages.cells import is_anybody, read_cell
from stream.messages.message import (
    HEXAGON_SPEED,
    SPATIAL_HISTOGRAM,
    WINDOW,
    Message,
    cell_text,
    digest,
    window_message,
)
from stream.statistics.columns import (
    CDF,
    DECIMALS,
    MOVING,
    MOVING_MEAN,
    PERCENTS,
    Columns,
    Derived,
    distribution_bodies,
    from_lower_bound,
    too_large,
    unit_of,
)
from stream.statistics.histograms.histograms import DrawnHistogram, histogram_body
from stream.statistics.merging import excluded
from stream.statistics.observed_means import modelled_percentiles
from stream.statistics.participation.draw import AREA_MEAN, AREA_USERS
from stream.statistics.plan import Plan
from stream.statistics.residual_clipping import half_ranges, response_of, with_what_clipping_leaves_open
from stream.statistics.smoothing_state import TYPICAL, Memory, identity, step
from stream.terms import CLIPPED_NORMAL, MOMENTS, MOVING_KM_H, QUANTUM, ValueTerms
from stream.windows import utc_text

Body = dict[str, Any]

DEVIATION = "deviation"
"""Name, under ``post_processed``, of the difference between the modelled mean and the typical one."""


def post_process(
    plan: Plan, bodies: list[Body], memory: Memory | None, area: Body | None = None
) -> tuple[dict[str, Derived], Memory | None]:
    """Estimates from released values and public facts alone, and the memory after the window; they cost no budget.

    They depend only on ``bodies`` and ``area``, as published, and on ``memory``: see
    :mod:`stream.statistics.smoothing_state`.
    """
    speed, response = plan.terms.speed, response_of(plan)
    derived: dict[str, Derived] = {}
    if "kalman" in speed.post_processing and "mean" in speed.statistics:
        memory, derived = step(
            memory,
            bodies,
            plan.window,
            upper=speed.upper,
            lower=plan.terms.value.lower,
            timezone=plan.terms.timezone,
            typical=speed.typical,
            area=area,
            ranged=None if response is None else (response, half_ranges(plan)),
        )
        derived["mean"] = with_what_clipping_leaves_open(plan, derived["mean"])
        if TYPICAL in derived:
            derived[DEVIATION] = _deviation(derived["mean"], derived[TYPICAL])
    if CLIPPED_NORMAL in speed.post_processing and set(MOMENTS) <= set(speed.statistics):
        derived |= modelled_percentiles(bodies, derived, speed.upper)
    return derived, memory


def _deviation(mean: Derived, typical: Derived) -> Derived:
    """How far each ``mean`` is from the ``typical`` one, (C,). Both errors count, of each the one on the side that
    widens; the typical mean has a part in the other, so both go the same way and the interval holds at least 95 %.
    """
    assert mean.interval is not None, "modelled means have intervals"
    assert typical.interval is not None, "typical means have intervals"
    value, (low, high), (least, most) = mean.value - typical.value, mean.interval, typical.interval
    below, above = np.hypot(mean.value - low, most - typical.value), np.hypot(high - mean.value, typical.value - least)
    return Derived(mean.method, value, (value - below, value + above))


def compose(
    plan: Plan,
    bodies: list[Body],
    columns: dict[str, Columns],
    memory: Memory | None,
    histograms: Sequence[DrawnHistogram] = (),
    *,
    sequence: int,
) -> tuple[list[Message], Memory | None]:
    """Every message of a drawn window, close marker last, and the memory after it.

    ``bodies``: of its cells, without post-processed values, which are added. ``sequence``: position of the window among
    those committed, from 1.
    """
    value = plan.terms.value
    before, area = identity(memory), area_body(columns, value)
    derived, memory = post_process(plan, bodies, memory, area)
    remembered: Body = {"memory": {"before": before, "after": identity(memory)}} if "mean" in derived else {}
    if remembered and (typical := plan.terms.speed.typical) is not None:
        remembered["memory"]["typical"] = typical + value.lower
    if derived:
        for g, body in enumerate(bodies):
            if body["status"] == "published":
                body["post_processed"] = {
                    name: _derived_estimate(name, column, g, value) for name, column in derived.items()
                }
    together = {} if area is None else {"area": from_lower_bound(area, value)}
    return _messages(
        plan,
        [from_lower_bound(body, value) for body in bodies],
        histograms,
        {**together, "sequence": sequence, **remembered},
    ), memory


def compose_withheld(plan: Plan, sequence: int) -> list[Message]:
    """The close marker of a withheld window; it is the window's only message."""
    return _messages(plan, [], (), {"sequence": sequence})


def _estimate(name: str, column: Columns, g: int, value: ValueTerms) -> dict[str, Any]:
    decimals = DECIMALS[name]
    raw, clamped = float(column.raw[g]), float(column.value[g])
    return {
        "value": round(clamped, decimals),
        "raw": round(raw, decimals),
        "clamped": clamped != raw,
        "scale": float(f"{column.scale[g]:.6g}"),
        "interval": [round(min(max(float(end[g]), 0.0), column.top), decimals) for end in (column.low, column.high)],
        "unit": unit_of(name, value),
    }


def area_body(columns: dict[str, Columns], value: ValueTerms) -> Body | None:
    """Users and mean of all cells together, for the close marker; None if they are not released."""
    if AREA_MEAN not in columns:
        return None
    of = {"users": columns[AREA_USERS], "mean": columns[AREA_MEAN]}
    return {name: _estimate(name, column, 0, value) for name, column in of.items()}


def _derived_estimate(name: str, column: Derived, g: int, value: ValueTerms) -> dict[str, Any]:
    decimals, ends = DECIMALS[name], column.interval
    return {
        "method": column.method,
        "value": round(float(column.value[g]), decimals),
        **({} if ends is None else {"interval": [round(float(end[g]), decimals) for end in ends]}),
        "unit": unit_of(name, value),
    }


def noisy_numbers(columns: dict[str, Columns]) -> dict[str, list[Any]]:
    """Noisy estimates of events and users of each cell, where counts are not public."""
    names = [name for name in ("events", "users") if name in columns]
    alone = ValueTerms()
    return {name: [_estimate(name, columns[name], g, alone) for g in range(len(columns[name].raw))] for name in names}


def _zcdp_fields(plan: Plan) -> dict[str, Any]:
    """The fields that say that epsilon is converted from rho, for an (epsilon, delta) promise. Empty under pure ε."""
    zcdp = plan.terms.privacy.zcdp
    if zcdp is None:
        return {}
    rho = plan.budget // plan.due.windows_left / NANO if plan.terms.privacy.rolling else zcdp.rho
    return {"accounting": "zcdp", "rho": rho, "delta": zcdp.delta}


def _epsilon(plan: Plan) -> float:
    """The most that one user may lose in the window by speed, as ε; rolling: if they have lost nothing yet."""
    privacy = plan.terms.privacy
    if not privacy.rolling:
        return privacy.epsilon
    return privacy.converted(max(plan.budget // plan.due.windows_left, 1))


def release_bodies(plan: Plan, columns: dict[str, Columns], numbers: dict[str, list[Any]]) -> list[Body]:
    """The body of every cell's message, without post-processed values; ``numbers``: events and users of each cell."""
    terms, window, promised = plan.terms, _window_text(plan), {"epsilon": _epsilon(plan), **_zcdp_fields(plan)}
    published, coarser = plan.published, plan.merged is not None
    ranges = None if plan.ranges is None else plan.ranges.T * QUANTUM
    stretched = _stretched(plan)
    bodies = []
    cells = [cell_text(cell) for cell in plan.cells.tolist()]
    inside = excluded(cells) if coarser else {}
    distributions = [] if CDF not in columns else distribution_bodies(plan, columns[CDF])
    for g, cell in enumerate(cells):
        body: Body = {
            "feed": terms.feed,
            "window": window,
            "cell": cell,
            "resolution": h3.get_resolution(cell) if coarser else terms.hexagons.resolution,
            **({"excludes": inside[cell]} if cell in inside else {}),
            "relation": terms.relation,
            **({} if terms.participation is None else {"weight": terms.participation.weight}),
            **promised,
            "status": "published" if published[g] else "suppressed",
        } | {name: column[g] for name, column in numbers.items()}
        if ranges is not None:
            lower, upper = ranges[g].round(2).tolist()
            body["clipping"] = {"lower": lower, "upper": upper, "unit": terms.value.unit} | stretched[g]
        if published[g]:
            body |= {name: _estimate(name, columns[name], g, terms.value) for name in _numbers_of(plan)}
            body |= {CDF: distributions[g]} if distributions else {}
            if "mean" in body:
                body["mean"]["mechanism"] = terms.speed.mean_mechanism
        bodies.append(body)
    return bodies


def _stretched(plan: Plan) -> list[Body]:
    """Of each cell the field of ``clipping`` that says of which range the released mean is a share, (C,): the one to
    which users' means are clipped, stretched as the correction demands. Empty under "values", where nobody needs it.
    """
    response = response_of(plan)
    if plan.participation is None or response is None or plan.ranges is None:
        return [{} for _ in plan.cells]
    lower, upper = (response.undone(end * QUANTUM) for end in plan.ranges)
    rows = zip(lower.round(3).tolist(), upper.round(3).tolist(), response.open.round(3).tolist(), strict=True)
    return [{"stretched": {"lower": low, "upper": high, "open": left}} for low, high, left in rows]


def _numbers_of(plan: Plan) -> list[str]:
    """The numbers of a published cell; that of moving reports comes with their mean."""
    statistics = [name for name in plan.terms.speed.statistics if name != CDF]
    return [*statistics, MOVING] if MOVING_MEAN in statistics else statistics


def _window_text(plan: Plan) -> dict[str, str]:
    return {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}


def mark_at_bound(plan: Plan, highest: float | FloatArray, columns: dict[str, Columns], bodies: list[Body]) -> None:
    """Mark the speeds that crowd the upper end of what they can be, where somebody is estimated. ``highest``: the
    largest mean that a release can be of, in km/h, (C,) or of all cells.
    """
    upper = plan.terms.speed.upper
    of = {"mean": (0.0, highest), MOVING_MEAN: (MOVING_KM_H, upper)} | dict.fromkeys(PERCENTS, (0.0, upper))
    for name in of.keys() & columns.keys():
        for body, crowds in zip(bodies, columns[name].crowds(*of[name]).tolist(), strict=True):
            if crowds and name in body and is_anybody(read_cell(body)):
                body[name]["at_bound"] = True


def state_worst_errors(biases: dict[str, FloatArray], columns: dict[str, Columns], bodies: list[Body]) -> None:
    """Add the worst-case error to each mean and variance. ``biases``: bounds by cell, (C,)."""
    for name, bias in biases.items():
        errors = bias + columns[name].scale
        for body, error in zip(bodies, errors.tolist(), strict=True):
            if name in body:
                body[name]["worst_error"] = round(error, DECIMALS[name])


def worst_errors(bodies: list[Body]) -> dict[str, float]:
    """The largest worst-case error over published cells, by statistic: what a client of all cells is told."""
    worst: dict[str, float] = {}
    for body in bodies:
        for name in ("mean", "variance"):
            if (error := body.get(name, {}).get("worst_error")) is not None:
                worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _horizon(plan: Plan) -> Body:
    """The field that names the block of the horizon and its budget; empty without a horizon."""
    block, privacy = plan.period.block, plan.terms.privacy
    if block is None:
        return {}
    stated: Body = {
        "start": utc_text(block.start),
        "end": utc_text(block.end),
        "budget": privacy.converted(block.budget),
    }
    return {"horizon": stated if privacy.zcdp is None else stated | {"rho_budget": block.budget / NANO}}


def _chosen(plan: Plan) -> Body:
    """Which samples the plan retains, and the most cells of one user before and after: functions of public counts."""
    part = plan.values
    if part is None or not part.chosen:
        return {}
    before, after = part.most_cells
    return {"plan": {"retained": part.chosen, "cells_per_user": {"before": before, "after": after}}}


def _clipping(plan: Plan) -> Body:
    cap = 0 if plan.values is None else plan.values.sum_cap
    capped = {"sum_upper": cap * QUANTUM} if cap else {}
    lower, upper = plan.terms.value.lower, plan.terms.speed.upper
    return {"lower": lower, "upper": round(lower + upper, 2), **capped, "unit": plan.terms.value.unit}


def _messages(plan: Plan, bodies: list[Body], histograms: Sequence[DrawnHistogram], carried: Body) -> list[Message]:
    terms, privacy, window = plan.terms, plan.terms.privacy, _window_text(plan)
    feed, rho_budget, period = terms.feed, privacy.stated_rho(plan.budget), plan.period
    # Steps that were left out because public counts made them too costly.
    cut_short = [*(() if plan.values is None else plan.values.cut_short), *([CDF] if too_large(plan) else [])]
    messages = [window_message(HEXAGON_SPEED, feed, plan.window, body["cell"], body["cell"], body) for body in bodies]
    for drawn in histograms:
        body = histogram_body(drawn, feed, window)
        messages.append(window_message(SPATIAL_HISTOGRAM, feed, plan.window, drawn.mechanism, feed, body))
    marker = {
        "feed": feed,
        "window": window,
        "relation": terms.relation,
        "epsilon": _epsilon(plan),
        "budget": privacy.stated(plan.budget),
        **_zcdp_fields(plan),
        **({} if rho_budget is None else {"rho_budget": rho_budget}),
        "period": {"start": utc_text(period.start), "end": utc_text(period.end), "timezone": terms.timezone},
        **_horizon(plan),
        "value": terms.value.name,
        "clipping": _clipping(plan),
        "resolution": terms.hexagons.resolution,
        "statistics": list(terms.speed.statistics),
        "messages": len(messages),
        "digest": digest(message.value for message in messages),
        "generation": plan.generation,
        **({} if terms.ledger is None else {"ledger": terms.ledger}),
        **({"withheld": True} if plan.withheld else {}),
        **({"cut_short": cut_short} if cut_short else {}),
        **_chosen(plan),
        **({"worst_error": worst} if (worst := worst_errors(bodies)) else {}),
        **carried,
    }
    if terms.histogram is not None and not plan.withheld:
        marker |= {
            "histogram_epsilon": from_micro(terms.histogram.epsilon_micro),
            "mechanisms": list(terms.histogram.mechanisms),
        }
    messages.append(window_message(WINDOW, feed, plan.window, "close", feed, marker))
    return messages
