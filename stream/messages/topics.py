"""The topics of a deployment and how they are created.

What is kept where, and for how long: one table, which the promise sheet prints and tests compare with the code.

The AsyncAPI 3.1 document of the output topics, generated from the service's schemas and topic settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from stream.config import Config
from stream.messages.chain import SIGNATURE
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.servers.connection import kafka_options

_DAY_MS = 86_400_000
_MILLISECOND = timedelta(milliseconds=1)
_LISTED_SECONDS = 10.0


@dataclass(frozen=True)
class TopicPlan:
    """The settings that a topic should have: partitions, retention in ms (cleanup policy ``delete``) and others."""

    name: str
    partitions: int
    retention_ms: int
    further: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the topic, by their names in Kafka."""
        return {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)} | dict(self.further)


INPUT_SETTINGS = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1048588"}
"""The broker's clock decides what is in time. A batch has at most 1 MiB on disk: Kafka's default, stated because a
broker may have another one."""


OUTPUT_PLANS = (
    TopicPlan(HEXAGON_SPEED, 4, 365 * _DAY_MS),
    TopicPlan(SPATIAL_HISTOGRAM, 1, 365 * _DAY_MS),
    TopicPlan(WINDOW, 1, -1),
    TopicPlan(REJECTED, 1, 7 * _DAY_MS),
)


