"""Print each complete window of a feed once: python subscriber.py BOOTSTRAP FEED [COUNT]

Needs aiokafka. Ends after COUNT windows; without it, never.
"""

import asyncio
import hashlib
import json
import sys
from collections import defaultdict

from aiokafka import AIOKafkaConsumer

MARKERS = "hexveil.window.v1"
TOPICS = ("hexveil.hexagon-speed.v1", "hexveil.spatial-histogram.v1", MARKERS)


async def main(bootstrap: str, feed: str, count: float) -> None:
    """Tell complete windows until there were ``count``."""
    # Without a group nothing is committed: each run begins with what retention has kept.
    consumer = AIOKafkaConsumer(*TOPICS, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    messages: dict[str, dict[str, bytes]] = defaultdict(dict)  # window -> ce_id -> value: a repetition changes nothing
    markers: dict[str, dict] = {}
    done: set[str] = set()
    await consumer.start()
    try:
        async for record in consumer:
            try:
                ce_id = dict(record.headers)["ce_id"].decode()
                body = json.loads(record.value)
                start = body["window"]["start"]
            except (AttributeError, KeyError, TypeError, ValueError):
                continue  # not written by Hexveil
            if body["feed"] != feed or start in done:
                continue
            if record.topic == MARKERS:
                markers[start] = body  # it may overtake the others: they come by other topics
            else:
                messages[start][ce_id] = record.value
            if start in markers and complete(markers[start], messages[start]):
                take(markers.pop(start), messages.pop(start))
                done.add(start)
                if len(done) >= count:
                    return
    finally:
        await consumer.stop()


def complete(marker: dict, values: dict[str, bytes]) -> bool:
    """Whether these are all messages that the marker speaks of, and the very bytes."""
    if len(values) != marker["messages"]:
        return False
    joined = b"".join(values[ce_id] for ce_id in sorted(values))
    return marker["digest"] == "sha256:" + hashlib.sha256(joined).hexdigest()


def take(marker: dict, values: dict[str, bytes]) -> None:
    """Whatever you do with a window; here it is told."""
    print(f"{marker['feed']} {marker['window']['start']} {len(values)} messages", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) == 4 else float("inf")))
