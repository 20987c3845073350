"""A window that fails because of its content does not stop others. It is withheld if its failure is public, else set
aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.app.services import Closing, ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.config import Config
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.protocol.close_process import close_windows, publish_windows
from stream.protocol.parts import ContentError
from stream.statistics.window_release import WindowStatistics
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import ReadThrough, RowStore
from tests.support.builders import SLOT, bus_config, riders_config
from tests.support.closing import Collected, protocol_of
from tests.support.schemas import validate
from tests.support.stored_rows import HOUR, fill, read_clock
from tests.support.topics_reader import read_all


def fails(step: str, error: BaseException) -> Callable[[pytest.MonkeyPatch], None]:
    """A step that raises for the window of ``SLOT`` alone."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(WindowStatistics, step)

        def failing(*given: Any, **named: Any) -> Any:
            for value in given:
                rows = isinstance(value, np.ndarray) and value.dtype.names
                start = value["time"].min() // 1_000_000 if rows else None
                window = getattr(getattr(value, "window", value), "start", start)
                if window is not None and SLOT <= int(window) < SLOT + HOUR:
                    raise error
            return original(*given, **named)

        patch.setattr(WindowStatistics, step, failing)

    return plant


async def test_an_epsilon_that_no_number_of_a_window_can_be_had_for_withholds_it_in_public(
    redis: Redis, tmp_path: Path
) -> None:
    """Users contribute to more numbers than they have µε, which public counts decide. No mechanism runs, and nobody is
    charged.
    """
    config = bus_config(tmp_path, **{"privacy.epsilon": 1e-6, "privacy.budget": 1e-6})
    await fill(redis, config, 1)
    out = Collected()
    released = await protocol_of(redis, config, out).close(SLOT)
    assert released.withheld
    (marker,) = (json.loads(message.value) for message in out.messages)
    validate(WINDOW, marker)
    assert (marker["withheld"], marker["messages"], marker["sequence"]) == (True, 0, 1)
    assert await Ledger(redis, "bus").periods() == []
    assert await RowStore(redis, "bus").open_slots() == []
    assert (await protocol_of(redis, config, Collected()).close(SLOT)).withheld


@pytest.mark.parametrize(
    ("relation", "step", "withheld"),
    [
        ("values", "arrange", True),
        ("values", "plan", True),
        ("values", "draw", False),
        ("values", "compose", False),
        ("participation", "arrange", False),
        ("participation", "plan", False),
        ("participation", "draw", False),
    ],
)
async def test_only_what_follows_from_public_counts_is_told_and_the_next_windows_go_on(
    relation: str, step: str, withheld: bool, kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make = {"values": bus_config, "participation": riders_config}[relation]
    box = {"south": 30.17, "west": -97.75, "north": 30.48, "east": -97.66}
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url, "feed.domain": box}
    config = make(tmp_path, **settings, **{"window.publication_margin": "1s"})
    await create_topics(config)
    await fill(redis, config, 2)
    fails(step, MemoryError("planted"))(monkeypatch)
    reports = await close_windows(config, [SLOT, SLOT + HOUR])
    assert [report.failure for report in reports] == [None if withheld else "content", None]
    committed = [report.slot for report in reports if report.failure is None]
    published = await publish_windows(config, committed)
    assert [report.released.withheld for report in published] == ([True, False] if withheld else [False])
    markers = [json.loads(r.value) for r in await read_all(kafka, topic_name) if r.topic == WINDOW]
    assert [marker.get("withheld", False) for marker in markers] == ([True, False] if withheld else [False])
    assert await ReleaseStore(redis, topic_name).slots_set_aside() == (set() if withheld else {SLOT})
    monkeypatch.undo()
    worker = Worker(config)
    try:
        monkeypatch.setattr(RowStore, "now_us", read_clock)
        now = await worker.rows.now_us()
        await worker.rows.list_partitions(["t/0"], now)
        assert await worker.rows.read_through([ReadThrough("t/0", 120, 120, now)]) == {}
        assert SLOT not in await worker.due_slots(), "a restart meets it again"
    finally:
        await worker.redis.aclose()
    assert worker.metrics.windows_set_aside._value.get() == (0 if withheld else 1)


async def test_what_is_set_aside_was_never_drawn_published_or_given_back(redis: Redis, tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    await fill(redis, config, 1)
    out = Collected()
    with pytest.MonkeyPatch.context() as patch:
        fails("draw", OverflowError("planted"))(patch)
        with pytest.raises(ContentError, match="OverflowError: planted"):
            await protocol_of(redis, config, out).close(SLOT)
    assert out.messages == []
    assert not await redis.exists(FeedKeys("bus").outbox(SLOT))
    assert (await Ledger(redis, "bus").total("2017-03-21"))[1] > 0, "what was charged stays charged"


async def test_a_window_over_which_the_closing_process_dies_three_times_is_set_aside(
    redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await fill(redis, config, 2)
    worker, tried = Worker(config), []

    async def dies(self: WorkProcess, task: object, config: Config, slots: list[int]) -> None:
        tried.append(slots)
        raise ProcessDiedError

    monkeypatch.setattr(WorkProcess, "run", dies)
    one, other = Closing(worker), Closing(worker)
    try:
        for closing in (one, other, one):  # whichever worker sees it
            assert await worker.store.slots_set_aside() == set()
            await closing.close([SLOT, SLOT + HOUR])
        assert tried == [[SLOT]] * 3, "a later window was tried before the one that blocks it was set aside"
        assert await worker.store.slots_set_aside() == {SLOT}
        assert (await worker.due.ask()).open == [SLOT + HOUR]
    finally:
        await worker.redis.aclose()


async def test_a_committed_window_is_never_set_aside_because_it_only_has_to_be_published(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    await fill(redis, config, 1)
    await protocol_of(redis, config, Collected()).commit(SLOT)
    store = ReleaseStore(redis, "bus")
    assert not await store.set_aside(SLOT, "planted")
    assert await store.slots_set_aside() == set()
