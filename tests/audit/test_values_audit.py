"""Relation "values" on the shipped path: what a reader of all numbers of a window learns about the values of one user.

Black box: two windows in which one user of every town has all values 0, or all at U. n = 20 000 samples per side, half
of them tested at α = 1e-4 (:mod:`tests.audit.blackbox`); at ε = 1 spread over up to four numbers half the noise is
bounded by about 1.3 to 1.6, and the tape is recorded. Exact: the same draw with noise 0, which leaves the integers
visible, for every user of random windows; no samples, power 1.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.statistics.plan import Plan
from stream.statistics.values.draw import draw_distributions
from tests.audit.blackbox import FloatArray, Pooled, assert_caught_within, assert_private, epsilon_lower_bound
from tests.audit.shipped import Event, HalfTheScale, Towns, drawn, recorded
from tests.audit.values_losses import SETTINGS, TREES, U, fleet, integers, worst_share
from tests.dpcore.silence import Silence
from tests.support.builders import random_rows
from tests.support.nightly import nightly_but
from tests.support.releasing import draw, planned
from tests.support.tapes import tape

TOWNS, DRAWS = 800, 25


def town(own: int) -> list[Event]:
    """Two cells: user 1 is in both, twice in the first, with values ``own``; users 2 to 4 stand still: the worst
    case."""
    return [(0, 1, own), (0, 1, own), (1, 1, own), (0, 2, 0), (0, 2, 0), (0, 3, 0), (1, 3, 0), (1, 4, 0), (1, 4, 0)]


@pytest.mark.parametrize("name", SETTINGS)
def test_no_reader_of_a_window_learns_more_of_a_users_values_than_they_are_charged_and_half_the_noise_tells_more(
    tmp_path: Path, name: str
) -> None:
    config, towns = fleet(tmp_path, **SETTINGS[name]), Towns.unlisted(TOWNS, 2)
    sides = [planned(config, towns.rows(town(own))) for own in (0, U)]
    (plan, _), (other, _) = sides
    assert plan.digest == other.digest, "the plan looked at values"

    def outputs(noise: Noise, draws: int) -> list[FloatArray]:
        return [drawn(mine, contributions, towns, draws, noise) for mine, contributions in sides]

    assert_private(epsilon_lower_bound(*outputs(recorded(1), DRAWS)), towns.charge(plan, 1))
    half = recorded(2, HalfTheScale)
    assert_caught_within(DRAWS, lambda draws: outputs(half, draws), towns.charge(plan, 1))


def test_distributions_are_private_together_and_with_half_the_noise_are_not(tmp_path: Path) -> None:
    """All prefix counts of both cells, before they become percentiles."""
    config, towns = fleet(tmp_path, **{"speed.statistics": ["p50"], "speed.cdf_bins": 4}), Towns.unlisted(TOWNS, 2)
    sides = [planned(config, towns.rows(town(own))) for own in (0, U)]
    (plan, _), _ = sides

    def prefixes(mine: Plan, contributions: Contributions, noise: Noise) -> FloatArray:
        cells, released = draw_distributions(mine, contributions.retain(mine.retained), noise)
        assert released is not None
        assert len(cells) == 2 * TOWNS
        return released.linear[:, 1:-1].reshape(TOWNS, -1)

    def outputs(noise: Noise, draws: int) -> list[FloatArray]:
        return [np.concatenate([prefixes(*side, noise) for _ in range(draws)]) for side in sides]

    assert_private(epsilon_lower_bound(*outputs(recorded(3), DRAWS)), towns.charge(plan, 1))
    half = recorded(4, HalfTheScale)
    assert_caught_within(DRAWS, lambda draws: outputs(half, draws), towns.charge(plan, 1))


def test_single_cell_means_are_private_together_and_with_half_the_noise_are_not(tmp_path: Path) -> None:
    """n = 2400, because these mechanisms draw one number at a time. The loss is that of one user over both cells of a
    town.
    """
    config = fleet(tmp_path, **{"speed.mean_mechanism": "baseline", "speed.statistics": ["mean"]})
    towns = Towns.unlisted(60, 2)
    sides = [planned(config, towns.rows(town(own))) for own in (0, U)]
    (plan, _), _ = sides

    def outputs(noise: Noise, draws: int) -> list[FloatArray]:
        return [drawn(mine, contributions, towns, draws, noise) for mine, contributions in sides]

    assert_private(epsilon_lower_bound(*outputs(Pooled(tape(5)), 40)), towns.charge(plan, 1))
    half = Pooled(tape(6), shrink=2)
    assert_caught_within(40, lambda draws: outputs(half, draws), towns.charge(plan, 1))


@pytest.mark.parametrize("seed", nightly_but([0, 1], range(4)))
@pytest.mark.parametrize(
    "name", [*(name for name in SETTINGS if SETTINGS[name].get("speed.statistics") != ["mean"]), *TREES]
)
def test_what_the_draw_itself_adds_noise_to_costs_every_user_at_most_their_charge(
    tmp_path: Path, seed: int, name: str, record_property: Callable[[str, object], None]
) -> None:
    worst = worst_share(fleet(tmp_path, **(SETTINGS | TREES)[name]), seed)
    record_property("loss", {"worst": float(worst), "charged": 1.0})
    assert worst <= 1


def test_the_exact_comparison_refutes_a_plan_that_charges_for_half_its_noise(tmp_path: Path) -> None:
    """Planted bug: denominators doubled after the charges were made."""
    config = fleet(tmp_path)
    towns = Towns.unlisted(1, 2)
    plan, contributions = planned(config, towns.rows(town(0)))
    halved = msgspec.structs.replace(plan, denominators=(2 * plan.scales.denominator))
    exact, scales = integers(halved, contributions)
    moved = np.abs(exact - integers(halved, planned(config, towns.rows(town(U)))[1])[0]).ravel()
    noisy = np.flatnonzero(plan.scales.numerator).tolist()
    loss = sum((Fraction(int(moved[at]) * s, t) for at, (t, s) in zip(noisy, scales, strict=True)), Fraction(0))
    assert loss > 1.2 * towns.charge(plan, 1)


def test_a_user_who_cannot_pay_for_a_whole_window_is_not_in_its_numbers(tmp_path: Path) -> None:
    """Exact: one µε short of a grant, a user's values change nothing; with it, they do and are charged."""
    config = fleet(tmp_path)
    grant, rows = config.window_grant, random_rows(2, 40, users=7)
    changed = rows.copy()
    user = int(rows["user"][0])
    changed["value"][rows["user"] == user] = np.where(rows["value"][rows["user"] == user] > U / 2, 0, U)
    for left, silent in ((grant - 1, True), (grant, False)):
        budgets = np.full(len(np.unique(rows["user"])), 24 * grant)
        budgets[np.unique(rows["user"]) == user] = left
        plan, contributions = planned(config, rows, budgets)
        other, other_contributions = planned(config, changed, budgets)
        columns, others = draw(plan, contributions, Silence()), draw(other, other_contributions, Silence())
        same = all((columns[name].raw == others[name].raw).all() for name in columns)
        assert same == silent
        assert (plan.charges[plan.users == user] == 0).all() == silent


def test_drawing_twice_from_one_plan_gives_fresh_noise(tmp_path: Path) -> None:
    config, towns = fleet(tmp_path), Towns.unlisted(2, 2)
    plan, contributions = planned(config, towns.rows(town(U)))
    first, second = (drawn(plan, contributions, towns, 1, recorded(seed)) for seed in (1, 2))
    assert (first != second).all()
