"""The horizon: what a user may lose in several periods, over every small history, in the shipped ledger.

A history says what a user would be charged in each window. The ledger admits and charges; whoever compares two
histories learns from every window in which one of them contributes something else. So the loss between two histories is
the sum of the charges, in either, of windows where they differ.
"""

import itertools
from datetime import timedelta
from math import exp
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, RetiredError
from stream.storage.retirement import Retirement
from stream.windows import Horizon, Slotting
from tests.audit.shipped import ledger_of
from tests.support.builders import SLOT, riders_config

DAY, HOUR = 86_400, 3600
GRANT, BUDGET, BLOCK = 3, 4, 5
"""Most that a window may cost, budget of a day, budget of a block of two days."""
SLOTTING = Slotting(timedelta(hours=12), timedelta(days=1), "UTC", Horizon(timedelta(days=2), BLOCK))
START = 1_490_572_800
"""2017-03-27 00:00 UTC, on which a block begins, be it of two days or of 28."""
WINDOWS = [START + 12 * HOUR * n for n in range(4)]
"""Two windows in each of two days."""
CHARGES = (0, 1, 3)
USER = np.array([7], dtype=np.uint64)


async def admitted(redis: Redis, history: tuple[int, ...]) -> list[int]:
    """What the user is charged in each window: nothing where a whole grant is not left in both budgets."""
    await redis.flushall()
    (ledger, generation), paid = await ledger_of(redis), []
    for slot, wanted in zip(WINDOWS, history, strict=True):
        period = SLOTTING.period_of(slot)
        left = np.minimum(*await ledger.unspent(period, USER, BUDGET, besides=slot))
        charge = wanted if left[0] >= GRANT else 0
        if charge:
            assert not len(await ledger.charge(slot, period, generation, USER, np.array([charge]), BUDGET))
        paid.append(charge)
    return paid


def loss(one: list[int], other: list[int]) -> int:
    return sum(a + b for a, b in zip(one, other, strict=True) if a != b)


async def test_a_block_costs_its_budget_a_day_its_own_and_one_day_among_others_at_most_twice_that_and_a_window(
    redis, record_property
):
    paid = {history: await admitted(redis, history) for history in itertools.product(CHARGES, repeat=len(WINDOWS))}
    nothing = [0] * len(WINDOWS)
    worst = max(loss(charges, nothing) for charges in paid.values())
    record_property("loss", {"worst": worst, "charged": BLOCK})
    assert worst == BLOCK
    assert max(sum(charges[:2]) for charges in paid.values()) == BUDGET
    one_day = [
        loss(paid[(*first, *rest)], paid[(0, 0, *rest)])
        for first in itertools.product(CHARGES, repeat=2)
        for rest in itertools.product(CHARGES, repeat=2)
    ]
    assert BLOCK < max(one_day) <= min(2 * (BUDGET + GRANT), 2 * BLOCK), (
        "what one day decides about later ones can exceed the block's budget, which is promised for all of a block"
    )


async def test_the_block_is_charged_in_the_same_call_and_refuses_where_it_is_spent(redis):
    ledger, generation = await ledger_of(redis)
    first, second = (SLOTTING.period_of(slot) for slot in (WINDOWS[0], WINDOWS[2]))
    users = np.array([7, 8], dtype=np.uint64)
    assert not len(await ledger.charge(WINDOWS[0], first, generation, users, np.array([4, 1]), BUDGET))
    refused = await ledger.charge(WINDOWS[2], second, generation, users, np.array([4, 4]), BUDGET)
    assert refused.tolist() == [7], "4 of 5 were spent"
    assert (await ledger.spent(second.key, users, besides=0)).tolist() == [0, 4], "the period pays nothing alone"
    assert (await ledger.spent(first.block.key, users, besides=0)).tolist() == [4, 5]
    assert (await ledger.unspent(second, users, BUDGET, besides=WINDOWS[2]))[1].tolist() == [1, 4]


async def test_a_block_keeps_the_lowest_budget_that_it_was_ever_given(redis):
    ledger, generation = await ledger_of(redis)

    async def charge(slot: int, charge: int, budget: int) -> list[int]:
        period = SLOTTING.period_of(slot)
        period = period._replace(block=period.block._replace(budget=budget))
        refused = await ledger.charge(slot, period, generation, USER, np.array([charge]), 100)
        return refused.tolist()

    assert await charge(WINDOWS[0], 2, 3) == []
    assert await charge(WINDOWS[1], 2, 50) == [7]
    assert await charge(WINDOWS[1], 1, 50) == []