def topic_plans(config: Config) -> list[TopicPlan]:
    """Input and output topics of a deployment. Raw events are kept for a day longer than a window is open.

    Whoever reads again what a lost shard held needs those of open windows; the day is for outages.
    """
    open_for = config.window.slot + config.window.allowed_delay
    return [TopicPlan(config.feed.topic, 4, _DAY_MS + open_for // _MILLISECOND, INPUT_SETTINGS), *OUTPUT_PLANS]


def replicas_on(brokers: int) -> int:
    """Replicas of each topic on so many brokers: three survive the loss of one without a stop."""
    return min(3, brokers)


def durability(replicas: int) -> dict[str, str]:
    """Settings by which a topic with so many replicas loses nothing acknowledged, and outlives one broker if it can."""
    in_sync = min(2, max(1, replicas - 1))
    return {"min.insync.replicas": str(in_sync), "unclean.leader.election.enable": "false"}


async def create_topics(config: Config) -> dict[str, str]:
    """Create the topics that are missing. Returns ``created`` or ``exists`` for each name.

    A broker lists a new topic only a moment after it was created, and until then clients report it missing. So this
    returns once all topics are listed, or after ten seconds if the credentials allow to create topics but not to list
    them.
    """
    client = AIOKafkaAdminClient(**kafka_options(config.kafka))
    await client.start()
    result: dict[str, str] = {}
    try:
        replicas = replicas_on(len((await client.describe_cluster())["brokers"]))
        for plan in topic_plans(config):
            settings = plan.settings | durability(replicas)
            topic = NewTopic(plan.name, plan.partitions, replicas, topic_configs=settings)
            response = await client.create_topics([topic])
            for error in response.topic_errors:
                code = error[1]
                if code and for_code(code) is not TopicAlreadyExistsError:
                    raise for_code(code)(f"{plan.name}: {error[2] if len(error) > 2 else ''}")
                result[plan.name] = "exists" if code else "created"
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_SECONDS):
                while not set(result) <= set(await client.list_topics()):
                    await asyncio.sleep(0.1)
    finally:
        await client.close()
    return result


KEPT_PERIODS = timedelta(days=2)
"""How long a period is kept after its last possible event, so that operators can retry set-aside windows."""
LAST_FIXES = timedelta(minutes=10)
"""The longest that the last fixes of a user are kept, with which the next speed is derived."""


class Kept(NamedTuple):
    """One kind of data. ``personal``: whether it is about single users; ``place``: where it is; ``time``: how long."""

    what: str
    place: str
    personal: bool
    time: str


def kept(config: Config) -> list[Kept]:
    """Everything that a deployment keeps, the most personal first."""
    days = {plan.name: _length(timedelta(milliseconds=plan.retention_ms)) for plan in topic_plans(config)}
    horizon = config.privacy.horizon
    block = (
        ""
        if horizon is None
        else f"; with the horizon until its block of {horizon.period.days} days is over, and as long"
    )
    return [
        Kept(
            "raw events: identifier, time, position, speed",
            f"Kafka, {config.feed.topic}",
            True,
            days[config.feed.topic],
        ),
        Kept(
            "events by pseudonym",
            "Redis, rows",
            True,
            "until their window is published; of a window that was set aside, as long as its period",
        ),
        Kept("last fixes by pseudonym, where speeds are derived", "Redis, fixes", True, _length(LAST_FIXES)),
        Kept("plans, and what each pseudonym paid in a window", "Redis", True, "until the window is published"),
        Kept(
            "what each pseudonym spent in a period",
            "Redis, ledger",
            True,
            f"{_length(KEPT_PERIODS)} after the period's last possible event{block}",
        ),
        Kept(
            "all that Redis held",
            "Redis, append-only file and its copies",
            True,
            "until the file is rewritten; copies as long as you keep them",
        ),
        Kept(
            "user key",
            str(config.privacy.user_key_file),
            True,
            "as long as the feed's name; with it pseudonyms can be linked",
        ),
        Kept("hexagons", f"Kafka, {HEXAGON_SPEED}", False, days[HEXAGON_SPEED]),
        Kept("spatial histograms", f"Kafka, {SPATIAL_HISTOGRAM}", False, days[SPATIAL_HISTOGRAM]),
        Kept("close markers", f"Kafka, {WINDOW}", False, "for ever: they show that no budget is granted twice"),
        Kept("offsets and reasons of refused input", f"Kafka, {REJECTED}", False, days[REJECTED]),
        Kept("logs and operator metrics, without users", "where you send them", False, "as you configure there"),
    ]


def _length(span: timedelta) -> str:
    if span % timedelta(days=1) == timedelta(0):
        return f"{span.days} day" + ("s" if span.days != 1 else "")
    if span < timedelta(hours=2):
        return f"{span // timedelta(minutes=1)} minutes"
    return f"{span / timedelta(hours=1):.3g} hours"


Schema = dict[str, Any]

VERSION = "1.3.0"
"""Version of the messages. The second number counts additions; a change that breaks readers gets a topic ``.v2``."""

_KEYS = {
    HEXAGON_SPEED: "H3 index of the cell.",
    SPATIAL_HISTOGRAM: "Name of the feed.",
    WINDOW: "Name of the feed.",
    REJECTED: "The reason.",
}
_MEANING = {
    HEXAGON_SPEED: "One message per released cell and window.",
    SPATIAL_HISTOGRAM: "One message per mechanism and window, from which any range query can be answered.",
    WINDOW: "The close marker: one message per window, sent after all others of it, with their number and digest, and "
    "with the digest of the marker before it.",
    REJECTED: "Which input was refused and why. Inside the trust boundary only; empty under relation participation.",
}
_WINDOW = {"start": "2017-03-21T13:00:00Z", "end": "2017-03-21T14:00:00Z"}
_MEAN = {"value": 14.046, "raw": 14.046, "clamped": False, "scale": 4.5538, "interval": [0.404, 27.688], "unit": "km/h"}
EXAMPLES: dict[str, Schema] = {
    HEXAGON_SPEED: {
        "feed": "bus",
        "window": _WINDOW,
        "cell": "87489e342ffffff",
        "resolution": 7,
        "relation": "values",
        "epsilon": 2.0,
        "status": "published",
        "events": 1328,
        "users": 158,
        "mean": _MEAN,
    },
    SPATIAL_HISTOGRAM: {
        "feed": "bus",
        "window": _WINDOW,
        "relation": "participation",
        "epsilon": 1.0,
        "mechanism": "ug",
        "fixes_per_user": 1,
        "domain": {"south": 30.0, "west": -98.0, "north": 30.6, "east": -97.4, "rows": 2, "columns": 2},
        "structure": {
            "kind": "grid",
            "x_edges": [0, 1, 2],
            "y_edges": [0, 1, 2],
            "counts": [[310, 57], [12, -1]],
            "variances": 1.92,
        },
    },
    WINDOW: {
        "feed": "bus",
        "window": _WINDOW,
        "relation": "values",
        "epsilon": 2.0,
        "budget": 48.0,
        "period": {"start": "2017-03-21T05:00:00Z", "end": "2017-03-22T05:00:00Z", "timezone": "America/Chicago"},
        "clipping": {"lower": 0.0, "upper": 65.0, "unit": "km/h"},
        "resolution": 7,
        "statistics": ["mean"],
        "messages": 115,
        "digest": "sha256:" + "5f" * 32,
        "generation": "00000000-0000-4000-8000-000000000000",
        "sequence": 9,
        "previous": "sha256:" + "a3" * 32,
        "signer": "ed25519:" + "A" * 43 + "=",
    },
    REJECTED: {
        "feed": "bus",
        "reason": "outside-domain",
        "topic": "bus.positions",
        "partition": 0,
        "first_offset": 41,
        "last_offset": 57,
        "count": 3,
    },
}
"""For each topic, one value that its schema accepts."""


def document() -> Schema:
    """The document as data that JSON can hold; it does not depend on the deployment."""
    channels = {_name(plan.name): _channel(plan) for plan in OUTPUT_PLANS}
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Hexveil releases",
            "version": VERSION,
            "description": (
                "Differentially private traffic statistics. A message may be sent more than once, with the same ce_id "
                "and the same bytes. Later versions may add fields; ignore those that you do not know."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {
            "plain": {
                "host": "127.0.0.1:9092",
                "protocol": "kafka",
                "description": "A broker on this machine, without encryption.",
            },
            "secured": {
                "host": "kafka.example:9093",
                "protocol": "kafka-secure",
                "description": "A broker over TLS, with a user who may read these topics.",
                "security": [{"$ref": "#/components/securitySchemes/scram"}],
            },
        },
        "channels": channels,
        "operations": {
            f"publish{name[0].upper()}{name[1:]}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": channels[name]["description"],
            }
            for name in channels
        },
        "components": {
            "securitySchemes": {"scram": {"type": "scramSha512", "description": "SASL_SSL with SCRAM-SHA-512."}}
        },
    }


