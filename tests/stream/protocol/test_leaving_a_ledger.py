"""How a feed leaves a shared ledger: not before it has published what it charged, whatever its worker does
meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as blocking
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.cli import app
from stream.config import Config
from stream.local import REPO_ROOT
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError
from stream.storage.retirement import Retirement
from stream.storage.shared_ledger import SharedLedger
from tests.support.builders import SLOT
from tests.support.city import City
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.sharing import BUDGET, LEDGER, PERIOD, each_stored, sharing, spent, stored


@pytest.mark.parametrize("last", ["charge", "commit", "publish"])
async def test_a_feed_leaves_once_it_has_published_what_it_charged_and_holds_nothing_any_more(
    redis: Redis, tmp_path: Path, last: str
) -> None:
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, last)
    with pytest.raises(LedgerError, match="charged or committed and not published: 2017-03-21T12:00:00Z"):
        await shared.leave("tram")
    assert list(await shared.feeds()) == ["bus", "tram"]
    await protocol_of(redis, tram, Collected()).close(SLOT)
    charged = await ledger.total("2017-03-21")
    await shared.leave("tram")
    assert list(await shared.feeds()) == ["bus"]
    assert await ledger.birth() is None
    assert await ledger.total("2017-03-21") == charged
    end = bus.slotting.period_of(SLOT).end
    assert await Retirement(redis, "bus", bus.slotting, LEDGER).retire(end) == end


async def refused_after_leaving(redis: Redis, tram: Config, last: str) -> Collected:
    """A worker of ``tram`` closes a window while an operator lets the feed leave after its step ``last``; its charge is
    refused. Returns what it published.
    """
    await stored(redis, tram, 1)
    await Ledger.of(redis, tram).start_generation(birth=0)

    async def leave(step: str) -> None:
        if step == last:
            await SharedLedger(redis, "bus", LEDGER).leave("tram")

    publisher = Collected()
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, publisher, after_step=leave).close(SLOT)
    return publisher


async def test_a_feed_may_leave_while_its_worker_plans_and_again_whatever_the_worker_leaves_behind(
    redis: Redis, tmp_path: Path
) -> None:
    """The worker has looked before the feed left, so it stores a plan. Nobody is charged, and the plan holds nobody."""
    _, tram = sharing(tmp_path)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await refused_after_leaving(redis, tram, "read")
    assert await redis.exists(FeedKeys.of(tram).plan(SLOT))
    assert await ledger.total(PERIOD) == (0, 0)
    await ledger.start_generation()  # its worker looks again
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, Collected()).close(SLOT)
    await shared.leave("tram")
    assert await shared.feeds() == {}


async def test_a_plan_that_nobody_has_paid_for_does_not_keep_its_feed(redis: Redis, tmp_path: Path) -> None:
    """If the worker goes on, its charge is refused and what it would draw is not."""
    _, tram = sharing(tmp_path)
    publisher = await refused_after_leaving(redis, tram, "plan")
    assert publisher.messages == []
    assert await Ledger.of(redis, tram).total(PERIOD) == (0, 0)


async def test_a_plan_that_was_left_behind_is_charged_within_the_budget_if_its_period_is_adopted(
    redis: Redis, tmp_path: Path
) -> None:
    """The bus has spent meanwhile what the plan of the tram took to be left."""
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await ledger.start_generation(birth=0)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, "plan")
    await shared.leave("tram")
    await protocol_of(redis, bus, Collected()).close(SLOT)
    await ledger.start_generation()
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, Collected()).close(SLOT)
    await ledger.adopt(tram.slotting.period_of(SLOT).start)
    await protocol_of(redis, tram, Collected()).close(SLOT)
    assert BUDGET / 2 < max((await spent(redis, tram)).values()) <= BUDGET


async def test_a_window_that_some_users_have_paid_for_keeps_its_feed(redis: Redis, tmp_path: Path) -> None:
    """A worker that was killed between two calls of one charge."""
    _, tram = sharing(tmp_path)
    await stored(redis, tram, 1)
    shared, ledger, keys = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram), FeedKeys.of(tram)
    await ledger.start_generation(birth=0)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, "charge")
    await redis.hdel(keys.charged(SLOT), "plan")
    with pytest.raises(LedgerError, match="charged or committed and not published"):
        await shared.leave("tram")


async def test_a_feed_that_left_joins_again_with_a_birth_of_its_own(city: City) -> None:
    await city.fill()
    assert await city.release(city.tram, 0) is None
    async with Redis.from_url(city.server.url) as client:
        ledger, name = Ledger.of(client, city.tram), city.tram.feed.name
        await SharedLedger(client, "any", str(city.tram.shared_ledger)).leave(name)
        before = (await client.time())[0]
        await city.verify(city.tram)
        assert (await ledger.birth() or 0) >= before
        assert name in await SharedLedger(client, "any", str(city.tram.shared_ledger)).feeds()
    reason = await city.release(city.tram, 1)
    assert reason is not None
    assert "began before" in reason


async def test_a_feed_that_did_not_join_cannot_leave(redis: Redis) -> None:
    with pytest.raises(LedgerError, match="'metro' did not join ledger 'city'; its feeds are: none"):
        await SharedLedger(redis, "bus", LEDGER).leave("metro")


def test_leaving_asks_for_a_confirmation(redis_url: str, redis: Redis, tmp_path: Path) -> None:
    file = tmp_path / "bus.toml"
    text = (REPO_ROOT / "config" / "bus-fleet.toml").read_text(encoding="utf-8")
    file.write_text(text.replace("[hexagons]", f'[ledger]\nname = "{LEDGER}"\n\n[hexagons]'), encoding="utf-8")
    keys = FeedKeys("tram", LEDGER)
    with blocking.Redis.from_url(redis_url) as client:
        client.hset(keys.feeds, "tram", 0)
        command = ["ledger", "leave", "tram", "--config", str(file)]
        environment = {"HEXVEIL_REDIS__URL": redis_url}
        asked = CliRunner().invoke(app, command, env=environment)
        assert asked.exit_code == 2
        assert "repeat the" in asked.output
        assert client.hexists(keys.feeds, "tram")
        done = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert done.exit_code == 0, done.output
        assert not client.hexists(keys.feeds, "tram")
        again = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert again.exit_code == 1
        assert "did not join" in again.output
