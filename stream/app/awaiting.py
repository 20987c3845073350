"""Before a worker starts: waits until Redis and Kafka answer, logs this, and checks that the topics exist."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from stream.config import Config
from stream.config.servers import redacted
from stream.messages.message import WINDOW
from stream.servers.connection import kafka_options
from stream.storage.client import redis_client

log = structlog.get_logger()

_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 20.0
_TOPIC_SECONDS = 10.0
"""Seconds to wait for topics, because brokers list a new topic only after a moment."""


class TopicMissingError(RuntimeError):
    """A topic that the worker needs does not exist; the message says how to create it."""


async def servers_answer(config: Config) -> bool:
    """Returns True once Redis and Kafka answer and the worker's topics exist; False if SIGTERM or SIGINT came first.

    Raises :class:`TopicMissingError`, and the error of Redis if Redis refuses this user.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        return await _until_it_answers(
            "redis", redacted(config.redis.url), lambda: _ask_redis(config), stopping
        ) and await _until_it_answers("kafka", config.kafka.bootstrap, lambda: _ask_kafka(config), stopping)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _until_it_answers(
    name: str, address: str, ask: Callable[[], Coroutine[None, None, None]], stopping: asyncio.Event
) -> bool:
    waiting = False
    while not stopping.is_set():
        asking = asyncio.ensure_future(ask())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({asking, stopped}, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            if not asking.done():
                asking.cancel()
                raise TimeoutError(f"no answer within {_ANSWER_SECONDS:.0f} s")
            asking.result()
        except (AuthenticationError, ResponseError):
            raise  # the server answered, so waiting does not help
        except (KafkaError, RedisError, OSError) as error:
            if not stopping.is_set():
                waiting = True
                log.warning(f"{name} does not answer, waiting for it", address=address, reason=str(error))
        else:
            if waiting:
                log.info(f"{name} answers", address=address)
            return True
        try:
            await asyncio.wait_for(stopping.wait(), _PAUSE_SECONDS)
        except TimeoutError:
            continue
    return False


async def _ask_redis(config: Config) -> None:
    redis = redis_client(config.redis)
    try:
        await redis.ping()
    finally:
        await redis.aclose()


async def _ask_kafka(config: Config) -> None:
    client = AIOKafkaAdminClient(**kafka_options(config.kafka))
    deadline = time.monotonic() + _TOPIC_SECONDS
    try:
        await client.start()
        while missing := {config.feed.topic, WINDOW} - set(await client.list_topics()):
            if time.monotonic() > deadline:
                raise TopicMissingError(
                    f"Kafka at {config.kafka.bootstrap} has no topic {', '.join(sorted(missing))}, or does not show "
                    "it; run 'hexveil topics create', correct feed.topic, or let this user describe and read it"
                )
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        await client.close()
