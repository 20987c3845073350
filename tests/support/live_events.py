"""Events of a live feed, and the speeds that Redis stores of them. Batches of messages as a producer sends them."""

from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from stream.storage.row_store import RowStore
from tests.support import feeding
from tests.support.stored_rows import rows_in


async def send_batch(
    kafka: str, topic: str, codec: str | None, values: list[bytes], partition: int = 0, headers: int = 0
) -> None:
    """``headers``: number of empty headers of each message."""
    settings = {"compression_type": codec, "max_batch_size": 1 << 30}
    async with AIOKafkaProducer(bootstrap_servers=kafka, **settings) as producer:
        batch = producer.create_batch()
        for value in values:
            assert batch.append(key=b"k", value=value, timestamp=None, headers=[("", b"")] * headers) is not None
        await (await producer.send_batch(batch, topic, partition=partition))


def event(user: str, moment: float, speed: float = 20.0) -> bytes:
    """``moment``: seconds UTC."""
    return feeding.event(user, round(moment * 1000), speed=speed)


async def speeds(redis: Redis) -> dict[int, list[int]]:
    """Values of the rows of every open slot; each event has a value of its own."""
    state = RowStore(redis, "bus")
    return {slot: sorted((await rows_in(redis, "bus", slot))["value"].tolist()) for slot in await state.open_slots()}


async def every_speed(redis: Redis) -> list[int]:
    return sorted(value for values in (await speeds(redis)).values() for value in values)
