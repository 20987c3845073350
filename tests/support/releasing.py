"""A window planned, drawn and written as messages without a server, for tests of what is released."""

from __future__ import annotations

import numpy as np

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message
from stream.statistics.histograms.fixes import Fixes
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
    contributions, slotting = contributions_of(rows, config), config.slotting
    budgets = np.full(contributions.counts.n_users, config.privacy.ledger_budget)
    budgets[:] = config.privacy.ledger_budget if left is None else left
    plan = plan_window(
        contributions.counts, budgets, config, slotting.window(slot), slotting.period_of(slot), GENERATION
    )
    return plan, contributions


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
