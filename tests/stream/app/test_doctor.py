"""``hexveil doctor`` asks a real broker for what the feed needs, says whether it holds, and the remedy that it names
works. The operator's page says what the metrics say, and lists only what is wrong."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from redis.asyncio import Redis

from stream.app.doctor import Finding, examine, replication_finding
from stream.app.worker import page
from stream.config import Config
from stream.ingestion.bounded import MAX_FETCH_BYTES
from stream.local.server import free_port
from stream.messages.topics import INPUT_SETTINGS
from stream.metrics import OperatorMetrics
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.command import run
from tests.support.environment import worker_environment
from tests.support.feeding import administering, create_topic

DELETED = {"cleanup.policy": "delete"}


class Feed:
    """An input topic of its own on a real broker, as a configuration names it."""

    def __init__(self, config: Config) -> None:
        self.config, self.topic = config, config.feed.topic

    async def create(self, settings: Mapping[str, str]) -> None:
        await create_topic(self.config.kafka.bootstrap, self.topic, 1, dict(settings))

    async def alter(self, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self.topic, dict(settings))
        async with administering(self.config.kafka.bootstrap) as admin:
            await admin.alter_configs([resource])

    async def finding(self, check: str) -> Finding:
        """The checks of the topic by doctor, after the broker lists it with its settings."""
        async with asyncio.timeout(120):
            while True:
                findings = {finding.check: finding for finding in await examine(self.config)}
                if check in findings and " ?" not in findings[check].found:
                    return findings[check]
                await asyncio.sleep(0.1)

    async def passes(self, check: str) -> None:
        """Wait until the check holds."""
        async with asyncio.timeout(120):
            while not (await self.finding(check)).ok:
                await asyncio.sleep(0.1)


@pytest.fixture
def feed(kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str) -> Feed:
    overrides = {"feed.topic": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    return Feed(bus_config(tmp_path, **overrides))


async def test_a_topic_that_the_broker_does_not_stamp_is_found_and_the_remedy_mends_it(feed):
    await feed.create({"message.timestamp.type": "CreateTime"})
    finding = await feed.finding(f"append time of {feed.topic}")
    assert not finding.ok
    assert finding.found == "message.timestamp.type CreateTime"
    (remedy,) = [word for word in finding.remedy.replace(":", " ").split() if "=LogAppendTime" in word]
    assert f"--entity-name {feed.topic} " in finding.remedy
    await feed.alter(dict([remedy.split("=")]))
    await feed.passes(f"append time of {feed.topic}")


@pytest.mark.parametrize(
    ("key", "value", "ok"),
    [
        ("retention.ms", 3_600_000, False),
        ("retention.ms", 25 * 3_600_000, True),
        ("retention.ms", 7 * 24 * 3_600_000, False),
        ("max.message.bytes", MAX_FETCH_BYTES, True),
        ("max.message.bytes", MAX_FETCH_BYTES + 1, False),
        ("cleanup.policy", "compact", False),
        ("cleanup.policy", "compact,delete", False),
    ],
)
async def test_a_topic_as_hexveil_creates_it_passes_and_what_harms_windows_or_the_promise_is_found(
    feed, key, value, ok
):
    """Raw events are kept for open windows, here of an hour, and no longer than the promise says: a day more than they
    are open. Batches have a limit, and no event is compacted away."""
    await feed.create(INPUT_SETTINGS | DELETED | {key: str(value)})
    for check in (f"append time of {feed.topic}", "broker clock"):
        assert (await feed.finding(check)).ok, check
    checked, remedy = "batches of", "--add-config max.message.bytes=1048588,cleanup.policy=delete"
    if key == "retention.ms":
        checked, remedy = "retention", "retention.ms=90300000"
    finding = await feed.finding(f"{checked} {feed.topic}")
    assert finding.ok == ok, finding
    assert remedy in finding.remedy
    assert key == "retention.ms" or f"{key} {value}" in finding.found


@pytest.mark.parametrize(("ahead_seconds", "ok"), [(600, False), (-600, True)])
async def test_an_event_that_was_stamped_ahead_of_redis_is_found(feed, ahead_seconds, ok):
    # A broker whose clock is ahead stamps like a producer that may choose its time and chooses one ahead.
    await feed.create({"message.timestamp.type": "CreateTime"})
    async with AIOKafkaProducer(bootstrap_servers=feed.config.kafka.bootstrap) as producer:
        stamp = round(1000 * (time.time() + ahead_seconds))
        await producer.send_and_wait(feed.topic, b"{}", timestamp_ms=stamp)
    finding = await feed.finding("broker clock")
    assert finding.ok == ok, finding
    assert ok or "events were appended 59" in finding.found or "events were appended 600" in finding.found
    assert ok or "synchronise the clocks" in finding.remedy


async def test_a_feed_of_recordings_needs_no_append_time(feed):
    window = feed.config.window.model_copy(update={"lateness": "event-time"})
    recorded = Feed(feed.config.model_copy(update={"window": window}))
    await recorded.create({"message.timestamp.type": "CreateTime"})
    assert (await recorded.finding(f"batches of {feed.topic}")).ok
    findings = await examine(recorded.config)
    assert f"append time of {feed.topic}" not in {finding.check for finding in findings}
    (clock,) = [finding for finding in findings if finding.check == "broker clock"]
    assert clock.ok
    assert "not checked" in clock.found


async def test_without_redis_doctor_ends_with_3_and_a_remedy_and_checks_kafka_all_the_same(feed):
    await feed.create(INPUT_SETTINGS | DELETED)
    await feed.finding("broker clock")
    folder = feed.config.privacy.user_key_file.parent
    nobody = f"unix://{folder}/nobody.sock"
    given = worker_environment(folder, feed.config.kafka.bootstrap, nobody, free_port(), feed.topic)
    done = await asyncio.to_thread(run, "doctor", "--json", "--config", hourly.BUS, code=3, env=given)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert "start Redis" in findings["redis"]["remedy"]
    assert findings[f"batches of {feed.topic}"]["ok"]


async def test_an_acknowledged_event_outlives_a_broker_or_the_remedy_says_how(feed):
    settings = INPUT_SETTINGS | DELETED | {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    await feed.create(settings)
    check = f"replicas of {feed.topic}"
    finding = await feed.finding(check)
    assert not finding.ok
    (remedy,) = [word for word in finding.remedy.replace(":", " ").split() if "unclean" in word]
    await feed.alter(settings | dict(pair.split("=") for pair in remedy.split(",")))
    await feed.passes(check)
    async with administering(feed.config.kafka.bootstrap) as admin:
        of_three = await replication_finding(admin, feed.config, feed.topic, 3)
    assert of_three.found.startswith("replicas 1 on 3 brokers, min.insync.replicas 1")
    assert "3 replicas" in of_three.remedy
    assert "min.insync.replicas=2" in of_three.remedy


def test_the_page_lists_reasons_alarms_lag_and_times_and_shows_markup_as_text():
    metrics = OperatorMetrics()
    metrics.events_rejected.labels("not-json").inc(3)
    metrics.events_rejected.labels("<b>").inc(7)
    metrics.events_rejected.labels("in-future").inc(0)
    metrics.feed_misread.labels("speed").set(1)
    metrics.watermark_seconds.set(1_490_097_600)
    said = page(metrics.registry, "bus")
    assert said.index("&lt;b&gt;</th><td>7") < said.index("not-json</th><td>3")
    assert "in-future" not in said
    assert "speed</th><td>1" in said
    assert "2017-03-21T12:00:00+00:00" in said
    assert "None." in page(OperatorMetrics().registry, "bus")
