"""A window that fails blocks those behind it, and one that was set aside can be closed again until a later one is
planned. Real servers. A window that fails because of its content does not stop others. It is withheld if its failure is
public, else set aside."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stream.app.services import Closing, ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.cli import app as command
from stream.config import Config
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.protocol.close_process import CloseReport, close_windows, publish_windows
from stream.protocol.release_protocol import ContentError, ReleaseProtocol
from stream.statistics.plan import PlanError
from stream.statistics.window_release import WindowStatistics
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, OutOfTurnError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import NotSealedError, ReadThrough, RowStore
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, riders_config
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.hourly import BUS
from tests.support.schemas import validate
from tests.support.stored_rows import HOUR, fill, read_clock, rows_in
from tests.support.topics_reader import read_all


def fails_for_the_first(error: BaseException) -> Callable[..., Any]:
    """A protocol that raises, before it seals, for the window of ``SLOT``."""
    original = ReleaseProtocol.window

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
async def test_the_windows_behind_it_wait_until_it_is_closed(
    error, failure, kafka, redis, redis_url, tmp_path, topic_name,
    monkeypatch
):  # fmt: skip
    servers = {"kafka.bootstrap": kafka, "redis.url": redis_url}
    config = bus_config(tmp_path, **servers, **PLAINLY_PLANNED, **{"feed.name": topic_name})
    await create_topics(config)
    await fill(redis, config, 3)
    due = [SLOT, SLOT + HOUR, SLOT + 2 * HOUR]
    monkeypatch.setattr(ReleaseProtocol, "window", fails_for_the_first(error))
    assert [(report.failure, report.blocks) for report in await close_windows(config, due)] == [(failure, True)]
    assert await starts_of_markers(kafka, topic_name) == []
    monkeypatch.undo()
    assert {report.failure for report in await close_windows(config, due)} == {None}
    assert await starts_of_markers(kafka, topic_name) == ["12", "13", "14"]


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
async def test_the_worker_counts_each_kind_of_failure(tmp_path, failure, counter):
    worker = Worker(bus_config(tmp_path))
    try:
        worker.record(CloseReport(SLOT, 0.1, failure=failure))
        assert getattr(worker.metrics, counter)._value.get() == 1
    finally:
        await worker.redis.aclose()


async def test_what_nobody_foresaw_blocks_the_windows_behind_it_and_the_operator_is_told(
    kafka, redis, redis_url, tmp_path, topic_name, monkeypatch
):
    """The worker's own service closes a window, and the closing raises an error that no step is known to raise."""
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await fill(redis, config, 2)

    async def here(self: WorkProcess, task: object, config: Config, slots: list[int]) -> Any:
        return await close_windows(config, slots)

    monkeypatch.setattr(WorkProcess, "run", here)
    worker = Worker(config)
    closing, due, blocked = Closing(worker), [SLOT, SLOT + HOUR], worker.metrics.closing_blocked._value
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ReleaseProtocol, "window", fails_for_the_first(ZeroDivisionError("planted")))
            for _ in range(4):
                assert await closing.close(due) > 0.0
        assert (worker.metrics.unexpected_failures._value.get(), blocked.get()) == (4, 1)
        assert await worker.store.slots_set_aside() == set(), "it did not fail for its content"
        assert await starts_of_markers(kafka, topic_name) == []
        assert await closing.close(due) == 0.0
        assert blocked.get() == 0
        assert await starts_of_markers(kafka, topic_name) == ["12"], "a live feed's windows are closed one at a time"
    finally:
        await worker.redis.aclose()


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_window_that_was_set_aside_is_due_again_once_it_is_retried(
    relation, redis, redis_url, tmp_path, monkeypatch
):
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = make(tmp_path, **{"redis.url": redis_url, "feed.name": "bus"})
    await fill(redis, config, 2)
    worker = Worker(config)
    monkeypatch.setattr(RowStore, "now_us", read_clock)
    now = await worker.rows.now_us()
    await worker.rows.advance_first_slot(SLOT, SLOT)
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
    kafka, redis, redis_url, tmp_path, topic_name, monkeypatch
):
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


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_window_that_was_set_aside_is_never_released_once_a_later_one_is_planned(
    relation, redis, redis_url, tmp_path, monkeypatch
):
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = make(tmp_path, **{"feed.name": "bus", "redis.url": redis_url})
    await fill(redis, config, 2)
    protocol = protocol_of(redis, config, Collected())
    planned = dataclasses.replace(protocol, publisher=Collected())
    await close_until(protocol, SLOT, "charge")
    await protocol.store.set_aside(SLOT, "planted")
    with pytest.raises(OutOfTurnError, match="ledger retry"):
        await planned.commit(SLOT)
    await close_until(protocol, SLOT + HOUR, "plan")
    with pytest.raises(OutOfTurnError, match="never released"):
        await protocol.store.take_up(SLOT)
    assert await protocol.store.slots_set_aside() == {SLOT}
    spent = await protocol.ledger.total("2017-03-21")
    with pytest.raises(OutOfTurnError, match="later window 2017-03-21T13:00:00Z was planned"):
        await protocol.close(SLOT)
    await protocol.close(SLOT + HOUR)
    with pytest.raises(OutOfTurnError):
        await protocol.close(SLOT)
    assert (await protocol.ledger.total("2017-03-21"))[1] >= spent[1]
    monkeypatch.setenv("HEXVEIL_FEED__NAME", "bus")
    monkeypatch.setenv("HEXVEIL_REDIS__URL", redis_url)
    command_line = ["ledger", "retry", "2017-03-21T12:00:00Z", "--config", str(BUS)]
    refused = await asyncio.to_thread(CliRunner().invoke, command, command_line)
    assert (refused.exit_code, "2017-03-21T13:00:00Z" in refused.stderr) == (1, True)


