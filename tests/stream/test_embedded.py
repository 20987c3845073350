"""The service without Kafka releases the same windows, counts and charges as with it, and the source's clock alone
decides.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream import embedded
from stream.config import Config
from stream.diagnosis.reading import ageless
from stream.embedded import EmbeddedError, EmbeddedFeed, run_embedded
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.messages.lines import read_line
from stream.messages.message import HEXAGON_SPEED, REJECTED, WINDOW, Message
from stream.offline import replay_offline
from stream.sources.delivery import Pacer, Progress
from stream.sources.messages import Messages
from stream.sources.recording import Replay
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import utc_text
from tests.support.builders import SLOT, bus_config, riders_config
from tests.support.stored_rows import rows_in

HOUR_US = 3_600_000_000
NOON_US = SLOT * 1_000_000


def event(user: str, time_us: int, speed: float = 20.0) -> bytes:
    return json.dumps({"user": user, "time": time_us // 1000, "lat": 30.2, "lng": -97.7, "speed": speed}).encode()


def arriving(*fixes: tuple[int, int]) -> Messages:
    """One message of a vehicle of its own for each (arrival, event time)."""
    values = [event(f"v{place}", time_us) for place, (_, time_us) in enumerate(fixes)]
    return Messages(np.array([due for due, _ in fixes], dtype=np.int64), [None] * len(values), values)


def lines(file: Path, topic: str) -> list[dict[str, Any]]:
    read = map(read_line, file.read_bytes().splitlines())
    return [json.loads(bytes(line.value)) for line in read if line.topic == topic]


def feeding(redis: Redis, config: Config, folder: Path, start_us: int | None) -> EmbeddedFeed:
    decoder = Decoder(ageless(config), load_user_key(folder / "k"))
    return EmbeddedFeed(
        config, RowStore.of(redis, config), ReleaseStore.of(redis, config), decoder, lambda message: None, start_us
    )


async def run(config: Config, blocks: Sequence[Messages] | Replay, out: Path, **further: Any) -> Progress:
    progress = Progress()
    await run_embedded(config, blocks, Pacer(None), out, progress, **further)
    return progress


async def test_a_recording_gives_the_windows_counts_and_charges_that_replay_offline_gives(redis, redis_url, tmp_path):
    config, rng = bus_config(tmp_path, **{"redis.url": redis_url}), np.random.default_rng(1)
    times = np.sort(NOON_US + rng.integers(0, 3 * HOUR_US, 400))
    day = tmp_path / "day.ndjson"
    day.write_bytes(b"".join(event(f"v{k // 2 % 7}", int(t), 10 + k % 30) + b"\n" for k, t in enumerate(times)))
    await run(config, Replay(day, "canonical", config.feed), tmp_path / "r.ndjson")
    with (tmp_path / "o.ndjson").open("w") as out:
        summary = await asyncio.to_thread(replay_offline, config, day, "canonical", out)
    public = [
        sorted(
            (b["window"]["start"], b["cell"], b["events"], b["users"]) for b in lines(tmp_path / name, HEXAGON_SPEED)
        )
        for name in ("r.ndjson", "o.ndjson")
    ]
    assert public[0] == public[1]
    assert len(lines(tmp_path / "r.ndjson", WINDOW)) == 3
    ledger = Ledger(redis, config.feed.name)
    assert {period: await ledger.total(period) for period in await ledger.periods()} == summary.charged


async def test_an_event_is_in_time_until_its_window_and_the_delay_are_over_by_the_sources_clock(
    redis, redis_url, tmp_path
):
    config = bus_config(tmp_path, **{"window.allowed_delay": "5m", "redis.url": redis_url})
    deadline = NOON_US + HOUR_US + 300_000_000
    early, last, late = (NOON_US, NOON_US), (deadline, NOON_US + 1), (deadline + 1, NOON_US + 2)
    feed = feeding(redis, config, tmp_path, None)
    await feed.send(arriving(early, last))
    assert (feed.late, await feed.due_slots()) == (0, [])
    await feed.send(arriving(late))
    assert (feed.late, await feed.due_slots()) == (1, [SLOT])
    assert len(await rows_in(redis, "bus", SLOT)) == 2
    await feed.send(arriving((deadline + 2, deadline)))
    both, end = [SLOT, SLOT + 3600], deadline + HOUR_US
    for clock, due in ((end, [SLOT]), (end + 1, both), (NOON_US, both)):  # of a source that is silent meanwhile
        feed.reach(clock)
        assert await feed.due_slots() == due
    feed.ended = True
    await feed.send(arriving((end + 2, end)))
    assert await feed.due_slots() == [*both, SLOT + 7200]


async def test_whether_an_event_is_in_time_does_not_depend_on_how_many_came_with_it(
    redis, redis_url, tmp_path, monkeypatch
):
    """A large snapshot is stored in parts, and the clock goes on meanwhile."""
    monkeypatch.setattr(embedded, "AT_ONCE", 2)
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    feed = feeding(redis, config, tmp_path, NOON_US)
    deadline = NOON_US + HOUR_US + int(config.window.allowed_delay.total_seconds()) * 1_000_000
    append = RowStore.append

    async def meanwhile(*what: Any) -> Any:
        feed.reach(deadline + HOUR_US // 2)
        assert await feed.due_slots() == [], "no window closes before its events are stored"
        return await append(*what)

    monkeypatch.setattr(RowStore, "append", meanwhile)
    await feed.send(arriving(*[(deadline, NOON_US + k) for k in range(5)]))
    assert feed.late == 0
    assert len(await rows_in(redis, config.feed.name, SLOT)) == 5
    assert await feed.due_slots() == [SLOT]


async def test_under_participation_every_window_from_the_beginning_is_released_visited_or_not(
    redis_url, redis, tmp_path
):
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    wait = int(config.window.allowed_delay.total_seconds()) * 1_000_000
    blocks = [arriving((NOON_US + HOUR_US, NOON_US + HOUR_US)), arriving((NOON_US + 3 * HOUR_US + wait + 1, NOON_US))]
    reports: list[Message] = []
    await run(config, blocks, tmp_path / "r.ndjson", start_us=NOON_US, report=reports.append)
    windows = [marker["window"]["start"] for marker in lines(tmp_path / "r.ndjson", WINDOW)]
    assert windows == [utc_text(SLOT + hour * 3600) for hour in range(3)]
    assert reports == []


async def test_rejected_messages_are_reported_and_the_others_released(redis_url, redis, tmp_path):
    config, reports = bus_config(tmp_path, **{"redis.url": redis_url}), list[Message]()
    sound = arriving((NOON_US, NOON_US), (NOON_US + 1, NOON_US + 1))
    block = Messages(np.append(sound.due, NOON_US + 2), [None] * 3, [*sound.values, b"not json"])
    progress = await run(config, [block], tmp_path / "r.ndjson", report=reports.append)
    assert progress.sent == 3
    assert [(report.topic, json.loads(report.value)["reason"]) for report in reports] == [(REJECTED, "not-json")]
    assert [body["events"] for body in lines(tmp_path / "r.ndjson", HEXAGON_SPEED)] == [2]


async def test_a_window_that_cannot_be_closed_ends_the_run_with_its_reason(redis_url, redis, tmp_path):
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    with pytest.raises(EmbeddedError, match="FileNotFoundError"):
        await run(config, [arriving((NOON_US, NOON_US))], tmp_path / "absent" / "r.ndjson")
    later = await asyncio.to_thread(embedded.close_to_file, config, SLOT, tmp_path / "r.ndjson")
    assert later is None, "and it can be closed later"
    assert len(lines(tmp_path / "r.ndjson", WINDOW)) == 1


async def test_a_window_whose_rows_cannot_be_read_is_set_aside_and_the_next_one_follows(redis_url, redis, tmp_path):
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    await RowStore(redis, config.feed.name).move("t/0", 0, 0)  # which opens the partition
    await redis.rpush(PartKeys(FeedKeys(config.feed.name), "t/0").rows(SLOT), b"half a row")
    assert await asyncio.to_thread(embedded.close_to_file, config, SLOT, tmp_path / "r.ndjson") is None
    assert "reading failed" in (await ReleaseStore.of(redis, config).reasons())[SLOT]
    feed = feeding(redis, config, tmp_path, NOON_US)
    feed.reach(NOON_US + 3 * HOUR_US)
    assert await feed.due_slots() == [SLOT + 3600], "the next one follows"


async def test_the_clock_does_not_go_back_to_a_block_that_was_being_stored(redis_url, redis, tmp_path):
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    feed = feeding(redis, config, tmp_path, NOON_US)
    storing = asyncio.create_task(feed.send(arriving((NOON_US, NOON_US))))
    await asyncio.sleep(0)
    feed.reach(NOON_US + 3 * HOUR_US)
    await storing
    assert await feed.due_slots() == [SLOT, SLOT + 3600]
    await redis.hset(FeedKeys(config.feed.name).closed, str(SLOT), b"{}")
    for _ in range(2):
        assert await feed.due_slots() == [SLOT + 3600]
