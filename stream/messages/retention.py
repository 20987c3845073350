"""What is kept where, and for how long: one table, which the promise sheet prints and tests compare with the code."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from stream.messages.topics import topic_plans

KEPT_PERIODS = timedelta(days=2)
"""How long a period is kept after its last possible event, so that operators can look at it and retry set-aside
windows."""
LAST_FIXES = timedelta(minutes=10)
"""The longest that the last fixes of a user are kept, with which the next speed is derived."""


class Kept(NamedTuple):
    """One kind of data. ``personal``: whether it is about single users; ``place``: where it is; ``time``: for how
    long."""

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
