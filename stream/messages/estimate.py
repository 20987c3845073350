"""The leading estimate of a cell: for each statistic one number, which every reader shows first. Pure.

A message holds what was drawn and, under ``post_processed``, what models made of it. The modelled value leads, else the
released one. It is chosen here and nowhere else, from the released message alone, so it costs no budget. Beside it
stand what is typical of the cell at this hour, as earlier releases have it, and the deviation of the mean from that.

Under "participation" every cell of a public list is released, also where nobody was. A cell has no estimate where
nobody is estimated in it: where its released number of users is at most one standard deviation of its own noise. Of
empty cells one in eight exceeds that (12 %; Gaussian noise: 16 %). By the same rule a cell has no mean of moving
reports where none is estimated to move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

ESTIMATED = ("mean", "moving_mean", "variance", "p15", "p50", "p85", "typical", "deviation")
"""Numbers of which a message may hold an estimate. The last two exist as such only."""
RELEASED = "released"
"""``method`` of an estimate that no model made."""

Estimates = dict[str, dict[str, Any]]
"""For each statistic: ``value``, ``interval`` (95 %; absent where the model gives none), ``unit`` and ``method``;
``at_bound``, which is true, where the released value crowds the bound of speeds, whatever a model made of it."""


def estimates_of(body: Mapping[str, Any]) -> Estimates | None:
    """The leading estimates of a cell's message; None where it was not published, and where nobody is estimated."""
    if body["status"] != "published" or not is_anybody(body):
        return None
    modelled = body.get("post_processed", {})
    leading = {name: modelled.get(name) or _released(body, name) for name in ESTIMATED}
    return {
        name: estimate | ({"at_bound": True} if body.get(name, {}).get("at_bound") else {})
        for name, estimate in leading.items()
        if estimate is not None
    }


def with_estimates(value: bytes, clear_error: float | None = None) -> bytes:
    """A cell's message with its leading estimates as ``estimate``; its other bytes stay as they were released.

    ``clear_error``: of a ``deviation`` that noise does not explain, its error (:mod:`stream.serve.differences`).
    """
    estimates = estimates_of(msgspec.json.decode(value))
    if estimates and clear_error is not None:
        estimates["deviation"]["clear_error"] = clear_error
    return value.rstrip()[:-1] + b',"estimate":' + msgspec.json.encode(estimates) + b"}"


def _released(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    drawn = body.get(name)
    if drawn is None or (name == "moving_mean" and not _stands_out(body, body["moving"])):
        return None
    return {part: drawn[part] for part in ("value", "interval", "unit")} | {"method": RELEASED}


def is_anybody(body: Mapping[str, Any]) -> bool:
    """Whether the released number of users exceeds the standard deviation of its noise; an exact number does."""
    users = body.get("users", body.get("events"))
    return _stands_out(body, users) if isinstance(users, Mapping) else True


def _stands_out(body: Mapping[str, Any], number: Mapping[str, Any]) -> bool:
    """Whether a noisy number exceeds the standard deviation of its noise."""
    deviation = number["scale"] * (1.0 if body.get("accounting") == "zcdp" else math.sqrt(2.0))
    return bool(number["raw"] > deviation)
