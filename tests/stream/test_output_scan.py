"""Everything that leaves the boundary under "participation", with a user and without them: nothing but noisy numbers
differs.

Two runs of the worker's own parts on a real broker and a real Redis, by one clock. With noise that swallows what it is
added to, every byte outside must be the same whoever took part, was refused, spoke rubbish or came late.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h3
import pytest
from redis.asyncio import Redis

from stream.app.worker import Worker
from stream.config import Config
from stream.config.histogram import MECHANISMS
from stream.evaluation.evaluate import with_speed
from stream.local.kafka import KafkaServer
from stream.messages.message import REJECTED, WINDOW
from stream.storage.keys import FeedKeys
from tests.support.builders import riders_config, zcdp_config
from tests.support.nightly import nightly, nightly_but
from tests.support.scanning import HOURS, START, Clock, Hourly, Swallowing, Transcript, event, observe, worker_parts
from tests.support.tapes import recorded

BOX = {"south": 30.2, "west": -97.8, "north": 30.4, "east": -97.6}
PLACES = [(30.25, -97.75), (30.3, -97.7), (30.35, -97.65), (30.28, -97.62)]


def crowd(hour: int) -> Sequence[bytes]:
    """Five users, one of whom sends a broken message an hour."""
    good = [
        event(f"other-{user}", hour, 60.0 * user + 7 * sample, *PLACES[(user + sample) % 2], 10.0 * user)
        for user in range(5)
        for sample in range(4)
    ]
    return [*good, b"{broken"]


def takes_part(hour: int) -> Sequence[bytes]:
    """Four cells an hour: their budget bears two windows and not the third."""
    return [event("subject", hour, 100.0 + 10 * i, *PLACES[i % 4], 60.0) for i in range(16)]


def speaks_rubbish(hour: int) -> Sequence[bytes]:
    """Messages with every fault of a feed, which contain the user's name where a name is possible."""
    return [
        b"subject",
        b'{"user": "subject"}',
        b'{"user": "subject", "time": "never", "lat": 1, "lng": 2, "speed": 3}',
        event("subject", hour, 5, 10.0, 10.0, 30.0),
        event("subject", hour, 5, *PLACES[0], -1.0),
        event("subject", hour + 9, 5, *PLACES[0], 30.0),
        event("subject", hour - 9, 5, *PLACES[0], 30.0),
        event("", hour, 5, *PLACES[0], 30.0),
        b"\xff" * 2000,
        b"[" * 5000,
    ]


def comes_late(hour: int) -> Sequence[bytes]:
    """Events of windows that are out already, or that began before the feed."""
    return [event("subject", hour - 1, 3000.0 + i, *PLACES[i % 4], 50.0) for i in range(8)]


def does_all_of_it(hour: int) -> Sequence[bytes]:
    return [*takes_part(hour), *speaks_rubbish(hour), *comes_late(hour)]


def together(*parts: Hourly) -> Hourly:
    return lambda hour: [message for part in parts for message in part(hour)]


