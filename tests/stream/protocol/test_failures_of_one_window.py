"""A window that fails blocks those behind it. One that fails because of its content does not: it is withheld if its
failure is public, else set aside, and can be closed again until a later one is planned. Windows with histograms, and
windows that Redis could not store, interrupted, reordered and reconfigured. Real servers."""

import asyncio
import dataclasses
import json
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from dpcore.noise import Noise
from stream.app.services import Closing, ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.config import Config
from stream.config.histogram import MAX_MESSAGE_BYTES
from stream.config.public_cells import MAX_CELLS
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message, encode_outbox
from stream.protocol.close_process import CloseReport, close_windows, publish_windows
from stream.protocol.release_protocol import ContentError, ReleaseProtocol
from stream.statistics import plan
from stream.statistics.columns import MAX_NUMBERS
from stream.statistics.histograms.histograms import contributing, exact_counts
from stream.statistics.plan import PlanError
from stream.statistics.window_release import WindowStatistics
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, OutOfTurnError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import NotSealedError, RowStore
from tests.dpcore.silence import Silence
from tests.support.builders import (
    PLAINLY_PLANNED,
    SLOT,
    bus_config,
    located_rows,
    random_rows,
    riders,
    riders_config,
    with_histograms,
)
from tests.support.closing import Collected, close_until, closed, failing, protocol_of, refused
from tests.support.command import run
from tests.support.hourly import BUS
from tests.support.releasing import bodies_of, planned_with_fixes, released
from tests.support.schemas import validate
from tests.support.stored_rows import HOUR, Clock, due, fill, rows_in, store
from tests.support.topics_reader import read_all


async def starts_of_markers(config: Config) -> list[str]:
    records = await read_all(config.kafka.bootstrap, config.feed.name, [WINDOW])
    return [json.loads(record.value)["window"]["start"][11:13] for record in records]


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
async def test_the_windows_behind_it_wait_until_it_is_closed(error, failure, feed, redis):
    config = feed(**PLAINLY_PLANNED)
    await fill(redis, config, 3)
    due = [SLOT, SLOT + HOUR, SLOT + 2 * HOUR]
    with failing(ReleaseProtocol, "window", error):
        assert [(report.failure, report.blocks) for report in await close_windows(config, due)] == [(failure, True)]
    assert await starts_of_markers(config) == []
    assert {report.failure for report in await close_windows(config, due)} == {None}
    assert await starts_of_markers(config) == ["12", "13", "14"]


async def test_the_worker_counts_each_kind_of_failure(tmp_path):
    worker = Worker(bus_config(tmp_path))
    counters = {"ledger": "ledger_errors", "publish": "publish_failures", "redis": "redis_errors"}
    for failure, counter in (counters | {"unsealed": "unsealed", "unexpected": "unexpected_failures"}).items():
        worker.record(CloseReport(SLOT, 0.1, failure=failure))
        assert getattr(worker.metrics, counter)._value.get() == 1
    await worker.redis.aclose()


async def test_what_nobody_foresaw_blocks_the_windows_behind_it_and_the_operator_is_told(feed, redis, monkeypatch):
    """The worker's own service closes a window, and the closing raises an error that no step is known to raise."""
    config = feed()
    await fill(redis, config, 2)

    async def here(self: WorkProcess, task: object, config: Config, slots: list[int]) -> Any:
        return await close_windows(config, slots)

    monkeypatch.setattr(WorkProcess, "run", here)
    worker = Worker(config)
    closing, due, blocked = Closing(worker), [SLOT, SLOT + HOUR], worker.metrics.closing_blocked._value
    async with aclosing(worker.redis):
        with failing(ReleaseProtocol, "window", ZeroDivisionError("planted"), times=4):
            for _ in range(4):
                assert await closing.close(due) > 0.0
        assert (worker.metrics.unexpected_failures._value.get(), blocked.get()) == (4, 1)
        assert await worker.store.slots_set_aside() == set(), "it did not fail for its content"
        assert await starts_of_markers(config) == []
        assert await closing.close(due) == 0.0
        assert blocked.get() == 0
        assert await starts_of_markers(config) == ["12"], "a live feed's windows are closed one at a time"


