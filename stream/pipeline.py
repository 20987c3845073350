"""Where service and mathematics meet: rows and budgets in, a plan out; plan, rows and noise in, messages out.

Pure: no server, no clock. A window is reproducible from its rows, its plan and a noise tape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from stream.config import SPEED_QUANTUM_KMH, Config
from stream.participation import draw_participation, plan_participation
from stream.plan import DECIMALS, Columns, Derived, Plan
from stream.releases import HEXAGON_SPEED, WINDOW, Message, cell_text, digest, window_message
from stream.values import draw_values, plan_values, shrink_values
from stream.windows import Period, Window, utc_text

IntArray = npt.NDArray[np.int64]

UNITS = {
    "mean": "km/h",
    "variance": "(km/h)^2",
    "p15": "km/h",
    "p50": "km/h",
    "p85": "km/h",
    "events": "1",
    "users": "1",
}


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
    """Decide who takes part, what is retained, the noise scales and every user's charge, before any noise.

    ``left``: (L,) µε each user of ``counts`` has left in ``period``.
    """
    decide = plan_values if config.relation == "values" else plan_participation
    return decide(counts, left, config, window, period, generation)


def draw(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """All noise of the window in one batch: every statistic over the plan's cells. Raises :class:`stream.plan.PlanError`."""
    sample = draw_values if plan.relation == "values" else draw_participation
    return sample(plan, contributions, noise)


def post_process(plan: Plan, counts: Counts, columns: dict[str, Columns], config: Config) -> dict[str, Derived]:
    """Estimates from released values and public facts alone; they cost no budget. None under "participation"."""
    return shrink_values(plan, counts, columns, config) if plan.relation == "values" else {}


def build_messages(plan: Plan, contributions: Contributions, noise: Noise, config: Config) -> list[Message]:
    """Draw the window and write every message, close marker last. Raises :class:`PlanError` as :func:`draw`."""
    columns = draw(plan, contributions, noise)
    derived = post_process(plan, contributions.counts, columns, config)
    return _messages(plan, contributions.counts, columns, derived, config)


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


def _derived_estimate(name: str, column: Derived, g: int) -> dict[str, Any]:
    decimals = DECIMALS[name]
    return {
        "method": column.method,
        "value": round(float(column.value[g]), decimals),
        "interval": [round(float(column.low[g]), decimals), round(float(column.high[g]), decimals)],
        "unit": UNITS[name],
    }


def _how_many(plan: Plan, counts: Counts, columns: dict[str, Columns]) -> tuple[list[Any], list[Any]]:
    """Events and users per cell: exact where counts are public, noisy estimates where they are not."""
    if plan.relation == "values":
        return counts.by_cell(counts.samples).tolist(), np.diff(counts.cell_start).tolist()
    events, users = (
        [_estimate(name, columns[name], g) for g in range(len(columns[name].raw))] for name in ("events", "users")
    )
    return events, users


def _zcdp_fields(plan: Plan) -> dict[str, Any]:
    """How epsilon is to be read: (epsilon, delta)-DP converted from rho. Nothing where it is pure."""
    if plan.zcdp is None:
        return {}
    return {"accounting": "zcdp", "rho": plan.zcdp.rho, "delta": plan.zcdp.delta}


def _messages(
    plan: Plan, counts: Counts, columns: dict[str, Columns], derived: dict[str, Derived], config: Config
) -> list[Message]:
    feed = config.feed.name
    window = {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}
    events, users = _how_many(plan, counts, columns)
    published = np.frombuffer(plan.published, np.uint8)
    messages = []
    for g, cell in enumerate(np.frombuffer(plan.cells, "<u8").tolist()):
        body: dict[str, Any] = {
            "feed": feed,
            "window": window,
            "cell": cell_text(cell),
            "resolution": plan.resolution,
            "relation": plan.relation,
            "epsilon": plan.epsilon,
            **_zcdp_fields(plan),
            "status": "published" if published[g] else "suppressed",
            "events": events[g],
            "users": users[g],
        }
        if published[g]:
            body |= {name: _estimate(name, columns[name], g) for name in plan.statistics}
            if derived:
                body["post_processed"] = {name: _derived_estimate(name, column, g) for name, column in derived.items()}
        messages.append(window_message(HEXAGON_SPEED, feed, plan.window, body["cell"], body["cell"], body))
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
        "clipping": {"lower": 0.0, "upper": plan.upper_quanta * SPEED_QUANTUM_KMH, "unit": "km/h"},
        "resolution": plan.resolution,
        "statistics": list(plan.statistics),
        "messages": len(messages),
        "digest": digest(message.value for message in messages),
        "generation": plan.generation,
    }
    messages.append(window_message(WINDOW, feed, plan.window, "close", feed, marker))
    return messages
