"""A feed in Austin for recordings, and all messages of a source at once."""

import numpy as np

from stream.config.feed import FeedConfig
from stream.sources.messages import Messages

AUSTIN = {"south": 29.8, "west": -98.3, "north": 30.9, "east": -97.2}


def feed(**changes: object) -> FeedConfig:
    return FeedConfig(**{"name": "bus", "topic": "bus", "timezone": "America/Chicago", "domain": AUSTIN, **changes})


def gathered(blocks: object) -> Messages:
    parts: list[Messages] = list(blocks)  # type: ignore[call-overload]
    return Messages(
        np.concatenate([part.due for part in parts]),
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        sum(part.unread for part in parts),
    )
