"""Takes over the rows that an earlier version stored, which kept those of all partitions of a feed together."""

from __future__ import annotations

from datetime import timedelta
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stream.config import Config
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.partitions import spans_servers
from stream.storage.row_store import StateError

MOVED = "rows are kept by partition"
"""Takes the place of the offsets and rows of earlier versions. They fail on it, so none stores rows that nobody would read, nor
releases a window without those that it did not read before they were taken over."""
_IN_PLACE_OF_ROWS = timedelta(days=1)
"""How long it stays in place of rows. An attempt to close a window takes minutes, and a later one finds none due."""


async def take_over(redis: Redis, config: Config) -> int:
    """Take over what an earlier version stored, before a worker reads or closes anything. Returns its number of windows with rows.

    Repeating it is harmless. Raises :class:`StateError` where it is impossible.
    """
    client: Any = redis  # typed by redis-py as answering str too; this client answers bytes
    named = FeedKeys.of(config)
    keys = [named.offsets, named.watermarks, named.seen, named.read, named.slots, named.sealed, named.partitions]
    keys += [named.retired, named.opened, named.set_aside]
    if spans_servers(redis):
        if not await client.set(named.offsets, MOVED, nx=True) and await client.type(named.offsets) != b"string":
            raise StateError(
                f"Redis holds rows of feed {config.feed.name!r} that an earlier version stored, and on a cluster they cannot be taken "
                "over. Start that version again, stop the source, and let it release the windows that are open; then give the feed a "
                "new name"
            )
        return 0
    script = resources.files("stream.storage").joinpath("lua", "take_over.lua").read_text(encoding="utf-8")
    try:
        begins = named.rows(0).removesuffix("0"), PartKeys.begin(named)
        seconds = _IN_PLACE_OF_ROWS // timedelta(seconds=1)
        return int(await client.eval(script, len(keys), *keys, *begins, MOVED, seconds))
    except ResponseError as error:
        if "MIXED" not in str(error) and "NAMELESS" not in str(error):
            raise
        raise StateError(
            f"Redis holds rows of feed {config.feed.name!r} that an earlier version stored beside rows of this one, and some may be in "
            f"both. Start the version that was stopped last, let it release the windows that are open, and delete {named.offsets}, or "
            "give the feed a new name"
        ) from None
