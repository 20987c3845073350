"""The producer of releases keeps the leaders of all topics when a topic is added. Real broker."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from stream.config.servers import KafkaConfig
from stream.protocol import publishing


async def test_a_topic_made_after_the_start_does_not_make_the_producer_forget_the_others(
    kafka: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = f"{topic_name}-old", f"{topic_name}-new"
    monkeypatch.setattr(publishing, "OUTPUTS", (old, new))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(old, 1, 1)])
    while old not in await admin.list_topics():
        await asyncio.sleep(0.05)
    producer = publishing.make_producer(KafkaConfig(bootstrap=kafka))
    await producer.start()
    try:
        await admin.create_topics([NewTopic(new, 1, 1)])
        async with asyncio.timeout(20):
            await asyncio.gather(*[await producer.send(topic, b"x") for topic in (old, new)])
    finally:
        await producer.stop()
        await admin.close()
