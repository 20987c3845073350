"""Rows that an earlier version stored are taken over as they were, and such a version cannot store any more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stream.config import Config
from stream.protocol.due_windows import DueWindows
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import Behind, RowStore, StateError
from stream.storage.taking_over import take_over
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.closing import Collected, protocol_of
from tests.support.sharing import sharing
from tests.support.stored_rows import rows_in, store

HOUR, N = 3600, 120
RELEASED, OPEN, ASIDE = SLOT - HOUR, SLOT, SLOT + HOUR


async def stored_before(redis: Redis, config: Config) -> np.ndarray:
    """What the version before stored: one open window, one that was set aside, and one that was released."""
    keys, rows = FeedKeys.of(config), random_rows(3, N)
    await Ledger.of(redis, config).start_generation(birth=0)
    await redis.rpush(keys.rows(OPEN), rows[:50].tobytes(), rows[50:].tobytes())
    await redis.rpush(keys.rows(ASIDE), random_rows(4, 7, slot=ASIDE).tobytes())
    await redis.zadd(keys.slots, {str(OPEN): OPEN})
    await redis.sadd(keys.sealed, RELEASED, ASIDE)
    await redis.hset(keys.closed, str(RELEASED), json.dumps({"messages": 1, "digest": "d", "sequence": 0}))
    await redis.hset(keys.set_aside, str(ASIDE), "planted")
    await redis.hset(keys.offsets, mapping={"bus/0": 90, "bus/1": 41})
    await redis.hset(keys.watermarks, mapping={"bus/0": 5, "bus/1": 6})
    await redis.hset(keys.seen, mapping={"bus/0": 7, "bus/1": 8})
    await redis.hset(keys.read, mapping={"bus/0": 10, "bus/1": 11})
    await redis.hset(keys.partitions, mapping={"bus/0": 12, "bus/1": 12})
    return rows


@pytest.mark.parametrize("shares", [False, True], ids=["a ledger of its own", "a shared ledger"])
async def test_what_an_earlier_version_stored_is_seen_and_released(redis: Redis, tmp_path: Path, shares: bool) -> None:
    config = sharing(tmp_path)[0] if shares else bus_config(tmp_path)
    rows = await stored_before(redis, config)
    assert await take_over(redis, config) == 2
    assert await take_over(redis, config) == 0, "it may be repeated"
    state, aside = RowStore.of(redis, config), ReleaseStore.of(redis, config)
    seen = await state.look()
    assert seen.offsets == {"bus/0": 90, "bus/1": 41}
    assert seen.times == {"bus/0": (5, 7, 10), "bus/1": (6, 8, 11)}
    due = DueWindows(config, state, aside, Ledger.of(redis, config))
    assert (await due.look()).open == [OPEN]
    assert await aside.take_up(ASIDE)
    assert (await due.look()).open == [OPEN, ASIDE]
    with pytest.raises(Behind):
        await state.append("bus/1", 42, 43, rows[:1], np.array([42]), np.array([OPEN]))
    late = await state.append("bus/1", 41, 42, rows[:1], np.array([41]), np.array([RELEASED]))
    assert late.late == 1, "a window that was released stays sealed"
    await state.seal(OPEN)
    assert (await state.read_rows(OPEN)).tobytes() == rows.tobytes()
    publisher, expected = Collected(), Collected()
    await protocol_of(redis, config, publisher).close(OPEN)
    await redis.flushall()
    await store(redis, config, rows)
    await protocol_of(redis, config, expected).close(OPEN)
    users = [[json.loads(message.value).get("users") for message in out.messages] for out in (publisher, expected)]
    assert users[0] == users[1]


async def test_a_version_that_kept_rows_together_cannot_store_any_more(redis: Redis, tmp_path: Path) -> None:
    """Otherwise nobody would read what its workers, which still run, store."""
    config = bus_config(tmp_path)
    for _ in range(2):
        assert await take_over(redis, config) == 0, "a new feed"
        with pytest.raises(ResponseError, match="WRONGTYPE"):  # as the first command of its append does
            await redis.hget(FeedKeys.of(config).offsets, "bus/0")


async def test_a_version_that_kept_rows_together_cannot_release_what_it_read_of_a_window_before_the_rest_moved(
    redis: Redis, tmp_path: Path
) -> None:
    """Its closing process reads blobs until none is left, so it would take a window whose rows moved for one without more rows."""
    config = bus_config(tmp_path)
    keys, rows = FeedKeys.of(config), await stored_before(redis, config)
    (read,) = await redis.lrange(keys.rows(OPEN), 0, 0)
    assert await take_over(redis, config) == 2
    for slot in (OPEN, ASIDE):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await redis.lrange(keys.rows(slot), 1, 1)
        assert 0 < await redis.ttl(keys.rows(slot)) <= 86_400
    assert read == rows[:50].tobytes(), "what it had read is part of the window"
    await redis.unlink(keys.offsets)  # as somebody does who goes back at once, and forward again
    await redis.hset(keys.offsets, "bus/0", 0)
    for slot in (OPEN, ASIDE):
        await RowStore.of(redis, config).discard(slot)
    await redis.zadd(keys.slots, {str(OPEN): OPEN})
    assert await take_over(redis, config) == 0, "what stands in place of rows is not taken for rows"


async def test_rows_of_both_versions_are_refused(redis: Redis, tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    await take_over(redis, config)
    await store(redis, config, random_rows(3, N))
    await redis.delete(FeedKeys.of(config).offsets)
    await stored_before(redis, config)
    with pytest.raises(StateError, match="beside rows of this one"):
        await take_over(redis, config)
    assert len(await rows_in(redis, "bus", OPEN)) == N, "nothing is written"


async def test_after_going_back_with_all_windows_closed_the_older_state_is_taken_over_again(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    await take_over(redis, config)
    state = await store(redis, config, random_rows(3, N))
    await protocol_of(redis, config, Collected()).close(SLOT)
    await redis.flushall()
    await take_over(redis, config)
    await redis.delete(FeedKeys.of(config).offsets)
    await stored_before(redis, config)
    assert await take_over(redis, config) == 2
    assert (await state.look()).offsets == {"bus/0": 90, "bus/1": 41}
