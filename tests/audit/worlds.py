"""Relation "participation" in exact arithmetic: integers and scales that the shipped draw passes to its source of
noise, and the largest loss of any user over every small world and over forced transcripts.

A world says which cells each of 3 users visits in each of 3 windows; its neighbour lacks one of them altogether.
Transcripts are of four windows with residual clipping: what each user loses at most of what they are charged.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore import participation
from dpcore.accounting import NANO
from dpcore.budget import MICRO
from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.statistics.participation.draw import plan_participation
from stream.statistics.plan import Allowance, Due, Plan, encode_plan
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import contributions_of
from stream.storage.row_store import ROW
from stream.terms import Terms
from stream.windows import Window
from tests.audit.shipped import World, as_drawn
from tests.support.builders import SLOT, SMALL, random_rows, riders, zcdp_config
from tests.support.releasing import draw
from tests.support.tapes import recorded


@dataclass
class Observation:
    """``integers``: (R, C), the numbers to which noise was added. ``t``/``s``: (R, C), the scales that the draw
    requested.
    """

    gaussian: bool = False
    integers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    t: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    s: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class _Added(np.ndarray):
    """Noise of 0 that records the integers to which it is added, and refuses any other use."""

    observation: Observation

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        assert ufunc is np.add, f"the noise was changed by {ufunc.__name__} after it was drawn"
        assert method == "__call__"
        (exact,) = (value for value in inputs if not isinstance(value, _Added))
        observation = next(value for value in inputs if isinstance(value, _Added)).observation
        assert not observation.integers.size, "noise was added twice"
        observation.integers = np.array(exact)
        return np.array(exact)


class _Observing(Noise):
    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation

    def asked(self, numerator: Any, denominator: Any, gaussian: bool) -> np.ndarray:
        t, s = np.broadcast_arrays(np.asarray(numerator), np.asarray(denominator))
        self.observation.t, self.observation.s, self.observation.gaussian = t.copy(), s.copy(), gaussian
        silent = np.zeros(t.shape, dtype=np.int64).view(_Added)
        silent.observation = self.observation
        return silent

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        assert size is None
        return self.asked(numerator, denominator, gaussian=False)


def observe(plan: Plan, contributions: Contributions) -> Observation:
    """Run the shipped draw of the window and return what it passed to its noise."""
    observation = Observation()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(participation, "discrete_gaussian", lambda noise, t, s: noise.asked(t, s, gaussian=True))
        draw(plan, contributions, _Observing(observation))
    assert observation.integers.shape == observation.t.shape, "some number was released without noise"
    assert observation.gaussian == plan.gaussian
    return observation


def loss_between(one: Observation, two: Observation) -> Fraction:
    """Loss between two windows: Σ|Δ|·s/t in ε, under Gaussian noise ΣΔ²·s²/(2t²) in ρ. Their noise must be the same."""
    assert np.array_equal(one.t, two.t), "the scales tell who was there"
    assert np.array_equal(one.s, two.s), "the scales tell who was there"
    moved = one.integers - two.integers
    total = Fraction(0)
    for at in zip(*np.nonzero(moved), strict=True):
        d, t, s = int(moved[at]), int(one.t[at]), int(one.s[at])
        total += Fraction(d * d * s * s, 2 * t * t) if one.gaussian else Fraction(abs(d) * s, t)
    return total


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


def settings_of(weight: str, statistics: list[str]) -> dict[str, Any]:
    """What small worlds of either accounting set: a handful of hexagons, one sample of each user in two of them."""
    return {
        "participation.weight": weight,
        "participation.cells_per_user": 2,
        "participation.samples_per_cell": 1,
        "speed.statistics": statistics,
        "feed.domain": {"south": 30.2, "west": -97.75, "north": 30.27, "east": -97.65},
        "hexagons.resolution": 7,
    }


def small_world(tmp_path: Path, weight: str, statistics: list[str], **settings: Any) -> Config:
    """ε = 1 per window. Two half-contributions and a third refused (B = 1.5), or two whole ones of three (B = 2)."""
    budget = {"privacy.epsilon": 1.0, "privacy.budget": 2.0 if weight == "share" else 1.5}
    return riders(tmp_path, **budget | settings_of(weight, statistics) | settings)


def small_zcdp_world(
    tmp_path: Path, weight: str, statistics: list[str], rho_budget: float = 0.15, **settings: Any
) -> Config:
    """ρ = 1/10 per window, shared by two cells, and 3/20 in the period: what fits is decided by exact individual
    losses."""
    return zcdp_config(tmp_path, rho=0.1, rho_budget=rho_budget, **settings_of(weight, statistics) | settings)


AREA = {"participation.area_share": 4, "speed.post_processing": ["kalman"]}
"""The numbers of all cells together are released, too."""
OF_EPSILON: list[tuple[str, list[str], dict[str, Any]]] = [
    ("share", ["mean", "variance", "p50"], {}),
    ("share", ["mean", "variance", "p50"], AREA),
    ("user", ["mean", "p85"], {}),
    ("sample", ["mean", "variance"], {}),
    ("share", ["mean", "moving_mean"], {}),
]
"""Weight, statistics and settings of small worlds."""
OF_RHO: list[tuple[str, list[str], dict[str, Any]]] = [
    ("share", ["mean", "variance"], {}),
    ("share", ["mean"], AREA | {"rho_budget": 0.2}),  # that of two windows: nobody's losses add up to 0.15
    ("user", ["mean", "p85"], {}),
    ("sample", ["mean"], {}),
    ("user", ["moving_mean"], {}),
]


PERIODS = 4
RESIDUAL: dict[str, Any] = {
    "speed.clipping": "residual",
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean", "p50"],
    "participation.cells_per_user": 2,
    "participation.samples_per_cell": 3,
}


def config_of(tmp_path: Path, weight: str, accounting: str) -> Config:
    settings = RESIDUAL | {"participation.weight": weight}
    if accounting == "zcdp":
        return zcdp_config(tmp_path, rho=0.1, rho_budget=0.35, **SMALL | settings)
    return riders(tmp_path, **settings | {"privacy.epsilon": 1.0, "privacy.budget": 3.5})


def worst_shares(config: Config, planner: Callable[..., Plan] = plan_window, seed: int = 3) -> list[Fraction]:
    """Of each user the part of their charges that all windows together lose, at most."""
    world, lost, noise = World(config, planner), dict[int, Fraction](), recorded(seed)
    for number in range(PERIODS):
        slot = SLOT + 3600 * number
        rows = random_rows(seed + number, 60, users=7, places=2, slot=slot)
        plan, read = world.plan(rows, slot)
        assert number < 2 or plan.ranges is not None, "the first windows give the ranges of the others"
        contributions = as_drawn(plan, read)
        seen = observe(plan, contributions)
        for user in plan.users.tolist():
            other, without = world.plan(rows[rows["user"] != user], slot)
            for here, there in zip(public_part(plan), public_part(other), strict=True):
                assert np.array_equal(here, there), "the public part of a plan looked at this window"
            apart = loss_between(seen, observe(other, as_drawn(other, without)))
            lost[user] = lost.get(user, Fraction(0)) + apart
        world.released(plan, contributions, draw(plan, contributions, noise))
    assert max(world.spent.values()) <= config.privacy.ledger_budget
    unit = NANO if config.privacy.accounting == "zcdp" else MICRO
    return [amount * unit / world.spent[user] for user, amount in lost.items() if user in world.spent]


def public_part(plan: Plan) -> list[np.ndarray]:
    """What of a plan follows from earlier releases and the terms: scales and ranges."""
    part = plan.participation
    ranges = [column for column in (part.lower, part.upper, part.foretold) if column is not None]
    return [plan.cells, plan.numerators, plan.denominators, *ranges]
