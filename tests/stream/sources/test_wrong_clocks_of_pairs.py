"""Two processes of one feed share what Redis keeps: a timestamp that one takes back changes no later speed of the
other."""

from __future__ import annotations

import json
import random

import pytest
from redis.asyncio import Redis

from stream.sources.vehicle_positions import GtfsRealtime
from tests.stream.sources.clocks import EVERY_S, KMH, skewed_at
from tests.stream.sources.gtfs import START
from tests.stream.sources.processes import started

STEPS = 16


def taken(source: GtfsRealtime, body: bytes, step: int) -> list[float]:
    """The speeds of the events of an answer, whose fixes are kept once they are stored."""
    values = source.events(body, (START + EVERY_S * step) * 1_000_000).values
    source.keep()
    return [json.loads(value)["speed"] for value in values]


def test_a_process_that_missed_how_a_timestamp_was_taken_back_derives_nothing_from_it(
    redis: Redis, redis_url: str
) -> None:
    """One reads 0 to 3, of which 3 says that it is 5; the other one reads 4, which takes that back; then the first
    reads 6."""
    body, first, other = skewed_at([3], 2 * EVERY_S), started(redis_url), started(redis_url)
    for step in range(4):
        taken(first, body(step), step)
    assert taken(other, body(4), 4) == [KMH] * 3
    assert taken(first, body(6), 6) == [KMH] * 3


@pytest.mark.parametrize("seed", range(12))
def test_however_two_processes_share_the_answers_each_right_one_gives_the_right_speed(
    seed: int, redis: Redis, redis_url: str
) -> None:
    rng = random.Random(seed)
    wrong = rng.sample(range(3, 9), rng.choice([1, 2]))
    body, pair = (
        skewed_at(wrong, rng.choice([30, 60, 240]), rng.choice(["abc", "b"])),
        [started(redis_url) for _ in "12"],
    )
    for step in range(STEPS):
        for which in rng.choice([(0,), (1,), (0, 1), (1, 0)]):
            if rng.random() < 0.1:
                pair[which] = started(redis_url)
            speeds = taken(pair[which], body(step), step)
            assert step in wrong or all(speed == KMH for speed in speeds), (step, wrong, speeds)


def test_what_was_not_kept_yet_is_not_replaced_by_what_was(redis: Redis, redis_url: str) -> None:
    """Else a process that could not store its fixes for a while would derive from older ones."""
    body, source, alone = skewed_at([], 0), started(redis_url), started(None)
    for step in range(STEPS):
        moment = (START + EVERY_S * step) * 1_000_000
        assert source.events(body(step), moment).values == alone.events(body(step), moment).values
        if step % 5 == 0:
            source.keep()
