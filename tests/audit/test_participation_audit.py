"""Relation "participation" on the shipped path: what a reader of every public cell learns about the presence of one
user. Exact transcript audit of relation "participation": every small world, the real planner, rational arithmetic.
Residual clipping under "participation" on the shipped path: forced transcripts over four windows, exact.

Black box, n = 20 000 towns per side (half of them tested, α = 1e-4, recorded tapes): user 1 of every town is present
with all their events, or absent. The audit reads the noisy numbers of :func:`draw_participation` before they become
ratios. At ε = 1 half the noise is bounded by about 1.4. Under zCDP the bound is on μ = √(2ρ): a Gaussian mechanism
moves the probit of no event by more than that, and half the noise doubles it.

A world says which cells each of 3 users visits in each of 3 windows; its neighbour lacks one of them altogether. Every
window goes through the service's own plan and charge code, with what the worlds before it left of the budgets.

One world is released with real noise, window after window: ledger, plan, ranges, draw, messages, memory. Its transcript
is forced on the worlds that lack one user. Given the same outputs, their ranges and scales must be the same, and what
noise is added to may differ by no more than that user is charged. The first two windows give the ranges of the others.
Planted bugs must show. No sampling; power 1.
"""

import csv
import gzip
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import pytest

from dpcore.accounting import NANO
from dpcore.contributions import Counts
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.statistics.participation import draw as shipped_draw
from stream.statistics.plan import ParticipationPart, Plan
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from tests.audit.blackbox import assert_caught, assert_private, epsilon_lower_bound, mu_lower_bound
from tests.audit.observed import loss_between, observe
from tests.audit.participation_transcripts import config_of, worst_shares
from tests.audit.shipped import Event, Towns, recorded
from tests.audit.worlds import AREA, WINDOWS, honest, small_world, small_zcdp_world, worst_loss
from tests.support.builders import random_rows, zcdp_config
from tests.support.nightly import nightly, nightly_but
from tests.support.participating import riders
from tests.support.releasing import draw, planned

