"""A ledger releases no window of a period that began before its birth, so a new feed name is no new budget. Real
Redis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.app.worker import Worker
from stream.cli import app as command
from stream.config import Config
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger
from stream.storage.row_store import ReadThrough, RowStore
from stream.windows import Period
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.closing import Collected, protocol_of
from tests.support.redis_scripts import altered_script

HOUR, DAY = 3600, 86_400
TODAY = Period(SLOT - 12 * HOUR, SLOT + 12 * HOUR, "2017-03-21")
TOMORROW = Period(TODAY.end, TODAY.end + DAY, "2017-03-22")
USERS, B = np.array([7, 8], dtype=np.uint64), 100


async def spend(redis: Redis, feed: str, period: Period) -> int:
    """The charge of user 7 if ``feed`` charges the whole budget in a window of ``period``."""
    ledger = Ledger(redis, feed)
    generation = await ledger.start_generation(birth=SLOT)
    await ledger.charge(period.start + HOUR, period, generation, USERS, np.full(2, B), B)
    return int((await ledger.spent(period.key, USERS, besides=0))[0])


async def test_a_new_feed_name_in_the_middle_of_a_period_grants_nothing_until_the_next(redis: Redis) -> None:
    await Ledger(redis, "old").start_generation(birth=0)
    assert await spend(redis, "old", TODAY) == B
    with pytest.raises(
        BeforeBirthError, match=r"born 2017-03-21T12:00:00Z; windows of period 2017-03-21.*ledger adopt"
    ):
        await spend(redis, "new", TODAY)
    assert await Ledger(redis, "new").periods() == []
    assert await spend(redis, "new", TOMORROW) == B


async def test_without_the_check_the_same_user_has_two_budgets_in_one_period(redis: Redis) -> None:
    """The planted bug."""
    await Ledger(redis, "old").start_generation(birth=0)
    spent = await spend(redis, "old", TODAY)
    with altered_script("charge", "if not birth or tonumber(ARGV[9]) < tonumber(birth) then", "if not birth then"):
        assert spent + await spend(redis, "new", TODAY) == 2 * B


async def test_a_ledger_whose_birth_is_not_recorded_charges_nothing(redis: Redis) -> None:
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation()
    await redis.delete(FeedKeys("bus").birth)
    with pytest.raises(BeforeBirthError, match="not recorded"):
        await ledger.charge(SLOT, TODAY, generation, USERS, np.full(2, B), B)


async def test_a_ledger_is_born_when_redis_makes_it_and_adopting_only_moves_it_back(redis: Redis) -> None:
    ledger = Ledger(redis, "bus")
    await ledger.start_generation()
    now, _ = await redis.time()
    assert now - 60 <= (await ledger.birth() or 0) <= now
    await ledger.start_generation(birth=0)
    assert (await ledger.birth() or 0) >= now - 60, "a ledger is born once"
    assert await ledger.adopt(SLOT) == SLOT
    assert await ledger.adopt(SLOT + DAY) == SLOT
    assert await ledger.adopt(SLOT - DAY) == SLOT - DAY


class Clock:
    now = float(SLOT + 3 * DAY)

    async def now_us(self) -> int:
        return int(self.now * 1e6)


async def due(worker: Worker) -> list[int]:
    """The windows that are due after the feed was read up to now."""
    now = await worker.rows.now_us()
    await worker.rows.list_partitions(["t/0"], now)
    assert await worker.rows.read_through([ReadThrough("t/0", 60, 60, now)]) == {}
    return await worker.due_slots()


async def filled(redis: Redis, config: Config) -> None:
    """Rows in a period before the birth and in one after it."""
    store, rows = RowStore(redis, config.feed.name), random_rows(3, 60)
    slots = np.repeat([SLOT, SLOT + 2 * DAY], 30)
    await Ledger(redis, config.feed.name).start_generation(birth=SLOT)
    await store.append("t/0", 0, 60, rows, np.arange(60), slots)


async def test_under_values_windows_of_earlier_periods_wait_until_they_are_adopted(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(RowStore, "now_us", lambda _: clock.now_us())
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await filled(redis, config)
    worker = Worker(config)
    try:
        assert await due(worker) == [SLOT + 2 * DAY]
        await Ledger(redis, "bus").adopt(0)
        assert await due(worker) == [SLOT, SLOT + 2 * DAY]
    finally:
        await worker.redis.aclose()


async def test_under_participation_no_tick_of_an_earlier_period_is_published(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(RowStore, "now_us", lambda _: clock.now_us())
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    clock.now = SLOT + 60.0
    await filled(redis, config)
    worker = Worker(config)
    try:
        assert await due(worker) == []
        clock.now = float(SLOT + 2 * DAY)
        slots = await due(worker)
    finally:
        await worker.redis.aclose()
    begins = config.slotting.period_of(SLOT).end
    assert slots[0] == begins
    assert all(config.slotting.period_of(slot).start >= SLOT for slot in slots)


async def test_a_close_of_an_earlier_period_draws_and_publishes_nothing(redis: Redis, tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    await filled(redis, config)
    out = Collected()
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, config, out).close(SLOT)
    assert out.messages == []
    assert not await redis.exists(FeedKeys("bus").outbox(SLOT))


def test_adopt_explains_itself_and_changes_nothing_unless_the_operator_says_that_no_other_ledger_has() -> None:
    at = ["ledger", "adopt", "--config", str(hourly.BUS)]
    result = CliRunner().invoke(command, [*at, "--since", "2017-03-21"])
    assert result.exit_code == 2
    assert "periods from 2017-03-21T05:00:00Z on" in result.stderr
    assert "every user gets" in result.stderr
    wrong = CliRunner().invoke(command, [*at, "--since", "yesterday", "--no-other-ledger"])
    assert wrong.exit_code == 2
    assert "write a date like 2017-03-21" in wrong.stderr
