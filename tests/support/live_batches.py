"""Batches of messages as a producer sends them."""

from aiokafka import AIOKafkaProducer


async def send_batch(
    kafka: str, topic: str, codec: str | None, values: list[bytes], partition: int = 0, headers: int = 0
) -> None:
    """``headers``: number of empty headers of each message."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, compression_type=codec, max_batch_size=1 << 30)
    await producer.start()
    try:
        batch = producer.create_batch()
        for value in values:
            assert batch.append(key=b"k", value=value, timestamp=None, headers=[("", b"")] * headers) is not None
        await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()
