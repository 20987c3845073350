"""Sections ``[privacy]`` and ``[ledger]``: the most that one user may lose in a window and in a period, and the unit in
which it is counted."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dpcore.accounting import MAX_RHO, NANO, epsilon_of_rho, rho_of, to_nano
from dpcore.budget import MICRO, from_micro, to_micro
from dpcore.errors import BudgetError, DPError
from stream.config.durations import PositiveDuration
from stream.config.feed import FeedName
from stream.config.section import Section

MAX_DELTA = 1e-5
"""Largest delta that a release may state."""
LEDGER_UNITS = {"pure": ("micro_epsilon", MICRO), "zcdp": ("nano_rho", NANO)}
"""Unit of the ledger under each accounting, and how many of them make 1."""


class HorizonConfig(Section):
    """Blocks of several periods, and the most that one user may lose in all releases of a block: budget, or rho_budget
    under zCDP."""

    period: PositiveDuration
    budget: float | None = Field(default=None, gt=0, le=100_000)
    rho_budget: float | None = Field(default=None, gt=0, le=MAX_RHO)


class PrivacyConfig(Section):
    """The most that one user may lose per window and per period: epsilon and budget, or rho and rho_budget under zCDP.

    ``accounting`` "pure": ε-DP, δ = 0, counted in µε. "zcdp": ρ-zCDP, counted in nρ. It is given as a budget (the ε of
    a period) with ``delta`` and the number of ``windows`` that the budget pays for, or as rho and rho_budget; the
    others are converted. With ``admission`` "rolling" it pays for all windows, so ``windows`` is left out. "paced": a
    budget that is too small for all windows of a period is spread over them (:mod:`stream.statistics.pacing`).
    ``horizon``: a second budget, for blocks of several periods.
    """

    accounting: Literal["pure", "zcdp"] = "pure"
    given_epsilon: float | None = Field(default=None, alias="epsilon", gt=0, le=1000)
    given_budget: float | None = Field(default=None, alias="budget", gt=0, le=100_000)
    rho: float | None = Field(default=None, gt=0, le=MAX_RHO)
    rho_budget: float | None = Field(default=None, gt=0, le=MAX_RHO)
    delta: float | None = Field(default=None, gt=0)
    windows: int | None = Field(default=None, ge=1, le=100_000)
    period: PositiveDuration = timedelta(days=1)
    admission: Literal["first-come", "paced", "rolling"] = "first-come"
    horizon: HorizonConfig | None = None
    user_key_file: Path = Path("var/user.key")

    @model_validator(mode="before")
    @classmethod
    def _rho_of_a_budget(cls, given: Any) -> Any:
        """Under zCDP, rho and rho_budget in place of a budget: the most ρ that converts to it."""
        if not isinstance(given, dict) or given.get("accounting") != "zcdp" or given.get("budget") is None:
            return given
        rolling = given.get("admission") == "rolling"
        if given.get("rho_budget") is not None or given.get("rho") is not None:
            raise ValueError("accounting 'zcdp' takes budget or rho_budget and rho, not both; remove one")
        if rolling != (given.get("windows") is None):
            raise ValueError(
                "admission 'rolling' shares a budget over all windows; leave windows out"
                if rolling
                else "accounting 'zcdp' with a budget needs windows, the number of windows that it pays for; set it"
            )
        try:
            budget, windows = float(given["budget"]), 1 if rolling else int(given["windows"])
            units = rho_of(budget, float(given["delta"]))
        except (DPError, KeyError, TypeError, ValueError):
            return given
        if windows < 1:
            raise ValueError(f"windows {windows} is below 1; a budget pays for 1 or more")
        rest = {name: value for name, value in given.items() if name not in ("budget", "windows")}
        return rest | {"rho_budget": units / NANO, "rho": units // windows / NANO}

    @model_validator(mode="after")
    def _one_accounting(self) -> Self:
        pure = {"epsilon": self.given_epsilon, "budget": self.given_budget}
        if self.windows is not None:
            raise ValueError("windows belongs to accounting 'zcdp' with a budget; remove it")
        zcdp = {"rho": self.rho, "rho_budget": self.rho_budget, "delta": self.delta}
        wanted, other = (zcdp, pure) if self.accounting == "zcdp" else (pure, zcdp)
        missing = [name for name, value in wanted.items() if value is None]
        foreign = [name for name, value in other.items() if value is not None]
        if missing:
            raise ValueError(f"accounting '{self.accounting}' needs {', '.join(missing)}; set it")
        if foreign:
            why = "epsilon and budget are converted from rho" if self.accounting == "zcdp" else "they belong to 'zcdp'"
            raise ValueError(f"accounting '{self.accounting}' takes no {', '.join(foreign)} ({why}); remove it")
        return self

    @model_validator(mode="after")
    def _horizon_counts_as_the_period_does(self) -> Self:
        if self.horizon is None:
            return self
        wanted, other = ("rho_budget", "budget") if self.accounting == "zcdp" else ("budget", "rho_budget")
        if getattr(self.horizon, wanted) is None or getattr(self.horizon, other) is not None:
            raise ValueError(
                f"privacy.horizon under accounting '{self.accounting}' needs {wanted} and no {other}; set that"
            )
        if self.horizon_budget < self.ledger_budget:
            raise ValueError(
                f"privacy.horizon.{wanted} is below privacy.{wanted}, so no period could be spent; raise the former or "
                "lower the latter"
            )
        return self

    @model_validator(mode="after")
    def _budget_covers_a_window(self) -> Self:
        if self.delta is not None and self.delta > MAX_DELTA:
            raise ValueError(
                f"delta {self.delta} is above {MAX_DELTA}. With this probability the promise may fail for a user; "
                "choose far less than 1 divided by the number of users, for example 1e-6"
            )
        least, most = (self.rho, self.rho_budget) if self.accounting == "zcdp" else (self.epsilon, self.budget)
        names = ("rho", "rho_budget") if self.accounting == "zcdp" else ("epsilon", "budget")
        if least is not None and most is not None and most < least:
            raise ValueError(
                f"{names[1]} {most} is below {names[0]} {least}, so no window could ever be released; raise {names[1]} "
                f"or lower {names[0]}"
            )
        if self.ledger_grant < 1:
            raise ValueError(f"{names[0]} {least} is below the smallest unit of the ledger; raise it")
        return self

    @cached_property
    def epsilon(self) -> float:
        """ε of one user in one window; under zCDP converted from rho at delta, rounded up."""
        return self._stated(self.given_epsilon, self.rho)

    @cached_property
    def budget(self) -> float:
        """ε of one user in one period; under zCDP converted from rho_budget at delta, rounded up."""
        return self._stated(self.given_budget, self.rho_budget)

    def _stated(self, given: float | None, rho: float | None) -> float:
        if rho is None or self.delta is None:
            return self._pure(given)
        return epsilon_of_rho(to_nano(rho, round_up=True), self.delta)

    @cached_property
    def epsilon_micro(self) -> int:
        """The most that one user may lose in one window, in µε. Raises :class:`BudgetError` under zCDP."""
        return to_micro(self._pure(self.given_epsilon), round_up=False)

    @cached_property
    def budget_micro(self) -> int:
        """The most that one user may lose in one period, in µε. Raises :class:`BudgetError` under zCDP."""
        return to_micro(self._pure(self.given_budget), round_up=False)

    def _pure(self, given: float | None) -> float:
        if given is None:
            raise BudgetError("this configuration counts nρ (accounting 'zcdp'); µε belong to accounting 'pure'")
        return given

    @cached_property
    def ledger_grant(self) -> int:
        """The most that one user may lose in one window by statistics of speed, in the ledger's unit."""
        return self.epsilon_micro if self.rho is None else to_nano(self.rho, round_up=False)

    @cached_property
    def ledger_budget(self) -> int:
        """The most that one user may lose in one period, in the ledger's unit."""
        return self.budget_micro if self.rho_budget is None else to_nano(self.rho_budget, round_up=False)

    @cached_property
    def horizon_budget(self) -> int:
        """The most that one user may lose in one block of the horizon, in the ledger's unit; 0 without a horizon."""
        if self.horizon is None:
            return 0
        if self.horizon.rho_budget is not None:
            return to_nano(self.horizon.rho_budget, round_up=False)
        return to_micro(self._pure(self.horizon.budget), round_up=False)

    def stated_epsilon(self, units: int) -> float:
        """An amount of the ledger's unit as ε; under zCDP converted at delta, rounded up."""
        return from_micro(units) if self.delta is None else epsilon_of_rho(units, self.delta)

    @property
    def ledger_unit(self) -> tuple[str, int]:
        """Name of the ledger's unit (µε, or nρ under zCDP), and how many of them make 1."""
        return LEDGER_UNITS[self.accounting]


class LedgerConfig(Section):
    """The ledger that this feed shares with all feeds that name it. Without this section a feed has a ledger of its
    own."""

    name: FeedName
