"""A close, whole or in parts, for tests that stop between two steps or let one fail."""

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message
from stream.offline import MemoryRows
from stream.protocol.release_protocol import ReleaseProtocol, statistics_of
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.support.builders import SLOT


class Collected:
    """A publisher that records the messages instead of sending them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def publish(self, messages) -> None:
        self.messages += messages

    async def confirm(self, messages) -> None:
        assert self.messages[-len(messages) :] == list(messages)


class Stopped(Exception):  # noqa: N818 - a signal of the tests, not a fault
    """Raised once the step was reached."""


def protocol_of(
    redis: Redis, config: Config, publisher, rows: MemoryRows | None = None, noise: Noise | None = None, **hooks
) -> ReleaseProtocol:
    """The release protocol of ``config`` with its ledger in ``redis``, and its rows, too, unless they are given."""
    store, ledger = rows or RowStore.of(redis, config), Ledger.of(redis, config)
    return ReleaseProtocol(statistics_of(config), redis, store, ledger, publisher, noise or Noise(), **hooks)


async def closed(redis: Redis, config: Config, slot: int = SLOT, **hooks: Any) -> list[Message]:
    """The messages of a window that is closed."""
    publisher = Collected()
    await protocol_of(redis, config, publisher, **hooks).close(slot)
    return publisher.messages


async def refused(redis: Redis, config: Config, error: type[Exception], says: str | None = None, **hooks: Any) -> None:
    """Closing the first window raises ``error``, and nothing is published."""
    publisher = Collected()
    with pytest.raises(error, match=says):
        await protocol_of(redis, config, publisher, **hooks).close(SLOT)
    assert publisher.messages == []


async def close_until(protocol: ReleaseProtocol, slot: int, last: str) -> None:
    """Close a window until ``last`` is done, and no step further."""

    def stop(step: str) -> None:
        if step == last:
            raise Stopped

    try:
        await dataclasses.replace(protocol, after_step=stop).close(slot)
    except Stopped:
        return
    raise AssertionError(f"step {last} was not reached")


@contextmanager
def failing(
    owner: type, name: str, error: BaseException, *, after: bool = False, times: int = 1
) -> Iterator[list[str]]:
    """The first ``times`` calls of a method raise ``error``, before or after it did its work. Yields those calls."""
    original, calls = getattr(owner, name), list[str]()

    def fails(now: bool) -> None:
        if now and len(calls) < times:
            calls.append(name)
            raise error

    async def waiting(work: Any) -> Any:
        result = await work
        fails(after)
        return result

    def method(self: Any, *given: Any, **named: Any) -> Any:
        fails(not after)
        result = original(self, *given, **named)
        if inspect.isawaitable(result):
            return waiting(result)
        fails(after)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield calls
