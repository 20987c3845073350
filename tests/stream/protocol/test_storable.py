"""A window that Redis could not store is refused by name before anybody is charged, instead of at every attempt after
it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from stream.config.histogram import MAX_MESSAGE_BYTES
from stream.config.public_cells import MAX_CELLS
from stream.messages.message import HEXAGON_SPEED, encode_outbox
from stream.protocol.parts import ContentError
from stream.statistics import storable
from stream.statistics.distributions import MAX_NUMBERS
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.closing import Collected, protocol_of
from tests.support.participating import riders
from tests.support.releasing import released
from tests.support.stored_rows import fill

ALL = ["mean", "moving_mean", "variance", "p15", "p50", "p85"]


@pytest.mark.parametrize(
    ("bound", "value", "says"),
    [("MOST_CELLS", 1, "Redis can store the messages of 1"), ("LARGEST_VALUE", 100, "Redis can store 100")],
)
async def test_a_window_too_large_to_store_is_withheld_by_name_and_nobody_is_charged(
    redis: Redis, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, says: str
) -> None:
    monkeypatch.setattr(storable, bound, value)
    config = bus_config(tmp_path, **{"feed.name": topic_name})
    await fill(redis, config, 1)
    publisher = Collected()
    with capture_logs() as logs:
        await protocol_of(redis, config, publisher).close(SLOT)
    (reason,) = [entry["reason"] for entry in logs if entry["event"] == "window withheld"]
    assert says in reason
    assert "nobody was charged" in reason
    (marker,) = publisher.messages
    assert json.loads(marker.value)["withheld"]
    assert await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key) == (0, 0)
    assert await ReleaseStore.of(redis, config).plan(SLOT) is None


async def test_under_participation_a_plan_too_large_to_store_is_set_aside_unseen_and_nobody_is_charged(
    redis: Redis, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users and their samples alone can make it too large: a public list has at most as many cells as can be stored."""
    assert MAX_CELLS <= storable.MOST_CELLS
    monkeypatch.setattr(storable, "LARGEST_VALUE", 100)
    config = riders(tmp_path, **{"feed.name": topic_name})
    await fill(redis, config, 1)
    publisher, store = Collected(), ReleaseStore.of(redis, config)
    with pytest.raises(ContentError, match="Redis can store 100; nobody was charged"):
        await protocol_of(redis, config, publisher).close(SLOT)
    assert await store.slots_set_aside() == {SLOT}
    assert publisher.messages == [], "whether a window is too large depends on its users, so nothing tells of it"
    assert await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key) == (0, 0)
    assert await store.plan(SLOT) is None


def test_the_messages_of_the_most_cells_fit_into_one_value_of_redis(tmp_path: Path) -> None:
    """Under "participation" counts have intervals, too. The name of a feed has at most 32 letters."""
    config = riders(
        tmp_path,
        **{
            "feed.name": "f" * 32,
            "speed.statistics": ALL,
            "participation.weight": "sample",
        },
    )
    messages = [m for m in released(config, random_rows(1, 60)) if m.topic == HEXAGON_SPEED]
    largest = max(len(encode_outbox([message])) for message in messages)
    assert 1_500 < largest < storable.LARGEST_MESSAGE - 1_000, "models and excluded cells add less than 1000 bytes"
    kinds = 6
    distributions = 60 * MAX_NUMBERS
    whole = storable.MOST_CELLS * storable.LARGEST_MESSAGE + distributions + kinds * MAX_MESSAGE_BYTES
    assert whole < storable.LARGEST_VALUE < 1 << 29
