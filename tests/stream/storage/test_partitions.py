"""A partition that is opened, sealed, lost or gone: no row of it is counted twice, forgotten, or missing from a window
that is read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.row_store import ROW, Appended, Behind, ReadThrough, RowStore
from stream.storage.sealed_rows import NotSealedError

KEYS, HOUR = FeedKeys("bus"), 3600
PART = PartKeys(KEYS, "t/0")


async def append(
    state: RowStore, first: int, n: int, slot: int = 0, *, partition: str = "t/0", begun: bool = False
) -> Appended:
    rows = np.zeros(n, dtype=ROW)
    rows["user"], rows["time"] = np.arange(first, first + n), slot * 1_000_000
    return await state.append(
        partition, first, first + n, rows, rows["user"].astype(np.int64), np.full(n, slot), begun=begun
    )


async def lose(redis: Redis, part: PartKeys = PART) -> None:
    """What remains of a partition if its shard is set back to before it was opened."""
    for key in [part.progress, part.sealed, part.slots, *[part.rows(slot * HOUR) for slot in range(4)]]:
        await redis.delete(key)


async def users(state: RowStore, slot: int) -> list[int]:
    await state.seal(slot)
    return (await state.read(slot))["user"].tolist()


async def test_a_lost_partition_is_read_again_from_where_it_began_and_only_released_windows_stay_sealed(
    redis: Redis,
) -> None:
    state = RowStore(redis, "bus")
    for hour in range(3):
        await append(state, 10 + 5 * hour, 5, hour * HOUR)
    await state.seal(0)
    await state.seal(HOUR)
    await redis.hset(KEYS.closed, "0", "{}")
    await lose(redis)
    with pytest.raises(NotSealedError, match="t/0"):
        await state.seal(2 * HOUR)
    assert await state.next_offsets() == {"t/0": 10}
    with pytest.raises(Behind) as behind:
        await append(state, 25, 5, 3 * HOUR, begun=True)
    assert behind.value.stored == 10
    assert (await append(state, 10, 5, 0)).late == 5, "it was released"
    assert (await append(state, 15, 5, HOUR)).appended == 5, "it was sealed, but its rows are lost"
    assert (await append(state, 20, 5, 2 * HOUR)).appended == 5
    assert await users(state, HOUR) == list(range(15, 20))


async def test_a_partition_whose_name_is_lost_as_well_begins_at_0_if_its_reader_stored_any_of_it(redis: Redis) -> None:
    state = RowStore(redis, "bus")
    await append(state, 0, 10)
    await lose(redis)
    await redis.delete(KEYS.opened)
    assert await state.next_offsets() == {}, "a reader that starts then begins at 0 as well"
    assert await state.read_through([ReadThrough("t/0", 10, 10, 77)]) == {"t/0": 0}
    await lose(redis)
    await redis.delete(KEYS.opened)
    with pytest.raises(Behind) as behind:
        await append(state, 10, 5, begun=True)
    assert behind.value.stored == 0


async def test_a_name_that_the_feeds_shard_lost_is_put_back_and_a_listed_partition_is_sealed_and_read_until_then(
    redis: Redis,
) -> None:
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0"], 10**15)
    await append(state, 0, 10)
    await redis.delete(KEYS.opened)
    assert await users(state, 0) == list(range(10))
    await append(state, 10, 5, HOUR)
    assert await state.read_through([ReadThrough("t/0", 15, 15, 77)]) == {}
    await state.list_partitions([], 10**15)
    assert await users(state, HOUR) == list(range(10, 15))
    await lose(redis)
    assert await state.next_offsets() == {"t/0": 0}


async def test_a_lost_partition_is_read_again_only_from_the_first_row_that_was_not_released(redis: Redis) -> None:
    """So what a cut log no longer has counts as lost only if it was not released."""
    state = RowStore(redis, "bus")
    for hour in range(3):
        await append(state, 5 * hour, 5, hour * HOUR)
    await state.drop_rows(0)
    await state.read_through([ReadThrough("t/0", 15, 15, 77)])
    await state.drop_rows(HOUR)  # which no look at the ends has seen
    await lose(redis)
    assert await state.next_offsets() == {"t/0": 5}


async def test_a_partition_that_the_topic_no_longer_has_is_sealed_where_it_has_rows_only(redis: Redis) -> None:
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0", "t/1"], 1)
    await append(state, 0, 5, 0, partition="t/0")
    await append(state, 0, 5, HOUR, partition="t/1")
    await state.list_partitions(["t/0"], 2)
    assert await users(state, 0) == list(range(5))
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 0
    assert await users(state, HOUR) == list(range(5))
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 1
    await state.drop_rows(HOUR)
    await state.list_partitions(["t/0", "t/1"], 3)
    await state.seal(2 * HOUR)
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 2, "the topic has it again"


async def test_rows_are_read_only_under_one_seal(redis: Redis) -> None:
    """A shard that is set back while its rows are read has lost the seal, or has another one."""
    state = RowStore(redis, "bus")
    await append(state, 0, 5)
    with pytest.raises(NotSealedError):
        await state.read(0)
    await state.seal(0)
    await redis.rpush(PART.rows(0), *[bytes(ROW.itemsize * 60_000)] * 4)  # 8 MiB: several reads
    evaluate, reads = redis.eval, 0

    async def resealed(script: str, *given: Any) -> Any:
        nonlocal reads
        if PART.rows(0) in given:
            reads += 1
            await redis.hset(PART.sealed, "0", reads)
        return await evaluate(script, *given)

    async def unknown(*given: Any) -> Any:
        raise NoScriptError

    client = SimpleNamespace(eval=resealed, evalsha=unknown, register_script=redis.register_script)
    with pytest.raises(NotSealedError):
        await RowStore(client, "bus").read(0)
    assert reads == 2


class Turns:
    """A client whose calls wait until it is their turn, so that two coroutines run in one order of many."""

    def __init__(self, redis: Redis, name: str, order: list[str], turned: asyncio.Condition) -> None:
        self._redis, self._name, self._order, self._turned = redis, name, order, turned

    def register_script(self, script: str) -> Any:
        return self._redis.register_script(script)

    async def eval(self, *given: Any) -> Any:
        return await self._in_turn(lambda: self._redis.eval(*given))

    async def evalsha(self, *given: Any) -> Any:
        return await self._in_turn(lambda: self._redis.evalsha(*given))

    async def _in_turn(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async with self._turned:
            await self._turned.wait_for(lambda: self._name not in self._order or self._order[0] == self._name)
            if self._order and self._order[0] == self._name:
                self._order.pop(0)
            try:
                return await call()
            finally:
                self._turned.notify_all()


async def missed(redis: Redis, kind: type[RowStore]) -> int:
    """Number of orders of the calls of one who opens a partition, and one who seals and reads, in which stored rows are
    not read."""
    wrong = 0
    await redis.config_set("appendfsync", "no")
    for places in itertools.combinations(range(10), 3):
        await redis.flushall()
        order, turned = ["seals" if place in places else "opens" for place in range(10)], asyncio.Condition()
        opens, seals = (kind(Turns(redis, name, order, turned), "bus") for name in ("opens", "seals"))

        async def read(
            state: RowStore = seals, order: list[str] = order, turned: asyncio.Condition = turned
        ) -> list[int] | None:
            try:
                return await users(state, 0)
            except NotSealedError:
                return None
            finally:
                async with turned:
                    order[:] = [name for name in order if name != "seals"]
                    turned.notify_all()

        async def store(
            state: RowStore = opens, order: list[str] = order, turned: asyncio.Condition = turned
        ) -> Appended:
            try:
                return await append(state, 0, 5)
            finally:
                async with turned:
                    order[:] = [name for name in order if name != "opens"]
                    turned.notify_all()

        stored, rows = await asyncio.gather(store(), read())
        wrong += rows is not None and len(rows) != stored.appended
    await redis.config_set("appendfsync", "always")
    return wrong


async def test_in_every_order_of_opening_and_sealing_what_is_stored_is_read(redis: Redis) -> None:
    assert await missed(redis, RowStore) == 0


async def test_who_seals_by_names_that_were_read_before_the_seal_misses_rows(redis: Redis) -> None:
    """The planted bug."""

    class NamesFirst(RowStore):
        names: Any = None

        async def partitions(self) -> Any:
            return self.names

        async def seal_others(self, slot: int) -> Any:
            self.names = await super().partitions()
            await super().seal_others(slot)
            return self.names

    assert await missed(redis, NamesFirst) > 0
