"""A window planned, drawn and written as messages without a server, for tests of what is released. Computes a feed's
memory from its published messages alone, as any reader of the output topics can. Verifies lines of releases as
``hexveil verify`` does."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from dpcore.spatial.regions import Footprints
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.lines import read_line
from stream.messages.message import SPATIAL_HISTOGRAM, Message
from stream.messages.verification import Record, Verification
from stream.statistics.columns import Columns
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.histograms.histograms import draw_histograms, region_domain, regions_of
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Due, Plan
from stream.statistics.smoothing_state import Memory, identity, step
from stream.statistics.window_release import WindowStatistics, plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from stream.terms import FixRules, Terms, UserLimits
from stream.windows import Window
from tests.support.builders import SLOT


def recalled(bodies: Sequence[dict[str, Any]], marker: dict[str, Any], memory: Memory | None) -> Memory | None:
    """The memory after a window whose messages say ``bodies`` and ``marker``."""
    ends = [int(datetime.fromisoformat(marker["window"][end]).timestamp()) for end in ("start", "end")]
    upper, timezone = marker["clipping"]["upper"], marker["period"]["timezone"]
    typical = marker["memory"].get("typical")
    named = {"upper": upper, "timezone": timezone, "typical": typical}
    return step(memory, bodies, Window(*ends), **named, area=marker.get("area"))[0]


def recalled_from(windows: Sequence[Sequence[Message]]) -> Memory | None:
    """The memory after several windows, in the order in which their markers chain."""
    memory = None
    for messages in windows:
        *bodies, marker = (json.loads(message.value) for message in messages)
        assert marker["memory"]["before"] == identity(memory)
        memory = recalled(bodies, marker, memory)
        assert marker["memory"]["after"] == identity(memory)
    return memory


def verified(lines: list[str], **given: Any) -> dict[str, Any]:
    """The report on ``lines``; ``given``: keys and digests that the reader holds."""
    verification = Verification(**given)
    for number, text in enumerate(lines, start=1):
        line = read_line(text.encode())
        verification.take(Record(line.topic, line.headers, bytes(line.value), f"line {number}"))
    return verification.finish()


GENERATION = "11111111-1111-4111-8111-111111111111"


def due_of(config: Config, slot: int = SLOT) -> Due:
    """The window at ``slot``, without limits and rules, because made-up rows jump."""
    terms = msgspec.structs.replace(Terms.of(config), rules=FixRules(), limits=UserLimits())
    return Due(terms, terms.window_at(slot), GENERATION)


def planned(
    config: Config, rows: np.ndarray, left: np.ndarray | int | None = None, slot: int = SLOT
) -> tuple[Plan, Contributions]:
    """The service's plan of the window at ``slot``, and its contributions. ``left``: budgets, by default untouched
    ones."""
    plan, contributions, _ = planned_with_fixes(config, rows, left, slot)
    return plan, contributions


def planned_with_fixes(
    config: Config, rows: np.ndarray, left: np.ndarray | int | None = None, slot: int = SLOT
) -> tuple[Plan, Contributions, Fixes | None]:
    """The same, and the fixes of the window's histograms; None if none are configured."""
    due = due_of(config, slot)
    read = WindowRows.of(rows, due.terms.reading)
    budget = config.privacy.ledger_budget
    budgets = np.full(read.counts.n_users, budget)
    budgets[:] = budget if left is None else left
    return plan_window(read, due, Allowance(budgets, budget), public_cells(config)), read.contributions, read.fixes


def plan_of(statistics: WindowStatistics, rows: np.ndarray) -> tuple[Plan, WindowRows]:
    """The plan that the service makes of the first window, limits and rules included, and the rows that it reads."""
    window = statistics.terms.window_at(SLOT)
    arranged = statistics.arrange(rows, window)
    left = np.full(arranged.counts.n_users, statistics.terms.privacy.budget)
    return statistics.plan(arranged, Due(statistics.terms, window, GENERATION), Allowance(left, 10**9)), arranged


def components_of(plan: Plan, fixes: Fixes) -> np.ndarray:
    """Counts of the Euler histogram before noise."""
    histogram = plan.terms.histogram
    domain, diameter_m = region_domain(histogram), histogram.regions.diameter_m
    return Footprints.of(regions_of(histogram, fixes), domain, diameter_m).total()


def released(config: Config, rows: np.ndarray, noise: Noise | None = None, slot: int = SLOT) -> list[Message]:
    """Every message of the window at ``slot``, with its histograms."""
    plan, contributions, fixes = planned_with_fixes(config, rows, slot=slot)
    return build_messages(plan, contributions, noise or Noise(), None, fixes)[0]


def bodies_of(messages: list[Message], topic: str = SPATIAL_HISTOGRAM) -> list[dict[str, Any]]:
    """The decoded values of the messages of one topic."""
    return [json.loads(message.value) for message in messages if message.topic == topic]


def draw(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """The columns of a plan, by the statistics of its relation."""
    return speed_of(plan.terms).draw(plan, contributions, noise)


def cell_bodies(plan: Plan, contributions: Contributions, columns: dict[str, Columns]) -> list[dict[str, Any]]:
    """The body of every cell's message, without post-processed values."""
    return speed_of(plan.terms).body(plan, contributions.counts, columns)


def build_messages(
    plan: Plan, contributions: Contributions, noise: Noise, memory: Memory | None = None, fixes: Fixes | None = None
) -> tuple[list[Message], Memory | None]:
    """Every message of the first window of a feed, and the memory after it."""
    columns, histograms = draw(plan, contributions, noise), draw_histograms(plan, fixes, noise)
    bodies = cell_bodies(plan, contributions, columns)
    return compose(plan, bodies, columns, memory, histograms, sequence=1)
