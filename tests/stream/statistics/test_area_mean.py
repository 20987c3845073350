"""The mean of all cells together under "participation": what a user moves is what they are charged, and smoothing uses
it.

Exact: every user of a random window is removed, and the loss is read from inside the noise of the shipped draw. Black
box: n = 20 000 draws per side (half of them tested, α = 1e-4, recorded tapes), user 1 present with all their events or
absent, ε = 1. Nine tenths of it are the area's, so half the noise there is bounded by some 1.7, and an area that is
drawn beside cells which take the whole ε, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.participation import Layout, area_integers, draw_with_area
from stream.config import Config, ConfigError
from stream.messages.message import WINDOW, validator
from stream.statistics.participation.draw import exact_integers, layout_of, participation_of
from stream.statistics.plan import Plan, decode_plan, encode_plan
from stream.terms import Terms
from tests.audit.blackbox import assert_caught, assert_private, epsilon_lower_bound
from tests.audit.observed import loss_between, observe
from tests.audit.shipped import Event, Towns, recorded
from tests.support.builders import random_rows, zcdp_config
from tests.support.participating import SMALL, riders
from tests.support.releasing import build_messages, draw, planned

AREA: dict[str, Any] = {
    "participation.weight": "share",
    "participation.area_share": 36,
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean"],
}
N = 20_000
MINE: list[Event] = [(0, 1, 6500)] * 3 + [(1, 1, 6500)] * 2
OTHERS: list[Event] = [(0, 2, 0), (1, 2, 6500), (2, 3, 3250)]
Scales = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def with_area(tmp_path: Path, accounting: str = "pure", **more: Any) -> Config:
    """ε = 1 or ρ = 0.5 in a window, of which nine tenths are the area's."""
    if accounting == "zcdp":
        return zcdp_config(tmp_path, rho=0.5, rho_budget=4.0, **(SMALL | AREA | more))
    return riders(tmp_path, **({"privacy.epsilon": 1.0, "privacy.budget": 8.0} | AREA | more))


def halved(scales: Scales) -> Scales:
    """The planted bug: half the noise on the area."""
    t, s = scales
    return t, np.append(s[:-1], 2 * s[-1])


def uncharged(scales: Scales) -> Scales:
    """The planted bug: the cells' noise is that of the whole ε, as if the area cost nothing."""
    t, s = scales
    return t, np.append(10 * s[:-1], s[-1])


def with_scales(plan: Plan, scales: Scales) -> Plan:
    t, s = scales
    return msgspec.structs.replace(plan, numerators=(t), denominators=(s))


@pytest.mark.parametrize("more", [{}, {"speed.statistics": ["mean", "variance", "p50"]}], ids=["mean", "tree"])
@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
def test_removing_a_user_costs_at_most_their_charge_and_planted_bugs_cost_more(
    tmp_path: Path, accounting: str, more: dict[str, Any]
) -> None:
    config = with_area(tmp_path, accounting, **more)
    rows, unit = random_rows(1, 120), 10**9 if accounting == "zcdp" else 10**6
    rows["user"][:30] = 1
    plan, contributions = planned(config, rows)
    t, s = plan.scales.numerator, plan.scales.denominator
    plans = [plan] + [with_scales(plan, bug((t, s))) for bug in (halved, uncharged)]
    wholes, worst = [observe(each, contributions) for each in plans], np.zeros(3)
    for user, charge in zip(plan.users.tolist(), plan.charges.tolist(), strict=True):
        assert 0 < charge <= config.privacy.ledger_grant
        other, rest = planned(config, rows[rows["user"] != user])
        others = [with_scales(other, (of.scales.numerator, of.scales.denominator)) for of in plans]
        lost = [
            loss_between(whole, observe(each, rest)) * unit / charge for whole, each in zip(wholes, others, strict=True)
        ]
        worst = np.maximum(worst, np.array(lost, dtype=np.float64))
    assert 0.7 < worst[0] <= 1  # under zCDP the squares of a weight's parts in several cells add up to less
    assert worst[1:].min() > 1


def test_a_user_who_cannot_pay_is_absent_from_the_area(tmp_path: Path) -> None:
    config, rows = with_area(tmp_path), random_rows(3, 100)
    users = np.unique(rows["user"])
    without = observe(*planned(config, rows[rows["user"] != users[0]])).integers
    for left, absent in ((config.privacy.ledger_grant - 1, True), (config.privacy.ledger_grant, False)):
        budgets = np.full(len(users), config.privacy.ledger_budget)
        budgets[0] = left
        assert np.array_equal(observe(*planned(config, rows, budgets)).integers[-2:], without[-2:]) == absent


