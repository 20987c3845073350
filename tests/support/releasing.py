"""A window planned, drawn and written as messages without a server, for tests of what is released."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import SPATIAL_HISTOGRAM, Message
from stream.statistics.histograms.fixes import Fixes, fixes_of, histogram_box
from stream.statistics.histograms.histograms import draw_histograms
from stream.statistics.pipeline import compose, contributions_of, draw, plan_window
from stream.statistics.plan import Plan
from stream.statistics.smoothing_state import Memory
from tests.support.builders import SLOT

GENERATION = "11111111-1111-4111-8111-111111111111"


def planned(
    config: Config, rows: np.ndarray, left: np.ndarray | int | None = None, slot: int = SLOT
) -> tuple[Plan, Contributions]:
    """The service's plan of the window at ``slot``, and its contributions. ``left``: budgets, by default untouched ones."""
    plan, contributions, _ = planned_with_fixes(config, rows, left, slot)
    return plan, contributions


def planned_with_fixes(
    config: Config, rows: np.ndarray, left: np.ndarray | int | None = None, slot: int = SLOT
) -> tuple[Plan, Contributions, Fixes | None]:
    """The same, and the fixes of the window's histograms; None if none are configured."""
    contributions, slotting = contributions_of(rows, config), config.slotting
    fixes = fixes_of(rows, histogram_box(config))
    budgets = np.full(contributions.counts.n_users, config.privacy.ledger_budget)
    budgets[:] = config.privacy.ledger_budget if left is None else left
    window, period = slotting.window(slot), slotting.period_of(slot)
    return plan_window(contributions.counts, budgets, config, window, period, GENERATION, fixes), contributions, fixes


def released(config: Config, rows: np.ndarray, noise: Noise | None = None, slot: int = SLOT) -> list[Message]:
    """Every message of the window at ``slot``, with its histograms."""
    plan, contributions, fixes = planned_with_fixes(config, rows, slot=slot)
    return build_messages(plan, contributions, noise or Noise(), config, None, fixes)[0]


def bodies_of(messages: list[Message], topic: str = SPATIAL_HISTOGRAM) -> list[dict[str, Any]]:
    """The decoded values of the messages of one topic."""
    return [json.loads(message.value) for message in messages if message.topic == topic]


def build_messages(
    plan: Plan,
    contributions: Contributions,
    noise: Noise,
    config: Config,
    memory: Memory | None,
    fixes: Fixes | None = None,
) -> tuple[list[Message], Memory | None]:
    """Every message of the first window of a feed, and the memory after it."""
    columns, histograms = draw(plan, contributions, noise), draw_histograms(plan, fixes, noise)
    return compose(plan, contributions.counts, columns, config, memory, histograms, sequence=1)
