"""Parts of a close, for tests that stop between two steps."""

import dataclasses

from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message
from stream.offline import MemoryRows
from stream.protocol.release_protocol import ReleaseProtocol, statistics_of
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore


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


def protocol_of(redis: Redis, config: Config, publisher, rows: MemoryRows | None = None, **hooks) -> ReleaseProtocol:
    """The release protocol of ``config`` with its ledger in ``redis``, and its rows, too, unless they are given."""
    store, ledger = rows or RowStore.of(redis, config), Ledger.of(redis, config)
    return ReleaseProtocol(statistics_of(config), redis, store, ledger, publisher, Noise(), **hooks)


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
