"""How processes inside the trust boundary reach Redis: address, encryption and credentials as configured.

Scripts of ``stream/storage/lua``: whatever reads and writes in one step. They are called by their digest, those of
partitions on all shards at once.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from stream.config.servers import RedisConfig, host_and_port, redacted
from stream.servers.connection import first_line, tls_context

Argument = str | int | bytes
Call = tuple[Sequence[str], Sequence[Argument]]
"""Keys and arguments of a script."""


@cache
def text_of(name: str) -> str:
    """The text of the script."""
    return resources.files("stream.storage").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


async def run(redis: Any, name: str, keys: Sequence[str], *args: Argument) -> Any:
    """The answer of the script ``name``."""
    text = text_of(name)
    try:
        return await redis.evalsha(redis.register_script(text).sha, len(keys), *keys, *args)
    except NoScriptError:
        # Loading it would ask every shard, of which one may be away; this one learns it by running it once.
        return await redis.eval(text, len(keys), *keys, *args)


CLUSTER_SECONDS = 5.0
"""How long a node of a cluster has to answer. After that another one is asked which node has taken its place."""
_CLUSTER_RETRIES = 2


class _Spanning(RedisCluster):  # type: ignore[misc]  # mypy does not follow where it is defined
    """A client of a cluster; of a cluster that cannot be reached it says so as that of one server does."""

    async def initialize(self, *given: Any, **named: Any) -> Any:
        with _as_connection_error():
            return await super().initialize(*given, **named)

    async def execute_command(self, *given: Any, **named: Any) -> Any:
        with _as_connection_error():
            return await super().execute_command(*given, **named)


@contextmanager
def _as_connection_error() -> Iterator[None]:
    """Errors of redis-py's clients of clusters are no :class:`RedisError`, so nobody would try again after one.

    After a node refused the user, trying again does not help: then this raises what the node said.
    """
    try:
        yield
    except RedisClusterException as error:
        if isinstance(error.__cause__, AuthenticationError | NoPermissionError):
            raise error.__cause__ from None
        raise RedisConnectionError(str(error)) from error


def redis_client(redis: RedisConfig) -> Redis:
    """A client that connects when it is first used. Raises :class:`ConfigError` for a file that cannot be used.

    Over ``rediss://`` it verifies the server's certificate and name by ``ca_file`` (default: the system's authorities),
    and shows its own certificate if it has one. That of a cluster has the same commands, each on keys of one shard.
    """
    if redis.cluster:
        nodes = [ClusterNode(*host_and_port(node)) for node in redis.cluster]
        limits = {"socket_timeout": CLUSTER_SECONDS, "socket_connect_timeout": CLUSTER_SECONDS}
        spanning: Any = _Spanning.from_url(
            redis.url, startup_nodes=nodes, retry=Retry(NoBackoff(), _CLUSTER_RETRIES), **limits, **_options(redis)
        )
        return cast(Redis, spanning)
    client: Redis = Redis.from_url(redis.url, **_options(redis))
    return client


def misconfigured(info: Mapping[str, Any], redis: RedisConfig) -> str | None:
    """Why the configuration does not fit a server that says this in section "server" of INFO; None if it does."""
    if "cluster" not in (info.get("redis_mode"), info.get("server_mode")) or redis.cluster:  # Redis, Valkey
        return None
    return (
        f"{redacted(redis.url)} is a node of a Redis Cluster, and the configuration has one server; name other nodes "
        "of the cluster in redis.cluster, like ['redis-2.example:6379']"
    )


def _options(redis: RedisConfig) -> dict[str, Any]:
    # Naming the client library needs a right of its own, and that exists since Redis 7.2 only.
    options: dict[str, Any] = {"driver_info": None}
    if redis.encrypted:
        # The client reads the file only when it connects, and would report an unusable one as an unreachable server.
        tls_context(redis, "redis")
        options |= {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_ca_certs": redis.ca_file and str(redis.ca_file),
            "ssl_certfile": redis.certificate_file and str(redis.certificate_file),
            "ssl_keyfile": redis.key_file and str(redis.key_file),
        }
    if redis.password_file is not None:
        options |= {"username": redis.username, "password": first_line(redis.password_file, "redis.password_file")}
    return options


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
        with _as_connection_error():
            answers: list[Any] = await pipe.execute()
            return answers
