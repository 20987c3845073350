"""The partitions of a feed: which may hold rows, and calls to all of their shards at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

from stream.storage.client import run, text_of

Call = tuple[Sequence[str], Sequence[str | int | bytes]]
"""Keys and arguments of a script."""


class KnownPartition(NamedTuple):
    """What the feed's shard knows of a partition.

    ``restart``: the offset from which it is read again should its shard be lost; None before it was opened. ``gone``:
    whether the topic no longer has it.
    """

    restart: int | None
    gone: bool


def spans_servers(redis: Redis) -> bool:
    """Whether the client is one of a Redis Cluster, whose servers fail one by one."""
    return isinstance(redis, RedisCluster)


async def ask_every_primary(redis: Any) -> None:
    """Raise :class:`RedisError` unless the server answers, of a cluster each primary: any may hold the ledger."""
    if not spans_servers(redis):
        await redis.ping()
        return
    await redis.initialize()
    await redis.ping(target_nodes=RedisCluster.PRIMARIES)


async def server_info(redis: Any, key: str, *sections: str) -> dict[str, Any]:
    """INFO of the server that holds ``key``."""
    if not spans_servers(redis):
        return dict(await redis.info(*sections))
    await redis.initialize()
    return dict(await redis.info(*sections, target_nodes=redis.get_node_from_key(key)))


async def info_of_masters(cluster: Any) -> list[dict[str, Any]]:
    """INFO of every server of a cluster that holds keys."""
    await cluster.initialize()
    return [dict(await cluster.info(target_nodes=node)) for node in cluster.get_primaries()]


async def each(redis: Any, script: str, calls: Sequence[Call]) -> list[Any]:
    """The answers of ``script`` to ``calls``, which are sent to all servers at once. Raises the first error."""
    if len(calls) == 1:
        ((keys, args),) = calls
        return [await run(redis, script, keys, *args)]
    async with redis.pipeline(transaction=False) as pipe:
        for keys, args in calls:
            pipe.execute_command("EVAL", text_of(script), len(keys), *keys, *args)
        try:
            answers: list[Any] = await pipe.execute()
        except RedisClusterException as error:  # which is no RedisError, so nobody would try again after it
            raise RedisConnectionError(str(error)) from error
        return answers


def known_partitions(
    opened: dict[bytes, bytes], listed: Iterable[bytes], gone: Iterable[bytes]
) -> dict[str, KnownPartition]:
    """The partitions that were ever opened or are listed, in order of their names."""
    known, left = dict[str, KnownPartition](), set(gone)
    for name in sorted({*opened, *listed}):
        note = opened.get(name)
        known[name.decode()] = KnownPartition(int(note.split(b" ")[0]) if note else None, name in left)
    return known
