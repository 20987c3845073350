"""A loop over librdkafka's reader."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.peers import Stopwatch, cell_of


def run(bootstrap: str, topic: str, events: int) -> None:
    """Read ``events`` messages of the topic's only partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "confluent_kafka", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    counts: Counter[str] = Counter()
    watch = Stopwatch(events)
    while True:
        messages = consumer.consume(10_000, 0.1)
        counts.update(cell_of(message.value()) for message in messages)
        if watch.add(len(messages)):
            return
