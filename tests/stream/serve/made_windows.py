"""Windows of released messages, with spatial histograms or in a series, for tests of the public service. A store of
windows that takes messages as the service does, outside an event loop."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from dpcore.noise import Noise
from dpcore.spatial import HTF, AdaptiveGrid, Domain, UniformGrid
from stream.messages.message import SPATIAL_HISTOGRAM, Message, digest, schema, window_message
from stream.serve.metrics import PublicMetrics
from stream.serve.reading.intake import Arrival, Intake
from stream.serve.window_store import Outcome, View
from stream.windows import Window
from tests.stream.serve.city import closed
from tests.stream.serve.serving import released
from tests.support.builders import SLOT


def arrivals(messages: Iterable[Message], number: int = 0) -> list[Arrival]:
    """The messages as a source passes them on. ``number``: the close marker's position among the markers, from 1."""
    return [Arrival(message.topic, message.ce_id, message.value, number) for message in messages]


def outcomes(view: View, messages: Sequence[Arrival]) -> list[Outcome]:
    """What became of each message that the service's intake put into ``view``."""

    async def take() -> list[Outcome]:
        intake = Intake(view, PublicMetrics(), "bus", lambda window: None)
        try:
            return await intake.take(messages)
        finally:
            intake.close()

    return asyncio.run(take())


def completed(view: View, *windows: Sequence[Message]) -> View:
    """The view with these windows, whose close markers count from 1."""
    for number, messages in enumerate(windows, 1):
        assert outcomes(view, arrivals(messages, number))[-1] == "completed"
    return view


DOMAIN = Domain(30.0, -98.0, 30.6, -97.4, rows=64, columns=64)
START = "2017-03-21T12:00:00Z"
MECHANISMS = {"ug": UniformGrid(), "ag": AdaptiveGrid(), "htf": HTF()}


def histogram_message(feed: str, mechanism: str) -> Message:
    points = np.random.default_rng(5).normal([30.3, -97.7], 0.08, (3000, 2))
    made = MECHANISMS[mechanism].fit(points, DOMAIN, 1_000_000, Noise())
    body: dict[str, Any] = {
        "feed": feed,
        "window": {"start": START, "end": "2017-03-21T13:00:00Z"},
        "relation": "participation",
        "epsilon": 1.0,
        "mechanism": mechanism,
        "fixes_per_user": 1,
    }
    body |= made.to_release()
    jsonschema.validate(body, schema(SPATIAL_HISTOGRAM), cls=jsonschema.Draft202012Validator)
    return window_message(SPATIAL_HISTOGRAM, feed, Window(SLOT, SLOT + 3600), mechanism, feed, body)


def with_histograms(tmp_path: Path, **overrides: Any) -> tuple[list[Message], dict[str, Message]]:
    """A window whose marker counts its histograms too."""
    *cells, marker = released(tmp_path, **overrides)
    feed = json.loads(marker.value)["feed"]
    histograms = {name: histogram_message(feed, name) for name in MECHANISMS}
    before = [*cells, *(histograms[name] for name in sorted(histograms))]
    return closed(before, marker), histograms


def windows_of(tmp_path: Path, count: int, **overrides: Any) -> list[list[Message]]:
    """The same cells in ``count`` windows, one an hour, each with its marker last."""
    *cells, marker = released(tmp_path, **overrides)
    feed = json.loads(marker.value)["feed"]
    windows = []
    for number in range(count):
        window = Window(SLOT + 3600 * number, SLOT + 3600 * (number + 1))
        ends = [datetime.fromtimestamp(end, UTC).isoformat().replace("+00:00", "Z") for end in window]
        times = {"window": dict(zip(("start", "end"), ends, strict=True))}
        made = [
            window_message(m.topic, feed, window, m.key.decode(), m.key.decode(), json.loads(m.value) | times)
            for m in cells
        ]
        body = json.loads(marker.value) | times | {"digest": digest(message.value for message in made)}
        windows.append([*made, window_message(marker.topic, feed, window, "close", feed, body)])
    return windows
