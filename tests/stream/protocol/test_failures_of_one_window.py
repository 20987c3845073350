"""A window that fails for a reason of its own does not stop others, and a window set aside can be closed again. Real
servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.app.closing import Closing
from stream.app.process import WorkProcess
from stream.app.worker import Worker
from stream.cli import app as command
from stream.config import Config
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.protocol.close_process import CloseReport, close_windows
from stream.protocol.due_windows import ClosingOrder
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import PlanError
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import ReadThrough, RowStore
from stream.storage.sealed_rows import NotSealedError
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, riders_config
from tests.support.hourly import BUS
from tests.support.stored_rows import HOUR, fill, read_clock, rows_in
from tests.support.topics_reader import read_all


def fails_for_the_first(error: BaseException) -> Callable[..., Any]:
    """A protocol whose sealing raises for the window of ``SLOT``."""
    original = ReleaseProtocol.seal

    async def failing(self: ReleaseProtocol, slot: int) -> Any:
        if slot == SLOT:
            raise error
        return await original(self, slot)

    return failing


async def starts_of_markers(kafka: str, feed: str) -> list[str]:
    records = await read_all(kafka, feed)
    return [json.loads(r.value)["window"]["start"][11:13] for r in records if r.topic == WINDOW]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (PlanError("planted"), "ledger"),
        (LedgerError("planted"), "ledger"),
        (KeyError("planted"), "unexpected"),
        (AssertionError("planted"), "unexpected"),
        (NotSealedError(SLOT, ["t/0"]), "unsealed"),
    ],
)
async def test_the_windows_after_it_are_closed_in_the_same_round(
    error: Exception, failure: str, kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    servers = {"kafka.bootstrap": kafka, "redis.url": redis_url}
    config = bus_config(tmp_path, **servers, **PLAINLY_PLANNED, **{"feed.name": topic_name})
    await create_topics(config)
    await fill(redis, config, 3)
    monkeypatch.setattr(ReleaseProtocol, "seal", fails_for_the_first(error))
    reports = await close_windows(config, [SLOT, SLOT + HOUR, SLOT + 2 * HOUR])
    assert [report.failure for report in reports] == [failure, None, None]
    assert await starts_of_markers(kafka, topic_name) == ["13", "14"]
    monkeypatch.undo()
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None, "the next attempt may overcome it"


@pytest.mark.parametrize(
    ("failure", "counter"),
    [
        ("ledger", "ledger_errors"),
        ("publish", "publish_failures"),
        ("redis", "redis_errors"),
        ("unsealed", "unsealed"),
        ("unexpected", "unexpected_failures"),
    ],
)
async def test_the_worker_counts_each_kind_of_failure(tmp_path: Path, failure: str, counter: str) -> None:
    worker = Worker(bus_config(tmp_path))
    try:
        worker.record(CloseReport(SLOT, 0.1, failure=failure))
        assert getattr(worker.metrics, counter)._value.get() == 1
    finally:
        await worker.redis.aclose()


async def test_a_ledger_that_no_window_can_be_charged_to_stops_the_round(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await fill(redis, config, 2)
    await redis.set(FeedKeys(topic_name).policy, "another")
    (report,) = await close_windows(config, [SLOT, SLOT + HOUR])
    assert (report.failure, report.shared) == ("ledger", True)


async def test_what_nobody_foresaw_rests_is_counted_and_is_set_aside_after_three_times(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own service closes a window, and the closing raises an error that no step is known to raise."""
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await fill(redis, config, 2)

    async def here(self: WorkProcess, task: object, config: Config, slots: list[int]) -> Any:
        return await close_windows(config, slots)

    monkeypatch.setattr(WorkProcess, "run", here)
    monkeypatch.setattr(RowStore, "now_us", read_clock)
    monkeypatch.setattr(ReleaseProtocol, "seal", fails_for_the_first(ZeroDivisionError("planted")))
    worker = Worker(config)
    closing, now = Closing(worker), await worker.rows.now_us()
    await worker.rows.list_partitions(["t/0"], now + 2 * HOUR * 1_000_000)
    await worker.rows.read_through([ReadThrough("t/0", 120, 120, now + HOUR * 1_000_000)])
    try:
        for _ in range(3):
            assert await closing.close([SLOT]) == 0.0, "another window that is due would wait"
            assert closing.order.ready([SLOT, SLOT + HOUR], 0.0) == [SLOT + HOUR]
        assert await worker.store.slots_set_aside() == {SLOT}
        assert "ZeroDivisionError" in (await worker.store.reasons())[SLOT]
        assert worker.metrics.unexpected_failures._value.get() == 3
        assert await worker.to_close() == [SLOT + HOUR]
    finally:
        await worker.redis.aclose()


