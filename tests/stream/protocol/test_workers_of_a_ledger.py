"""Two workers of one feed of a shared ledger whose budgets differ: a mistake, or an upgrade of one worker after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from stream.app.closing import Closing
from stream.app.worker import Worker
from stream.config import Config
from stream.storage.ledger import Ledger
from stream.storage.shared_ledger import SharedLedger
from tests.support.builders import SLOT
from tests.support.closing import Collected, protocol_of
from tests.support.sharing import LEDGER, sharing, spent, stored


async def starts(redis: Redis, config: Config) -> None:
    """What a worker does to the budgets when it starts."""
    budget = config.privacy.ledger_budget
    await Ledger.of(redis, config).start_generation(birth=0, budget=budget)
    await SharedLedger(redis, config.feed.name, LEDGER).state_budget(budget)


async def looks(redis: Redis, config: Config) -> None:
    """What a worker does to the budgets before it looks for due windows, and before each of them."""
    budget = config.privacy.ledger_budget
    await SharedLedger(redis, config.feed.name, LEDGER).lower_budget(budget)
    await Ledger.of(redis, config).start_generation(budget=budget)


def workers(folder: Path, *budgets: float) -> list[Config]:
    """The configurations of workers of one feed, with these budgets."""
    return [sharing(folder, **{"privacy.budget": budget})[0] for budget in budgets]


async def stated(redis: Redis) -> dict[str, int]:
    return await SharedLedger(redis, "any", LEDGER).budgets()


async def test_of_two_workers_the_lower_budget_holds_whichever_looks_last(redis: Redis, tmp_path: Path) -> None:
    low, high = workers(tmp_path, 2.0, 3.0)
    await stored(redis, low, 1)
    for config in (low, high):
        await starts(redis, config)
    for config in (low, high):
        await looks(redis, config)
    assert await stated(redis) == {"bus": 2_000_000}
    await protocol_of(redis, high, Collected()).close(SLOT)
    assert 0 < max((await spent(redis, high)).values()) <= 2_000_000


@pytest.mark.parametrize("last", ["seal", "read", "plan"])
async def test_a_worker_never_begins_a_period_above_its_own_budget(redis: Redis, tmp_path: Path, last: str) -> None:
    """A worker with a higher one starts between its look and its charge. The window waits for the next look."""
    low, high = workers(tmp_path, 2.0, 3.0)
    await stored(redis, low, 1)
    await starts(redis, low)

    async def interrupt(step: str) -> None:
        if step == last:
            await starts(redis, high)

    publisher = Collected()
    with pytest.raises(Exception, match="budgets were spent elsewhere"):
        await protocol_of(redis, low, publisher, after_step=interrupt).close(SLOT)
    assert publisher.messages == []
    assert max((await spent(redis, low)).values()) == 0
    await looks(redis, low)
    await protocol_of(redis, low, publisher).close(SLOT)
    assert 0 < max((await spent(redis, low)).values()) <= 2_000_000


async def test_a_higher_budget_holds_once_the_last_worker_with_the_lower_one_was_replaced(
    redis: Redis, tmp_path: Path
) -> None:
    """A rolling upgrade: each worker is stopped and started, one after the other."""
    old, new = workers(tmp_path, 2.0, 3.0)
    await starts(redis, old)
    await starts(redis, new)  # the first of two
    await looks(redis, old)
    await looks(redis, new)
    assert await stated(redis) == {"bus": 2_000_000}
    await starts(redis, new)  # the second, after the last old one
    await looks(redis, new)
    assert await stated(redis) == {"bus": 3_000_000}


async def test_a_lower_budget_holds_at_once_although_workers_with_the_higher_one_still_look(
    redis: Redis, tmp_path: Path
) -> None:
    old, new = workers(tmp_path, 3.0, 2.0)
    await starts(redis, old)
    await starts(redis, new)
    await looks(redis, old)
    assert await stated(redis) == {"bus": 2_000_000}


async def test_a_feed_that_left_states_no_budget(redis: Redis, tmp_path: Path) -> None:
    (bus,) = workers(tmp_path, 2.0)
    shared = SharedLedger(redis, "bus", LEDGER)
    await starts(redis, bus)
    await shared.leave("bus")
    await shared.lower_budget(1)
    await shared.state_budget(1)
    assert await stated(redis) == {}


async def test_a_worker_that_closes_nothing_states_its_lower_budget_too(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    low, high = (sharing(tmp_path, **{"privacy.budget": budget, "redis.url": redis_url})[0] for budget in (2.0, 3.0))
    await starts(redis, low)
    await starts(redis, high)
    worker = Worker(low)
    await Closing(worker).look()
    await worker.redis.aclose()
    assert await stated(redis) == {"bus": 2_000_000}
