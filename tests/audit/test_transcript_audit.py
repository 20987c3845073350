"""Exact transcript audit of relation "participation": every small world, the real planner, rational arithmetic.

A world says which cells each of 3 users visits in each of 3 windows; its neighbour lacks one of them altogether. Every
window goes through the service's own plan and charge code, with what the worlds before it left of the budgets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpcore.accounting import NANO
from dpcore.contributions import Counts
from stream.config import Config
from stream.statistics.plan import ParticipationPart, Plan
from tests.audit.worlds import (
    AREA,
    WINDOWS,
    Planner,
    honest,
    small_world,
    small_zcdp_world,
    worst_loss,
)
from tests.support.nightly import nightly, nightly_but

FEW = 2
"""Windows in which a planted bug shows where the budget is one window and a half: what the first one charges, or does
not, decides about the second."""


def in_ranges(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """The real planner with ranges of users' means that follow from earlier releases and differ between cells."""
    plan = honest(counts, left, config)
    lower = 500 * np.arange(len(plan.cells))
    return msgspec.structs.replace(plan, participation=ParticipationPart(lower=lower, upper=lower + 3000))


def first_contributors(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: a cell takes its first contributor only, so one user decides about another."""
    plan = honest(counts, left, config)
    kept = plan.retained
    first = np.zeros(len(kept), dtype=bool)
    for start, end in itertools.pairwise(counts.cell_start.tolist()):
        paying = np.flatnonzero(kept[start:end])
        first[start + paying[:1]] = True
    return msgspec.structs.replace(plan, retained=(np.where(first, kept, 0)))


def charged_after(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: admitted while anything is left, charged afterwards."""
    return honest(counts, np.where(left > 0, config.privacy.ledger_budget, 0), config)


def refund_on_restart(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: a worker that starts again before every window forgets what the earlier ones charged."""
    return honest(counts, np.full(len(left), config.privacy.ledger_budget), config)


def half_the_scale(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: half the noise that was charged for."""
    plan = honest(counts, left, config)
    doubled = 2 * plan.scales.denominator
    return msgspec.structs.replace(plan, denominators=(doubled))


def half_the_scale_of_the_area(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: half the noise that was charged for, in the numbers of the area alone."""
    plan = honest(counts, left, config)
    doubled = plan.scales.denominator.copy()
    doubled[-1] *= 2
    return msgspec.structs.replace(plan, denominators=(doubled))


def loss_of_the_mean_cell(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: ρ is charged once for a user's two cells, as if they were in one of them."""
    plan = honest(counts, left, config)
    charges = plan.charges
    cells = np.maximum(counts.by_user((plan.retained > 0).astype(np.int64)), 1)
    return msgspec.structs.replace(plan, charges=(charges // cells))


def others_charges(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """Planted bug: one user who cannot pay silences their whole window."""
    plan = honest(counts, left, config)
    charges = plan.charges
    if (charges > 0).all():
        return plan
    return msgspec.structs.replace(plan, retained=np.zeros(len(counts.samples), dtype=np.int64))


@pytest.mark.parametrize(
    ("weight", "statistics"),
    [
        ("share", ["mean", "variance", "p50"]),
        nightly("user", ["mean", "p85"]),
        ("sample", ["mean", "variance"]),
        ("share", ["moving_mean", "p50"]),
    ],
)
def test_the_worst_loss_over_all_worlds_of_three_users_and_windows_is_the_budget(
    tmp_path: Path, weight: str, statistics: list[str], record_property: Callable[[str, object], None]
) -> None:
    config = small_world(tmp_path, weight, statistics)
    worst, charged = worst_loss(config, honest), Fraction(config.privacy.ledger_budget, 1_000_000)
    record_property("loss", {"worst": float(worst), "charged": float(charged)})
    assert worst == charged


@pytest.mark.parametrize("weight", nightly_but(["user"], ["share", "user", "sample"]))
def test_ranges_from_earlier_releases_cost_nothing(tmp_path: Path, weight: str) -> None:
    config = small_world(tmp_path, weight, ["mean", "p50"])
    assert worst_loss(config, in_ranges) == Fraction(config.privacy.ledger_budget, 1_000_000)


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "variance", "p50"]])
def test_the_mean_of_the_area_is_part_of_the_budget_in_every_world(tmp_path: Path, statistics: list[str]) -> None:
    config = small_world(tmp_path, "share", statistics, **AREA)
    assert worst_loss(config, honest) == Fraction(config.privacy.ledger_budget, 1_000_000)


def test_the_same_audit_catches_half_the_noise_of_the_area(tmp_path: Path) -> None:
    config = small_world(tmp_path, "share", ["mean"], **AREA)
    assert worst_loss(config, half_the_scale_of_the_area) > config.privacy.budget


@pytest.mark.parametrize("weight", ["share", "sample"])
@pytest.mark.parametrize("bug", [first_contributors, charged_after, refund_on_restart, others_charges])
def test_the_same_audit_catches_planted_accounting_bugs(tmp_path: Path, bug: Planner, weight: str) -> None:
    config = small_world(tmp_path, weight, ["mean"])
    if bug is charged_after and weight == "share":
        config = small_world(tmp_path, weight, ["mean"], budget=1.5)
        assert worst_loss(config, honest) == 1, "a whole contribution and a half: the half buys nothing"
    windows = FEW if weight == "sample" else WINDOWS  # with "share" the budget buys two windows
    assert worst_loss(config, bug, windows) > config.privacy.budget


@pytest.mark.parametrize(
    ("weight", "statistics", "settings"),
    [
        ("share", ["mean", "variance"], {}),
        nightly("share", ["mean"], AREA | {"rho_budget": 0.2}),  # that of two windows: nobody's losses add up to 0.15
        nightly("user", ["mean", "p85"], {}),
        ("sample", ["mean"], {}),
        nightly("user", ["mean", "moving_mean"], {}),
    ],
)
def test_the_worst_rho_over_all_worlds_is_the_budget_and_never_above(
    tmp_path: Path,
    weight: str,
    statistics: list[str],
    settings: dict[str, object],
    record_property: Callable[[str, object], None],
) -> None:
    """The individual filter under zCDP: Σ Δ²/(2σ²) of a user over their windows, in fractions, for every world."""
    config = small_zcdp_world(tmp_path, weight, statistics, **settings)
    budget = Fraction(config.privacy.ledger_budget, NANO)
    worst = worst_loss(config, honest)
    record_property("loss", {"worst": float(worst), "charged": float(budget)})
    assert worst <= budget
    assert worst > budget * Fraction(999, 1000), "the accounting is looser than it says"


@pytest.mark.parametrize(
    "bug",
    [first_contributors, charged_after, refund_on_restart, others_charges, half_the_scale, loss_of_the_mean_cell],
)
def test_the_same_audit_catches_planted_bugs_of_rho(tmp_path: Path, bug: Planner) -> None:
    config = small_zcdp_world(tmp_path, "sample", ["mean"])
    assert worst_loss(config, bug, FEW) > Fraction(config.privacy.ledger_budget, NANO) * Fraction(21, 20)
