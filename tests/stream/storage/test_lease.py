"""A lease has one owner at a time, is renewed while its owner lives, and expires after its owner ended. Real Redis."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from stream.storage.keys import FeedKeys
from stream.storage.lease import Lease

KEY = FeedKeys("bus").lease


async def test_one_owner_holds_it_and_the_next_gets_it_when_it_is_given_back(redis: Redis) -> None:
    mine, other = Lease(redis, KEY), Lease(redis, KEY)
    async with mine.hold() as acquired:
        assert acquired
        async with other.hold() as second:
            assert not second
        assert await redis.exists(KEY), "who does not hold it must not give it back"
    async with other.hold() as acquired:
        assert acquired


async def test_it_is_renewed_while_it_is_held(redis: Redis) -> None:
    mine, other = Lease(redis, KEY, seconds=3.0), Lease(redis, KEY, seconds=3.0)
    async with mine.hold() as acquired:
        assert acquired
        for _ in range(2):
            await asyncio.sleep(2.0)
            async with other.hold() as second:
                assert not second


async def test_an_owner_that_is_killed_is_followed_after_the_seconds_of_the_lease(redis: Redis) -> None:
    dead = Lease(redis, KEY, seconds=0.5)
    holding = dead.hold()
    assert await holding.__aenter__()
    await redis.set(KEY, "killed", px=300)  # its process is gone, so nothing renews the lease
    await asyncio.sleep(0.5)
    async with Lease(redis, KEY).hold() as acquired:
        assert acquired
        assert await holding.__aexit__(None, None, None) is not True
        assert await redis.exists(KEY), "an owner whose lease ran out must not take the next one's"


async def test_a_lease_that_redis_forgot_is_no_reason_to_stop(redis: Redis) -> None:
    async with Lease(redis, KEY, seconds=0.3).hold() as acquired:
        assert acquired
        await redis.flushall()
        await asyncio.sleep(0.5)
