"""The order of charge, draw and commit in the shipped protocol: nothing is drawn before it is charged, and nothing
twice.

The real :class:`ReleaseProtocol` runs against a real server. Its source of noise reads the ledger at every draw: by
then every user of the stored plan must have paid their charge, whichever step an earlier attempt ended after.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import redis as sync_redis
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.offline import MemoryRows, split_by_slot
from stream.protocol.release_protocol import STEPS, ReleaseProtocol, statistics_of
from stream.statistics.plan import Plan, decode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import CHUNK, AlreadyReleasedError, Ledger, LedgerError, SetBackError
from stream.storage.release_store import Carried, ChargesGoneError, CommitOutcome, ReleaseStore
from stream.windows import Period
from tests.audit.shipped import ledger_of
from tests.support.builders import SLOT, bus_config, random_rows, riders
from tests.support.closing import Collected, Stopped

CONFIGS = {"values": bus_config, "participation": riders}


class Paid(Noise):
    """Noise that checks, whenever it is drawn, that every charge of the stored plan is in the ledger."""

    def __init__(self, server: sync_redis.Redis, keys: FeedKeys) -> None:
        super().__init__()
        self.server, self.keys, self.asked = server, keys, 0

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        stored = self.server.get(self.keys.plan(SLOT))
        assert stored is not None, "noise was drawn for a plan that is not stored"
        plan = decode_plan(stored)
        users, charges = plan.charged_users()
        spent = self.server.hmget(self.keys.charged(SLOT), [str(user) for user in users.tolist()])
        for user, charge, paid in zip(users.tolist(), charges.tolist(), spent, strict=True):
            assert int(paid or 0) >= charge, f"noise was drawn for user {user} before they paid"
        self.asked += 1
        return super().discrete_laplace(numerator, denominator, size)


async def protocol_for(config: Config, redis: Redis, url: str, publisher: Collected) -> tuple[ReleaseProtocol, Paid]:
    noise = Paid(sync_redis.Redis.from_url(url), FeedKeys(config.feed.name))
    ledger, _ = await ledger_of(redis, config.feed.name)
    rows = MemoryRows(split_by_slot(random_rows(1, 80), config))
    return ReleaseProtocol(statistics_of(config), redis, rows, ledger, publisher, noise), noise


@pytest.mark.parametrize("died_after", ["nothing", *STEPS[:-1]])
@pytest.mark.parametrize("relation", CONFIGS)
async def test_noise_is_asked_for_only_once_everybody_has_paid_and_one_draw_leaves(
    tmp_path, redis, redis_url, relation, died_after
):
    config, published = CONFIGS[relation](tmp_path), Collected()

    def die(step: str) -> None:
        if step == died_after:
            raise Stopped

    protocol, noise = await protocol_for(config, redis, redis_url, published)
    if died_after != "nothing":
        with pytest.raises(Stopped):
            await dataclasses.replace(protocol, after_step=die).close(SLOT)
    before = list(published.messages)
    await protocol.close(SLOT)
    assert noise.asked == (2 if died_after == "draw" else 1), "a committed window was drawn again"
    values = {message.ce_id: message.value for message in published.messages}
    assert all(values[message.ce_id] == message.value for message in before), "one window left in two versions"
    spent = await Ledger(redis, config.feed.name).total(config.slotting.period_of(SLOT).key)
    assert spent[1] > 0


async def test_bytes_that_were_committed_are_never_replaced(redis):
    """A second worker has a draw of its own, which is discarded, and the number does not move."""
    store, keys = ReleaseStore(redis, "bus"), FeedKeys("bus")
    await redis.hset(keys.charged(SLOT), "plan", "paid")
    first = await store.commit(SLOT, b"first draw", Carried(), Carried(), "paid", 1)
    second = await store.commit(SLOT, b"second draw", Carried(), Carried(), "paid", 1)
    late = await store.commit(SLOT, b"third draw", Carried(), Carried(), "paid", 2)
    assert first is CommitOutcome.COMMITTED
    assert second is late is CommitOutcome.OTHERS_WERE_FIRST
    assert await store.outbox(SLOT) == b"first draw"
    assert await redis.get(keys.sequence) == b"1"


async def test_nothing_is_committed_for_a_plan_that_is_not_paid(redis):
    store, keys = ReleaseStore(redis, "bus"), FeedKeys("bus")
    with pytest.raises(ChargesGoneError):
        await store.commit(SLOT, b"a draw", Carried(), Carried(), "paid", 1)
    await redis.hset(keys.charged(SLOT), "plan", "another plan")
    with pytest.raises(ChargesGoneError):
        await store.commit(SLOT, b"a draw", Carried(), Carried(), "paid", 1)
    assert await store.outbox(SLOT) is None


async def test_a_user_without_a_whole_grant_left_is_refused_and_the_plan_is_made_without_them(
    tmp_path, redis, redis_url
):
    """The user's budget was spent elsewhere after the plan was stored. The user is not charged, and nothing is drawn
    before a plan without them is stored.
    """
    config = bus_config(tmp_path)
    protocol, noise = await protocol_for(config, redis, redis_url, Collected())
    keys, period = FeedKeys("bus"), config.slotting.period_of(SLOT).key
    seen: list[Plan] = []

    async def spend(step: str) -> None:
        if step == "plan":
            seen.append(decode_plan(await redis.get(keys.plan(SLOT))))
            if len(seen) == 1:
                await redis.hset(keys.ledger(period), str(seen[0].users[0]), config.privacy.ledger_budget)

    await dataclasses.replace(protocol, after_step=spend).close(SLOT)
    first, last = seen[0], seen[-1]
    assert first.charges[0] > 0
    assert last.charges[0] == 0
    assert np.array_equal(first.users, last.users)
    assert int(await redis.hget(keys.ledger(period), str(first.users[0]))) == config.privacy.ledger_budget
    assert noise.asked == 1


USERS = np.array([7, 8], dtype=np.uint64)
SMALL = np.array([1, 1])
PERIOD = Period(0, 2 * SLOT, "p")


async def test_a_ledger_that_was_lost_or_set_back_and_a_released_window_charge_nobody(redis):
    ledger, generation = await ledger_of(redis)
    with pytest.raises(LedgerError, match="generation"):
        await ledger.charge(SLOT, PERIOD, "another generation", USERS, SMALL, 3)
    ledger.committed = 2
    with pytest.raises(SetBackError):
        await ledger.charge(SLOT, PERIOD, generation, USERS, SMALL, 3)
    ledger.committed = 0
    await redis.hset(FeedKeys("bus").closed, str(SLOT), "{}")
    with pytest.raises(AlreadyReleasedError):
        await ledger.charge(SLOT, PERIOD, generation, USERS, SMALL, 3)
    assert (await ledger.spent(PERIOD.key, USERS, besides=0)).tolist() == [0, 0]


async def test_the_lowest_budget_of_a_period_is_its_budget(redis):
    ledger, generation = await ledger_of(redis)
    assert not len(await ledger.charge(SLOT, PERIOD, generation, USERS, SMALL, 2))
    refused = await ledger.charge(SLOT + 3600, PERIOD, generation, USERS, 2 * SMALL, 9)
    assert sorted(refused.tolist()) == USERS.tolist(), (
        "a raised budget held in a period that was charged under a lower one"
    )


async def test_a_plan_is_marked_as_paid_only_once_everybody_paid_however_many_calls_that_takes(redis):
    ledger, generation = await ledger_of(redis)
    keys = FeedKeys("bus")
    assert len(await ledger.charge(SLOT, PERIOD, generation, USERS, np.array([1, 4]), 3, "digest")) == 1
    assert await redis.hget(keys.charged(SLOT), "plan") is None, (
        "a plan that one user could not pay for is marked as paid"
    )
    many = np.arange(1, CHUNK + 2, dtype=np.uint64)
    charges = np.ones(len(many), dtype=np.int64)
    charges[0] = 4
    assert len(await ledger.charge(SLOT + 3600, PERIOD, generation, many, charges, 3, "digest")) == 1
    assert await redis.hget(keys.charged(SLOT + 3600), "plan") is None, "the refusal of the first call was forgotten"
    assert not len(await ledger.charge(SLOT + 3600, PERIOD, generation, many[1:], charges[1:], 3, "digest"))
    assert await redis.hget(keys.charged(SLOT + 3600), "plan") == b"digest"


async def test_a_commit_takes_the_next_number_and_the_memory_it_was_made_with_or_nothing(redis):
    store, keys = ReleaseStore(redis, "bus"), FeedKeys("bus")
    await redis.hset(keys.charged(SLOT), "plan", "paid")
    assert await store.commit(SLOT, b"draw", Carried(), Carried(), "paid", 5) is CommitOutcome.STATE_MOVED
    assert await store.commit(SLOT, b"draw", Carried(b"old"), Carried(b"new"), "paid", 1) is CommitOutcome.STATE_MOVED
    linked = Carried(link=b"another"), Carried(link=b"next")
    assert await store.commit(SLOT, b"draw", *linked, "paid", 1) is CommitOutcome.STATE_MOVED
    assert await store.outbox(SLOT) is None
    assert await store.memory() == b""
    await redis.hset(keys.closed, str(SLOT), "{}")
    assert await store.commit(SLOT, b"draw", Carried(), Carried(), "paid", 1) is CommitOutcome.WINDOW_RELEASED
    assert await store.outbox(SLOT) is None


ONE_DAY = Period(0, 86_400, "p")
BUDGET, SLOTS, CHARGES = 3, (1, 2, 3), (1, 2)
CALLS = tuple((slot, pair) for slot in SLOTS for pair in itertools.product(CHARGES, repeat=2))
HISTORIES = tuple(
    history
    for history in itertools.product(CALLS, repeat=3)
    if all(slot <= 1 + max([0, *(before for before, _ in history[:at])]) for at, (slot, _) in enumerate(history))
)
"""Windows are named in the order in which they first occur."""
BUS = FeedKeys("bus")


async def worst_loss(redis: Redis, feeds: tuple[FeedKeys, ...]) -> int:
    """Largest loss of a user over all histories. ``feeds``: that of each window."""
    ledgers, worst = [Ledger(redis, keys.feed, keys.shared_ledger) for keys in feeds], 0
    for history in HISTORIES:
        await redis.flushdb()
        generations = [await ledger.start_generation(birth=0) for ledger in ledgers]
        drawn = np.zeros((len(USERS), 1 + max(SLOTS)), dtype=np.int64)
        for slot, pair in history:
            charges = np.array(pair)
            ledger, generation = ledgers[slot - 1], generations[slot - 1]
            refused = await ledger.charge(slot, ONE_DAY, generation, USERS, charges, BUDGET)
            if not len(refused):
                drawn[:, slot] = np.maximum(drawn[:, slot], charges)
        loss = drawn.sum(axis=1)
        spent = await ledgers[0].spent("p", USERS, besides=0)
        assert np.all(loss <= spent), f"drawn and not paid for: {history}"
        assert np.all(spent <= BUDGET), history
        worst = max(worst, int(loss.max()))
    return worst


@pytest.mark.parametrize("of_bus", [{1, 2, 3}, {1, 2}, {1, 3}, {1}], ids=str)
async def test_no_history_of_charges_to_one_ledger_lets_a_user_lose_more_than_their_budget(redis, of_bus):
    """Of one feed, and of every division of three windows among two, except for which of them is called bus."""
    feeds = tuple(FeedKeys("bus" if slot in of_bus else "tram", "city") for slot in SLOTS)
    assert await worst_loss(redis, 3 * (BUS,) if len(of_bus) == 3 else feeds) == BUDGET


async def test_two_feeds_with_a_ledger_each_are_caught(redis):
    """The planted bug."""
    with pytest.raises(AssertionError, match="drawn and not paid for"):
        await worst_loss(redis, (BUS, BUS, FeedKeys("tram")))