U = 6500
BOX = {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}
N = 20_000
WEIGHTS = ("share", "user", "sample")
SETTINGS: dict[str, Any] = {
    "feed.domain": BOX,
    "hexagons.resolution": 9,
    "participation.cells_per_user": 2,
    "participation.samples_per_cell": 2,
}
MINE: list[Event] = [(0, 1, U)] * 6 + [(1, 1, U)] * 5 + [(2, 1, 0)] * 4
"""Six samples in the first cell, of which two count with weight "sample"; a third cell, which does not count."""
OTHERS: list[Event] = [(0, 2, 0), (1, 2, U), (2, 3, U // 2)]


def pure(tmp_path: Path, weight: str, **more: Any) -> Config:
    """The hourly riders.toml at ε = 1."""
    budget = {"privacy.epsilon": 1.0, "privacy.budget": 8.0, "participation.weight": weight}
    return riders(tmp_path, **SETTINGS | budget | more)


def noisy_numbers(
    config: Config, events: list[Event], noise: Noise, patch: pytest.MonkeyPatch, halved: bool = False
) -> tuple[np.ndarray, float]:
    """(The noisy numbers of ``N`` towns, what user 1 is charged): shape (N, rows·cells)."""
    towns = Towns.of_list(public_cells(config), 3)
    plan, contributions = planned(config, towns.rows(events))
    if halved:
        plan = msgspec.structs.replace(plan, denominators=(2 * plan.scales.denominator))
    columns, seen = shipped_draw.columns_of, []
    patch.setattr(shipped_draw, "columns_of", lambda plan, noisy: seen.append(noisy) or columns(plan, noisy))
    at = np.searchsorted(plan.cells, towns.cells)
    while len(seen) * len(towns.cells) < N:
        draw(plan, contributions, noise)
    patch.undo()
    samples = [noisy[:, at].transpose(1, 0, 2).reshape(len(towns.cells), -1) for noisy in seen]
    return np.concatenate(samples)[:N], towns.charge(plan, 1)


@pytest.mark.parametrize("weight", nightly_but(["share"], WEIGHTS))
def test_nobody_learns_more_of_a_users_presence_than_they_are_charged_and_half_the_noise_tells_more(
    tmp_path, weight, monkeypatch
):
    config = pure(tmp_path, weight)
    for halved, check in ((False, assert_private), (True, assert_caught)):
        there, charge = noisy_numbers(config, MINE + OTHERS, recorded(1), monkeypatch, halved)
        absent, _ = noisy_numbers(config, OTHERS, recorded(2), monkeypatch, halved)
        assert charge == pytest.approx(1.0, abs=1e-5)
        check(epsilon_lower_bound(there, absent), charge)


@pytest.mark.parametrize("weight", nightly_but(["share"], WEIGHTS))
def test_gaussian_noise_tells_no_more_than_rho_and_half_of_it_does(tmp_path, weight, monkeypatch):
    """ρ = 0.5, so μ = 1."""
    config = zcdp_config(tmp_path, rho=0.5, rho_budget=4.0, **SETTINGS, **{"participation.weight": weight})
    for halved, check in ((False, assert_private), (True, assert_caught)):
        there, charge = noisy_numbers(config, MINE + OTHERS, recorded(3), monkeypatch, halved)
        absent, _ = noisy_numbers(config, OTHERS, recorded(4), monkeypatch, halved)
        check(mu_lower_bound(there, absent), (2 * charge) ** 0.5)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
@pytest.mark.parametrize("seed", range(2))
def test_what_the_draw_itself_adds_noise_to_costs_every_user_at_most_their_charge(tmp_path, weight, accounting, seed):
    """Exact, no samples: every user of a random window removed, observed from inside the noise of the shipped draw."""
    statistics = {"speed.statistics": ["mean", "variance", "p50"], "hexagons.resolution": 7}
    if accounting == "pure":
        config, unit = pure(tmp_path, weight, **statistics), 10**6
    else:
        terms = {"participation.weight": weight} | SETTINGS | statistics
        config, unit = zcdp_config(tmp_path, rho=0.5, rho_budget=4.0, **terms), 10**9
    rows = random_rows(seed, 120)
    rows["user"][:30] = 1
    plan, contributions = planned(config, rows)
    whole, worst = observe(plan, contributions), 0
    for user, charge in zip(plan.users.tolist(), plan.charges.tolist(), strict=True):
        lost = loss_between(whole, observe(*planned(config, rows[rows["user"] != user])))
        assert lost * unit <= charge <= config.privacy.ledger_grant
        worst = max(worst, lost * unit)
    tight = 0.99 if accounting == "pure" else 0.2  # if a weight is divided, the squares of its parts add up to less
    assert worst > tight * config.privacy.ledger_grant, "the audit would not see a charge that is too small"


def test_a_user_who_cannot_pay_is_exactly_absent(tmp_path):
    """If the budget is one unit below the charge, the integers are those of a window without the user; with a budget
    that is enough, they differ."""
    config = pure(tmp_path, "share", **{"hexagons.resolution": 7})
    rows = random_rows(3, 100)
    users = np.unique(rows["user"])
    without = observe(*planned(config, rows[rows["user"] != users[0]]))
    for left, absent in ((config.privacy.ledger_grant - 1, True), (config.privacy.ledger_grant, False)):
        budgets = np.full(len(users), config.privacy.ledger_budget)
        budgets[0] = left
        plan, contributions = planned(config, rows, budgets)
        assert (plan.charges[0] == 0) == absent
        assert np.array_equal(observe(plan, contributions).integers, without.integers) == absent


SLOT_S, LEAST_STEPS = 3 * 3600, 20
METRES_PER_DEGREE = 111_195.0
Fix = tuple[float, float, float, float]
"""Time in seconds, latitude, longitude, reported speed in km/h."""


def fixes_of(file: Path) -> dict[str, list[Fix]]:
    """Distinct fixes of each vehicle in order of time; unreadable rows are left out."""
    fixes: dict[str, set[Fix]] = defaultdict(set)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            try:
                time = datetime.fromisoformat(row["timestamp"]).timestamp()
                speed = 3.6 * float(row["speed"])
                fixes[row["vehicle_id"]].add((time, float(row["latitude"]), float(row["longitude"]), speed))
            except ValueError:
                continue
    return {vehicle: sorted(seen) for vehicle, seen in fixes.items()}


def errors_of(fixes: list[Fix]) -> Iterator[float]:
    """By timeslot, how far straight lines between fixes are from the mean of the reported speeds, in km/h."""
    steps: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for (begun, south, west, before), (ended, north, east, after) in pairwise(fixes):
        if 30 <= (seconds := ended - begun) <= 300:
            across = (east - west) * math.cos(math.radians(south))
            metres = METRES_PER_DEGREE * math.hypot(north - south, across)
            steps[int(begun) // SLOT_S].append((metres, seconds, (before + after) / 2))
    for slot in steps.values():
        if len(slot) >= LEAST_STEPS:
            metres, seconds, reported = zip(*slot, strict=True)
            yield abs(3.6 * sum(metres) / sum(seconds) - mean(reported))


@pytest.mark.parametrize("day", ["2017-03-16", "2017-03-21"])
def test_straight_lines_between_public_fixes_give_half_of_the_buses_their_mean_within_3_km_h(day, shared_data):
    """Fixes two minutes apart, means over three hours; no release is needed for it."""
    errors = [
        error for fixes in fixes_of(shared_data / "capmetro" / f"{day}.csv.gz").values() for error in errors_of(fixes)
    ]
    assert len(errors) > 400
    assert 2 < median(errors) < 3


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
    tmp_path, weight, statistics, record_property
):
    config = small_world(tmp_path, weight, statistics)
    worst, charged = worst_loss(config, honest), Fraction(config.privacy.ledger_budget, 1_000_000)
    record_property("loss", {"worst": float(worst), "charged": float(charged)})
    assert worst == charged


@pytest.mark.parametrize("weight", nightly_but(["user"], ["share", "user", "sample"]))
def test_ranges_from_earlier_releases_cost_nothing(tmp_path, weight):
    config = small_world(tmp_path, weight, ["mean", "p50"])
    assert worst_loss(config, in_ranges) == Fraction(config.privacy.ledger_budget, 1_000_000)


@pytest.mark.parametrize("statistics", [["mean"], nightly(["mean", "variance", "p50"])])
def test_the_mean_of_the_area_is_part_of_the_budget_in_every_world(tmp_path, statistics):
    config = small_world(tmp_path, "share", statistics, **AREA)
    assert worst_loss(config, honest) == Fraction(config.privacy.ledger_budget, 1_000_000)


@pytest.mark.parametrize("weight", [nightly("share"), "sample"])
@pytest.mark.parametrize("bug", [first_contributors, charged_after, refund_on_restart, others_charges])
def test_the_same_audit_catches_planted_accounting_bugs(tmp_path, bug, weight):
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
    tmp_path, weight, statistics, settings, record_property
):
    """The individual filter under zCDP: Σ Δ²/(2σ²) of a user over their windows, in fractions, for every world."""
    config = small_zcdp_world(tmp_path, weight, statistics, **settings)
    budget = Fraction(config.privacy.ledger_budget, NANO)
    worst = worst_loss(config, honest)
    record_property("loss", {"worst": float(worst), "charged": float(budget)})
    assert worst <= budget
    assert worst > budget * Fraction(999, 1000), "the accounting is looser than it says"


@pytest.mark.parametrize(
    "bug", [first_contributors, charged_after, refund_on_restart, others_charges, half_the_scale, loss_of_the_mean_cell]
)
def test_the_same_audit_catches_planted_bugs_of_rho(tmp_path, bug):
    config = small_zcdp_world(tmp_path, "sample", ["mean"])
    assert worst_loss(config, bug, FEW) > Fraction(config.privacy.ledger_budget, NANO) * Fraction(21, 20)


@pytest.mark.parametrize(
    ("weight", "accounting"),
    [
        ("share", "pure"),
        ("sample", "zcdp"),
        *map(nightly, ("share", "user", "user", "sample"), ("zcdp", "pure", "zcdp", "pure")),
    ],
)
def test_no_user_loses_more_over_four_windows_than_they_are_charged(tmp_path, weight, accounting, record_property):
    shares = worst_shares(config_of(tmp_path, weight, accounting))
    record_property("loss", {"worst": float(max(shares)), "charged": 1.0})
    assert max(shares) <= 1
    assert max(shares) > Fraction(1, 2), "the audit found next to nothing"


def around_the_truth(read: WindowRows, *given: Any) -> Plan:
    """Planted bug: ranges follow the means of the window that is released."""
    plan = plan_window(read, *given)
    if plan.ranges is None:
        return plan
    middle = np.full(len(plan.cells), int(read.contributions.quanta.mean()))
    part = ParticipationPart(lower=middle - 500, upper=middle, foretold=middle - 250)
    return msgspec.structs.replace(plan, participation=part)


def test_the_same_audit_catches_ranges_of_the_true_data(tmp_path):
    with pytest.raises(AssertionError, match="looked at this window"):
        worst_shares(config_of(tmp_path, "share", "pure"), around_the_truth)
