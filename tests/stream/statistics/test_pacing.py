"""Pacing spreads a short budget over a period, for each user by what they spent themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stream.config import Config
from stream.statistics.pacing import spendable
from stream.statistics.plan import Due
from stream.terms import Terms
from stream.windows import Window
from tests.support.builders import bus_config, riders_config, zcdp_config

DAY = 1_490_072_400  # 2017-03-21T00:00:00-05:00
WINTER_TIME = 1_509_858_000  # 2017-11-05T00:00:00-05:00, a day of 25 hours in Austin
GRANT = 1_500_000
USERS = np.random.default_rng(1).integers(0, 2**63, 3_000).astype(np.uint64)


@pytest.fixture
def hourly(tmp_path: Path) -> Config:
    """Eight grants for the 24 windows of a day."""
    return bus_config(
        tmp_path,
        **{"window.slot": "1h", "privacy.admission": "paced", "privacy.epsilon": "1.5", "privacy.budget": "12"},
    )


def due(window: Window, config: Config) -> Due:
    return Due(Terms.of(config), window, "g")


def admissions(config: Config, first: int, users: npt.NDArray[np.uint64] = USERS) -> npt.NDArray[np.bool_]:
    """(W, L): who has a whole grant to spend in each window of a day, if they are active in all from ``first`` on."""
    period, rows = config.slotting.period_of(DAY if first < DAY + 90_000 else first), []
    budget, grant = config.privacy.ledger_budget, config.window_grant
    left = np.full(len(users), budget, dtype=np.int64)
    start = period.start
    while start < period.end:
        window = config.slotting.window(start)
        pays = (spendable(left, users, due(window, config), budget) >= grant) & (start >= first)
        left = left - grant * pays
        rows.append(pays)
        start = window.end
    assert left.min() >= 0
    return np.array(rows)


def test_without_pacing_a_user_may_spend_all_that_is_left(tmp_path: Path) -> None:
    left = np.arange(3)
    assert spendable(left, USERS[:3], due(Window(DAY, DAY + 3600), bus_config(tmp_path)), 2) is left


@pytest.mark.parametrize("rho", [None, 0.5, 80.0], ids=["pure", "zcdp", "zcdp, a grant above 32 bits"])
def test_whoever_is_active_all_day_takes_part_in_every_third_window_if_the_budget_pays_for_a_third(
    hourly: Config, tmp_path: Path, rho: float | None
) -> None:
    """3 000 users, each admitted with probability 1/3: five standard deviations are 0.043."""
    paced: dict[str, Any] = {"privacy.admission": "paced", "window.slot": "1h"}
    config = hourly if rho is None else zcdp_config(tmp_path, rho, 8 * rho, **paced)
    admitted = admissions(config, DAY)
    assert set(np.unique(admitted.sum(axis=0))) <= {7, 8}
    assert np.abs(admitted.mean(axis=1) - 1 / 3).max() < 0.043
    away = np.diff([np.flatnonzero(user) for user in admitted.T if user.sum() == 8], axis=1)
    assert away.max() == 3


def test_users_take_turns_in_another_order_each_day(hourly: Config) -> None:
    first, again = admissions(hourly, DAY), admissions(hourly, DAY + 86_400 * 7)
    assert 0.2 < (first[1] & again[1]).sum() / first[1].sum() < 0.47


def test_whoever_begins_in_the_evening_takes_part_in_all_of_it(hourly: Config) -> None:
    assert admissions(hourly, DAY + 17 * 3600)[17:].all()


def test_a_day_with_25_hours_ends_within_its_budget(hourly: Config) -> None:
    admitted = admissions(hourly, WINTER_TIME)
    assert len(admitted) == 25
    assert admitted.sum(axis=0).max() <= 8


@pytest.mark.parametrize("budget", [12_000_000, 100_000 * 10**6])
def test_nobody_may_spend_more_than_they_have_left(tmp_path: Path, budget: int) -> None:
    config = bus_config(
        tmp_path, **{"window.slot": "1h", "privacy.admission": "paced", "privacy.budget": str(budget / 1e6)}
    )
    random = np.random.default_rng(3)
    left = random.integers(-GRANT, budget + 1, len(USERS))
    users = random.integers(0, 2**64, len(USERS), dtype=np.uint64)
    for hour in range(24):
        most = spendable(left, users, due(Window(DAY + 3600 * hour, DAY + 3600 * (hour + 1)), config), budget)
        assert (most >= 0).all()
        assert (most <= np.maximum(left, 0)).all()
    assert (most == np.maximum(left, 0)).all(), "in the last window, all of it"


def test_pacing_looks_at_nobody_else(tmp_path: Path) -> None:
    """Under "participation" one user's presence must not decide about another's."""
    config = riders_config(tmp_path, **{"privacy.admission": "paced"})
    window, budget = config.slotting.window(DAY), config.privacy.ledger_budget
    left = np.random.default_rng(2).integers(0, budget, len(USERS))
    together = spendable(left, USERS, due(window, config), budget)
    alone = [int(spendable(left[i : i + 1], USERS[i : i + 1], due(window, config), budget)[0]) for i in range(100)]
    assert together[:100].tolist() == alone
