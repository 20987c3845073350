"""Windows of sums and windows of rows are released with the same bytes, wherever every user's events come in order and in one partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import PlanError
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.support.builders import SLOT
from tests.support.closing import Collected, close_until
from tests.support.summed import both, by_partition, deliver, fleet
from tests.support.tapes import tape

GENERATION = "11111111-1111-4111-8111-111111111111"
CASES: dict[str, dict[str, Any]] = {
    "mean and variance": {},
    "mean": {"speed.statistics": ["mean"]},
    "variance": {"speed.statistics": ["variance"]},
    "suppression": {"speed.suppression": "chop-user", "speed.min_users": 3},
    "the error kept": {"speed.keep": "error", "speed.allocation": "uniform", "speed.sum_cap": 0},
    "sums capped": {"speed.sum_cap": 0.5},
    "merged": {"hexagons.merge_until_km_h": 8.0},
    "too many cells": {"window.max_cells_per_user": 3},
    "too many events": {"window.max_events_per_user": 31},
    "too many of both": {"window.max_cells_per_user": 2, "window.max_events_per_user": 17},
    "a low bound": {"speed.upper_bound": 31.0},
}


def protocol_of(redis: Redis, config: Config, publisher: Collected) -> ReleaseProtocol:
    rows, ledger = RowStore.of(redis, config), Ledger.of(redis, config)
    return ReleaseProtocol.connect(config, redis, rows, ledger, publisher, Noise(tape(7)))


async def begun(redis: Redis, config: Config) -> RowStore:
    await redis.flushall()
    await Ledger.of(redis, config).start_generation(birth=0)
    await redis.set(FeedKeys.of(config).generation, GENERATION)
    return RowStore.of(redis, config)


async def released(
    redis: Redis, config: Config, parts: list[np.ndarray], cuts: list[int]
) -> tuple[bytes | None, dict[bytes, bytes], list[Message]]:
    """(Plan, charges, messages) of a window whose rows come in ``parts``, one for each partition."""
    state, publisher, keys = await begun(redis, config), Collected(), FeedKeys.of(config)
    for number, part in enumerate(parts):
        await deliver(state, part, [cut for cut in cuts if cut < len(part)], partition=f"t/{number}")
    protocol = protocol_of(redis, config, publisher)
    await close_until(protocol, SLOT, "charge")
    plan, charged = await redis.get(keys.plan(SLOT)), await redis.hgetall(keys.charged(SLOT))
    await protocol.close(SLOT)
    assert (await state.look()).slots == [], "what was released is deleted"
    return plan, charged, publisher.messages


@pytest.mark.parametrize("case", CASES)
async def test_sums_and_rows_give_the_same_plan_charges_and_messages(case: str, redis: Redis, tmp_path: Path) -> None:
    """600 events of 12 users in 6 cells over 3 partitions, in batches of several sizes."""
    configs, parts = both(tmp_path, **CASES[case]), by_partition(fleet(3), 3)
    by_rows = await released(redis, configs["rows"], parts, [])
    by_sums = await released(redis, configs["sums"], parts, [1, 60, 61, 140])
    assert by_sums == by_rows
    assert by_rows[1], "users were charged"