def _channel(plan: TopicPlan) -> Schema:
    name = _name(plan.name)
    settings = {"cleanup.policy": ["delete"], "retention.ms": plan.retention_ms}
    return {
        "address": plan.name,
        "description": _MEANING[plan.name],
        "messages": {name: _message(plan.name)},
        "bindings": {
            "kafka": {
                "topic": plan.name,
                "partitions": plan.partitions,
                "topicConfiguration": settings,
                "bindingVersion": "0.5.0",
            }
        },
    }


def _message(topic: str) -> Schema:
    whole = schema(topic)
    payload = {name: value for name, value in whole.items() if name not in ("$id", "$schema")}
    return {
        "name": topic,
        "title": whole["title"],
        "summary": _MEANING[topic],
        "contentType": "application/json",
        "headers": _headers(topic),
        "payload": _as_draft_07(payload),
        "examples": [{"payload": EXAMPLES[topic]}],
        "bindings": {"kafka": {"key": {"type": "string", "description": _KEYS[topic]}, "bindingVersion": "0.5.0"}},
    }


def _headers(topic: str) -> Schema:
    """CloudEvents 1.0 in binary mode."""
    text = {"type": "string"}
    properties = {
        "ce_specversion": text | {"const": "1.0"},
        "ce_id": text | {"description": "Deterministic; drop duplicates by it."},
        "ce_source": text | {"description": "/hexveil/ followed by the name of the feed."},
        "ce_type": text | {"const": topic},
        "ce_subject": text | {"description": "Subject of the message: a cell, a mechanism, close, or a reason."},
        "ce_time": text | {"format": "date-time", "description": "End of the window."},
        "content-type": text | {"const": "application/json"},
    }
    required = [name for name in properties if name != "ce_time" or topic != REJECTED]
    if topic == WINDOW:
        properties[SIGNATURE] = text | {
            "description": "Ed25519 signature in base64, by the key that the value names as its signer, of the value "
            "byte for byte. Absent: the marker is not signed."
        }
    return {"type": "object", "properties": properties, "required": required}


def _as_draft_07(node: Any) -> Any:
    """The schema in AsyncAPI's dialect. Of our keywords only ``dependentRequired`` has another name there."""
    if isinstance(node, list):
        return [_as_draft_07(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {"dependencies" if name == "dependentRequired" else name: _as_draft_07(part) for name, part in node.items()}


def _name(topic: str) -> str:
    """The name of a topic in the document: ``hexagonSpeed`` for ``hexveil.hexagon-speed.v1``."""
    first, *others = topic.split(".")[1].split("-")
    return first + "".join(part.capitalize() for part in others)
