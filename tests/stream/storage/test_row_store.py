"""RowStore stores every row once, whatever is delivered again, by whichever worker, and wherever batches begin."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.storage.row_store import ROW, AppendTimes, Behind, ReadThrough, RowStore
from tests.support.stored_rows import rows_in

pytestmark = pytest.mark.every_server

SLOTS = np.array([0, 3600, 7200])


def rows_of(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A row in one of three slots for each offset that is not a multiple of 5 (those were refused); its user is the
    offset."""
    sound = offsets[offsets % 5 != 0]
    rows = np.zeros(len(sound), dtype=ROW)
    rows["user"], rows["time"] = sound, SLOTS[sound % 3] * 1_000_000 + sound
    return rows, sound


async def deliver(state: RowStore, first: int, following: int, partition: str = "t/0", arrivals=None, **begun: bool):
    rows, offsets = rows_of(np.arange(first, following))
    slots, times = rows["time"] // 3_600_000_000 * 3600, arrivals and arrivals(offsets)
    return await state.append(partition, first, following, rows, offsets, slots, times, **begun)


async def stored_users(redis: Redis) -> list[int]:
    slots = [await rows_in(redis, "bus", slot) for slot in await RowStore(redis, "bus").open_slots()]
    return np.concatenate(slots)["user"].tolist() if slots else []


def expected_users(following: int) -> list[int]:
    return [offset for offset in range(following) if offset % 5]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(-2, 60), st.integers(1, 40)), min_size=1, max_size=25))
def test_any_overlapping_deliveries_leave_every_row_once(redis_url, deliveries):
    """Redelivery, rebalances and former owners that are faster than the new one append ranges of offsets that begin at
    the stored one or before it. A batch that would skip messages is refused whole."""

    async def run():
        async with Redis.from_url(redis_url) as redis:
            await redis.flushall()
            owners, end = itertools.cycle([RowStore(redis, "bus"), RowStore(redis, "bus")]), 0
            for (back, length), state in zip(deliveries, owners, strict=False):
                first = max(0, end - back)
                if end and first > end:
                    with pytest.raises(Behind) as refused:
                        await deliver(state, first, first + length)
                    assert refused.value.stored == end
                    continue
                first = min(first, end)
                result = await deliver(state, first, first + length)
                assert result.appended == sum(offset % 5 != 0 for offset in range(end, first + length))
                assert result.duplicates == sum(offset % 5 != 0 for offset in range(first, min(end, first + length)))
                assert result.late == 0
                end = max(end, first + length)
            assert sorted(await stored_users(redis)) == expected_users(end)
            assert await RowStore(redis, "bus").next_offsets() == {"t/0": end}

    asyncio.run(run())


async def test_a_full_redis_refuses_a_batch_as_a_whole_and_takes_it_once_it_has_room(redis):
    state = RowStore(redis, "bus")
    await deliver(state, 0, 20)
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(RedisError, match="maxmemory"):
            await deliver(state, 20, 40)
    finally:
        await redis.config_set("maxmemory", "0")
    assert await state.next_offsets() == {"t/0": 20}
    assert sorted(await stored_users(redis)) == expected_users(20)
    await deliver(state, 20, 40)
    assert sorted(await stored_users(redis)) == expected_users(40)


async def test_a_sealed_slot_never_grows_and_its_rows_count_as_late(redis):
    state = RowStore(redis, "bus")
    await deliver(state, 0, 30)
    await state.seal(3600)
    before = (await state.read(3600)).tobytes()
    result = await deliver(state, 30, 60)
    assert (result.appended, result.late) == (16, 8)
    assert (await state.read(3600)).tobytes() == before
    await state.drop_rows(3600)
    assert (await deliver(state, 60, 90)).late == 8
    assert await state.open_slots() == [0, 7200]
    assert len(await state.read(3600)) == 0


def stamped(appended_us: int, deadline_us: int = 10**18):
    """The append times of a batch whose messages were appended a second apart, the first of all at ``appended_us``."""

    def of(offsets: np.ndarray) -> AppendTimes:
        moments = appended_us + offsets * 1_000_000
        return AppendTimes(moments, int(moments[-1]), lambda slot: deadline_us + slot)

    return of


