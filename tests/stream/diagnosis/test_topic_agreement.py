"""An inspection reads a topic within the worker's bounds, whatever producers sent: on real Kafka. That ``inspect``
says what the worker counts is tried by the campaign of :mod:`tests.stream.test_fuzz`."""

import time

from stream.config.servers import KafkaConfig
from stream.diagnosis.live import newest_messages
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.messages.topics import INPUT_SETTINGS
from tests.support.feeding import create_topic
from tests.support.live_events import event, send_batch


async def test_a_compressed_bomb_in_a_topic_is_left_out_and_said(kafka, topic_name):
    """90 MiB in one batch of some kB, and one message above the limit, between events of three vehicles."""
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, "zstd", [event("a", now, 1)])
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)] * 3)
    await send_batch(kafka, topic_name, "zstd", [event("b", now, 2), bytes(MAX_ARRAY_BYTES + 1)])
    await send_batch(kafka, topic_name, "gzip", [event("c", now, 3)])
    values, _, left_out = await newest_messages(KafkaConfig(bootstrap=kafka), topic_name, 1_000)
    assert len(values) == 3
    assert dict(left_out) == {"too-large": 1, "unreadable-batch": 3}