async def test_the_command_lists_what_was_set_aside_and_has_it_closed_from_the_step_it_reached(
    feed, redis, monkeypatch
):
    config = feed()
    name = config.feed.name
    await fill(redis, config, 1)
    with failing(WindowStatistics, "draw", MemoryError("planted")):
        (report,) = await close_windows(config, [SLOT])
    assert report.failure == "content"
    charged = await Ledger(redis, name).total("2017-03-21")
    assert charged[1] > 0, "what was charged stays charged"
    monkeypatch.setenv("HEXVEIL_FEED__NAME", name)
    monkeypatch.setenv("HEXVEIL_REDIS__URL", config.redis.url)
    retry = partial(asyncio.to_thread, run, "ledger", "retry", "--config", BUS)
    ((start, why),) = json.loads((await retry("--json")).stdout).items()
    assert (start, "MemoryError" in why) == ("2017-03-21T12:00:00Z", True)
    assert "2017-03-21T12:00:00Z" in (await retry("2017-03-21T13:00:00Z", code=1)).stderr
    await retry("nonsense", code=2)
    await retry("2017-03-21T12:00:00Z")
    assert await ReleaseStore(redis, name).slots_set_aside() == set()
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None
    assert await starts_of_markers(config) == ["12"]
    assert await Ledger(redis, name).total("2017-03-21") == charged, "nobody pays twice"


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_window_that_was_set_aside_is_due_once_it_is_retried_and_never_released_once_a_later_one_is_planned(
    relation, redis, redis_url, tmp_path, monkeypatch, clock
):
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = make(tmp_path, **{"feed.name": "bus", "redis.url": redis_url})
    await fill(redis, config, 2)
    protocol = protocol_of(redis, config, Collected())
    planned = dataclasses.replace(protocol, publisher=Collected())
    await close_until(protocol, SLOT, "charge")
    await RowStore(redis, "bus").advance_first_slot(SLOT, SLOT)
    for reason in ("planted", "and again"):
        await protocol.store.set_aside(SLOT, reason)
        assert await protocol.store.reasons() == {SLOT: reason}
        assert SLOT not in await due(config)
        if reason == "planted":
            assert await protocol.store.take_up(SLOT)
            assert SLOT in await due(config)
            assert not await protocol.store.take_up(SLOT), "it is set aside no more"
    assert len(await rows_in(redis, "bus", SLOT)) == 60, "its rows are there still"
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
    again = await asyncio.to_thread(run, "ledger", "retry", "2017-03-21T12:00:00Z", "--config", BUS, code=1)
    assert "2017-03-21T13:00:00Z" in again.stderr


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
    assert not await other.store.set_aside(SLOT, "planted"), "what is committed only has to be published"
    assert await other.store.slots_set_aside() == set()
    await other.close(SLOT + HOUR)
    await one.close(SLOT)
    assert (await one.store.released(SLOT)).sequence < (await one.store.released(SLOT + HOUR)).sequence


@pytest.mark.parametrize("make", [bus_config, riders_config], ids=["values", "participation"])
async def test_rows_that_come_after_a_later_window_was_planned_are_dropped(make, redis, redis_url, tmp_path, clock):
    """As under ``window.lateness = "event-time"``, where a window without rows is not sealed."""
    config = make(tmp_path, **{"redis.url": redis_url, "feed.name": "bus"})
    await fill(redis, config, 2)
    await closed(redis, config, SLOT + HOUR)
    await refused(redis, config, OutOfTurnError, "never released")
    assert not await redis.exists(FeedKeys("bus").plan(SLOT))
    await RowStore(redis, "bus").advance_first_slot(SLOT, SLOT)
    assert await due(config) == []
    assert await RowStore(redis, "bus").open_slots() == []


