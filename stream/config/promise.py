"""What a configuration promises over days, and what that means for the odds of a guess. Pure: reads the configuration
alone.

A bound compares the releases with those of the same world in which this user's data of these days are different (under
"values": other measured speeds) or absent (under "participation"). What the crowd's data reveal is not bounded.
"""

import math
from datetime import timedelta
from typing import NamedTuple

from dpcore.relation import NeighbouringRelation
from stream.config.deployment import Config

DAYS = (1, 7, 28, 365)
"""Spans of days over which a promise is stated."""
NAMES = {1: "a day", 7: "a week", 28: "28 days", 365: "a year"}
_DAY = timedelta(days=1)


class Bound(NamedTuple):
    """What all releases about ``days`` consecutive local days may cost one user: ε, at delta under zCDP."""

    days: int
    epsilon: float


class Comparator(NamedTuple):
    """What somebody else published, with which ε, for whom, and where they say so."""

    what: str
    epsilon: str
    unit: str
    source: str


COMPARATORS = (
    Comparator("Google, trips by region and mode of transport", "about 2", "user and week", "arXiv:2407.03496"),
    Comparator("Google, searches about vaccination", "2.19 (δ = 10⁻⁵)", "user and day", "arXiv:2107.01179"),
    Comparator("Google, searches for symptoms", "1.68", "user and day", "arXiv:2009.01265"),
    Comparator(
        "Wikimedia, page views by country",
        "about 1 (δ = 10⁻⁷)",
        "ten pages of a device and day",
        "analytics.wikimedia.org, country_project_page",
    ),
)
"""Published deployments, as their authors state them."""


def bounds(config: Config) -> list[Bound]:
    """The bound of each span of :data:`DAYS`: budgets of the periods that it touches, or of the horizon's blocks if
    that is less.

    Under "participation" with a horizon, a block's budget is for everything that a user did in the block: see ADR 39.
    """
    return [Bound(days, config.privacy.stated_epsilon(_units(config, days))) for days in DAYS]


def one_day_among_others(config: Config) -> float | None:
    """ε of one day's data in all releases of its block, where later days depend on it; None where that is a day's own
    budget."""
    privacy = config.privacy
    if privacy.horizon is None or config.relation == NeighbouringRelation.VALUES:
        return None
    return privacy.stated_epsilon(2 * min(privacy.ledger_budget + config.window_grant, privacy.horizon_budget))


def _units(config: Config, days: int) -> int:
    privacy = config.privacy
    periods = days * -(-_DAY // privacy.period) if privacy.period < _DAY else _touched(days, privacy.period.days)
    units = periods * privacy.ledger_budget
    if privacy.horizon is not None:
        units = min(units, _touched(days, privacy.horizon.period.days) * privacy.horizon_budget)
    return units


def _touched(days: int, length: int) -> int:
    """The most stretches of ``length`` days that ``days`` consecutive days can touch."""
    return days if length == 1 else -(-(days - 1) // length) + 1


def posterior(prior: float, epsilon: float) -> float:
    """The most that a belief of probability ``prior`` can become where odds change by at most e^epsilon."""
    odds = math.log(prior) - math.log1p(-prior) + epsilon
    return 1 / (1 + math.exp(-odds)) if odds < 700 else 1.0


def factor(epsilon: float) -> str:
    """e^epsilon for people: three digits, in full below a million, else as a power of ten."""
    if epsilon < math.log(1e6):
        value = math.exp(epsilon)
        return f"{value:.1f}" if value < 10 else f"{value:,.0f}".replace(",", " ")
    return f"10^{epsilon / math.log(10):.0f}"


def percent(probability: float) -> str:
    """A probability for people, with so many digits that its distance to certainty shows."""
    distance = 100 * (1 - probability)
    if distance < 1e-6:
        return "nearly 100 %"
    decimals = max(1, math.ceil(-math.log10(distance)))
    return f"{100 * probability:.{decimals}f} %"
