"""Checks of a running deployment, each with a remedy: the user key, Redis, Kafka and the ledger.

Checks of Kafka: that it answers, and that its topics keep what the service needs, and no longer than it promises.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.config import Config
from stream.config.secret_files import readers
from stream.config.servers import redacted
from stream.ingestion.bounded import MAX_FETCH_BYTES
from stream.ingestion.pseudonyms import UserKeyError, key_fingerprint, load_user_key
from stream.messages.message import WINDOW
from stream.messages.topics import TopicPlan, durability, replicas_on, topic_plans
from stream.protocol.ledger_check import Known, LedgerCheck, verify_ledger
from stream.servers.connection import NEEDED, REMEDY, ServerVersion, kafka_options, reading
from stream.storage.client import misconfigured, redis_client, spans_servers
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import RowStore, StateError
from stream.storage.shared_ledger import SharedLedger, budgets_that_differ, configured_otherwise, retirement_held_by
from stream.windows import CLOCK_MARGIN_US, utc_text


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it holds, what was found, and a remedy if it does not hold."""

    check: str
    ok: bool
    found: str
    remedy: str = ""
    unreachable: bool = False


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
            if not there:
                continue
            findings.append(await replication_finding(admin, config, plan.name, brokers))
            if plan.name == config.feed.topic:
                findings += await _input_settings(admin, config, plan)
                findings += [] if redis is None else [await _broker_clock(config, redis)]
            else:
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


async def _input_settings(admin: AIOKafkaAdminClient, config: Config, plan: TopicPlan) -> list[Finding]:
    """Checks that the broker stamps what it appends to the feed, limits the size of batches, and keeps all events: as
    long as open windows need them, and no longer than the promise sheet says."""
    settings, alter = await _settings(admin, plan.name), _alter(config, plan.name)
    stamped, policy = settings.get("message.timestamp.type", "?"), settings.get("cleanup.policy", "?")
    largest = int(settings.get("max.message.bytes", "0"))
    findings = []
    if config.window.lateness == "append-time":
        findings.append(
            Finding(
                f"append time of {plan.name}",
                stamped == "LogAppendTime",
                f"message.timestamp.type {stamped}",
                f"{alter} --add-config message.timestamp.type=LogAppendTime: the broker's clock says which events are "
                "in time, and messages without its timestamp are refused",
            )
        )
    least = (config.window.slot + config.window.allowed_delay) / _MILLISECOND
    kept_ms = int(settings.get("retention.ms", "-1"))
    return [
        *findings,
        Finding(
            f"batches of {plan.name}",
            0 < largest <= MAX_FETCH_BYTES and policy == "delete",
            f"max.message.bytes {largest}, cleanup.policy {policy}",
            f"{alter} --add-config max.message.bytes=1048588,cleanup.policy=delete: larger batches delay the others, "
            "and a compacted topic loses events",
        ),
        Finding(
            f"retention {plan.name}",
            least <= kept_ms <= plan.retention_ms,
            f"raw events are kept {_kept(kept_ms)}; windows need {least / 86_400_000:.1f} days, the promise sheet says "
            f"{plan.retention_ms / 86_400_000:.1f}",
            f"{alter} --add-config retention.ms={plan.retention_ms}",
        ),
    ]


async def _broker_clock(config: Config, redis: Redis) -> Finding:
    """Checks that no event was appended at a time after Redis's clock."""
    check, remedy = "broker clock", "synchronise the clocks of brokers and Redis (NTP)"
    if config.window.lateness != "append-time":
        return Finding(check, True, "not checked, because window.lateness is 'event-time'")
    ahead_ms = await RowStore.of(redis, config).now_us() // 1000 + CLOCK_MARGIN_US // 1000
    async with reading(config.kafka) as consumer:
        await consumer._client.set_topics([config.feed.topic])
        numbers = consumer.partitions_for_topic(config.feed.topic) or ()
        offsets = await consumer.offsets_for_times(
            {TopicPartition(config.feed.topic, number): ahead_ms for number in numbers}
        )
    ahead = [where for where in offsets.values() if where is not None]
    if not ahead:
        return Finding(check, True, f"no event was appended {_MARGIN} or more ahead of Redis's clock")
    newest = max(where.timestamp for where in ahead) - ahead_ms + CLOCK_MARGIN_US // 1000
    return Finding(check, False, f"events were appended {newest / 1000:.1f} s ahead of Redis's clock", remedy)


