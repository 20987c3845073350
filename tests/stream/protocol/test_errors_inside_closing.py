"""An error of any step, before or after its effect, neither charges nor draws a window twice: the next attempt releases
it once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from stream.config import Config
from stream.messages.message import WINDOW
from stream.protocol.parts import ContentError
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from tests.support.builders import SLOT, bus_config
from tests.support.closing import Collected, protocol_of
from tests.support.participating import riders
from tests.support.stored_rows import fill

STEPS = (
    "rows.seal", "rows.read", "statistics.arrange", "statistics.plan", "store.store_plan",
    "planning.charge", "ledger.charge",
    "statistics.draw", "statistics.compose", "store.commit", "publisher.publish",
    "publisher.confirm", "store.remember",
    "rows.drop_rows", "store.forget",
)  # fmt: skip


@contextmanager
def failing_once(owner: Any, name: str, error: Exception, *, after: bool) -> Iterator[list[str]]:
    """The first call of a method raises ``error``, before or after it did its work. Yields whether it was called."""
    original, calls = getattr(type(owner), name), []

    def fails(now: bool) -> None:
        if now and not calls:
            calls.append(name)
            raise error

    async def waiting(self: Any, *given: Any, **named: Any) -> Any:
        fails(not after)
        result = await original(self, *given, **named)
        fails(after)
        return result

    def at_once(self: Any, *given: Any, **named: Any) -> Any:
        fails(not after)
        result = original(self, *given, **named)
        fails(after)
        return result

    setattr(type(owner), name, waiting if inspect.iscoroutinefunction(original) else at_once)
    try:
        yield calls
    finally:
        setattr(type(owner), name, original)


class Closed(NamedTuple):
    """What became of a window: charges, messages by ``ce_id`` with their versions, and whether it was withheld."""

    charged: tuple[int, int]
    versions: dict[str, set[bytes]]
    withheld: bool


async def closed(
    redis: Redis, config: Config, step: str = "", error: Exception | None = None, *, after: bool
) -> Closed:
    """Close a window once with the error, and once more without; what was set aside is taken up."""
    await redis.flushall()
    await fill(redis, config, 1)
    publisher, store = Collected(), ReleaseStore.of(redis, config)
    protocol = protocol_of(redis, config, publisher)
    if error is not None:
        *path, name = step.split(".")
        planted = failing_once(reduce(getattr, path, protocol), name, error, after=after)
        with planted as calls, suppress(type(error), ContentError):
            await protocol.close(SLOT)
        assert calls
        for slot in await store.slots_set_aside():
            await store.take_up(slot)
    await protocol.close(SLOT)
    versions: dict[str, set[bytes]] = {}
    for message in publisher.messages:
        versions.setdefault(dict(message.headers)["ce_id"].decode(), set()).add(message.value)
    (marker,) = {message.value for message in publisher.messages if message.topic == WINDOW}
    total = await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key)
    return Closed(total, versions, "withheld" in json.loads(marker))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("relation", "error"),
    [
        ("values", RedisConnectionError("planted")),
        ("values", ValueError("planted")),
        ("participation", MemoryError("planted")),
    ],
    ids=["values, Redis", "values, content", "participation, content"],
)
async def test_a_window_is_charged_and_drawn_once_whichever_step_fails(
    redis: Redis, tmp_path: Path, relation: str, error: Exception, after: bool
) -> None:
    config = bus_config(tmp_path) if relation == "values" else riders(tmp_path, **{"hexagons.resolution": 5})
    undisturbed = await closed(redis, config, after=after)
    for step in STEPS:
        release = await closed(redis, config, step, error, after=after)
        assert {len(values) for values in release.versions.values()} == {1}, step
        if release.withheld:
            assert (relation, release.charged, len(release.versions)) == ("values", (0, 0), 1), step
        else:
            assert release.charged == undisturbed.charged, step
            assert release.versions.keys() == undisturbed.versions.keys(), step
