"""Sums count every event once, by a rule on its user's events alone, whatever is delivered again and wherever batches begin."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.storage import adding_sums, stored_sums
from stream.storage.adding_sums import AddingSums
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.row_store import ROW, Appended, Arrivals, Behind, RowStore, StateError
from stream.storage.sealed_rows import NotSealedError
from stream.storage.stored_sums import HEAD, DamagedSumsError, Known, SumTerms, counted, split_cells
from tests.support.builders import SLOT
from tests.support.summed import Event, account, deliver, events_of, fleet, pairs_in, rows_of

HOUR_US = 3_600_000_000
PART = PartKeys(FeedKeys("bus"), "t/0")
UPPER, MOST = 6_500, 40


def sums_in(redis: Redis, upper: int = UPPER, most: int = MOST, form: Any = "sums") -> RowStore:
    return RowStore(redis, "bus", terms=SumTerms(upper, most), form=form)


# Few users, cells and times, so that repeats, stragglers and limits are frequent; cells of one field, of several, and of no H3 index.
CELLS = [0x8928308280FFFFF, 0x8928308280BFFFF, 0x892830828AFFFFF, 0x8729A5C6DFFFFFF, 0, 2**64 - 1]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(CELLS),
        st.integers(1, 4),
        st.integers(0, 30),
        st.sampled_from([-5, 0, 1, 700, UPPER, 2**31 - 1]),
    ),
    min_size=1,
    max_size=60,
)


def at(events: list[Event], hours: int = 1) -> list[Event]:
    """The same events in ``hours`` windows from SLOT on."""
    return [
        (cell, user, (SLOT + (user + time) % hours * 3600) * 1_000_000 + time, value)
        for cell, user, time, value in events
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    EVENTS,
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 25)), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 8),
)
@example(
    events=[(CELLS[0], 2, 0, -5), (CELLS[0], 2, 2, -5), (CELLS[0], 2, 0, -5)],
    deliveries=[(0, 1)],
    most=2,
    pairs_at_once=1,
)  # overtaken after the limit, in a piece of which the store need not tell what it knows
def test_any_overlapping_deliveries_leave_what_a_plain_account_says(
    redis_url: str, events: list[Event], deliveries: list[tuple[int, int]], most: int, pairs_at_once: int
) -> None:
    """Redelivery, former owners and rebalances append ranges of offsets that begin at or before the stored one; pieces are small."""

    async def run() -> None:
        async with Redis.from_url(redis_url) as redis:
            await redis.flushall()
            rows, end, delivered = rows_of(at(events, 2)), 0, Appended(0, 0, 0)
            slots = rows["time"] // HOUR_US * 3600
            for back, length in [*deliveries, (3, len(rows))]:
                first, following = max(0, end - back), min(max(0, end - back) + length, len(rows))
                span = slice(first, following)
                # A worker begins anew, so it remembers nothing of the state.
                delivered = delivered.plus(
                    **(
                        await sums_in(redis, most=most).append(
                            "t/0", first, following, rows[span], np.arange(first, following), slots[span]
                        )
                    )._asdict()
                )
                end = max(end, following)
            overtaken = beyond = 0
            for slot in np.unique(slots[:end]).tolist():
                expected = account(events_of(rows[:end][slots[:end] == slot]), UPPER, most)
                assert await pairs_in(sums_in(redis), slot) == expected[0]
                overtaken, beyond = overtaken + expected[1], beyond + expected[2]
            assert (delivered.overtaken, delivered.beyond, delivered.late) == (overtaken, beyond, 0)
            assert delivered.appended == end - overtaken - beyond
            assert await sums_in(redis).next_offsets() == {"t/0": end}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adding_sums, "PAIRS_AT_ONCE", pairs_at_once)
        asyncio.run(run())


async def test_the_planted_bug_of_adding_what_is_delivered_again_is_seen(redis: Redis) -> None:
    """Twin of the test above: with an offset that goes back and users that are forgotten, events are added twice, and it shows."""
    rows = fleet(1, 40)
    state = sums_in(redis)
    await deliver(state, rows)
    await redis.hset(PART.progress, "offset", 20)  # type: ignore[misc]
    users = [name for name in await redis.hkeys(PART.rows(SLOT)) if len(name) == 8]  # type: ignore[misc]
    await redis.hdel(PART.rows(SLOT), *users)  # type: ignore[misc]
    await state.append("t/0", 20, 40, rows[20:], np.arange(20, 40), np.full(20, SLOT))
    with pytest.raises(DamagedSumsError):
        await pairs_in(state)


@given(EVENTS, st.integers(1, 9), st.integers(0, 40))
def test_which_events_count_is_the_plain_rule_also_after_known_events(events: list[Event], most: int, cut: int) -> None:
    """Two windows at once; of the events before ``cut`` the store knows what it would."""
    rows = rows_of(at(events, 2))
    slots, times = rows["time"] // HOUR_US * 3600, rows["time"].astype(np.int64)
    before = counted(slots[:cut], rows["user"][:cut], times[:cut], most)
    kept, known = rows[:cut][before.counts], dict[int, Known]()
    for slot in np.unique(slots[:cut]).tolist():
        own = kept[slots[:cut][before.counts] == slot]
        heads = [(u, own["time"][own["user"] == u].max(), (own["user"] == u).sum()) for u in np.unique(own["user"])]
        known[slot] = Known(np.array(heads, dtype=HEAD), most)
    after = counted(slots[cut:], rows["user"][cut:], times[cut:], most, known)
    counts, beyond = np.append(before.counts, after.counts), np.append(before.beyond, after.beyond)
    for slot in np.unique(slots).tolist():
        mine = slots == slot
        expected, overtaken, above = account(events_of(rows[mine]), UPPER, most)
        assert int(beyond[mine].sum()) == above
        assert int((~counts & ~beyond)[mine].sum()) == overtaken
        assert account(events_of(rows[mine & counts]), UPPER, most)[0] == expected


def test_times_of_any_size_are_compared_without_overflow() -> None:
    time = np.array([-(2**62), 2**62, 0, 2**62, 2**62 + 1])
    slot, user = np.zeros(5, dtype=np.int64), np.array([1, 1, 2, 2, 1], dtype=np.uint64)
    assert counted(slot, user, time, 10).counts.all()
    assert counted(slot, user, time[::-1].copy(), 10).counts.tolist() == [True, False, True, True, False]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_a_cell_is_put_together_from_its_parts(cells: list[int]) -> None:
    ids = np.array(cells, dtype=np.uint64)
    assert stored_sums.joined_cells(*split_cells(ids)).tolist() == cells


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS, st.integers(0, 2**32))
def test_no_value_decides_which_events_count(redis_url: str, events: list[Event], seed: int) -> None:
    """Under relation "values" neighbours differ in values alone: both histories must leave the same numbers of events everywhere."""
    rows, other = rows_of(at(events)), rows_of(at(events))
    other["value"] = np.random.default_rng(seed).integers(-(2**31), 2**31, len(rows))

    async def run() -> None:
        async with Redis.from_url(redis_url) as redis:
            delivered, numbers = [], []
            for history in (rows, other):
                await redis.flushall()
                delivered.append(await deliver(sums_in(redis, most=9), history, [len(rows) // 2]))
                numbers.append({pair: n for pair, (n, _, _) in (await pairs_in(sums_in(redis))).items()})
            assert delivered[0] == delivered[1]
            assert numbers[0] == numbers[1]

    asyncio.run(run())


async def test_a_zombie_that_is_faster_than_the_new_owner_changes_nothing(redis: Redis) -> None:
    rows, offsets, slots = fleet(2, 200), np.arange(200), np.full(200, SLOT)
    zombie, owner = sums_in(redis), sums_in(redis)

    async def give(state: RowStore, first: int, following: int) -> Appended:
        span = slice(first, following)
        return await state.append("t/0", first, following, rows[span], offsets[span], slots[span])

    await give(zombie, 0, 100)
    await give(zombie, 100, 150)
    assert (await give(owner, 100, 200)).duplicates == 50
    assert (await give(zombie, 150, 180))[:2] == (0, 30)
    with pytest.raises(Behind) as refused:
        await state_ahead(owner, rows)
    assert refused.value.stored == 200
    assert await pairs_in(owner) == account(events_of(rows), UPPER, MOST)[0]


async def state_ahead(state: RowStore, rows: np.ndarray) -> Appended:
    return await state.append("t/0", 201, 203, rows[:2], np.array([201, 202]), np.full(2, SLOT))


async def test_a_straggler_or_a_repeat_in_a_later_batch_does_not_count_and_is_told(redis: Redis) -> None:
    events: list[Event] = [(7, 1, 5, 10), (7, 1, 9, 20), (8, 1, 9, 30), (7, 1, 6, 40), (8, 1, 10, 50)]
    delivered = await deliver(sums_in(redis), rows_of(events), [2])
    assert (delivered.appended, delivered.overtaken) == (3, 2)
    assert await pairs_in(sums_in(redis)) == {(7, 1): (2, 30, 500), (8, 1): (1, 50, 2_500)}


async def test_two_owners_at_once_add_every_event_once(redis: Redis) -> None:
    rows = fleet(4, 400)
    owners = [sums_in(redis) for _ in range(3)]
    cuts = [[37, 90, 210], [80, 81, 300], []]
    await asyncio.gather(*(deliver(state, rows, own) for state, own in zip(owners, cuts, strict=True)))
    assert await pairs_in(owners[0]) == account(events_of(rows), UPPER, MOST)[0]


async def test_a_state_that_was_set_back_is_brought_to_the_same_sums(redis: Redis) -> None:
    """Set back, sums and offset are of one moment, because one call writes both; the messages after it come again."""
    rows, state = fleet(5, 300), sums_in(redis)
    await state.append("t/0", 0, 120, rows[:120], np.arange(120), np.full(120, SLOT))
    earlier = {key: await redis.dump(key) for key in await redis.keys("*")}
    await state.append("t/0", 120, 300, rows[120:], np.arange(120, 300), np.full(180, SLOT))
    await redis.flushall()
    for key, dump in earlier.items():
        await redis.restore(key, 0, dump)
    with pytest.raises(Behind):
        await state.append("t/0", 300, 301, rows[:1], np.array([300]), np.array([SLOT]))
    await state.append("t/0", 100, 300, rows[100:], np.arange(100, 300), np.full(200, SLOT))
    assert await pairs_in(state) == account(events_of(rows), UPPER, MOST)[0]


async def test_a_call_whose_answer_was_lost_is_repeated_without_effect(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between two pieces, or a broken connection: what was stored of the batch is known by its offset."""
    rows, state = fleet(6, 300), sums_in(redis)
    monkeypatch.setattr(adding_sums, "PAIRS_AT_ONCE", 20)
    script, calls = state.sums.script, itertools.count(1)  # type: ignore[union-attr]
    run = script.run

    async def lossy(keys: Any, args: Any) -> list[Any]:
        answer = await run(keys, args)
        if next(calls) % 3 == 0:
            raise RedisError("connection lost")
        return answer

    monkeypatch.setattr(script, "run", lossy)
    for _ in range(50):
        try:
            await deliver(state, rows)
            break
        except RedisError:
            continue
    assert await pairs_in(state) == account(events_of(rows), UPPER, MOST)[0]


