"""Sections ``[privacy]`` and ``[ledger]``: the most that one user may lose in a window and in a period, and the unit in
which it is counted.

Section ``[signing]``: the key with which close markers are signed, so that others can tell who made them.

What zCDP under relation "values", residual clipping and rolling grants need of the rest of a configuration.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpcore.accounting import NANO, epsilon_of_rho, rho_of
from dpcore.budget import MICRO, from_micro, to_micro
from dpcore.errors import BudgetError, DPError
from dpcore.relation import NeighbouringRelation
from stream.config.feed import FeedName
from stream.config.section import PositiveDuration, Section
from stream.config.speed import FROM_BINS, SpeedConfig


class SigningConfig(Section):
    """``key_file``: an Ed25519 private key in PEM. Without this section close markers are chained and not signed."""

    key_file: Path


MAX_DELTA = 1e-5
"""Largest delta that a release may state."""
LEDGER_UNITS = {"pure": ("micro_epsilon", MICRO), "zcdp": ("nano_rho", NANO)}
"""Unit of the ledger under each accounting, and how many of them make 1."""


def _hours(text: object) -> object:
    """``"05:00-24:00"`` as seconds since local midnight: begin and end; an end before the begin is on the next day."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)", text)
    if match is None:
        raise ValueError(f"{text!r} are no hours of service; write them like '05:00-24:00'")
    hours = [int(part) for part in match.groups()]
    begin, end = (3600 * hours[at] + 60 * hours[at + 1] for at in (0, 2))
    if begin == end or max(begin, end) > 86_400 or begin == 86_400:
        raise ValueError(
            f"{text!r} are no hours of service; they begin before 24:00 and end at another time, at most 24:00"
        )
    return begin, end


class HorizonConfig(Section):
    """Blocks of several periods, and the most that one user may lose in all releases of a block."""

    period: PositiveDuration
    budget: float = Field(gt=0, le=100_000)


