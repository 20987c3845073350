"""The topics of a deployment and how they are created.

What is kept where, and for how long: one table, which the promise sheet prints and tests compare with the code.

The AsyncAPI 3.1 document of the output topics.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.servers.connection import administering

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
    result: dict[str, str] = {}
    async with administering(config.kafka) as client:
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
    return result


KEPT_PERIODS = timedelta(days=2)
"""How long a period is kept after its last possible event, so that operators can retry set-aside windows."""


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


def document() -> dict[str, Any]:
    """The AsyncAPI 3.1 document of the output topics as data that JSON can hold; it does not depend on the deployment.

    All but the payloads is in ``schemas/asyncapi.json``. Its version is that of the messages: the second number counts
    additions; a change that breaks readers gets a topic ``.v2``.
    """
    made = schema("asyncapi")
    for channel in made["channels"].values():
        own = schema(channel["address"])
        payload = {name: value for name, value in own.items() if name not in ("$id", "$schema")}
        for message in channel["messages"].values():
            message |= {"title": own["title"], "payload": _as_draft_07(payload)}
    return made


def _as_draft_07(node: Any) -> Any:
    """The schema in AsyncAPI's dialect. Of our keywords only ``dependentRequired`` has another name there."""
    if isinstance(node, list):
        return [_as_draft_07(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {"dependencies" if name == "dependentRequired" else name: _as_draft_07(part) for name, part in node.items()}
