"""What serves big windows changes no row and no charge: reading in parts, leaving positions out, charging many at
once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stream.statistics.plan import PlanError
from stream.statistics.window_rows import WindowRows
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, RowStore
from stream.terms import Terms
from stream.windows import Period
from tests.support.builders import SLOT, bus_config, located_rows, with_histograms
from tests.support.redis_scripts import runs_of_scripts
from tests.support.releasing import planned_with_fixes

PERIOD = Period(0, 86_400, "p")


async def test_blobs_of_any_size_are_read_in_order_with_and_without_positions(redis: Redis) -> None:
    """7 MiB in blobs of 1 row to 40 000 rows, so that one read asks for several blobs, and several reads for all."""
    lengths = [1, 40_000, 1, 2, *[3_000] * 50, 1]
    rows = np.zeros(sum(lengths), dtype=ROW)
    for at, name in enumerate(ROW.names or ()):
        rows[name] = np.arange(len(rows)) * (at + 1) % 2**31
    await RowStore(redis, "bus").move("t/0", 0, 0)  # which opens the partition
    await redis.rpush(
        PartKeys(FeedKeys("bus"), "t/0").rows(SLOT),
        *[part.tobytes() for part in np.split(rows, np.cumsum(lengths)[:-1])],
    )
    await RowStore(redis, "bus").seal(SLOT)
    whole = await RowStore(redis, "bus").read(SLOT)
    assert whole.tobytes() == rows.tobytes()
    placeless = await RowStore(redis, "bus").read(SLOT, positions=False)
    assert placeless.dtype.names == ("cell", "user", "time", "value")
    assert placeless.tolist() == rows[list(placeless.dtype.names)].tolist()


async def test_a_quiet_night_makes_no_read_of_the_rush_hour_longer(redis: Redis) -> None:
    """After 5 000 blobs of one row, a read by their size alone would ask for 10 000 more, whatever these hold."""
    await RowStore(redis, "bus").move("t/0", 0, 0)
    await RowStore(redis, "bus").seal(SLOT)
    await redis.rpush(PartKeys(FeedKeys("bus"), "t/0").rows(SLOT), *[bytes(ROW.itemsize)] * 5_000)
    await redis.config_resetstat()
    assert len(await RowStore(redis, "bus").read(SLOT)) == 5_000
    commands = await redis.info("commandstats")
    assert commands["cmdstat_lrange"]["calls"] > 12, "10 if each read asks for twice as many as all before it"
    assert runs_of_scripts(commands) == 1 + 3, "a call reads 2 000 blobs at most: it would take Redis too long"


async def test_a_call_that_names_a_user_twice_charges_nobody(redis: Redis) -> None:
    """Balances are read once for all users of a call, so a user named twice would pay for one of both only."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    users = np.array([7, 8, 7], dtype=np.uint64)
    with pytest.raises(ResponseError, match="TWICE"):
        await ledger.charge(1, PERIOD, generation, users, np.array([1, 2, 2]), 9)
    assert not (await ledger.spent("p", users, besides=0)).any()


def test_histograms_that_were_planned_meanwhile_are_not_drawn_from_rows_without_positions(tmp_path: Path) -> None:
    rows = located_rows(5, 200)
    plan, _, _ = planned_with_fixes(with_histograms("values", tmp_path, ["ug"]), rows)
    placeless = rows[["cell", "user", "time", "value"]]
    window = WindowRows.of(placeless, Terms.of(bus_config(tmp_path)).reading)
    with pytest.raises(PlanError, match="without positions"):
        window.as_planned(plan)