async def test_a_planned_window_of_a_period_that_is_not_released_any_more_does_not_block_later_ones(
    redis, redis_url, tmp_path
):
    """As after a feed left its shared ledger with a plan that nobody had paid for, and joined it again."""
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await fill(redis, config, 1)
    protocol = protocol_of(redis, config, Collected())
    await close_until(protocol, SLOT, "plan")
    await redis.set(FeedKeys("bus").birth, SLOT + 20 * HOUR)
    await due(config)
    assert await protocol.store.unfinished() is None
    assert await protocol.store.slots_set_aside() == {SLOT}


async def test_an_epsilon_that_no_number_of_a_window_can_be_had_for_withholds_it_in_public(redis, tmp_path):
    """Users contribute to more numbers than they have µε, which public counts decide. No mechanism runs, and nobody is
    charged.
    """
    config = bus_config(tmp_path, **{"privacy.epsilon": 1e-6, "privacy.budget": 1e-6})
    await fill(redis, config, 1)
    (marker,) = (json.loads(message.value) for message in await closed(redis, config))
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
    relation, step, withheld, feed, redis, monkeypatch
):
    box = {"south": 30.17, "west": -97.75, "north": 30.48, "east": -97.66}
    make = {"values": bus_config, "participation": riders_config}[relation]
    config = feed(make, **{"feed.domain": box, "window.publication_margin": "1s"})
    await fill(redis, config, 2)
    with failing(WindowStatistics, step, MemoryError("planted")):
        reports = await close_windows(config, [SLOT, SLOT + HOUR])
    assert [report.failure for report in reports] == [None if withheld else "content", None]
    committed = [report.slot for report in reports if report.failure is None]
    published = await publish_windows(config, committed)
    assert [report.released.withheld for report in published] == ([True, False] if withheld else [False])
    markers = [json.loads(r.value) for r in await read_all(config.kafka.bootstrap, config.feed.name, [WINDOW])]
    assert [marker.get("withheld", False) for marker in markers] == ([True, False] if withheld else [False])
    assert await ReleaseStore.of(redis, config).slots_set_aside() == (set() if withheld else {SLOT})
    Clock().rules(monkeypatch)
    assert SLOT not in await due(config), "a restart meets it again"


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
    async with aclosing(worker.redis):
        for closing in (one, other, one):  # whichever worker sees it
            assert await worker.store.slots_set_aside() == set()
            await closing.close([SLOT, SLOT + HOUR])
        assert tried == [[SLOT]] * 3, "a later window was tried before the one that blocks it was set aside"
        assert await worker.store.slots_set_aside() == {SLOT}
        await worker.due_slots()
        assert worker.metrics.windows_set_aside._value.get() == 1
        assert (await worker.due.ask()).open == [SLOT + HOUR]


NAMES = ["euler", "htf", "sparse", "ug"]


async def test_nothing_of_a_released_window_stays_in_redis_but_charges_and_what_was_published(redis, tmp_path):
    config = with_histograms("values", tmp_path, NAMES)
    await store(redis, config, located_rows(2, 200))
    await closed(redis, config)
    of_feed = {"birth", "closed", "generation", "ledger:2017-03-21", "link", "opened", "planned", "sealed", "sequence"}
    names = {f"hv:{{bus}}:{name}" for name in of_feed | {"terms:2017-03-21"}}
    names |= {f"hv:{{part:bus:bus/0}}:{name}" for name in ("progress", "sealed")}
    assert {key.decode() for key in await redis.keys()} == names