async def test_a_window_is_planned_only_once_the_one_before_it_is_committed(redis, tmp_path):
    """Whichever worker closes which: the store decides the order."""
    config = bus_config(tmp_path)
    await fill(redis, config, 3)
    one, other = protocol_of(redis, config, Collected()), protocol_of(redis, config, Collected())
    for last in ("plan", "charge", "draw"):
        await close_until(one, SLOT, last)
        with pytest.raises(OutOfTurnError, match="waits for window 2017-03-21T12:00:00Z"):
            await other.commit(SLOT + HOUR)
        assert await other.store.plan(SLOT + HOUR) is None
    await one.commit(SLOT)
    await other.close(SLOT + HOUR)
    await one.close(SLOT)
    assert (await one.store.released(SLOT)).sequence < (await one.store.released(SLOT + HOUR)).sequence


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_rows_that_come_after_a_later_window_was_planned_are_dropped(
    relation, redis, redis_url, tmp_path, monkeypatch
):
    """As under ``window.lateness = "event-time"``, where a window without rows is not sealed."""
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = make(tmp_path, **{"redis.url": redis_url, "feed.name": "bus"})
    await fill(redis, config, 2)
    await protocol_of(redis, config, Collected()).close(SLOT + HOUR)
    with pytest.raises(OutOfTurnError, match="never released"):
        await protocol_of(redis, config, Collected()).close(SLOT)
    assert not await redis.exists(FeedKeys("bus").plan(SLOT))
    worker = Worker(config)
    monkeypatch.setattr(RowStore, "now_us", read_clock)
    now = await worker.rows.now_us()
    await worker.rows.advance_first_slot(SLOT, SLOT)
    await worker.rows.list_partitions(["t/0"], now)
    await worker.rows.read_through([ReadThrough("t/0", 120, 120, now)])
    try:
        assert await worker.due_slots() == []
        assert await worker.rows.open_slots() == []
    finally:
        await worker.redis.aclose()


async def test_a_planned_window_of_a_period_that_is_not_released_any_more_does_not_block_later_ones(
    redis, redis_url, tmp_path
):
    """As after a feed left its shared ledger with a plan that nobody had paid for, and joined it again."""
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await fill(redis, config, 1)
    protocol = protocol_of(redis, config, Collected())
    await close_until(protocol, SLOT, "plan")
    await redis.set(FeedKeys("bus").birth, SLOT + 20 * HOUR)
    worker = Worker(config)
    try:
        await worker.due.tidy(await worker.due.ask())
        assert await protocol.store.unfinished() is None
        assert await protocol.store.slots_set_aside() == {SLOT}
    finally:
        await worker.redis.aclose()


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


async def test_an_epsilon_that_no_number_of_a_window_can_be_had_for_withholds_it_in_public(redis, tmp_path):
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
    relation, step, withheld, kafka, redis, redis_url, tmp_path, topic_name,
    monkeypatch
):  # fmt: skip
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


async def test_what_is_set_aside_was_never_drawn_published_or_given_back(redis, tmp_path):
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
    redis, redis_url, tmp_path, monkeypatch
):
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


async def test_a_committed_window_is_never_set_aside_because_it_only_has_to_be_published(redis, tmp_path):
    config = bus_config(tmp_path)
    await fill(redis, config, 1)
    await protocol_of(redis, config, Collected()).commit(SLOT)
    store = ReleaseStore(redis, "bus")
    assert not await store.set_aside(SLOT, "planted")
    assert await store.slots_set_aside() == set()


async def test_a_ledger_that_no_window_can_be_charged_to_stops_the_round(kafka, redis, redis_url, tmp_path, topic_name):
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await fill(redis, config, 2)
    await redis.set(FeedKeys(topic_name).policy, "another")
    (report,) = await close_windows(config, [SLOT, SLOT + HOUR])
    assert (report.failure, report.blocks) == ("ledger", True)