async def test_a_full_redis_refuses_a_piece_as_a_whole_and_takes_it_once_it_has_room(redis: Redis) -> None:
    rows, state = fleet(7, 100), sums_in(redis)
    await state.append("t/0", 0, 50, rows[:50], np.arange(50), np.full(50, SLOT))
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(RedisError, match="maxmemory"):
            await deliver(state, rows)
    finally:
        await redis.config_set("maxmemory", "0")
    await deliver(state, rows)
    assert await pairs_in(state) == account(events_of(rows), UPPER, MOST)[0]


async def test_a_window_that_is_sealed_between_two_batches_grows_no_more(redis: Redis) -> None:
    rows, state = fleet(8, 100), sums_in(redis)
    await state.append("t/0", 0, 50, rows[:50], np.arange(50), np.full(50, SLOT))
    await state.seal(SLOT)
    assert (await state.append("t/0", 40, 100, rows[40:], np.arange(40, 100), np.full(60, SLOT)))[:3] == (0, 10, 50)
    assert await pairs_in(state) == account(events_of(rows[:50]), UPPER, MOST)[0]
    await state.drop_rows(SLOT)
    assert (await state.look()).slots == []
    assert await redis.exists(PART.rows(SLOT)) == 0
    await state.append("t/0", 100, 101, rows[:1], np.array([100]), np.array([SLOT]))
    assert await redis.exists(PART.rows(SLOT)) == 0, "a row that comes after its window was released is late"