async def retention_finding(admin: AIOKafkaAdminClient, topic: str, least: timedelta) -> Finding:
    """Whether ``topic`` keeps every message for ``least`` and deletes old ones instead of compacting."""
    settings = await _settings(admin, topic)
    policy, retention = settings.get("cleanup.policy", "?"), int(settings.get("retention.ms", "-1"))
    return Finding(
        f"retention {topic}",
        policy == "delete" and (retention < 0 or retention >= least / _MILLISECOND),
        f"cleanup.policy {policy}, kept {_kept(retention)}",
        f"set cleanup.policy=delete and retention.ms to -1, or to {least / _MILLISECOND:.0f} or more",
    )


def _kept(retention_ms: int) -> str:
    return "for ever" if retention_ms < 0 else f"{retention_ms / 86_400_000:.1f} days"


_MAX_SKEW_SECONDS = CLOCK_MARGIN_US / 1e6


async def examine(config: Config) -> list[Finding]:
    """All checks in order. If a server does not answer, its check fails and those that need it are skipped."""
    redis = redis_client(config.redis)
    findings = [_user_key(config)]
    try:
        findings += await _redis(config, redis)
        answers = not any(finding.unreachable for finding in findings)
        findings += await kafka_findings(config, redis if answers else None)
        if all(finding.ok for finding in findings):
            findings.append(await ledger_finding(config, redis))
    except (RedisError, OSError) as error:
        findings.append(_no_redis(config, error))
    finally:
        await redis.aclose()
    return findings


def _user_key(config: Config) -> Finding:
    path = config.privacy.user_key_file
    if not path.exists():
        return Finding("user key", True, f"{path} does not exist yet; the worker creates it on first use")
    try:
        load_user_key(path)
    except (UserKeyError, OSError) as error:
        return Finding("user key", False, str(error), f"repair or restore {path}")
    return Finding("user key", True, f"{path} is readable by {readers(path)}")


@dataclass(frozen=True)
class _Server:
    """What one server of Redis said. ``ahead``: seconds by which its clock is ahead of this machine's."""

    name: str
    version: ServerVersion
    ahead: float
    settings: dict[str, str]


async def _servers(redis: Redis) -> list[_Server]:
    """Every server: of a cluster all nodes, also replicas, because each may have to take the place of its master."""
    if not spans_servers(redis):
        return [await _server("Redis", redis)]
    client: Any = redis
    await client.initialize()
    nodes = sorted(client.get_nodes(), key=lambda node: (node.host, node.port))
    return [await _server(f"{node.host}:{node.port}", client, target_nodes=node) for node in nodes]


async def _server(name: str, client: Any, **where: Any) -> _Server:
    before = time.time()
    seconds, micros = await client.time(**where)
    ahead = seconds + micros / 1e6 - (before + time.time()) / 2
    version = ServerVersion.from_info(await client.info("server", **where))
    settings = await client.config_get("append*", "maxmemory-policy", **where) if version.supported else {}
    return _Server(name, version, ahead, settings)


async def _topology(config: Config, redis: Redis) -> Finding:
    """Whether the servers are what the configuration says: one, or a cluster in which each master has a replica."""
    if not spans_servers(redis):
        problem = misconfigured(await redis.info("server"), config.redis)
        return Finding("redis cluster", problem is None, problem or "none: one server", "correct redis.cluster")
    client: Any = redis
    state = (await client.cluster_info())["cluster_state"]
    replicas = {node.name: await _replicas(client, node.name) for node in client.get_primaries()}
    alone = [name for name, count in sorted(replicas.items()) if not count]
    text = f"{len(replicas)} masters, {sum(replicas.values())} replicas, state {state}"
    text += f"; without a replica: {', '.join(alone)}" if alone else ""
    return Finding(
        "redis cluster",
        state == "ok" and not alone,
        text,
        "give each master a replica on another machine: rows, or the ledger, are gone with a master that has none",
    )


async def _replicas(client: Any, master: str) -> int:
    info = await client.info("replication", target_nodes=client.get_node(node_name=master))
    return int(info["connected_slaves"])


def _of_all(servers: list[_Server], setting: str) -> tuple[str, str]:
    """The value of a setting that all servers share, and a text; where they differ, the text names who has which."""
    values = {server.name: server.settings.get(setting, "?") for server in servers}
    if len(set(values.values())) == 1:
        value = next(iter(values.values()))
        return value, f"{setting} {value}"
    return "?", f"{setting} differs: " + ", ".join(f"{name} {value}" for name, value in values.items())


def _skew(servers: list[_Server]) -> Finding:
    """Compare the clocks of all nodes: after a failover that of another node decides what is late."""
    clocks = [0.0, *(server.ahead for server in servers)]
    skew = max(clocks) - min(clocks)
    who = "this machine and Redis" if len(servers) == 1 else f"this machine and {len(servers)} nodes of Redis"
    return Finding(
        "clock skew",
        skew <= _MAX_SKEW_SECONDS,
        f"{skew:.3f} s between {who}",
        f"synchronise the clocks to within {_MAX_SKEW_SECONDS:.0f} s (NTP)",
    )


