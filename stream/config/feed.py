"""Sections ``[feed]`` and ``[window]``: what comes in, in what units, and the timeslots it is cut into."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from stream.config.durations import Duration, PositiveDuration
from stream.config.section import Domain, Section

SPEED_TO_KMH = {"km/h": 1.0, "m/s": 3.6, "mph": 1.609344, "kn": 1.852}


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"{name!r} is not an IANA time zone; write one like 'Europe/Paris' or 'UTC'") from None
    return name


TimezoneName = Annotated[str, AfterValidator(_known_timezone)]
FeedName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
SpeedUnit = Literal["km/h", "m/s", "mph", "kn"]


class FeedFields(Section):
    """Where a declared feed keeps its fields: dotted paths, a number indexes a list (``location.coordinates.1``)."""

    user: str
    time: str
    lat: str
    lng: str
    speed: str
    time_format: Literal["rfc3339", "epoch-s", "epoch-ms"] = "rfc3339"


class FeedConfig(Section):
    """The incoming feed and its units."""

    name: FeedName
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    format: Literal["canonical", "capmetro", "capmetro-2015", "itms", "declared"] = "canonical"
    timezone: TimezoneName
    speed_unit: SpeedUnit = "km/h"
    domain: Domain
    fields: FeedFields | None = None

    @model_validator(mode="after")
    def _fields_belong_to_declared(self) -> Self:
        if (self.format == "declared") != (self.fields is not None):
            raise ValueError("[feed.fields] and format = 'declared' go together; give both or neither")
        return self


class WindowConfig(Section):
    """Timeslots and how long to wait for them."""

    slot: PositiveDuration = timedelta(hours=1)
    allowed_delay: Duration = timedelta(minutes=5)
    idle_timeout: PositiveDuration = timedelta(minutes=5)
    max_future: Duration = timedelta(minutes=5)
    max_age: PositiveDuration = timedelta(days=36500)
