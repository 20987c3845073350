"""Checks of Kafka: that it answers, and that its topics keep what the service needs, and no longer than it promises."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from redis.asyncio import Redis

from stream.config import Config
from stream.ingestion.bounded import MAX_FETCH_BYTES
from stream.messages.message import OUTPUT_TOPICS, WINDOW
from stream.messages.topics import TopicPlan, durability, replicas_on, topic_plans
from stream.servers.connection import kafka_options, start_client
from stream.storage.row_store import RowStore
from stream.windows import CLOCK_MARGIN_US


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it holds, what was found, and a remedy if it does not hold."""

    check: str
    ok: bool
    found: str
    remedy: str = ""
    unreachable: bool = False

    def as_dict(self) -> dict[str, object]:
        """The finding as ``--json`` prints it."""
        return asdict(self)


_MARGIN = f"{CLOCK_MARGIN_US / 1e6:.0f} s"
_MIN_OUTPUT_RETENTION = timedelta(days=1)
_MILLISECOND = timedelta(milliseconds=1)


async def kafka_findings(config: Config, redis: Redis | None) -> list[Finding]:
    """All checks in order. ``redis``: None if it does not answer; then what needs its clock is not checked."""
    admin = AIOKafkaAdminClient(**kafka_options(config.kafka))
    try:
        await admin.start()
    except (KafkaError, OSError) as error:
        remedy = "start the broker, or correct kafka.bootstrap, security_protocol or the credentials"
        return [Finding("kafka", False, f"{config.kafka.bootstrap}: {error}", remedy, True)]
    try:
        findings = [Finding("kafka", True, f"{config.kafka.bootstrap} answers")]
        existing, brokers = set(await admin.list_topics()), len((await admin.describe_cluster())["brokers"])
        for plan in topic_plans(config):
            there = plan.name in existing
            state = "exists" if there else "missing"
            findings.append(Finding(f"topic {plan.name}", there, state, "hexveil topics create"))
            if there:
                findings.append(await replication_finding(admin, config, plan.name, brokers))
            if there and plan.name == config.feed.topic:
                findings += await _input_settings(admin, config)
                findings.append(await raw_retention_finding(admin, config, plan))
                findings += [] if redis is None else [await _broker_clock(config, redis)]
            if there and plan.name in OUTPUT_TOPICS:
                # Close markers reveal that Redis was set back; the charges that it lost matter until their period is
                # over.
                kept = config.privacy.period if plan.name == WINDOW else timedelta(0)
                findings.append(await retention_finding(admin, plan.name, _MIN_OUTPUT_RETENTION + kept))
        return findings
    except KafkaError as error:
        return [Finding("kafka", False, str(error), "see the broker's log", True)]
    finally:
        await admin.close()


def _alter(config: Config, topic: str) -> str:
    return (
        f"kafka-configs --bootstrap-server {config.kafka.bootstrap} --alter --entity-type topics --entity-name {topic}"
    )


async def _settings(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for answer in answers for resource in answer.resources for entry in resource[4]}


async def replication_finding(admin: AIOKafkaAdminClient, config: Config, topic: str, brokers: int) -> Finding:
    """Whether a topic survives one of several brokers: with what was acknowledged, and without a stop."""
    (described,) = await admin.describe_topics([topic])
    replicas = min((len(partition["replicas"]) for partition in described["partitions"]), default=0)
    settings = await _settings(admin, topic)
    wanted = replicas_on(brokers)
    needed = durability(wanted)
    set_to = {name: settings.get(name, "?") for name in needed}
    remedies = []
    if replicas < wanted:
        remedies.append(
            f"give each partition {wanted} replicas with kafka-reassign-partitions, or create the topic anew with "
            "hexveil topics create: what is on one broker only is gone with its disk"
        )
    if set_to != needed:
        settled = ",".join(f"{name}={value}" for name, value in needed.items())
        remedies.append(
            f"{_alter(config, topic)} --add-config {settled}: otherwise a replica that lacks acknowledged messages may "
            "lead, or the loss of one broker stops the topic"
        )
    return Finding(
        f"replicas of {topic}",
        not remedies,
        f"replicas {replicas} on {brokers} brokers, " + ", ".join(f"{name} {value}" for name, value in set_to.items()),
        "; ".join(remedies),
    )