class PrivacyConfig(Section):
    """The most that one user may lose per window and per period.

    ``accounting`` "pure": ε-DP, δ = 0, counted in µε; ``epsilon`` is that of a window, ``budget`` that of a period.
    "zcdp": ρ-zCDP, counted in nρ; ``budget`` is the ε of a period at ``delta``. It counts as the most ρ that converts
    to it, and pays for so many ``windows``. With ``admission`` "rolling" it pays for all of them, so ``windows`` and
    ``epsilon`` are left out. "paced": a budget that is too small for all windows of a period is spread over them
    (:mod:`stream.statistics.plan`). ``service``: hours of service, local time, like "05:00-24:00", by which "rolling"
    counts the windows left. ``horizon``: a second budget, for blocks of several periods.
    """

    accounting: Literal["pure", "zcdp"] = "pure"
    given_epsilon: float | None = Field(default=None, alias="epsilon", gt=0, le=1000)
    given_budget: float = Field(alias="budget", gt=0, le=100_000)
    delta: float | None = Field(default=None, gt=0)
    windows: int | None = Field(default=None, ge=1, le=100_000)
    period: PositiveDuration = timedelta(days=1)
    admission: Literal["first-come", "paced", "rolling"] = "first-come"
    service: Annotated[tuple[int, int], BeforeValidator(_hours)] | None = None
    horizon: HorizonConfig | None = None
    user_key_file: Path = Path("var/user.key")

    def _problems(self) -> Iterator[str]:
        given = {"epsilon": self.given_epsilon, "delta": self.delta, "windows": self.windows}
        needed = {"delta"} if self.accounting == "zcdp" else set[str]()
        of_a_window = "windows" if self.accounting == "zcdp" else "epsilon"
        if self.admission != "rolling":
            needed |= {of_a_window}
        for name, value in given.items():
            if value is None and name in needed:
                yield f"accounting '{self.accounting}' needs {name}; set it"
            if value is not None and name == of_a_window and name not in needed:
                yield f"admission 'rolling' shares a budget over all windows; leave {name} out"
            if value is not None and name not in needed:
                yield f"accounting '{self.accounting}' takes no {name}; remove it"
        if self.delta is not None and self.delta > MAX_DELTA:
            yield (
                f"delta {self.delta} is above {MAX_DELTA}. With this probability the promise may fail for a user; "
                "choose far less than 1 divided by the number of users, for example 1e-6"
            )
        if self.service is not None and self.admission != "rolling":
            yield f"service is for admission 'rolling', not {self.admission!r}; remove it"
        try:
            grant, budget, block = self.ledger_grant, self.ledger_budget, self.horizon_budget
        except DPError as error:
            yield f"budget: {error}"
        if self.given_epsilon is not None and budget < grant:
            yield (
                f"budget {self.given_budget} is below epsilon {self.given_epsilon}, so no window could ever be "
                "released; raise budget or lower epsilon"
            )
        if grant < 1:
            yield "one window gets less than the smallest unit of the ledger; raise budget or lower windows"
        if self.horizon is not None and block < budget:
            yield (
                "privacy.horizon.budget is below privacy.budget, so no period could be spent; raise the former or "
                "lower the latter"
            )

    @cached_property
    def epsilon(self) -> float:
        """ε of one user in one window; under zCDP that of its ρ at delta, rounded up."""
        return self.stated_epsilon(self.ledger_grant) if self.given_epsilon is None else self.given_epsilon

    @cached_property
    def budget(self) -> float:
        """ε of one user in one period; under zCDP that of its ρ at delta, rounded up."""
        return self.given_budget if self.delta is None else self.stated_epsilon(self.ledger_budget)

    @cached_property
    def epsilon_micro(self) -> int:
        """The most that one user may lose in one window, in µε. Raises :class:`BudgetError` under zCDP."""
        if self.given_epsilon is None:
            raise BudgetError("this configuration counts nρ (accounting 'zcdp'); µε belong to accounting 'pure'")
        return to_micro(self.given_epsilon, round_up=False)

    @cached_property
    def ledger_grant(self) -> int:
        """The most that one user may lose in one window by statistics of speed, in the ledger's unit."""
        return self.ledger_budget // (self.windows or 1) if self.given_epsilon is None else self.epsilon_micro

    @cached_property
    def ledger_budget(self) -> int:
        """The most that one user may lose in one period, in the ledger's unit."""
        return self.units(self.given_budget)

    @cached_property
    def horizon_budget(self) -> int:
        """The most that one user may lose in one block of the horizon, in the ledger's unit; 0 without a horizon."""
        return 0 if self.horizon is None else self.units(self.horizon.budget)

    def keys_for(self, grant: int, budget: int) -> dict[str, float | None]:
        """The keys that give a window and a period these amounts of the ledger's unit.

        Under zCDP ``windows`` is whole, so that a window has ``grant`` or little more.
        """
        stated = self.stated_epsilon(budget)
        if self.given_epsilon is not None:
            return {"epsilon": self.stated_epsilon(grant), "budget": stated}
        if self.admission == "rolling":
            return {"budget": stated}
        return {"budget": stated, "windows": max(budget // grant, 1)}

    def units(self, epsilon: float) -> int:
        """``epsilon`` in the ledger's unit, rounded down; under zCDP the most ρ that converts to it at delta."""
        return to_micro(epsilon, round_up=False) if self.delta is None else rho_of(epsilon, self.delta)

    def stated_epsilon(self, units: int) -> float:
        """An amount of the ledger's unit as ε; under zCDP converted at delta, rounded up."""
        return from_micro(units) if self.delta is None else epsilon_of_rho(units, self.delta)

    @property
    def ledger_unit(self) -> tuple[str, int]:
        """Name of the ledger's unit (µε, or nρ under zCDP), and how many of them make 1."""
        return LEDGER_UNITS[self.accounting]


class LedgerConfig(Section):
    """The ledger that this feed shares with all feeds that name it. Without it a feed has a ledger of its own."""

    name: FeedName


Needs = dict[str, tuple[bool, str]]
"""For each key whether it prevents the setting, and why or what to write instead."""


def live_problems(
    relation: NeighbouringRelation, privacy: PrivacyConfig, speed: SpeedConfig, shared: bool, histogram: bool
) -> Iterator[str]:
    """A sentence for each choice that others are in the way of. ``shared``: whether feeds share the ledger."""
    values, zcdp = relation == NeighbouringRelation.VALUES, privacy.accounting == "zcdp"
    chosen: dict[str, tuple[bool, Needs]] = {
        "privacy.accounting 'zcdp' under 'values'": (values and zcdp, _gaussian(speed)),
        "speed.clipping 'residual'": (speed.clipping == "residual", _residual(speed, values)),
        "privacy.admission 'rolling'": (privacy.admission == "rolling", _rolling(speed, values, shared, histogram)),
    }
    for name, (applies, needs) in chosen.items():
        problems = [f"{key}: {why}" for key, (bad, why) in needs.items() if bad]
        if applies and problems:
            yield f"not with {name}: " + "; ".join(problems)


def _gaussian(speed: SpeedConfig) -> Needs:
    return {
        "speed.mean_mechanism": (
            speed.mean_mechanism != "allocated",
            "the papers' mechanisms are for pure ε; set it to 'allocated'",
        ),
        "speed.suppression": (speed.suppression != "none", "CHOP-USER is for pure ε; set it to 'none'"),
        "speed.allocation": (speed.allocation != "exact-loss", "set it to 'exact-loss'"),
        "speed.sum_cap": (speed.sum_cap != 0, "residual clipping takes its place; set it to 0"),
        "speed.statistics": (
            bool(set(speed.statistics) & set(FROM_BINS)),
            "trees of percentiles have Laplace noise; use mean, moving_mean and variance",
        ),
    }


def _residual(speed: SpeedConfig, values: bool) -> Needs:
    return {
        "speed.statistics": (
            not values and "variance" in speed.statistics,
            "clipped means of users do not give the variance of speeds; leave out 'variance'",
        ),
        "speed.post_processing": ("kalman" not in speed.post_processing, "only 'kalman' foretells; add it"),
        "speed.mean_mechanism": (
            speed.mean_mechanism != "allocated",
            "the papers' mechanisms choose ranges of their own; set it to 'allocated'",
        ),
        "speed.sum_cap": (speed.sum_cap != 0, "it takes the place of caps; set it to 0"),
    }


def _rolling(speed: SpeedConfig, values: bool, shared: bool, histogram: bool) -> Needs:
    one_grant = "it shares one grant among all users; set it to"
    return {
        "relation": (not values, "noise would follow what each user did before; set admission to 'paced'"),
        "speed.mean_mechanism": (speed.mean_mechanism != "allocated", f"{one_grant} 'allocated'"),
        "speed.suppression": (speed.suppression != "none", f"{one_grant} 'none'"),
        "ledger": (shared, "noise would follow when another feed draws; leave it out"),
        "histogram": (histogram, "histograms charge whole grants; leave it out"),
    }
