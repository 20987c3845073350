"""How processes inside the trust boundary reach Redis: address, encryption and credentials as configured."""

from __future__ import annotations

import ssl
from typing import Any

import redis as blocking
from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stream.config.servers import RedisConfig
from stream.connection import first_line, tls_context


def redis_client(redis: RedisConfig) -> Redis:
    """A client that connects when it is first used. Raises :class:`ConfigError` for a file that cannot be used.

    Over ``rediss://`` it verifies the server's certificate and name by ``ca_file`` (default: the system's authorities), and
    shows its own certificate if it has one.
    """
    client: Redis = Redis.from_url(redis.url, **_options(redis))
    return client


def blocking_client(redis: RedisConfig, timeout_s: float) -> blocking.Redis:
    """The same for use in a thread. A connection or an answer that takes longer than ``timeout_s`` is an error at once."""
    limits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    client: blocking.Redis = blocking.Redis.from_url(redis.url, **_options(redis), **limits)
    return client


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
        options |= {
            "username": redis.username,
            "password": first_line(redis.password_file, "redis.password_file"),
        }
    return options