async def release(
    redis: Redis, config: Config, batches: list[tuple[str, int, np.ndarray]]
) -> tuple[list[Message], dict[bytes, bytes]]:
    """Messages and charges of the window after ``batches`` of (partition, first offset, rows), under recorded noise."""
    await redis.flushall()
    state, feed = RowStore(redis, config.feed.name), config.feed.name
    await Ledger(redis, feed).start_generation(birth=0)
    await redis.set(FeedKeys(feed).generation, "11111111-1111-4111-8111-111111111111")
    for partition, first, rows in batches:
        n = len(rows)
        await state.append(partition, first, first + n, rows, np.arange(first, first + n), np.full(n, SLOT))
    recorded = Noise(np.random.default_rng(5).bytes)
    return await closed(redis, config, noise=recorded), await redis.hgetall(FeedKeys(feed).ledger("2017-03-21"))


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_redelivery_order_and_partitions_of_the_feed_change_no_byte_of_any_message_and_no_charge(
    redis, tmp_path, relation
):
    """If a (user, time) is repeated with other positions, the same one counts, whichever arrived first."""
    config = with_histograms(relation, tmp_path, NAMES, **{"histogram.fixes_per_user": 3})
    rows = located_rows(3, 300, users=20)
    twice = rows[:40].copy()
    twice["lat"] += np.random.default_rng(1).integers(-2_000_000, 2_000_000, 40)
    rows = np.concatenate([rows, twice])
    once = await release(redis, config, [("t/0", 0, rows)])
    assert (len(bodies_of(once[0])), len(once[1])) == (len(NAMES), 20)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mixed = rows[rng.permutation(len(rows))]
        batches = []
        for number, part in enumerate(np.array_split(mixed, 4)):
            middle = int(rng.integers(1, len(part)))
            back = int(rng.integers(0, middle))
            topic = f"t/{number}"
            batches += [(topic, 0, part[:middle]), (topic, back, part[back:]), (topic, 0, part)]
        assert await release(redis, config, batches) == once


@pytest.mark.parametrize("change", ["removed", "another box", "more mechanisms", "added"])
async def test_a_stored_plan_is_drawn_as_it_was_charged_whatever_the_configuration_says_now(redis, tmp_path, change):
    one, rows = with_histograms("values", tmp_path, ["ug"]), located_rows(5, 200)
    none = one.model_copy(update={"histogram": None})
    smaller = {"south": 30.2, "west": -97.8, "north": 30.4, "east": -97.6}
    before, now = {
        "removed": (one, none),
        "added": (none, one),
        "another box": (one, with_histograms("values", tmp_path, ["ug"], **{"histogram.domain": smaller})),
        "more mechanisms": (one, with_histograms("values", tmp_path, ["htf", "ug"], **{"histogram.fixes_per_user": 9})),
    }[change]
    await store(redis, before, rows)
    await close_until(protocol_of(redis, before, Collected()), SLOT, "plan")
    messages = await closed(redis, now)
    bodies, (marker,) = bodies_of(messages), bodies_of(messages, WINDOW)
    drawn = [(body["mechanism"], body["fixes_per_user"], body["domain"]["south"]) for body in bodies]
    assert drawn == ([] if before is none else [("ug", 1, 30.1)])
    assert ("mechanisms" in marker) == (before is one)
    plan, contributions, _ = planned_with_fixes(before, rows)
    expected = (contributions.counts.n_users, int(plan.charged_users()[1].sum()))
    assert await Ledger(redis, "bus").total("2017-03-21") == expected


async def test_a_user_who_cannot_pay_for_the_histograms_is_in_none_of_them_and_pays_nothing(redis, tmp_path):
    config = with_histograms("participation", tmp_path, ["singular"])
    rows = located_rows(7, 300)
    await store(redis, config, rows)
    users = np.unique(rows["user"])
    poor, period = users[:3], "2017-03-21"
    almost = config.privacy.ledger_budget - config.histogram_grant + 1
    for user in poor.tolist():
        await redis.hset(FeedKeys("riders").ledger(period), str(user), almost)
    messages = await closed(redis, config, noise=Silence())
    spent = await Ledger(redis, "riders").spent(period, users, besides=0)
    assert spent[:3].tolist() == [almost] * 3
    assert np.all(spent[3:] >= config.histogram_grant)
    (body,) = bodies_of(messages)
    plan, _, fixes = planned_with_fixes(config, rows[~np.isin(rows["user"], poor)])
    assert plan.terms.histogram is not None
    assert body["structure"]["counts"] == exact_counts(plan.terms.histogram, contributing(plan, fixes)).tolist()


