"""``window.slot`` changes while windows are open: each window has the rows of its own time, and no two share an
identifier.
"""

import json
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.config import Config
from stream.statistics.plan import PlanError
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.stored_rows import due

HALF = 1800
pytestmark = pytest.mark.usefixtures("clock")


async def collect(redis: Redis, config: Config) -> None:
    """An hour of rows, by the slots of ``config``."""
    rows, n = random_rows(3, 300), 300
    slots = config.slotting.slot_starts(rows["time"].astype(np.int64))
    await Ledger(redis, config.feed.name).start_generation(birth=0)
    await RowStore(redis, config.feed.name).append("bus/0", 0, n, rows, np.arange(n), slots)


async def released(redis: Redis, config: Config) -> list[tuple[str, dict[str, Any], int]]:
    """(Identifier, window, events) of every window that is due, oldest first."""
    windows = []
    for slot in await due(config, "bus/0"):
        out = Collected()
        await protocol_of(redis, config, out).close(slot)
        bodies = [json.loads(message.value) for message in out.messages]
        windows.append((out.messages[-1].ce_id, bodies[-1]["window"], sum(b.get("events", 0) for b in bodies[:-1])))
    return windows


def events(start: int, end: int) -> int:
    time = random_rows(3, 300)["time"] // 1_000_000 - SLOT
    return int(((time >= start) & (time < end)).sum())


async def test_after_longer_slots_no_window_says_more_than_it_holds_and_identifiers_differ(redis, redis_url, tmp_path):
    before, after = (bus_config(tmp_path, **{"redis.url": redis_url, "window.slot": slot}) for slot in ("30m", "1h"))
    await collect(redis, before)
    windows = await released(redis, after)
    assert len({name for name, _, _ in windows}) == len(windows) == 1
    assert windows[0][1] == {"start": "2017-03-21T12:00:00Z", "end": "2017-03-21T13:00:00Z"}
    assert windows[0][2] == events(0, HALF)
    assert await RowStore(redis, "bus").open_slots() == []
    with pytest.raises(PlanError, match=r"window\.slot was changed"):
        await protocol_of(redis, after, Collected()).close(SLOT + HALF)


async def test_after_shorter_slots_a_window_holds_the_rows_of_its_own_time(redis, redis_url, tmp_path):
    before, after = (bus_config(tmp_path, **{"redis.url": redis_url, "window.slot": slot}) for slot in ("1h", "30m"))
    await collect(redis, before)
    ((_, window, number),) = await released(redis, after)
    assert window == {"start": "2017-03-21T12:00:00Z", "end": "2017-03-21T12:30:00Z"}
    assert number == events(0, HALF) < events(0, 2 * HALF)


async def test_a_window_that_was_planned_is_finished_as_it_was_planned(redis, redis_url, tmp_path):
    before, after = (bus_config(tmp_path, **{"redis.url": redis_url, "window.slot": slot}) for slot in ("30m", "1h"))
    await collect(redis, before)
    await protocol_of(redis, before, Collected()).close(SLOT)
    await close_until(protocol_of(redis, before, Collected()), SLOT + HALF, "charge")
    ((_, window, number),) = await released(redis, after)
    assert window == {"start": "2017-03-21T12:30:00Z", "end": "2017-03-21T13:00:00Z"}
    assert number == events(HALF, 2 * HALF)


@pytest.mark.parametrize(("slots", "ends"), [(("30m", "1h"), ["14:00"]), (("1h", "30m"), ["13:00", "13:30", "14:00"])])
async def test_under_participation_the_ticks_go_on_from_a_beginning_of_the_new_length(
    redis, redis_url, tmp_path, clock, slots, ends
):
    """Half an hour after the start, a feed with slots of 30 minutes has released one window, and one with slots of an
    hour none. Then the length changes.
    """
    box = {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}
    settings = {"redis.url": redis_url, "feed.domain": box, "hexagons.resolution": 6}
    before, after = (riders_config(tmp_path, **settings, **{"window.slot": slot}) for slot in slots)
    await collect(redis, before)
    clock.now = float(SLOT)
    assert await released(redis, before) == []
    clock.now = SLOT + HALF + before.window.allowed_delay.total_seconds() + 1
    first = await released(redis, before)
    assert [window["end"][11:16] for _, window, _ in first] == (["12:30"] if slots[0] == "30m" else [])
    assert await released(redis, before) == []
    clock.now = SLOT + 4 * HALF + before.window.allowed_delay.total_seconds() + 1
    windows = await released(redis, after)
    assert [window["end"][11:16] for _, window, _ in windows] == (ends if slots[0] == "30m" else ["12:30", *ends])
