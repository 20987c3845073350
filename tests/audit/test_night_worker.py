"""The attack on a night worker: what k nights of releases reveal about one vehicle alone in one rural hexagon.

Every night the worker is the only one in their hexagon in one window, and counts there fully. An attacker knows that
and adds up the released numbers of users, night after night, of every hexagon where nobody else is. Noise averages out,
so the worker's hexagon rises to the top. A horizon stops it: once its budget is spent, the worker contributes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from math import exp
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.storage.ledger import Ledger
from stream.windows import Horizon, Slotting
from tests.support.builders import riders_config

DAY, START = 86_400, 1_490_572_800
"""2017-03-27 00:00 UTC, on which a block of 28 days begins."""
ATTACKS = 100
"""Attacks whose ranks are compared; the entropy is fixed, so the ranks are the same in every run."""
NIGHTS = 28
WORKER = np.array([7], dtype=np.uint64)


def loud(folder: Path) -> Config:
    """Windows of four hours over 312 hexagons, each at ε = 2 of 12 a day: little noise beside a single user."""
    return riders_config(folder, **{"window.slot": "4h", "privacy.budget": 12.0, "speed.statistics": ["mean"]})


async def nights_paid(redis: Redis, config: Config, horizon: Horizon | None) -> list[bool]:
    """In which nights of a block the ledger lets the worker count: each costs one whole window."""
    await redis.flushall()
    slotting = Slotting(config.window.slot, timedelta(days=1), "UTC", horizon)
    ledger = Ledger(redis, "riders")
    generation, paid = await ledger.start_generation(birth=0), []
    for night in range(NIGHTS):
        slot = START + night * DAY
        grant, period = np.array([config.window_grant]), slotting.period_of(slot)
        refused = await ledger.charge(slot, period, generation, WORKER, grant, config.privacy.ledger_budget)
        paid.append(not len(refused))
    return paid


def ranks(config: Config, paid: list[bool]) -> np.ndarray:
    """The worker's median rank among all hexagons after each night, 1 for the top, shape (NIGHTS,)."""
    cells = len(public_cells(config))
    # A user of weight 1 moves the noisy numbers by 1 in all; the scale of their noise is 1/ε.
    micro = config.privacy.epsilon_micro
    drawn = Noise(np.random.default_rng(39).bytes).discrete_laplace(
        1_000 * 1_000_000, micro, size=ATTACKS * NIGHTS * cells
    )
    released = drawn.reshape(ATTACKS, NIGHTS, cells) / 1_000
    released[:, :, 0] += np.array(paid, dtype=float)
    sums = released.cumsum(axis=1)
    return np.asarray(np.median(1 + (sums[:, :, 1:] > sums[:, :, :1]).sum(axis=2), axis=0))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return loud(tmp_path)


async def test_without_a_horizon_a_few_nights_find_the_worker(config: Config, redis: Redis) -> None:
    paid = await nights_paid(redis, config, None)
    assert paid == [True] * NIGHTS
    assert ranks(config, paid)[[0, 1, 2, 4, 6, 27]].tolist() == [22, 11, 5, 1.5, 1, 1], "the figures of docs/privacy.md"


async def test_with_a_horizon_later_nights_add_nothing(config: Config, redis: Redis) -> None:
    """The odds of any belief about the worker move by at most e^H in the block; without one by e^(28 ε) here."""
    spends = 2 * config.window_grant
    paid = await nights_paid(redis, config, Horizon(timedelta(days=28), spends))
    assert paid == [True, True] + [False] * (NIGHTS - 2)
    after = ranks(config, paid)[[0, 1, 2, 4, 27]].tolist()
    assert after == [22, 11, 16.5, 35.5, 94.5], "noise of later nights buries what the first two told"
    assert exp(spends / 1e6) < exp(NIGHTS * config.privacy.epsilon) / 1e20