async def test_partitions_have_offsets_and_times_of_their_own(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0", "t/1", "t/2"], 50_000_000)
    await deliver(state, 0, 10, "t/0", stamped(7_000_000))
    await deliver(state, 50, 60, "t/1", stamped(8_000_000))
    nothing = np.zeros(0, np.int64)
    await state.append("t/2", 0, 4, np.zeros(0, ROW), nothing, nothing, AppendTimes(nothing, 9_000_000, lambda _: 0))
    assert await state.next_offsets() == {"t/0": 10, "t/1": 60, "t/2": 4}
    times = (await state.look()).times
    assert {name: (partition.max_event_us, partition.read_us) for name, partition in times.items()} == {
        "t/0": (7_200_000_008, 16_000_000),
        "t/1": (7_200_000_059, 50_000_000),  # since it was listed, the topic may have a partition more
        "t/2": (None, 9_000_000),  # refused messages have an append time, too
    }
    assert times["t/2"].moved_us == 50_000_000
    assert abs(times["t/0"].moved_us - await state.now_us()) < 60_000_000
    await state.list_partitions(["t/0"], 60_000_000)
    assert list((await state.look()).times) == ["t/0"], "a topic made anew may have fewer"


async def test_only_an_event_time_beyond_the_largest_moves_a_partition(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0"], 1)
    await deliver(state, 0, 10)
    moved = (await state.look()).times["t/0"].moved_us
    await deliver(state, 0, 10)
    rows, offsets = rows_of(np.arange(10, 14))
    rows["time"] = 7_200_000_008  # event times that do not grow
    await state.append("t/0", 10, 14, rows, offsets, rows["time"] // 3_600_000_000 * 3600)
    assert (await state.look()).times["t/0"].moved_us == moved
    await deliver(state, 14, 20)
    assert (await state.look()).times["t/0"].moved_us > moved


async def test_rows_are_late_by_their_append_time_whoever_delivers_them_and_however_batches_are_cut(redis_url):
    """Slot s is open until (12 + s / 3600) s; message i was appended at i s. What is stored is the same for every
    cut."""

    def arrivals(offsets: np.ndarray) -> AppendTimes:
        moments = offsets * 1_000_000
        return AppendTimes(moments, int(moments[-1]), lambda slot: 12_000_000 + slot // 3600 * 1_000_000)

    expected = [offset for offset in expected_users(40) if offset <= 12 + offset % 3]
    async with Redis.from_url(redis_url) as redis:
        for cuts in ([0, 40], [0, 13, 40], [0, 12, 13, 14, 15, 16, 40], list(range(41))):
            await redis.flushall()
            state, late = RowStore(redis, "bus"), 0
            for first, following in itertools.pairwise(cuts):
                if not len(rows_of(np.arange(first, following))[0]):
                    continue  # a batch without rows moves the time by its append times, and this one has none
                back = max(0, first - 5)
                result = await deliver(state, back, following, arrivals=arrivals)
                late += result.late
                assert result.skewed == 0
            assert sorted(await stored_users(redis)) == expected
            assert late == len(expected_users(40)) - len(expected)


async def test_a_partition_that_was_read_past_a_deadline_takes_no_row_of_it_and_says_so(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0"], 10**15)
    assert await state.read_through([ReadThrough("t/0", None, 0, 20_000_000)]) == {}
    assert (await state.look()).times["t/0"].read_us == 20_000_000
    result = await deliver(state, 0, 10, arrivals=stamped(0, deadline_us=15_000_000))
    assert (result.appended, result.late, result.skewed) == (0, 8, 8), "a broker whose clock is far behind"
    assert (await deliver(state, 10, 20, arrivals=stamped(0, deadline_us=25_000_000))).appended == 8


async def test_reading_to_the_end_counts_only_where_the_store_has_all_that_was_read(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0", "t/1"], 10**15)
    await deliver(state, 0, 10)
    lost = [ReadThrough("t/0", 20, 20, 77), ReadThrough("t/9", 5, 5, 77)]
    assert await state.read_through(lost) == {"t/0": 10, "t/9": 0}, "Redis was set back"
    assert (await state.look()).times["t/0"].read_us == 0
    assert await state.read_through([ReadThrough("t/0", 10, 12, 77), ReadThrough("t/1", None, 5, 78)]) == {}
    assert await state.next_offsets() == {"t/0": 12, "t/1": 5, "t/9": 0}, "marks of transactions take offsets as well"
    assert await state.read_through([ReadThrough("t/0", 12, 12, 70)]) == {}
    assert [partition.read_us for partition in (await state.look()).times.values()] == [77, 78], "time never goes back"


async def test_a_partition_that_redis_lost_is_read_again_from_its_beginning_and_moves_only_from_where_the_mover_saw_it(
    redis,
):
    state = RowStore(redis, "bus")
    with pytest.raises(Behind) as behind:
        await deliver(state, 10, 20, begun=True)
    assert behind.value.stored == 0
    assert await state.open_slots() == []
    await state.move("t/0", 0, 10)  # where its log begins now
    assert (await deliver(state, 10, 20, begun=True)).appended == 8
    await state.move("t/0", 9, 500)
    assert (await state.next_offsets())["t/0"] == 20
    await state.move("t/0", 20, 500)
    assert (await state.next_offsets())["t/0"] == 500


async def test_a_batch_over_thousands_of_slots_keeps_every_row_in_its_slot(redis):
    state = RowStore(redis, "bus")
    rows = np.zeros(10_000, dtype=ROW)
    slots = np.random.default_rng(1).integers(0, 5_000, 10_000) * 3600
    rows["time"] = slots
    assert (await state.append("t/0", 0, 10_000, rows, np.arange(10_000), slots)).appended == 10_000
    open_slots = await state.open_slots()
    assert open_slots == sorted(set(slots.tolist()))
    for slot in open_slots[:50]:
        await state.seal(slot)
        stored = await state.read(slot)
        assert (stored["time"] == slot).all()
        assert len(stored) == (slots == slot).sum()