async def _input_settings(admin: AIOKafkaAdminClient, config: Config) -> list[Finding]:
    """Checks that the broker stamps what it appends to the feed, keeps all events, and limits the size of batches."""
    topic = config.feed.topic
    settings = await _settings(admin, topic)
    alter = _alter(config, topic)
    stamped, policy = settings.get("message.timestamp.type", "?"), settings.get("cleanup.policy", "?")
    largest = int(settings.get("max.message.bytes", "0"))
    findings = [
        Finding(
            f"batches of {topic}",
            0 < largest <= MAX_FETCH_BYTES and policy == "delete",
            f"max.message.bytes {largest}, cleanup.policy {policy}",
            f"{alter} --add-config max.message.bytes=1048588,cleanup.policy=delete: larger batches delay the others, "
            "and a compacted topic loses events",
        )
    ]
    if config.window.lateness == "append-time":
        findings.insert(
            0,
            Finding(
                f"append time of {topic}",
                stamped == "LogAppendTime",
                f"message.timestamp.type {stamped}",
                f"{alter} --add-config message.timestamp.type=LogAppendTime: the broker's clock says which events are "
                "in time, and messages without its timestamp are refused",
            ),
        )
    return findings


async def _broker_clock(config: Config, redis: Redis) -> Finding:
    """Checks that no event was appended at a time after Redis's clock."""
    check, remedy = "broker clock", "synchronise the clocks of brokers and Redis (NTP)"
    if config.window.lateness != "append-time":
        return Finding(check, True, "not checked, because window.lateness is 'event-time'")
    ahead_ms = await RowStore.of(redis, config).now_us() // 1000 + CLOCK_MARGIN_US // 1000
    consumer = AIOKafkaConsumer(**kafka_options(config.kafka), enable_auto_commit=False)
    await start_client(consumer)
    try:
        await consumer._client.set_topics([config.feed.topic])
        numbers = consumer.partitions_for_topic(config.feed.topic) or ()
        offsets = await consumer.offsets_for_times(
            {TopicPartition(config.feed.topic, number): ahead_ms for number in numbers}
        )
    finally:
        await consumer.stop()
    ahead = [where for where in offsets.values() if where is not None]
    if not ahead:
        return Finding(check, True, f"no event was appended {_MARGIN} or more ahead of Redis's clock")
    newest = max(where.timestamp for where in ahead) - ahead_ms + CLOCK_MARGIN_US // 1000
    return Finding(check, False, f"events were appended {newest / 1000:.1f} s ahead of Redis's clock", remedy)


async def retention_finding(admin: AIOKafkaAdminClient, topic: str, least: timedelta) -> Finding:
    """Whether ``topic`` keeps every message for ``least`` and deletes old ones instead of compacting."""
    settings = await _settings(admin, topic)
    policy, retention = settings.get("cleanup.policy", "?"), int(settings.get("retention.ms", "-1"))
    kept = "for ever" if retention < 0 else f"{retention / 86_400_000:.1f} days"
    return Finding(
        f"retention {topic}",
        policy == "delete" and (retention < 0 or retention >= least / _MILLISECOND),
        f"cleanup.policy {policy}, kept {kept}",
        f"set cleanup.policy=delete and retention.ms to -1, or to {least / _MILLISECOND:.0f} or more",
    )


async def raw_retention_finding(admin: AIOKafkaAdminClient, config: Config, plan: TopicPlan) -> Finding:
    """Whether raw events are kept as long as open windows need them, and no longer than the promise sheet says."""
    least = (config.window.slot + config.window.allowed_delay) / _MILLISECOND
    kept_ms = int((await _settings(admin, plan.name)).get("retention.ms", "-1"))
    kept = "for ever" if kept_ms < 0 else f"{kept_ms / 86_400_000:.1f} days"
    return Finding(
        f"retention {plan.name}",
        least <= kept_ms <= plan.retention_ms,
        f"raw events are kept {kept}; windows need {least / 86_400_000:.1f} days, the promise sheet says "
        f"{plan.retention_ms / 86_400_000:.1f}",
        f"{_alter(config, plan.name)} --add-config retention.ms={plan.retention_ms}",
    )
