"""A horizon in the release protocol: every close marker states it, and a block that is spent silences users to its
end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.messages.message import WINDOW
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.protocol.parts import statistics_of
from stream.protocol.release_protocol import ReleaseProtocol
from stream.storage.ledger import Ledger, LedgerError
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, random_rows, zcdp_config
from tests.support.participating import SMALL, riders
from tests.support.verifying import verified

DAY = 86_400
START = SLOT + 10 * DAY
"""A day in the first half of a block of 28 days."""
DAYS = 5


def with_horizon(folder: Path, budget: float, **overrides: Any) -> Config:
    horizon = {"period": "28d", "budget": budget}
    return bus_config(
        folder, **PLAINLY_PLANNED, **{"privacy.horizon": horizon, "speed.allocation": "uniform"}, **overrides
    )


async def released(redis: Redis, config: Config) -> list[str]:
    """Lines of one window on each of some days, in which the same users drive."""
    ledger, out = Ledger.of(redis, config), io.StringIO()
    await ledger.start_generation(birth=0)
    rows = np.concatenate([random_rows(1, 60, users=6, slot=START + day * DAY) for day in range(DAYS)])
    by_slot = split_by_slot(rows, config)
    protocol = ReleaseProtocol.connect(
        statistics_of(config), redis, MemoryRows(by_slot), ledger, LinePublisher(out), Noise()
    )
    for slot in sorted(by_slot):
        await protocol.close(slot)
    return out.getvalue().splitlines()


def markers(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line)["value"] for line in lines if f'"topic":"{WINDOW}"' in line]


async def test_a_block_pays_for_its_days_and_then_for_none(redis: Redis, tmp_path: Path) -> None:
    config = with_horizon(tmp_path, 480.0)
    lines = await released(redis, config)
    spent = await Ledger.of(redis, config).periods()
    block = config.slotting.block_of(START)
    assert block is not None
    assert spent.count(block.key) == 1
    users, total = await Ledger.of(redis, config).total(block.key)
    days = [await Ledger.of(redis, config).total(period) for period in spent if period != block.key]
    assert total == sum(sum_of_day for _, sum_of_day in days), "every charge counts in its period and in its block"
    assert users == 6
    report = verified(lines)
    assert report["sound"], report["problems"]
    assert {marker["horizon"]["budget"] for marker in markers(lines)} == {480.0}

    await redis.flushall()
    small = with_horizon(tmp_path, 2 * config.privacy.epsilon, **{"privacy.budget": 2 * config.privacy.epsilon})
    lines = await released(redis, small)
    assert len(markers(lines)) == DAYS, "a window is released, whoever can pay"
    last = config.slotting.period_of(START + (DAYS - 1) * DAY).key
    assert await Ledger.of(redis, small).total(last) == (0, 0)
    users, total = await Ledger.of(redis, small).total(block.key)
    assert 0 < total <= users * small.privacy.horizon_budget


async def test_participation_and_zcdp_have_a_horizon_too(redis: Redis, tmp_path: Path) -> None:
    config = riders(tmp_path, **{"privacy.horizon": {"period": "7d", "budget": 20.0}})
    assert {marker["horizon"]["budget"] for marker in markers(await released(redis, config))} == {20.0}
    await redis.flushall()
    zcdp = zcdp_config(tmp_path, **SMALL, **{"privacy.horizon": {"period": "7d", "budget": 8.0}})
    stated = [marker["horizon"] for marker in markers(await released(redis, zcdp))]
    block = zcdp.privacy.horizon_budget
    assert {horizon["rho_budget"] for horizon in stated} == {block / 1e9}
    assert {horizon["budget"] for horizon in stated} == {zcdp.privacy.stated_epsilon(block)}
    assert 7.99 < zcdp.privacy.stated_epsilon(block) <= 8.0


async def test_another_horizon_is_another_ledger(redis: Redis, tmp_path: Path) -> None:
    """Blocks of another length would forget what was spent."""
    ledger = Ledger.of(redis, with_horizon(tmp_path, 480.0))
    await ledger.claim_policy(with_horizon(tmp_path, 480.0).ledger_policy)
    await ledger.claim_policy(with_horizon(tmp_path, 300.0).ledger_policy)
    with pytest.raises(LedgerError, match="spent budgets would be forgotten"):
        await ledger.claim_policy(bus_config(tmp_path).ledger_policy)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"privacy.horizon": {"period": "28d", "budget": 1.0}}, "below privacy.budget"),
        ({"privacy.horizon": {"period": "36h", "budget": 100.0}}, "whole periods"),
        ({"privacy.horizon": {"period": "28d", "budget": 100.0}, "ledger.name": "city"}, "not for privacy.horizon"),
    ],
)
def test_a_horizon_that_cannot_be_kept_is_refused(overrides: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        bus_config(tmp_path, **overrides)
