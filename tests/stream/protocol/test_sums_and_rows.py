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


async def test_a_user_whose_events_come_out_of_order_counts_with_fewer_and_the_others_as_before(
    redis: Redis, tmp_path: Path
) -> None:
    """The claim above needs order: one straggler of user 1 is not counted, and only what it moved is another."""
    configs, rows = both(tmp_path), fleet(3)
    late = int(np.flatnonzero(rows["user"] == 1)[0])
    order = np.append(np.delete(np.arange(len(rows)), late), late)
    counts = {}
    for state, config in configs.items():
        store = await begun(redis, config)
        told = await deliver(store, rows[order])
        assert told.overtaken == (state == "sums")
        protocol = protocol_of(redis, config, Collected())
        window = config.slotting.window(SLOT)
        await store.seal(SLOT)
        stored = await store.read(SLOT)
        arranged = protocol.statistics.arrange(stored.rows, window, stored.sums).counts
        cells, users = arranged.cells[arranged.pair_cell].tolist(), arranged.users[arranged.pair_user].tolist()
        counts[state] = dict(zip(zip(cells, users, strict=True), arranged.samples.tolist(), strict=True))
    assert {pair for pair in counts["rows"] if counts["rows"][pair] != counts["sums"].get(pair)} == {
        (int(rows["cell"][late]), 1)
    }


async def test_a_window_whose_state_was_changed_while_it_was_open_is_released_with_all_of_its_events(
    redis: Redis, tmp_path: Path
) -> None:
    """One partition began with rows, the other with sums; either configuration releases both, if sums are enough for it."""
    configs, parts = (
        both(tmp_path, **{"window.max_cells_per_user": 4, "window.max_events_per_user": 30}),
        by_partition(fleet(5), 2),
    )
    expected = (await released(redis, configs["rows"], parts, []))[2]
    for name in ("rows", "sums"):
        publisher = Collected()
        await begun(redis, configs[name])
        for number, form in enumerate(("rows", "sums")):
            await deliver(RowStore.of(redis, configs[form]), parts[number], [50], partition=f"t/{number}")
        await protocol_of(redis, configs[name], publisher).close(SLOT)
        assert publisher.messages == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "percentiles": ({"window.state": "rows", "speed.statistics": ["mean", "p50"]}, "p50 are read from single speeds"),
    "clipping": ({"window.state": "rows", "speed.clipping": "joint"}, "speed.clipping"),
    "a lower bound": ({"speed.upper_bound": 40.0}, "speed.upper_bound was lowered"),
    "a shorter window": ({"window.slot": "30m"}, "window.slot was changed"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_sums_that_a_changed_configuration_cannot_release_wait_until_it_is_changed_back(
    case: str, redis: Redis, tmp_path: Path
) -> None:
    """Nothing is planned or charged meanwhile. A bound that was raised covers them: it only adds noise."""
    changes, message = REFUSED[case]
    config, keys = both(tmp_path)["sums"], FeedKeys.of(both(tmp_path)["sums"])
    state = await begun(redis, config)
    await deliver(state, fleet(6))
    with pytest.raises(PlanError, match=message):
        await protocol_of(redis, both(tmp_path, **changes)["sums"], Collected()).close(SLOT)
    assert await redis.exists(keys.plan(SLOT), keys.charged(SLOT)) == 0
    publisher = Collected()
    await protocol_of(redis, both(tmp_path, **{"speed.upper_bound": 90.0})["sums"], publisher).close(SLOT)
    assert publisher.messages


async def test_a_planned_window_of_sums_keeps_the_limit_of_cells_that_it_was_planned_with(
    redis: Redis, tmp_path: Path
) -> None:
    configs = [both(tmp_path, **{"window.max_cells_per_user": cells})["sums"] for cells in (2, 1000)]
    expected = (await released(redis, configs[0], [fleet(7)], []))[2]
    state, publisher = await begun(redis, configs[0]), Collected()
    await deliver(state, fleet(7), partition="t/0")
    await close_until(protocol_of(redis, configs[0], publisher), SLOT, "charge")
    await protocol_of(redis, configs[1], publisher).close(SLOT)
    assert publisher.messages == expected
