"""Quix Streams: an application that updates a dictionary."""

from __future__ import annotations

from collections import Counter

from quixstreams import Application

from bench.peers import Stopwatch, cell_of


def run(bootstrap: str, topic: str, events: int) -> None:
    """Read ``events`` messages."""
    app = Application(
        broker_address=bootstrap, consumer_group="quixstreams", auto_offset_reset="earliest", loglevel="ERROR"
    )
    counts: Counter[str] = Counter()
    watch = Stopwatch(events)

    def count(value: bytes) -> None:
        counts[cell_of(value)] += 1
        watch.add(1)

    app.dataframe(app.topic(topic, value_deserializer="bytes")).update(count)
    app.run(count=events)
