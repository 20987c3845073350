"""Pathway: a table of hexagons, grouped and counted."""

from __future__ import annotations

import threading

import pathway as pw

from bench.peers import Stopwatch, cell_of


def run(bootstrap: str, topic: str, events: int) -> None:
    """Read until the counts add up to ``events``."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "pathway", "auto.offset.reset": "earliest"}
    table = pw.io.kafka.read(settings, topic=topic, format="raw", autocommit_duration_ms=500)
    cells = table.select(cell=pw.apply_with_type(cell_of, str, pw.this.data))
    counts = cells.groupby(pw.this.cell).reduce(pw.this.cell, count=pw.reducers.count())
    watch, done = Stopwatch(events), threading.Event()

    def changed(key: pw.Pointer, row: dict[str, int], time: int, is_addition: bool) -> None:
        if watch.add(row["count"] if is_addition else -row["count"]):
            done.set()

    pw.io.subscribe(counts, on_change=changed)
    threading.Thread(target=pw.run, kwargs={"monitoring_level": pw.MonitoringLevel.NONE}, daemon=True).start()
    done.wait(600)
