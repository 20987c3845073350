"""Other stream engines on the topic of ``bench.ingest``: decode each event, find its hexagon, count by hexagon, in
memory.

That is less than Hexveil's ingestion does: there are no pseudonyms, no durable state, no deadlines, and nothing is
stored exactly once. Each engine runs in a process of its own, ``python -m bench.peers NAME BOOTSTRAP EVENTS``, if it is
installed: ``pip install -e '.[peers]'``. They are no part of the lock files, because not all of them have wheels for
every Python.
"""

from __future__ import annotations

import json
import resource
import time
from importlib.metadata import PackageNotFoundError, version

import h3
import msgspec

PEERS = {
    "bytewax": "bytewax",
    "quixstreams": "quixstreams",
    "pathway": "pathway",
    "confluent_kafka": "confluent-kafka",
}
"""Module of this package and distribution of each peer. The last is no engine: a loop over librdkafka's reader."""
RESOLUTION = 7

_DECODER = msgspec.json.Decoder()


def installed(peer: str) -> str | None:
    """Version of a peer; None if it is not installed."""
    try:
        return version(PEERS[peer])
    except PackageNotFoundError:
        return None


def cell_of(value: bytes) -> str:
    """Hexagon of one event in the format of ``bench.ingest.synthetic_event``."""
    lng, lat = _DECODER.decode(value)["location"]["coordinates"]
    return str(h3.latlng_to_cell(lat, lng, RESOLUTION))


class Stopwatch:
    """Counts events, and reports to the parent process when there are as many as were sent."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._seen = 0
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()

    def add(self, events: int) -> bool:
        """Whether these were the last ones."""
        self._seen += events
        if self._seen < self._events:
            return False
        report(self._seen, cpu_seconds() - self._cpu, time.perf_counter() - self._wall)
        return True


def cpu_seconds() -> float:
    """Processor seconds of this process, in all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def report(count: int, cpu: float, wall: float, parts: dict[str, float] | None = None) -> None:
    """Send the result to the parent process. ``parts``: processor seconds by part, where they were counted."""
    counted = {"events": count, "cpu_seconds": cpu, "wall_seconds": wall}
    print(json.dumps(counted | ({} if parts is None else {"parts": parts})), flush=True)
