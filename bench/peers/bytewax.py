"""Bytewax: batches are mapped to hexagons, which a stateful step counts."""

from __future__ import annotations

from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.testing import TestingSink, run_main

from bench.peers import Stopwatch, cell_of


class _Count(StatefulBatchLogic):  # type: ignore[misc]  # the library is not installed where types are checked
    def __init__(self, resumed: int | None) -> None:
        self._count = resumed or 0

    def on_batch(self, values: list[Any]) -> tuple[list[int], bool]:
        self._count += len(values)
        return [], StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self._count


def run(bootstrap: str, topic: str, events: int) -> None:
    """Read the topic to its end."""
    flow = Dataflow("peer")
    messages = op.input("messages", flow, KafkaSource([bootstrap], [topic], tail=False, batch_size=10_000))
    cells = op.flat_map_batch("cells", messages, lambda batch: [(cell_of(message.value), None) for message in batch])
    op.output("counts", op.stateful_batch("count", cells, _Count), TestingSink([]))
    watch = Stopwatch(events)
    run_main(flow)
    watch.add(events)