PARTS = [together(crowd, part) for part in (takes_part, speaks_rubbish, comes_late)]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A broker for this test alone, so that every topic on it belongs to the observed run."""
    with KafkaServer() as server:
        yield server.bootstrap


@pytest.fixture(params=["pure", "zcdp"])
def config(request: pytest.FixtureRequest, broker: str, redis_url: str, tmp_path: Path) -> Config:
    overrides: dict[str, Any] = {
        "kafka.bootstrap": broker,
        "redis.url": redis_url,
        "feed.domain": BOX,
        "participation.cells_per_user": 4,
        "participation.samples_per_cell": 3,
        "speed.post_processing": ["kalman"],
        "histogram": {
            "mechanisms": list(MECHANISMS),
            "epsilon": 0.11,
            "rows": 8,
            "columns": 8,
            "euler": {"rows": 6, "columns": 6, "diameter_m": 3000.0},
        },
    }
    percentiles = ["p15", "p50", "p85"]
    if request.param == "zcdp":
        overrides["speed.statistics"] = ["mean", "variance", *percentiles]
        return zcdp_config(tmp_path, rho=0.05, rho_budget=0.08, **overrides)
    overrides |= {"speed.statistics": ["mean", *percentiles], "speed.clipping": "residual"}
    overrides |= {"participation.weight": "share", "participation.area_share": 1}
    return riders_config(tmp_path, **{"privacy.epsilon": 2.0, "privacy.budget": 5.0}, **overrides)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with worker_parts(monkeypatch, Swallowing) as clock:
        yield clock


async def spent(redis: Redis, config: Config) -> list[int]:
    """What each user was charged, sorted."""
    return sorted(int(v) for v in (await redis.hgetall(FeedKeys(config.feed.name).ledger("2026-11-21"))).values())


@pytest.mark.parametrize("config", ["pure", nightly("zcdp")], indirect=True)
@pytest.mark.parametrize("histories", nightly_but([[crowd, does_all_of_it]], [[crowd, does_all_of_it], PARTS]))
async def test_whoever_takes_part_is_refused_speaks_rubbish_or_comes_late_every_output_is_the_same(
    config, redis, clock, histories
):
    """Histories and the empty one, each a neighbour of the next or a few users away, give the same transcript byte
    for byte.

    It covers every statistic, the mean of the area (pure ε), every spatial histogram, smoothing, residual clipping, and
    every answer of the public API.
    """
    empty = await observe(config, redis, lambda hour: (), clock)
    assert await spent(redis, config) == []
    assert sum(len(records) for name, records in empty.records.items() if name.startswith(WINDOW)) == HOURS
    assert f"{REJECTED}/0" not in empty.records
    assert len(empty.answers) > 100
    assert empty.logs == []
    for history in histories:
        clock.now = float(START)
        seen = await observe(config, redis, history, clock)
        assert not empty.differences(seen)
        charges = await spent(redis, config)
        assert charges, "the history reached the ledger"
        assert charges[-1] <= config.privacy.ledger_budget


async def test_the_user_of_the_scan_is_indeed_charged_refused_rejected_and_late(
    broker, redis, redis_url, tmp_path, clock
):
    """Equal outputs prove nothing unless the histories differ: inside the boundary all of the differences are
    visible.
    """
    config = riders_config(
        tmp_path, **{"kafka.bootstrap": broker, "redis.url": redis_url, "feed.domain": BOX, "privacy.budget": 5.0}
    )
    workers: list[Worker] = []
    original = Worker.__init__

    def kept(self: Worker, config: Config) -> None:
        original(self, config)
        workers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "__init__", kept)
        await observe(config, redis, does_all_of_it, clock, look=False)
    (worker,) = workers
    value = worker.metrics.registry.get_sample_value
    assert await spent(redis, config) == [4_000_000], "two of four windows at 2 of 5: the third is refused"
    assert value("hexveil_events_late_total") == 8 * HOURS, "appended an hour after their window, read whenever"
    left = [key async for key in redis.scan_iter(match="*:rows:*")]
    assert left == [], "rows of windows before the feed began are never released, so they are not kept"
    reasons = ("not-json", "missing-field", "out-of-domain", "negative-speed", "in-future", "too-old", "id-empty")
    assert all((value("hexveil_events_rejected_total", {"reason": reason}) or 0) >= HOURS for reason in reasons)


@pytest.mark.parametrize("config", ["pure", nightly("zcdp")], indirect=True)
async def test_under_one_noise_tape_only_noisy_numbers_of_their_cells_differ(config, redis, monkeypatch):
    """With recorded real noise, cells that the user never visited are equal byte for byte, and visited cells differ in
    noisy numbers alone.
    """
    runs: list[Transcript] = []
    # Neither what adapts to noisy numbers nor what is smoothed over cells stays within their cells.
    config = with_speed(config.model_copy(update={"histogram": None}), post_processing=(), clipping="none")
    for history in (crowd, together(crowd, takes_part, speaks_rubbish, comes_late)):
        with worker_parts(monkeypatch, lambda: recorded(5)) as clock:
            runs.append(await observe(config, redis, history, clock, look=False))
    changed: set[str] = set()
    for place in runs[0].records:
        assert len(runs[0].records[place]) == len(runs[1].records[place])
        for one, two in zip(*(run.records[place] for run in runs), strict=True):
            assert one[:5] == two[:5], "offset, time, key and headers are public"
            bodies = [json.loads(record[5]) for record in (one, two)]
            if bodies[0] != bodies[1]:
                changed.add(one[3].decode())
            assert public_part(bodies[0]) == public_part(bodies[1])
            assert abs(one[6] - two[6]) <= 200, "sizes differ by digits"
    visited = {str(h3.latlng_to_cell(*place, 6)) for place in PLACES}
    assert changed <= visited | {config.feed.name}
    assert len(changed & visited) >= 3


def public_part(body: Any) -> Any:
    """A message without its noisy numbers and their digests, also that of the marker before."""
    if isinstance(body, dict):
        noisy = {"value", "raw", "clamped", "scale", "interval", "at_bound", "digest", "previous"}
        return {name: public_part(value) for name, value in body.items() if name not in noisy}
    return body