async def _redis(config: Config, redis: Redis) -> list[Finding]:
    try:
        servers = await _servers(redis)
        versions = sorted({str(server.version) for server in servers})
        supported = all(server.version.supported for server in servers)
        answers = Finding("redis", True, f"{redacted(config.redis.url)} answers")
        known = Finding("redis version", supported, f"{' and '.join(versions)}; needed: {NEEDED}", REMEDY)
        if not supported:
            return [answers, known]
        topology = await _topology(config, redis)
    except (RedisError, OSError) as error:
        return [_no_redis(config, error)]
    (appendonly, of_log), (fsync, of_sync) = _of_all(servers, "appendonly"), _of_all(servers, "appendfsync")
    policy, of_policy = _of_all(servers, "maxmemory-policy")
    return [
        answers,
        known,
        topology,
        Finding(
            "redis append-only file",
            appendonly == "yes",
            of_log,
            "CONFIG SET appendonly yes, and set it in redis.conf, because losing the ledger means losing privacy",
        ),
        Finding(
            "redis fsync",
            fsync == "always",
            of_sync,
            "CONFIG SET appendfsync always, because charges must be on disk before noise is drawn",
        ),
        Finding(
            "redis eviction",
            policy == "noeviction",
            of_policy,
            "CONFIG SET maxmemory-policy noeviction, because evicting the ledger means losing privacy",
        ),
        _skew(servers),
    ]


def _no_redis(config: Config, error: Exception) -> Finding:
    remedy = f"start {NEEDED}, or correct redis.url" + (" and redis.cluster" if config.redis.cluster else "")
    return Finding("redis", False, f"{redacted(config.redis.url)}: {error}", remedy, True)


async def ledger_finding(config: Config, redis: Redis) -> Finding:
    """Whether the ledger is the one that released before, and belongs to this configuration and user key."""
    rows, key_file = RowStore.of(redis, config), config.privacy.user_key_file
    ledger = Ledger.of(redis, config)
    try:
        if (shared := SharedLedger.of(redis, config)) is not None:
            return await _shared_finding(config, redis, shared)
        generation = await verify_ledger(config, redis)
        if key_file.exists():
            await rows.claim_key(key_fingerprint(load_user_key(key_file)))
        elif await rows.has_key():
            raise StateError(
                f"{key_file} does not exist; restore the file, because a new key would give everybody a second budget"
            )
    except (LedgerError, StateError) as error:
        return Finding("ledger", False, str(error), "follow this message before a worker starts")
    return Finding(
        "ledger",
        await ledger.birth() is not None,
        f"generation {generation} has the last release; it releases windows of {await _since(ledger, config)}",
        _ADOPT,
    )


_ADOPT = "run hexveil ledger adopt, and first read its text"


async def _since(ledger: Ledger, config: Config) -> str:
    """Which periods the ledger releases, and which are retired."""
    retired, begin = await ledger.retired(), await ledger.releases_since(config.slotting)
    since = "none, its birth is not recorded" if begin is None else f"periods from {utc_text(begin)} on"
    if begin is not None and begin > time.time():
        since += ": the map of a new feed is empty until then"
    if retired is not None:
        since += f"; periods that began before {utc_text(retired)} are retired, their charges deleted"
    return since


async def _shared_finding(config: Config, redis: Redis, shared: SharedLedger) -> Finding:
    """The same of a shared ledger. This reads only: the feed joins when its worker starts."""
    ledger, feed = Ledger.of(redis, config), config.feed.name
    await LedgerCheck(config, redis, ledger, Known()).look()
    feeds, known, configured = await shared.feeds(), await shared.budgets(), config.privacy.ledger_budget
    stated, (_, per_one) = {feed: configured} | known, config.privacy.ledger_unit
    joined = feed in feeds
    now = await RowStore.of(redis, config).now_us() // 1_000_000
    terms = await ledger.terms(config.slotting.period_of(now).key)
    sentences = [
        f"generation {await ledger.generation()} of ledger '{config.shared_ledger}' has the last releases of the feeds "
        f"{', '.join(feeds)}"
        if feeds
        else f"no feed has joined ledger '{config.shared_ledger}' yet",
        f"'{feed}' releases windows of {await _since(ledger, config)}"
        if joined
        else f"'{feed}' joins when its worker starts, and releases windows of periods that begin later",
        retirement_held_by(feeds),
        configured_otherwise(feed, known.get(feed), configured, per_one),
        budgets_that_differ(stated, terms.budget, per_one),
    ]
    text = "; ".join(sentence for sentence in sentences if sentence)
    return Finding("ledger", not joined or await ledger.birth() is not None, text, _ADOPT)
