"""The release protocol with spatial histograms, against real Redis and Kafka: interrupted, reordered, reconfigured. A
window that Redis could not store is refused by name before anybody is charged, instead of at every attempt after it.
The closing process counts events beyond a user's limits in an operator metric, and they appear nowhere else."""

import json

import numpy as np
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from dpcore.noise import Noise
from stream.app.worker import Worker
from stream.config import Config
from stream.config.histogram import MAX_MESSAGE_BYTES
from stream.config.public_cells import MAX_CELLS
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message, encode_outbox
from stream.messages.topics import create_topics
from stream.protocol.close_process import close_windows
from stream.protocol.release_protocol import ContentError, ReleaseProtocol, statistics_of
from stream.statistics import plan
from stream.statistics.columns import MAX_NUMBERS
from stream.statistics.histograms.histograms import contributing, exact_counts
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from tests.dpcore.silence import Silence
from tests.support.builders import SLOT, bus_config, located_rows, random_rows, with_histograms
from tests.support.closing import Collected, protocol_of
from tests.support.participating import riders
from tests.support.releasing import bodies_of, planned_with_fixes, released
from tests.support.stored_rows import fill, store
from tests.support.topics_reader import read_all

NAMES = ["euler", "htf", "sparse", "ug"]


async def test_nothing_of_a_released_window_stays_in_redis_but_charges_and_what_was_published(redis, tmp_path):
    config = with_histograms("values", tmp_path, NAMES)
    await store(redis, config, located_rows(2, 200))
    await protocol_of(redis, config, Collected()).close(SLOT)
    assert {key.decode() for key in await redis.keys()} == {
        f"hv:{name}"
        for name in (
            "{bus}:birth",
            "{bus}:closed",
            "{bus}:generation",
            "{bus}:ledger:2017-03-21",
            "{bus}:link",
            "{bus}:opened",
            "{bus}:planned",
            "{bus}:sealed",
            "{bus}:sequence",
            "{bus}:terms:2017-03-21",
            "{part:bus:bus/0}:progress",
            "{part:bus:bus/0}:sealed",
        )
    }


async def release(redis: Redis, config: Config, batches: list[tuple[str, int, np.ndarray]]) -> list[Message]:
    """Messages of the window after ``batches`` of (partition, first offset, rows), under recorded noise."""
    await redis.flushall()
    state, feed = RowStore(redis, config.feed.name), config.feed.name
    ledger = Ledger(redis, feed)
    await ledger.start_generation(birth=0)
    await redis.set(FeedKeys(feed).generation, "11111111-1111-4111-8111-111111111111")
    for partition, first, rows in batches:
        n = len(rows)
        await state.append(partition, first, first + n, rows, np.arange(first, first + n), np.full(n, SLOT))
    publisher = Collected()
    recorded = Noise(np.random.default_rng(5).bytes)
    await ReleaseProtocol(statistics_of(config), redis, state, ledger, publisher, recorded).close(SLOT)
    return publisher.messages


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_redelivery_order_and_partitions_of_the_feed_change_no_byte_of_any_histogram(redis, tmp_path, relation):
    """If a (user, time) is repeated with other positions, the same one counts, whichever arrived first."""
    config = with_histograms(relation, tmp_path, NAMES, **{"histogram.fixes_per_user": 3})
    rows = located_rows(3, 300, users=20)
    twice = rows[:40].copy()
    twice["lat"] += np.random.default_rng(1).integers(-2_000_000, 2_000_000, 40)
    rows = np.concatenate([rows, twice])
    once = await release(redis, config, [("t/0", 0, rows)])
    assert len(bodies_of(once)) == len(NAMES)
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


class KilledError(Exception):
    """Raised in place of a crash."""


async def planned_then_killed(redis: Redis, config: Config, rows: np.ndarray) -> None:
    await store(redis, config, rows)

    def die(step: str) -> None:
        if step == "plan":
            raise KilledError

    with pytest.raises(KilledError):
        await protocol_of(redis, config, Collected(), after_step=die).close(SLOT)


@pytest.mark.parametrize("change", ["removed", "another box", "more mechanisms"])
async def test_a_stored_plan_is_drawn_as_it_was_charged_whatever_the_configuration_says_now(redis, tmp_path, change):
    planned_under = with_histograms("values", tmp_path, ["ug"])
    smaller = {"south": 30.2, "west": -97.8, "north": 30.4, "east": -97.6}
    now = {
        "removed": planned_under.model_copy(update={"histogram": None}),
        "another box": with_histograms("values", tmp_path, ["ug"], **{"histogram.domain": smaller}),
        "more mechanisms": with_histograms("values", tmp_path, ["htf", "ug"], **{"histogram.fixes_per_user": 9}),
    }[change]
    rows = located_rows(5, 200)
    await planned_then_killed(redis, planned_under, rows)
    publisher = Collected()
    await protocol_of(redis, now, publisher).close(SLOT)
    (body,) = bodies_of(publisher.messages)
    assert (body["mechanism"], body["fixes_per_user"], body["domain"]["south"]) == ("ug", 1, 30.1)
    plan, contributions, _ = planned_with_fixes(planned_under, rows)
    expected = (contributions.counts.n_users, int(plan.charged_users()[1].sum()))
    assert await Ledger(redis, "bus").total("2017-03-21") == expected