def numbers(config: Config, events: list[Event], noise: Noise, scales: Scales) -> npt.NDArray[np.float64]:
    """Noisy numbers of a town of three cells and of its area, drawn ``N`` times by the shipped functions, (N, 8)."""
    towns = Towns.of_list(planned(config, random_rows(0, 10))[0].cells[:3], 3)
    plan, contributions = planned(config, towns.rows(events))
    layout, at = layout_of(plan.terms), np.searchsorted(plan.cells, towns.cells.ravel())
    exact = np.tile(exact_integers(plan, contributions)[:, at], (1, N))
    area = np.tile(area_integers(layout, contributions.retain(plan.retained)), N)
    cells, together = draw_with_area(layout, exact, area, scales, False, noise)
    return np.column_stack([cells.reshape(2, N, 3).transpose(1, 0, 2).reshape(N, 6), together.reshape(N, 2)])


def test_an_observer_learns_no_more_than_the_charge_and_planted_bugs_tell_more(tmp_path: Path) -> None:
    config = with_area(tmp_path)
    scales = participation_of(Terms.of(config)).scales
    for bug, check in ((lambda as_is: as_is, assert_private), (halved, assert_caught), (uncharged, assert_caught)):
        there, absent = (
            numbers(config, events, recorded(seed), bug(scales)) for seed, events in ((5, MINE + OTHERS), (6, OTHERS))
        )
        check(epsilon_lower_bound(there, absent), 1.0)


def test_the_area_counts_every_user_once_and_averages_their_speeds(tmp_path: Path) -> None:
    """With ε = 1000 next to no noise is left."""
    config = with_area(tmp_path, **{"privacy.epsilon": 1000.0, "privacy.budget": 8000.0})
    rows = random_rows(2, 300, users=40)
    speeds = np.random.default_rng(3).uniform(5, 60, 40)
    users, of_row = np.unique(rows["user"], return_inverse=True)
    rows["value"] = 100 * speeds[of_row]
    plan, contributions = planned(config, rows)
    columns = draw(plan, contributions, recorded(1))
    assert columns["area_users"].value[0] == pytest.approx(len(users), abs=0.1)
    assert columns["area_mean"].value[0] == pytest.approx(speeds[: len(users)].mean(), abs=0.1)


def test_the_close_marker_states_the_area_and_only_where_it_is_released(tmp_path: Path) -> None:
    for config, stated in ((with_area(tmp_path), True), (riders(tmp_path), False)):
        messages, _ = build_messages(*planned(config, random_rows(1, 50)), Noise(), None)
        marker = json.loads(messages[-1].value)
        assert validator(WINDOW).is_valid(marker)
        assert ("area" in marker) == stated


def test_the_stored_plan_alone_decides_whether_the_area_is_released(tmp_path: Path) -> None:
    """A worker whose configuration was changed after the charge releases what was planned and charged, noise for
    noise."""
    with_it, without = with_area(tmp_path), riders(tmp_path, **(AREA | {"participation.area_share": 0}))
    for mine, others in ((with_it, without), (without, with_it)):
        plan, contributions = planned(mine, random_rows(1, 50))
        taken_over = decode_plan(encode_plan(plan))
        one, other = (
            build_messages(each, contributions, recorded(1), None)[0]
            for each, config in ((plan, mine), (taken_over, others))
        )
        assert [message.value for message in one] == [message.value for message in other]
        assert ("area" in json.loads(other[-1].value)) == (mine is with_it)


@pytest.mark.parametrize(
    "wrong",
    [{"participation.weight": "user"}, {"speed.statistics": ["p50"]}, {"speed.post_processing": []}],
    ids=str,
)
def test_a_configuration_that_could_not_use_the_area_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"participation\.area_share 36 needs .*or area_share = 0"):
        with_area(tmp_path, **wrong)


def test_an_area_of_weights_that_add_up_to_more_than_one_is_refused() -> None:
    with pytest.raises(ParameterError, match="more than 1"):
        Layout.of(mean=True, variance=False, percentiles=False, weight="user", upper=6500, bins=32, area=True)
