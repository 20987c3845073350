"""Relation "participation" on the shipped path: what a reader of every public cell learns about the presence of one
user.

Black box, n = 20 000 towns per side (half of them tested, α = 1e-4, recorded tapes): user 1 of every town is present
with all their events, or absent. The audit reads the noisy numbers of :func:`draw_participation` before they become
ratios. At ε = 1 half the noise is bounded by about 1.4. Under zCDP the bound is on μ = √(2ρ): a Gaussian mechanism
moves the probit of no event by more than that, and half the noise doubles it.

Exact, every small world: it says which cells each of 3 users visits in each of 3 windows; its neighbour lacks one of
them. Every window goes through the service's own plan and charge code, with what the windows before it left.

Exact, residual clipping: one world is released with real noise, four windows long, as in the audit of values. It is
forced on the worlds that lack one user. Given the same outputs, their ranges and scales must be the same, and what
noise is added to may differ by no more than that user is charged. The first two windows give the ranges of the others.
Planted bugs must show. No sampling; power 1.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from dpcore.accounting import NANO
from dpcore.contributions import Counts
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.diagnosis.reading import read_recording
from stream.statistics.participation import draw as shipped_draw
from stream.statistics.plan import ParticipationPart, Plan
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from tests.audit import worlds
from tests.audit.blackbox import assert_private, epsilon_lower_bound, mu_lower_bound
from tests.audit.shipped import Event, Towns
from tests.dpcore.silence import Silence
from tests.support.builders import bus_config, random_rows, riders, zcdp_config
from tests.support.nightly import nightly, nightly_but
from tests.support.releasing import draw, planned
from tests.support.tapes import recorded

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


AREA_TERMS: dict[str, Any] = {
    "participation.weight": "share",
    "participation.area_share": 36,
    "speed.post_processing": ["kalman"],
}
"""Nine tenths of what a window costs are for the mean of the area."""


def terms_of(weight: str) -> dict[str, Any]:
    return SETTINGS | (AREA_TERMS if weight == "area" else {"participation.weight": weight})


def pure(tmp_path: Path, weight: str, **more: Any) -> Config:
    """The hourly riders.toml at ε = 1."""
    return riders(tmp_path, **terms_of(weight) | {"privacy.epsilon": 1.0, "privacy.budget": 8.0} | more)


def zcdp(tmp_path: Path, weight: str, **more: Any) -> Config:
    """The same at ρ = 0.5."""
    return zcdp_config(tmp_path, rho=0.5, rho_budget=4.0, **terms_of(weight) | more)


def noisy_numbers(
    config: Config, events: list[Event], noise: Noise, patch: pytest.MonkeyPatch
) -> tuple[np.ndarray, float]:
    """(The noisy numbers of ``N`` towns, what user 1 is charged): shape (N, rows·cells)."""
    towns = Towns.of_list(public_cells(config), 3)
    plan, contributions = planned(config, towns.rows(events))
    columns, seen = shipped_draw.columns_of, []
    patch.setattr(shipped_draw, "columns_of", lambda plan, noisy: seen.append(noisy) or columns(plan, noisy))
    at = np.searchsorted(plan.cells, towns.cells)
    while len(seen) * len(towns.cells) < N:
        draw(plan, contributions, noise)
    patch.undo()
    samples = [noisy[:, at].transpose(1, 0, 2).reshape(len(towns.cells), -1) for noisy in seen]
    return np.concatenate(samples)[:N], towns.charge(plan, 1)


@pytest.mark.parametrize("weight", nightly_but(["share"], WEIGHTS))
def test_nobody_learns_more_of_a_users_presence_than_they_are_charged(tmp_path, weight, monkeypatch):
    config = pure(tmp_path, weight)
    there, charge = noisy_numbers(config, MINE + OTHERS, recorded(1), monkeypatch)
    absent, _ = noisy_numbers(config, OTHERS, recorded(2), monkeypatch)
    assert charge == pytest.approx(1.0, abs=1e-5)
    assert_private(epsilon_lower_bound(there, absent), charge)


@pytest.mark.parametrize("weight", nightly_but(["share"], WEIGHTS))
def test_gaussian_noise_tells_no_more_than_rho(tmp_path, weight, monkeypatch):
    """ρ = 0.5, so μ = 1."""
    config = zcdp(tmp_path, weight)
    there, charge = noisy_numbers(config, MINE + OTHERS, recorded(3), monkeypatch)
    absent, _ = noisy_numbers(config, OTHERS, recorded(4), monkeypatch)
    assert_private(mu_lower_bound(there, absent), (2 * charge) ** 0.5)


@pytest.mark.parametrize("weight", ["share", "sample"])
def test_the_95_percent_interval_of_a_count_is_that_of_its_gaussian(tmp_path, weight):
    """n = 10 653 cells, two-sided at α = 1e-6: refuted outside 93.9 to 96.1 %, so 93 and 97 % with power > 0.99."""
    config = zcdp(tmp_path, weight)
    plan, contributions = planned(config, Towns.of_list(public_cells(config), 3).rows(OTHERS))
    quiet, seen = (draw(plan, contributions, noise)["users"] for noise in (Silence(), recorded(5)))
    inside = (seen.low <= quiet.raw) & (quiet.raw <= seen.high)
    assert len(inside) == 10_653
    assert stats.binomtest(int(inside.sum()), len(inside), 0.95).pvalue > 1e-6


@pytest.mark.parametrize("weight", [*WEIGHTS, "area"])
@pytest.mark.parametrize("build", [pure, zcdp])
@pytest.mark.parametrize("seed", range(2))
def test_what_the_draw_itself_adds_noise_to_costs_every_user_at_most_their_charge(tmp_path, weight, build, seed):
    """Exact, no samples: every user of a random window removed, observed from inside the noise of the shipped draw."""
    config = build(tmp_path, weight, **{"speed.statistics": ["mean", "variance", "p50"], "hexagons.resolution": 7})
    rows, unit = random_rows(seed, 120), 10**6 if build is pure else 10**9
    rows["user"][:30] = 1
    plan, contributions = planned(config, rows)
    whole, worst = worlds.observe(plan, contributions), 0
    for user, charge in zip(plan.users.tolist(), plan.charges.tolist(), strict=True):
        lost = worlds.loss_between(whole, worlds.observe(*planned(config, rows[rows["user"] != user])))
        assert lost * unit <= charge <= config.privacy.ledger_grant
        worst = max(worst, lost * unit)
    tight = 0.99 if build is pure else 0.2  # if a weight is divided, the squares of its parts add up to less
    assert worst > tight * config.privacy.ledger_grant, "the audit would not see a charge that is too small"


@pytest.mark.parametrize(("build", "weight"), [(pure, "share"), (pure, "area"), (zcdp, "user")])
def test_a_user_who_cannot_pay_is_exactly_absent(tmp_path, build, weight):
    """If the budget is one unit below the charge, the integers are those of a window without the user; with a budget
    that is enough, they differ, also those of the area."""
    config, rows = build(tmp_path, weight, **{"hexagons.resolution": 7}), random_rows(3, 100)
    users, charge = np.unique(rows["user"]), planned(config, rows)[0].charges[0]
    without = worlds.observe(*planned(config, rows[rows["user"] != users[0]])).integers
    for left, absent in ((charge - 1, True), (charge, False)):
        budgets = np.full(len(users), config.privacy.ledger_budget)
        budgets[0] = left
        plan, contributions = planned(config, rows, budgets)
        assert (plan.charges[0] == 0) == absent
        numbers = worlds.observe(plan, contributions).integers
        for part in (numbers, numbers[-2:]) if weight == "area" else (numbers,):
            assert np.array_equal(part, without[-len(part) :]) == absent


@pytest.mark.parametrize("day", ["2017-03-16", "2017-03-21"])
def test_straight_lines_between_public_fixes_give_half_of_the_buses_their_mean_within_3_km_h(
    tmp_path, day, shared_data
):
    """Fixes two minutes apart, means of at least 20 steps in three hours; no release is needed for it."""
    rows, _ = read_recording(bus_config(tmp_path), shared_data / "capmetro" / f"{day}.csv.gz", "capmetro")
    rows = np.unique(rows[["user", "time", "lat", "lng", "value"]])
    seconds, before, after = np.diff(rows["time"]) / 1e6, rows[:-1], rows[1:]
    north, east = (np.diff(rows[name].astype(float)) / 1e7 for name in ("lat", "lng"))
    metres = 111_195 * np.hypot(north, east * np.cos(np.radians(before["lat"] / 1e7)))
    step = (before["user"] == after["user"]) & (seconds >= 30) & (seconds <= 300)
    slots = np.column_stack([before["user"], (before["time"] // (3 * 3600 * 10**6)).astype(np.uint64)])[step]
    _, slot, steps = np.unique(slots, axis=0, return_inverse=True, return_counts=True)
    sums = [
        np.bincount(slot.ravel(), of[step]) for of in (metres, seconds, before["value"] / 200 + after["value"] / 200)
    ]
    off = np.abs(3.6 * sums[0] / sums[1] - sums[2] / steps)[steps >= 20]
    assert len(off) > 400
    assert 2 < np.median(off) < 3


def in_ranges(counts: Counts, left: np.ndarray, config: Config) -> Plan:
    """The real planner with ranges of users' means that follow from earlier releases and differ between cells."""
    plan = worlds.honest(counts, left, config)
    lower = 500 * np.arange(len(plan.cells))
    return msgspec.structs.replace(plan, participation=ParticipationPart(lower=lower, upper=lower + 3000))


