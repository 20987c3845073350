"""Events of a live feed, and the speeds that Redis stores of them."""

import json

from redis.asyncio import Redis

from stream.storage.row_store import RowStore
from tests.support.stored_rows import rows_in


def event(user: str, moment: float, speed: float = 20.0) -> bytes:
    body = {"user": user, "time": round(moment * 1000), "lat": 30.2, "lng": -97.7, "speed": speed}
    return json.dumps(body).encode()


async def speeds(redis: Redis) -> dict[int, list[int]]:
    """Values of the rows of every open slot; each event has a value of its own."""
    state = RowStore(redis, "bus")
    return {slot: sorted((await rows_in(redis, "bus", slot))["value"].tolist()) for slot in await state.open_slots()}


async def every_speed(redis: Redis) -> list[int]:
    return sorted(value for values in (await speeds(redis)).values() for value in values)