async def test_a_plan_without_histograms_publishes_none_though_they_are_configured_now(redis, tmp_path):
    now = with_histograms("values", tmp_path, ["ug"])
    await planned_then_killed(redis, now.model_copy(update={"histogram": None}), located_rows(6, 100))
    publisher = Collected()
    await protocol_of(redis, now, publisher).close(SLOT)
    assert bodies_of(publisher.messages) == []
    assert "mechanisms" not in bodies_of(publisher.messages, WINDOW)[0]


async def test_a_user_who_cannot_pay_for_the_histograms_is_in_none_of_them_and_pays_nothing(redis, tmp_path):
    config = with_histograms("participation", tmp_path, ["singular"])
    rows = located_rows(7, 300)
    await store(redis, config, rows)
    users = np.unique(rows["user"])
    poor, period = users[:3], "2017-03-21"
    almost = config.privacy.ledger_budget - config.histogram_grant + 1
    for user in poor.tolist():
        await redis.hset(FeedKeys("riders").ledger(period), str(user), almost)
    publisher = Collected()
    await ReleaseProtocol(
        statistics_of(config), redis, RowStore(redis, "riders"), Ledger(redis, "riders"), publisher, Silence()
    ).close(SLOT)
    spent = await Ledger(redis, "riders").spent(period, users, besides=0)
    assert spent[:3].tolist() == [almost] * 3
    assert np.all(spent[3:] >= config.histogram_grant)
    (body,) = bodies_of(publisher.messages)
    plan, _, fixes = planned_with_fixes(config, rows[~np.isin(rows["user"], poor)])
    assert plan.terms.histogram is not None
    assert body["structure"]["counts"] == exact_counts(plan.terms.histogram, contributing(plan, fixes)).tolist()


ALL = ["mean", "moving_mean", "variance", "p15", "p50", "p85"]


@pytest.mark.parametrize(
    ("bound", "value", "says"),
    [("MOST_CELLS", 1, "Redis can store the messages of 1"), ("LARGEST_VALUE", 100, "Redis can store 100")],
)
async def test_a_window_too_large_to_store_is_withheld_by_name_and_nobody_is_charged(
    redis, tmp_path, topic_name, monkeypatch, bound, value, says
):
    monkeypatch.setattr(plan, bound, value)
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
    redis, tmp_path, topic_name, monkeypatch
):
    """Users and their samples alone can make it too large: a public list has at most as many cells as can be stored."""
    assert MAX_CELLS <= plan.MOST_CELLS
    monkeypatch.setattr(plan, "LARGEST_VALUE", 100)
    config = riders(tmp_path, **{"feed.name": topic_name})
    await fill(redis, config, 1)
    publisher, store = Collected(), ReleaseStore.of(redis, config)
    with pytest.raises(ContentError, match="Redis can store 100; nobody was charged"):
        await protocol_of(redis, config, publisher).close(SLOT)
    assert await store.slots_set_aside() == {SLOT}
    assert publisher.messages == [], "whether a window is too large depends on its users, so nothing tells of it"
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


async def test_events_beyond_a_limit_are_counted_and_not_released(
    kafka, redis, redis_url, tmp_path, topic_name, monkeypatch
):
    """60 events of 12 users, of which at most 3 count: real Kafka and Redis."""
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    monkeypatch.setattr("stream.terms.MAX_EVENTS_PER_USER", 3)
    config = bus_config(tmp_path, **settings)
    await create_topics(config)
    await Ledger(redis, topic_name).start_generation(birth=0)
    rows = random_rows(1, 60)
    await RowStore(redis, topic_name).append("t/0", 0, 60, rows, np.arange(60), np.full(60, SLOT))
    (report,) = await close_windows(config, [SLOT])
    counts = np.unique(rows["user"], return_counts=True)[1]
    beyond = int(np.maximum(counts - 3, 0).sum())
    assert report.failure is None
    assert report.beyond_limits == beyond > 0
    bodies = [(r.topic, json.loads(r.value)) for r in await read_all(kafka, topic_name)]
    assert sum(body["events"] for topic, body in bodies if topic != WINDOW) == 60 - beyond
    worker = Worker(config)
    try:
        worker.record(report)
    finally:
        await worker.redis.aclose()
    assert worker.metrics.events_beyond_limits._value.get() == beyond
