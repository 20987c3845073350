"""Print each complete window of a feed once: python subscriber.py BOOTSTRAP FEED [COUNT] [STATE]

Needs aiokafka. Ends after COUNT windows; without it, or with inf, never. With STATE, a file of SQLite, a later run goes
on where this one ended, however it ended; without it, each run begins with what retention has kept.
"""

import asyncio
import hashlib
import json
import sqlite3
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition

MARKERS = "hexveil.window.v1"
TOPICS = ("hexveil.hexagon-speed.v1", "hexveil.spatial-histogram.v1", MARKERS)
TABLES = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS offsets (topic, part, next, PRIMARY KEY (topic, part));
CREATE TABLE IF NOT EXISTS waiting (start, topic, ce_id, value, PRIMARY KEY (start, ce_id));
CREATE TABLE IF NOT EXISTS results (start PRIMARY KEY, text);
"""


async def main(bootstrap: str, feed: str, count: float = float("inf"), state: str = ":memory:") -> None:
    """Tell complete windows until there were ``count``."""
    db = sqlite3.connect(state, isolation_level=None)
    db.executescript(TABLES)
    # No group commits offsets: they are in the state, with the messages that wait for the rest of their window.
    consumer = AIOKafkaConsumer(*TOPICS, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    try:
        for topic, part, offset in db.execute("SELECT topic, part, next FROM offsets"):
            consumer.seek(TopicPartition(topic, part), offset)
        async for record in consumer:
            # One transaction: either all of this message's effects are kept, or it is read again.
            db.execute("BEGIN")
            told = read(db, record, feed)
            following = (record.topic, record.partition, record.offset + 1)
            db.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", following)
            db.execute("COMMIT")
            if told is not None:
                print(told, flush=True)
                count -= 1
            if count <= 0:
                return
    finally:
        await consumer.stop()


def read(db: sqlite3.Connection, record, feed: str) -> str | None:
    """Keep a message; the result if it makes its window complete."""
    try:
        ce_id = dict(record.headers)["ce_id"].decode()
        body = json.loads(record.value)
        start, of_feed = str(body["window"]["start"]), body["feed"] == feed
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # not written by Hexveil
    if not of_feed or db.execute("SELECT 1 FROM results WHERE start = ?", (start,)).fetchone():
        return None
    # A repetition has the same ce_id. The marker may overtake the others: they come by other topics.
    db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)", (start, record.topic, ce_id, record.value))
    stored = db.execute("SELECT value FROM waiting WHERE start = ? AND topic = ?", (start, MARKERS)).fetchone()
    if stored is None:
        return None
    marker, rest = json.loads(stored[0]), "FROM waiting WHERE start = ? AND topic <> ?"
    if db.execute(f"SELECT count(*) {rest}", (start, MARKERS)).fetchone()[0] != marker["messages"]:
        return None
    values = [value for (value,) in db.execute(f"SELECT value {rest} ORDER BY ce_id", (start, MARKERS))]
    if marker["digest"] != "sha256:" + hashlib.sha256(b"".join(values)).hexdigest():
        return None  # not the bytes that the marker speaks of
    result = take(marker, values)
    db.execute("INSERT INTO results VALUES (?, ?)", (start, result))
    db.execute("DELETE FROM waiting WHERE start = ?", (start,))
    return result


def take(marker: dict, values: list[bytes]) -> str:
    """Whatever you do with a window; here it is told."""
    return f"{marker['feed']} {marker['window']['start']} {len(values)} messages"


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:3], *map(float, sys.argv[3:4]), *sys.argv[4:5]))
