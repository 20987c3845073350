"""Every small world of relation "participation", the real planner, rational arithmetic: the largest loss of any user.

A world says which cells each of 3 users visits in each of 3 windows; its neighbour lacks one of them altogether.
"""

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

from dpcore.contributions import Contributions, Counts
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.statistics.participation.draw import plan_participation
from stream.statistics.plan import Allowance, Due, Plan, encode_plan
from stream.statistics.window_rows import contributions_of
from stream.storage.row_store import ROW
from stream.terms import Terms
from stream.windows import Window
from tests.audit.observed import Observation, loss_between, observe
from tests.support.builders import SLOT, zcdp_config
from tests.support.participating import riders

USERS, WINDOWS = 3, 3
NOWHERE: tuple[int, ...] = ()
VISITS = (NOWHERE, (0,), (1,), (0, 1))
"""Cells that one user visits in one window."""
Planner = Callable[[Counts, np.ndarray, Config], Plan]
Visits = tuple[tuple[int, ...], ...]
Spent = tuple[int, ...]
Budgets = tuple[Spent, Spent]
"""What the users of a world, and of its neighbour, have spent."""
PAIRS = [
    [
        (visits, tuple(NOWHERE if user == gone else where for user, where in enumerate(visits)))
        for visits in itertools.product(VISITS, repeat=USERS)
    ]
    for gone in range(USERS)
]
"""All windows of a world, and of its neighbour without each of the users."""
NO_LOSS = Fraction(0)
Outcome = tuple[Observation, Spent]
"""What the shipped draw added noise to, with which scales, and what each user was charged."""


WINDOW = Window(SLOT, SLOT + 3600)
"""The one timeslot that every plan is for."""


@cache
def terms_of(config: Config) -> Terms:
    return Terms.of(config)


def honest(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """The real planner."""
    allowance = Allowance(left, config.privacy.ledger_budget)
    return plan_participation(counts, Due(terms_of(config), WINDOW, "g"), allowance, public_cells(config))


class Worlds:
    """Windows of one configuration and planner, each planned once: users 1..3 with measured values 0, U and U/2.

    The draw is given a plan and the rows alone, so windows whose plans are the same bytes are drawn once.
    """

    def __init__(self, config: Config, planner: Planner) -> None:
        self.config, self.planner = config, planner
        self.cells = public_cells(config)[:2].tolist()
        self.windows: dict[tuple[Visits, Spent], Outcome] = {}
        self.rows: dict[Visits, Contributions] = {}
        self.drawn: dict[tuple[Visits, bytes], Observation] = {}
        self.losses: dict[tuple[int, int], Fraction] = {}

    def contributions(self, visits: Visits) -> Contributions:
        """The rows of one window."""
        if visits not in self.rows:
            upper = self.config.value.upper_quanta
            events = [
                (self.cells[c], user + 1, c, 0, 0, (0, upper, upper // 2)[user])
                for user, where in enumerate(visits)
                for c in where
            ]
            self.rows[visits] = contributions_of(np.array(events, dtype=ROW), self.config.value.upper_quanta)
        return self.rows[visits]

    def observed(self, visits: Visits, plan: Plan) -> Observation:
        """What the draw under ``plan`` shows."""
        key = (visits, encode_plan(plan))
        if key not in self.drawn:
            self.drawn[key] = observe(plan, self.contributions(visits))
        return self.drawn[key]

    def window(self, visits: Visits, spent: Spent) -> Outcome:
        """Outcome of one window; budgets of absent users cannot matter, the planner never sees them."""
        key = (visits, of_present(visits, spent))
        if key not in self.windows:
            counts = self.contributions(visits).counts
            users = counts.users.tolist()
            left = np.array([self.config.privacy.ledger_budget - spent[user - 1] for user in users], dtype=np.int64)
            plan = self.planner(counts, left, self.config)
            charged = dict(zip(users, plan.charges.tolist(), strict=True))
            charges = tuple(charged.get(user + 1, 0) for user in range(USERS))
            self.windows[key] = (self.observed(visits, plan), charges)
        return self.windows[key]

    def step(self, gone: int, spent: Budgets) -> dict[Budgets, Fraction]:
        """Largest loss in one window of a world and of its neighbour without user ``gone``, by what is spent after
        it."""
        largest: dict[Budgets, Fraction] = {}
        for visits, without in PAIRS[gone]:
            one, charges = self.window(visits, spent[0])
            other, fewer = self.window(without, spent[1])
            pair = (id(one), id(other))
            if pair not in self.losses:
                self.losses[pair] = loss_between(one, other)
            after, lost = (plus(spent[0], charges), plus(spent[1], fewer)), self.losses[pair]
            if lost > largest.get(after, -1):
                largest[after] = lost
        return largest


def of_present(visits: Visits, spent: Spent) -> Spent:
    """What the users of a window have spent, and 0 for all others."""
    return (spent[0] if visits[0] else 0, spent[1] if visits[1] else 0, spent[2] if visits[2] else 0)


def plus(spent: Spent, charges: Spent) -> Spent:
    """What every user has spent after a window."""
    return (spent[0] + charges[0], spent[1] + charges[1], spent[2] + charges[2])


def worst_loss(config: Config, planner: Planner, windows: int = WINDOWS) -> Fraction:
    """Largest loss of any user, in ε (under zCDP in ρ), over all 4^9 worlds of 3 users, 3 windows and 2 cells.

    The loss of a transcript is the sum over its windows. So of all worlds that reach the same budgets, only the largest
    loss has to be kept.
    """
    worlds, nothing = Worlds(config, planner), (0,) * USERS
    worst = NO_LOSS
    for gone in range(USERS):
        reached = {(nothing, nothing): NO_LOSS}
        for _ in range(windows):
            following: dict[Budgets, Fraction] = {}
            for spent, before in reached.items():
                for after, lost in worlds.step(gone, spent).items():
                    following[after] = max(following.get(after, NO_LOSS), before + lost)
            reached = following
        worst = max(worst, *reached.values())
    return worst


def small_world(
    tmp_path: Path, weight: str, statistics: list[str], budget: float | None = None, **settings: object
) -> Config:
    """ε = 1 per window. Two half-contributions and a third refused (B = 1.5), or two whole ones of three (B = 2)."""
    enough = 2.0 if weight == "share" else 1.5
    return riders(
        tmp_path,
        **{
            "privacy.epsilon": 1.0,
            "privacy.budget": enough if budget is None else budget,
            "participation.weight": weight,
            "participation.cells_per_user": 2,
            "participation.samples_per_cell": 1,
            "speed.statistics": statistics,
            "feed.domain": {"south": 30.2, "west": -97.75, "north": 30.27, "east": -97.65},
            **settings,
        },
    )


AREA = {"participation.area_share": 4, "speed.post_processing": ["kalman"]}
"""The numbers of all cells together are released, too."""


def small_zcdp_world(
    tmp_path: Path, weight: str, statistics: list[str], rho_budget: float = 0.15, **settings: object
) -> Config:
    """ρ = 1/10 per window, shared by two cells, and 3/20 in the period: what fits is decided by exact individual
    losses."""
    return zcdp_config(
        tmp_path,
        rho=0.1,
        rho_budget=rho_budget,
        **{
            "participation.weight": weight,
            "participation.cells_per_user": 2,
            "participation.samples_per_cell": 1,
            "speed.statistics": statistics,
            "hexagons.resolution": 7,
            "feed.domain": {"south": 30.2, "west": -97.75, "north": 30.27, "east": -97.65},
            **settings,
        },
    )