async def test_a_ledger_that_is_born_within_a_block_releases_none_of_it(redis):
    birth = START + DAY
    ledger, generation = await ledger_of(redis, birth=birth)
    assert await ledger.releases_since(SLOTTING) == START + 2 * DAY
    second = SLOTTING.period_of(WINDOWS[2])
    with pytest.raises(BeforeBirthError):
        await ledger.charge(WINDOWS[2], second, generation, USER, np.array([1]), BUDGET)
    without = Slotting(timedelta(hours=12), timedelta(days=1), "UTC")
    assert await ledger.releases_since(without) == birth


async def test_the_charges_of_a_block_outlive_its_periods_and_go_with_its_last_one(redis):
    (ledger, generation), keys = await ledger_of(redis), FeedKeys("bus")
    first = SLOTTING.period_of(WINDOWS[0])
    await ledger.charge(WINDOWS[0], first, generation, USER, np.array([4]), BUDGET)
    await redis.sadd(keys.sealed, str(WINDOWS[0]))
    retirement = Retirement(redis, "bus", SLOTTING)
    await retirement.retire(START + DAY)
    assert await ledger.periods() == [first.block.key]
    second = SLOTTING.period_of(WINDOWS[2])
    refused = await ledger.charge(WINDOWS[2], second, generation, USER, np.array([4]), BUDGET)
    assert refused.tolist() == [7], "what the retired day was charged still counts"
    await retirement.retire(START + 2 * DAY)
    assert await ledger.periods() == []
    assert await redis.exists(keys.terms(first.block.key)) == 0
    with pytest.raises(RetiredError):
        await ledger.charge(WINDOWS[2], second, generation, USER, np.array([4]), BUDGET)


@pytest.mark.parametrize("timezone", ["America/Chicago", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Beirut"])
def test_every_period_lies_in_one_block_whatever_the_clocks_do(timezone):
    slotting = Slotting(timedelta(hours=1), timedelta(days=7), timezone, Horizon(timedelta(days=28), 1))
    at, ends = SLOT, set[int]()
    for _ in range(120):
        period = slotting.period_of(at)
        block = period.block
        assert block.start <= period.start < period.end <= block.end
        ends.add(block.end)
        at = period.end
    assert len(ends) in (30, 31)


ATTACKS = 100
"""Attacks whose ranks are compared; the entropy is fixed, so the ranks are the same in every run."""
NIGHTS = 28


async def nights_paid(redis: Redis, config: Config, horizon: Horizon | None) -> list[bool]:
    """In which nights of a block the ledger lets the worker count: each costs one whole window."""
    await redis.flushall()
    slotting = Slotting(config.window.slot, timedelta(days=1), "UTC", horizon)
    (ledger, generation), paid = await ledger_of(redis, "riders"), []
    for night in range(NIGHTS):
        slot = START + night * DAY
        grant, period = np.array([config.window_grant]), slotting.period_of(slot)
        refused = await ledger.charge(slot, period, generation, USER, grant, config.privacy.ledger_budget)
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
    """Windows of four hours over 312 hexagons, each at ε = 2 of 12 a day: little noise beside a single user."""
    return riders_config(tmp_path, **{"window.slot": "4h", "privacy.budget": 12.0, "speed.statistics": ["mean"]})


async def test_without_a_horizon_a_few_nights_find_the_worker(config, redis):
    paid = await nights_paid(redis, config, None)
    assert paid == [True] * NIGHTS
    assert ranks(config, paid)[[0, 1, 2, 4, 6, 27]].tolist() == [22, 11, 5, 1.5, 1, 1], "the figures of docs/privacy.md"


async def test_with_a_horizon_later_nights_add_nothing(config, redis):
    """The odds of any belief about the worker move by at most e^H in the block; without one by e^(28 ε) here."""
    spends = 2 * config.window_grant
    paid = await nights_paid(redis, config, Horizon(timedelta(days=28), spends))
    assert paid == [True, True] + [False] * (NIGHTS - 2)
    after = ranks(config, paid)[[0, 1, 2, 4, 27]].tolist()
    assert after == [22, 11, 16.5, 35.5, 94.5], "noise of later nights buries what the first two told"
    assert exp(spends / 1e6) < exp(NIGHTS * config.privacy.epsilon) / 1e20
