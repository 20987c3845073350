"""Transcripts of several due windows and a short budget show neither what was due at which look, nor which worker
looked.

Every way in which three windows become due, over the worker's own service, the real protocol and a real server: all at
once, one by one, while a window is drawn. The budget pays for two of the three.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.app.services import Closing, ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.message import decode_outbox
from stream.offline import MemoryRows
from stream.protocol.close_process import CloseReport
from stream.protocol.parts import ContentError, statistics_of
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import decode_plan
from stream.storage.ledger import Ledger, OutOfTurnError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import ROW
from tests.support.builders import SLOT, bus_config
from tests.support.closing import Collected
from tests.support.participating import riders

W = [SLOT, SLOT + 3600, SLOT + 7200]
READ = [reach for n in (1, 2, 3) for reach in itertools.product(range(1, 4), repeat=n) if list(reach) == sorted(reach)]
"""How many of the windows were due at each look; afterwards all of them are."""
SETTINGS = {"privacy.epsilon": 2.0, "privacy.budget": 4.0, "speed.statistics": ["mean"], "speed.post_processing": []}
RELATIONS: dict[str, Any] = {
    "values": lambda folder: bus_config(folder, **SETTINGS),
    "participation": lambda folder: riders(folder, **SETTINGS, **{"participation.weight": "share"}),
}


def rows_of(config: Config, slot: int) -> np.ndarray:
    """Three users, each with events in one public cell."""
    rows = np.zeros(9, dtype=ROW)
    rows["cell"] = 0x872830828FFFFFF if config.relation == "values" else public_cells(config)[0]
    rows["user"], rows["value"] = np.repeat([1, 2, 3], 3), 3000
    rows["time"] = (slot + np.arange(9)) * 1_000_000
    return rows


class Closed:
    """What readers and budgets show of the windows that were committed: (window, its number, users who were charged),
    in order."""

    def __init__(self, config: Config, redis: Redis, patch: pytest.MonkeyPatch) -> None:
        self.shown: list[tuple[int, int, int]] = []
        self.fails: dict[int, Exception] = {}
        """What closing a window raises, once."""
        self.config, self.redis = config, redis
        patch.setattr(WorkProcess, "run", lambda process, task, config, slots: self.run(slots))

    async def run(self, slots: list[int]) -> list[CloseReport]:
        """In the place of the closing process."""
        ledger, rows = Ledger.of(self.redis, self.config), MemoryRows({slot: rows_of(self.config, slot) for slot in W})
        protocol = ReleaseProtocol.connect(statistics_of(self.config), self.redis, rows, ledger, Collected(), Noise())
        for slot in slots:
            error = self.fails.pop(slot, None)
            if isinstance(error, ProcessDiedError):
                raise error
            if isinstance(error, ContentError):
                await protocol.store.set_aside(slot, str(error))
                return [CloseReport(slot, 0.0, failure="content")]
            if error is not None:
                return [CloseReport(slot, 0.0, failure="unexpected")]
            try:
                await protocol.commit(slot)
            except OutOfTurnError:
                return [CloseReport(slot, 0.0, failure="turn")]
            charges = decode_plan(await protocol.store.plan(slot) or b"").charged_users()[1]
            _, outbox = await protocol.store.released_or_committed(slot)
            number = int(
                decode_outbox(outbox or b"")[-1].value.partition(b'"sequence":')[2].partition(b",")[0].strip(b" }")
            )
            self.shown.append((W.index(slot) + 1, number, int((charges > 0).sum())))
        return [CloseReport(slots[-1], 0.0)]

    async def look(self, worker: Worker, reach: int) -> None:
        """One worker looks, and closes what is due then."""
        store = ReleaseStore.of(self.redis, self.config)
        over = {*await store.committed(W), *await store.slots_set_aside()}
        due = [slot for slot in W[:reach] if slot not in over]
        if due:
            await Closing(worker).close(due)


async def transcript(
    config: Config, redis: Redis, looks: tuple[int, ...], fails: dict[int, Exception] | None = None
) -> list[tuple[int, int, int]]:
    """What is shown after these looks, of two workers in turn, and as many more as it takes."""
    await redis.flushall()
    await Ledger.of(redis, config).start_generation(birth=0)
    workers = Worker(config), Worker(config)
    with pytest.MonkeyPatch.context() as patch:
        closed = Closed(config, redis, patch)
        closed.fails |= fails or {}
        try:
            for turn, reach in enumerate((*looks, *[3] * 6)):
                await closed.look(workers[turn % 2], reach)
        finally:
            for worker in workers:
                await worker.redis.aclose()
    return closed.shown


@pytest.mark.parametrize("relation", RELATIONS)
async def test_what_was_due_when_decides_neither_numbers_nor_whose_budget_pays_for_which_window(
    relation: str, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    config = with_redis(RELATIONS[relation](tmp_path), redis_url)
    shown = {looks: await transcript(config, redis, looks) for looks in READ}
    assert set(map(tuple, shown.values())) == {((1, 1, 3), (2, 2, 3), (3, 3, 0))}, shown


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("failing", [0, 1])
async def test_a_failure_that_is_not_of_the_content_changes_nothing_but_the_time(
    relation: str, failing: int, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    config = with_redis(RELATIONS[relation](tmp_path), redis_url)
    for error in (OSError("planted"), ProcessDiedError()):
        shown = await transcript(config, redis, (3,), {W[failing]: error})
        assert shown == [(1, 1, 3), (2, 2, 3), (3, 3, 0)]


@pytest.mark.parametrize("relation", RELATIONS)
async def test_a_window_that_fails_for_its_content_is_left_out_and_the_others_keep_their_order(
    relation: str, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    config = with_redis(RELATIONS[relation](tmp_path), redis_url)
    shown = await transcript(config, redis, (3,), {W[1]: ContentError(W[1], "the draw", MemoryError())})
    assert shown == [(1, 1, 3), (3, 2, 3)]


def with_redis(config: Config, url: str) -> Config:
    """``config`` with the test's server."""
    return config.model_copy(update={"redis": config.redis.model_copy(update={"url": url})})