async def test_rows_are_late_by_their_append_time_however_batches_are_cut(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fleet(9, 100)
    moments = np.arange(100) * 1_000_000
    for pairs, cuts in ((1000, []), (3, [10, 50]), (7, [59, 60, 61]), (1, [])):
        await redis.flushall()
        monkeypatch.setattr(adding_sums, "PAIRS_AT_ONCE", pairs)
        state, total = sums_in(redis), Appended(0, 0, 0)
        for first, following in itertools.pairwise([0, *cuts, 100]):
            span = slice(first, following)
            arrivals = Arrivals(moments[span], int(moments[following - 1]), lambda _: 60_000_000)
            answer = await state.append(
                "t/0",
                first,
                following,
                rows[span],
                np.arange(first, following),
                np.full(following - first, SLOT),
                arrivals,
            )
            total = total.plus(**answer._asdict())
        assert total == Appended(61, 0, 39), (pairs, cuts)
        assert await pairs_in(state) == account(events_of(rows[:61]), UPPER, MOST)[0]
    await state.list_partitions(["t/0"], 10**15)
    assert (await state.partition_times())["t/0"].read_us == 99_000_000


async def test_a_partition_that_was_read_past_a_deadline_says_that_clocks_differ(redis: Redis) -> None:
    rows, state = fleet(10, 20), sums_in(redis)
    nothing = np.zeros(0, np.int64)
    await state.append("t/0", 0, 1, np.zeros(0, ROW), nothing, nothing, Arrivals(nothing, 90, lambda _: 0))
    arrivals = Arrivals(np.full(20, 40), 40, lambda _: 50)
    answer = await state.append("t/0", 1, 21, rows, np.arange(1, 21), np.full(20, SLOT), arrivals)
    assert answer == Appended(0, 0, 20, 20)


async def test_the_events_of_one_message_are_added_by_one_call(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 messages of 4 events each; a piece of 3 pairs ends with a message, so that no offset is stored in part."""
    rows, state = fleet(11, 120), sums_in(redis)
    monkeypatch.setattr(adding_sums, "PAIRS_AT_ONCE", 3)
    offsets = np.repeat(np.arange(30), 4)
    await state.append("t/0", 0, 12, rows[:48], offsets[:48], np.full(48, SLOT))
    await state.append("t/0", 5, 30, rows[20:], offsets[20:], np.full(100, SLOT))
    assert await pairs_in(state) == account(events_of(rows), UPPER, MOST)[0]


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param([(cell, 1, cell, UPPER) for cell in range(9_000)], id="one user in 9 000 cells"),
        pytest.param([(7, user, 1, 2**31 - 1) for user in range(9_000)], id="9 000 users in one cell"),
        pytest.param(
            [(user % 3, user % 7, -user, 5) for user in range(9_000)], id="every event earlier than the one before"
        ),
        pytest.param([(1, 1, user, UPPER) for user in range(9_000)], id="one user who sends all"),
    ],
)
async def test_a_hostile_batch_counts_by_the_same_rule(redis: Redis, hostile: list[Event]) -> None:
    rows, most = rows_of(hostile), 5_000
    delivered = await deliver(sums_in(redis, most=most), rows, slot=SLOT)
    expected, overtaken, beyond = account(hostile, UPPER, most)
    assert delivered == Appended(9_000 - overtaken - beyond, 0, 0, 0, overtaken, beyond)
    assert await pairs_in(sums_in(redis)) == expected


async def test_a_batch_over_thousands_of_windows_keeps_every_event_in_its_own(redis: Redis) -> None:
    slots = np.random.default_rng(1).integers(0, 600, 1_500) * 3600
    rows = rows_of((7, 3, 1_000_000 * int(slot) + at, 9) for at, slot in enumerate(slots))
    state = sums_in(redis)
    assert (await deliver(state, rows, slot=None)).appended == 1_500
    assert await state.open_slots() == np.unique(slots).tolist()
    for slot in np.unique(slots)[:20].tolist():
        assert await pairs_in(state, slot) == {(7, 3): (n := int((slots == slot).sum()), 9 * n, 81 * n)}


async def test_sums_stay_exact_at_the_largest_bound_and_limit(redis: Redis) -> None:
    """U = 100 000 quanta, of which 2^53 / U² = 900 719 squares fit: of more events of a user none counts."""
    state, upper = sums_in(redis, 100_000, 10**8), 100_000
    latest = np.zeros(1, dtype=stored_sums.LATEST)
    cells, digits = split_cells(np.array([7], dtype=np.uint64))
    latest["last"], latest["events"], latest["cells"] = 5, 900_718, cells
    latest["entry"]["digits"], latest["entry"]["samples"] = digits, 900_718
    latest["entry"]["sum"], latest["entry"]["squares"] = 900_718 * upper, 900_718 * upper**2
    await deliver(state, rows_of([(7, 8, 1, upper)]))
    await redis.hset(PART.rows(SLOT), mapping={(9).to_bytes(8, "little"): latest.tobytes()})  # type: ignore[misc]
    delivered = await state.append(
        "t/0", 1, 3, rows_of([(7, 9, 6, upper), (7, 9, 7, upper)]), np.array([1, 2]), np.full(2, SLOT)
    )
    assert (delivered.appended, delivered.beyond) == (1, 1)
    assert (await pairs_in(state))[7, 9] == (900_719, 900_719 * upper, 900_719 * upper**2)


async def test_the_largest_bound_that_values_were_clipped_to_stays_known(redis: Redis) -> None:
    await deliver(sums_in(redis, 5_000), rows_of([(7, 8, 1, 9_999)]))
    await sums_in(redis, 3_000).append("t/0", 1, 2, rows_of([(7, 8, 2, 9_999)]), np.array([1]), np.array([SLOT]))
    state = sums_in(redis, 3_000)
    assert await pairs_in(state) == {(7, 8): (2, 8_000, 34_000_000)}
    stored = (await state.read(SLOT)).sums
    assert stored is not None
    assert (stored.sums.upper, stored.last_us) == (5_000, 2)


async def test_a_window_keeps_the_form_with_which_its_partition_began(redis: Redis) -> None:
    """Workers of both states follow one another, and a batch spans windows of both forms; nothing is lost or added twice."""
    first, second = fleet(12, 60), fleet(13, 60)
    second["time"] += HOUR_US
    both = np.concatenate([first, second])
    mixed = both[np.random.default_rng(3).permutation(120)]
    mixed = np.concatenate([mixed[np.argsort(mixed["time"] % HOUR_US, kind="stable")]])
    slots = mixed["time"] // HOUR_US * 3600
    begun_as_rows = np.flatnonzero(slots == SLOT)[:10]
    rows, sums = sums_in(redis, form="rows"), sums_in(redis)
    await rows.append("t/0", 0, 10, mixed[begun_as_rows], np.arange(10), slots[begun_as_rows])
    left = np.delete(mixed, begun_as_rows)
    slots = np.delete(slots, begun_as_rows)
    for turn, (start, end) in enumerate(itertools.pairwise([0, 30, 70, 110])):
        state = (sums, rows, sums_in(redis))[turn]
        await state.append(
            "t/0", 10 + start, 10 + end, left[start:end], np.arange(10 + start, 10 + end), slots[start:end]
        )
    kinds = [await redis.type(PART.rows(slot)) for slot in (SLOT, SLOT + 3600)]
    assert kinds == [b"list", b"hash"]
    await rows.seal(SLOT)
    stored = await rows.read(SLOT)
    assert stored.sums is None
    assert sorted(stored.rows.tolist()) == sorted(first.tolist())
    assert await pairs_in(rows, SLOT + 3600) == account(events_of(left[slots == SLOT + 3600]), UPPER, MOST)[0]


async def test_a_store_without_terms_adds_to_no_sums(redis: Redis) -> None:
    rows = fleet(14, 20)
    await sums_in(redis).append("t/0", 0, 10, rows[:10], np.arange(10), np.full(10, SLOT))
    with pytest.raises(StateError, match="holds sums"):
        await RowStore(redis, "bus").append("t/0", 10, 20, rows[10:], np.arange(10, 20), np.full(10, SLOT))
    assert await sums_in(redis).next_offsets() == {"t/0": 10}


async def test_forms_that_are_remembered_are_bounded(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding_sums, "FORMS_KEPT", 3)
    slots = np.arange(8) * 3600
    rows = rows_of((7, 3, 1_000_000 * int(slot), 9) for slot in slots)
    await sums_in(redis, form="rows").append("t/0", 0, 8, rows, np.arange(8), slots)
    monkeypatch.setattr(adding_sums, "FORMS_KEPT", 10)
    state = sums_in(redis)
    assert (await state.append("t/0", 8, 16, rows, np.arange(8, 16), slots)).appended == 8
    assert isinstance(state.sums, AddingSums)
    assert len(state.sums.other_forms) <= 10


async def test_big_windows_are_read_in_parts_and_a_read_that_misses_fields_is_repeated(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor that another server gave may skip fields: then no sums are returned. Fields that come twice count once."""
    monkeypatch.setattr("stream.storage.sealed_rows.FIELDS_PER_READ", 50)
    rows, state = fleet(15, 3_000, users=900), sums_in(redis)
    await deliver(state, rows)
    expected = await pairs_in(state)
    assert expected == account(events_of(rows), UPPER, MOST)[0]
    eval_, seen = redis.eval, list[Any]()

    async def forgetful(script: str, *args: Any) -> Any:
        answer = await eval_(script, *args)
        if "HSCAN" in script:
            seen.append(answer)
            if len(seen) == 2:
                answer = [*answer[:3], answer[3][2:]]
        return answer

    async def repetitive(script: str, *args: Any) -> Any:
        answer = await eval_(script, *args)
        return [*answer[:3], answer[3] + seen[0][3]] if "HSCAN" in script else answer

    monkeypatch.setattr(redis, "eval", forgetful)
    with pytest.raises(NotSealedError):
        await state.read(SLOT)
    assert len(seen) > 3, "read in parts"
    monkeypatch.setattr(redis, "eval", repetitive)
    assert await pairs_in(state) == expected


async def test_sums_are_read_under_one_seal(redis: Redis) -> None:
    state = sums_in(redis)
    await deliver(state, fleet(16, 20))
    with pytest.raises(NotSealedError):
        await state.read(SLOT)
    await state.seal(SLOT)
    with pytest.raises(NotSealedError):
        await state.read_sums(SLOT, "t/0", b"1")


async def test_sums_of_a_window_that_is_never_released_are_deleted(redis: Redis) -> None:
    state = sums_in(redis)
    await deliver(state, fleet(17, 20))
    await state.discard(SLOT)
    assert await redis.exists(PART.rows(SLOT)) == 0
    assert (await state.append("t/0", 20, 40, fleet(17, 20), np.arange(20, 40), np.full(20, SLOT))).late == 20


async def test_one_user_in_several_partitions_counts_in_each(redis: Redis, tmp_path: Path) -> None:
    events: list[list[Event]] = [[(7, 1, 5, 10), (8, 1, 6, 20)], [(7, 1, 5, 40)]]
    state = sums_in(redis)
    for number, own in enumerate(events):
        await deliver(state, rows_of(own), partition=f"t/{number}")
    assert await pairs_in(state) == {(7, 1): (2, 50, 1_700), (8, 1): (1, 20, 400)}