def test_a_window_that_fails_rests_twice_as_long_each_time_up_to_five_minutes() -> None:
    order, now, lengths = ClosingOrder(), 0.0, []
    for _ in range(9):
        order.rest(7, now)
        begun = now
        while not order.ready([7], now):
            now += 1.0
        lengths.append(now - begun)
    assert lengths == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert order.ready([8], now) == [8]
    order.rest(7, now)
    assert order.ready([7], now + 5) == [7], "one that was not due meanwhile begins anew"


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_window_that_was_set_aside_is_due_again_once_it_is_retried(
    relation: str, redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = make(tmp_path, **{"redis.url": redis_url, "feed.name": "bus"})
    await fill(redis, config, 2)
    worker = Worker(config)
    monkeypatch.setattr(RowStore, "now_us", read_clock)
    now = await worker.rows.now_us()
    await worker.rows.first_slot(SLOT)
    await worker.rows.list_partitions(["t/0"], now)
    await worker.rows.read_through([ReadThrough("t/0", 120, 120, now)])
    try:
        await worker.store.set_aside(SLOT, "planted")
        assert SLOT not in await worker.due_slots()
        assert await worker.store.reasons() == {SLOT: "planted"}
        assert await worker.store.take_up(SLOT)
        assert SLOT in await worker.due_slots()
        assert len(await rows_in(redis, "bus", SLOT)) == 60, "its rows are there still"
        assert not await worker.store.take_up(SLOT), "it is set aside no more"
    finally:
        await worker.redis.aclose()


async def test_the_command_lists_what_was_set_aside_and_has_it_closed_from_the_step_it_reached(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await fill(redis, config, 1)
    with monkeypatch.context() as patch:
        from stream.statistics.window_release import WindowStatistics

        def raises(*_: object) -> None:
            raise MemoryError("planted")

        patch.setattr(WindowStatistics, "draw", raises)
        (report,) = await close_windows(config, [SLOT])
    assert report.failure == "content"
    charged = await Ledger(redis, topic_name).total("2017-03-21")
    monkeypatch.setenv("HEXVEIL_FEED__NAME", topic_name)
    monkeypatch.setenv("HEXVEIL_REDIS__URL", redis_url)

    async def run(*arguments: str) -> Any:
        given = ["ledger", "retry", *arguments, "--config", str(BUS)]
        return await asyncio.to_thread(CliRunner().invoke, command, given)

    (listed,) = json.loads((await run("--json")).stdout).items()
    assert listed[0] == "2017-03-21T12:00:00Z"
    assert "MemoryError" in listed[1]
    wrong = await run("2017-03-21T13:00:00Z")
    assert wrong.exit_code == 1
    assert "2017-03-21T12:00:00Z" in wrong.stderr
    assert (await run("nonsense")).exit_code == 2
    assert (await run("2017-03-21T12:00:00Z")).exit_code == 0
    assert await ReleaseStore(redis, topic_name).slots_set_aside() == set()
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None
    assert await starts_of_markers(kafka, topic_name) == ["12"]
    assert await Ledger(redis, topic_name).total("2017-03-21") == charged, "nobody pays twice"