@pytest.mark.parametrize(
    ("planner", "weight", "statistics", "settings"),
    [
        *((worlds.honest, *worlds.OF_EPSILON[at]) for at in (0, 3)),
        (worlds.honest, "share", ["mean"], worlds.AREA),
        (worlds.honest, "share", ["moving_mean", "p50"], {}),
        (in_ranges, "user", ["mean", "p50"], {}),
        *(nightly(worlds.honest, *worlds.OF_EPSILON[at]) for at in (1, 2)),
        *(nightly(in_ranges, weight, ["mean", "p50"], {}) for weight in ("share", "sample")),
    ],
)
def test_the_worst_loss_over_all_worlds_of_three_users_and_windows_is_the_budget(
    tmp_path, planner, weight, statistics, settings, record_property
):
    """Ranges from earlier releases cost nothing, and the mean of the area is part of the budget."""
    config = worlds.small_world(tmp_path, weight, statistics, **settings)
    worst, charged = worlds.worst_loss(config, planner), Fraction(config.privacy.ledger_budget, 1_000_000)
    record_property("loss", {"worst": float(worst), "charged": float(charged)})
    assert worst == charged


@pytest.mark.parametrize(
    ("weight", "statistics", "settings"),
    [*(worlds.OF_RHO[at] for at in (0, 3)), *(nightly(*worlds.OF_RHO[at]) for at in (1, 2, 4))],
)
def test_the_worst_rho_over_all_worlds_is_the_budget_and_never_above(
    tmp_path, weight, statistics, settings, record_property
):
    """The individual filter under zCDP: Σ Δ²/(2σ²) of a user over their windows, in fractions, for every world."""
    config = worlds.small_zcdp_world(tmp_path, weight, statistics, **settings)
    budget = Fraction(config.privacy.ledger_budget, NANO)
    worst = worlds.worst_loss(config, worlds.honest)
    record_property("loss", {"worst": float(worst), "charged": float(budget)})
    assert worst <= budget
    assert worst > budget * Fraction(999, 1000), "the accounting is looser than it says"


@pytest.mark.parametrize(
    ("weight", "accounting"),
    [
        ("share", "pure"),
        ("sample", "zcdp"),
        *map(nightly, ("share", "user", "user", "sample"), ("zcdp", "pure", "zcdp", "pure")),
    ],
)
def test_no_user_loses_more_over_four_windows_than_they_are_charged(tmp_path, weight, accounting, record_property):
    shares = worlds.worst_shares(worlds.config_of(tmp_path, weight, accounting))
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
        worlds.worst_shares(worlds.config_of(tmp_path, "share", "pure"), around_the_truth)