ALL = ["mean", "moving_mean", "variance", "p15", "p50", "p85"]


@pytest.mark.parametrize(
    ("relation", "bound", "value", "says"),
    [
        ("values", "MOST_CELLS", 1, "Redis can store the messages of 1"),
        ("values", "LARGEST_VALUE", 100, "Redis can store 100"),
        ("participation", "LARGEST_VALUE", 100, "Redis can store 100"),
    ],
)
async def test_a_window_too_large_to_store_is_withheld_by_name_or_under_participation_set_aside_and_nobody_is_charged(
    redis, tmp_path, monkeypatch, relation, bound, value, says
):
    """Under participation users and their samples alone can make a plan too large, so nothing tells of it: a public
    list has at most as many cells as can be stored."""
    assert MAX_CELLS <= plan.MOST_CELLS
    monkeypatch.setattr(plan, bound, value)
    config = bus_config(tmp_path) if relation == "values" else riders(tmp_path)
    await fill(redis, config, 1)
    publisher, store, failed = Collected(), ReleaseStore.of(redis, config), ""
    with capture_logs() as logs:
        try:
            await protocol_of(redis, config, publisher).close(SLOT)
        except ContentError as error:
            failed = str(error)
    reasons = [failed] if failed else [entry["reason"] for entry in logs if entry["event"] == "window withheld"]
    assert [says in reason and "nobody was charged" in reason for reason in reasons] == [True]
    assert [json.loads(message.value)["withheld"] for message in publisher.messages] == [True] * (relation == "values")
    assert await store.slots_set_aside() == ({SLOT} if failed else set())
    assert bool(failed) == (relation == "participation")
    assert await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key) == (0, 0)
    assert await store.plan(SLOT) is None


def test_the_messages_of_the_most_cells_fit_into_one_value_of_redis(tmp_path):
    """Under "participation" counts have intervals, too. The name of a feed has at most 32 letters."""
    config = riders(tmp_path, **{"feed.name": "f" * 32, "speed.statistics": ALL, "participation.weight": "sample"})
    messages = [m for m in released(config, random_rows(1, 60)) if m.topic == HEXAGON_SPEED]
    largest = max(len(encode_outbox([message])) for message in messages)
    assert 1_500 < largest < plan.LARGEST_MESSAGE - 1_000, "models and excluded cells add less than 1000 bytes"
    kinds = 6
    distributions = 60 * MAX_NUMBERS
    whole = plan.MOST_CELLS * plan.LARGEST_MESSAGE + distributions + kinds * MAX_MESSAGE_BYTES
    assert whole < plan.LARGEST_VALUE < 1 << 29


async def test_events_beyond_a_limit_are_counted_and_not_released(feed, redis, monkeypatch):
    """60 events of 12 users, of which at most 3 count: real Kafka and Redis."""
    monkeypatch.setattr("stream.terms.MAX_EVENTS_PER_USER", 3)
    config, rows = feed(), random_rows(1, 60)
    await store(redis, config, rows)
    (report,) = await close_windows(config, [SLOT])
    counts = np.unique(rows["user"], return_counts=True)[1]
    beyond = int(np.maximum(counts - 3, 0).sum())
    assert report.failure is None
    assert report.beyond_limits == beyond > 0
    bodies = [(r.topic, json.loads(r.value)) for r in await read_all(config.kafka.bootstrap, config.feed.name)]
    assert sum(body["events"] for topic, body in bodies if topic != WINDOW) == 60 - beyond
    worker = Worker(config)
    worker.record(report)
    await worker.redis.aclose()
    assert worker.metrics.events_beyond_limits._value.get() == beyond
