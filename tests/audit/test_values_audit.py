"""Relation "values" on the shipped path: what a reader of all numbers learns about the values of one user.

Black box: two windows in which one user of every town has all values 0, or all at U. n = 20 000 samples per side, half
of them tested at α = 1e-4 (:mod:`tests.audit.blackbox`); at ε = 1 spread over up to four numbers half the noise is
bounded by about 1.3 to 1.6, and the tape is recorded.

Transcripts of three due windows, over the worker's own service, the real protocol and a real server, show neither what
was due at which look, nor which worker looked. The budget pays for two of the three.

Exact: one world is released with real noise, window after window: ledger, plan, draw, messages, memory. Its transcript
is forced on worlds in which one user has other values everywhere. Given the same outputs, their plans must be the same
bytes, and what they add noise to may differ by no more than that user is charged: Σ Δ²·s²/(2t²), under pure ε Σ Δ·s/t,
over the integers and scales that the shipped draw combines. No sampling; power 1. Planted bugs must show.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.app.services import Closing, ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.message import decode_outbox
from stream.offline import MemoryRows
from stream.protocol.close_process import CloseReport
from stream.protocol.release_protocol import ContentError, ReleaseProtocol, statistics_of
from stream.statistics.plan import Plan, decode_plan
from stream.statistics.values.draw import draw_distributions
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import Ledger, OutOfTurnError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import ROW
from tests.audit.blackbox import FloatArray, Pooled, assert_private, epsilon_lower_bound
from tests.audit.shipped import Event, Towns, World, as_drawn, drawn
from tests.audit.values_transcripts import (
    OF_A_WINDOW,
    OF_EPSILON,
    OF_RHO,
    U,
    combined,
    fleet,
    integers_of,
    others,
    overspent,
    settings_of,
    worst_losses,
)
from tests.support.builders import SLOT, bus_config, live_config, random_rows, riders
from tests.support.closing import Collected
from tests.support.nightly import nightly, nightly_but
from tests.support.releasing import planned
from tests.support.tapes import recorded, tape

TOWNS, DRAWS = 800, 25
READ_IN_EVERY_RUN = ("as configured", "mean", "a tight cap", "moving reports alone")
"""Settings whose black box every run opens; of the others each night, because the exact comparison tries them, too."""


def town(own: int) -> list[Event]:
    """Two cells: user 1 is in both, twice in the first, with values ``own``; users 2 to 4 stand still: the worst
    case."""
    return [(0, 1, own), (0, 1, own), (1, 1, own), (0, 2, 0), (0, 2, 0), (0, 3, 0), (1, 3, 0), (1, 4, 0), (1, 4, 0)]


def audit(config: Config, towns: Towns, draw: Callable[[Plan, Contributions], FloatArray]) -> None:
    """Whether what ``draw`` shows of all towns tells more of user 1 than they are charged."""
    sides = [planned(config, towns.rows(town(own))) for own in (0, U)]
    (plan, _), (other, _) = sides
    assert plan.digest == other.digest, "the plan looked at values"
    assert_private(epsilon_lower_bound(*(draw(*side) for side in sides)), towns.charge(plan, 1))


@pytest.mark.parametrize("name", nightly_but(READ_IN_EVERY_RUN, OF_A_WINDOW))
def test_no_reader_of_a_window_learns_more_of_a_users_values_than_they_are_charged(tmp_path, name):
    towns, noise = Towns.unlisted(TOWNS, 2), recorded(1)
    audit(fleet(tmp_path, **OF_A_WINDOW[name]), towns, lambda *side: drawn(*side, towns, DRAWS, noise))


def test_distributions_are_private_together(tmp_path):
    """All prefix counts of both cells, before they become percentiles."""
    noise = recorded(3)

    def prefixes(mine: Plan, contributions: Contributions) -> FloatArray:
        kept = contributions.retain(mine.retained)
        released = [draw_distributions(mine, kept, noise)[1].linear[:, 1:-1] for _ in range(DRAWS)]
        return np.concatenate([linear.reshape(TOWNS, -1) for linear in released])

    config = fleet(tmp_path, **{"speed.statistics": ["p50"], "speed.cdf_bins": 4})
    audit(config, Towns.unlisted(TOWNS, 2), prefixes)


def test_single_cell_means_are_private_together(tmp_path):
    """n = 2400, because these mechanisms draw one number at a time. The loss is that of one user over both cells of a
    town.
    """
    config = fleet(tmp_path, **{"speed.mean_mechanism": "baseline", "speed.statistics": ["mean"]})
    towns, noise = Towns.unlisted(60, 2), Pooled(tape(5))
    audit(config, towns, lambda *side: drawn(*side, towns, 40, noise))


def test_drawing_twice_from_one_plan_gives_fresh_noise(tmp_path):
    config, towns = fleet(tmp_path), Towns.unlisted(2, 2)
    plan, contributions = planned(config, towns.rows(town(U)))
    first, second = (drawn(plan, contributions, towns, 1, recorded(seed)) for seed in (1, 2))
    assert (first != second).all()


W = [SLOT, SLOT + 3600, SLOT + 7200]
READ = [reach for n in (1, 2, 3) for reach in itertools.product(range(1, 4), repeat=n) if list(reach) == sorted(reach)]
"""How many of the windows were due at each look; afterwards all of them are."""
IN_ORDER = {"privacy.epsilon": 2.0, "privacy.budget": 4.0, "speed.statistics": ["mean"], "speed.post_processing": []}


@pytest.fixture(params=["values", "participation"])
def config(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Config:
    """A feed of either relation on the test's server."""
    if request.param == "values":
        return bus_config(tmp_path, **IN_ORDER, **{"redis.url": redis_url})
    return riders(tmp_path, **IN_ORDER, **{"redis.url": redis_url, "participation.weight": "share"})


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
        protocol = ReleaseProtocol(statistics_of(self.config), self.redis, rows, ledger, Collected(), Noise())
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
            number = json.loads(decode_outbox(outbox or b"")[-1].value)["sequence"]
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


async def test_what_was_due_when_decides_neither_numbers_nor_whose_budget_pays_for_which_window(config, redis):
    shown = {looks: await transcript(config, redis, looks) for looks in READ}
    assert set(map(tuple, shown.values())) == {((1, 1, 3), (2, 2, 3), (3, 3, 0))}, shown


async def test_a_failure_changes_nothing_but_the_time_and_one_of_the_content_leaves_its_window_out(config, redis):
    for failing, error in itertools.product((0, 1), (OSError("planted"), ProcessDiedError())):
        assert await transcript(config, redis, (3,), {W[failing]: error}) == [(1, 1, 3), (2, 2, 3), (3, 3, 0)]
    of_content = ContentError(W[1], "the draw", MemoryError())
    assert await transcript(config, redis, (3,), {W[1]: of_content}) == [(1, 1, 3), (3, 2, 3)]


@pytest.mark.parametrize("seed", nightly_but([0], [0, 10]))
@pytest.mark.parametrize("name", [nightly(name) if name == "merged" else name for name in OF_EPSILON | OF_RHO])
def test_no_user_loses_more_over_three_windows_than_they_are_charged(tmp_path, name, seed, record_property):
    losses, world = worst_losses(settings_of(name, tmp_path), seed)
    shares = (loss / world.spent[user] for user, loss in losses.items() if user in world.spent)
    record_property("loss", {"worst": float(max(shares)), "charged": 1.0})
    assert not overspent(losses, world)
    assert max(losses.values()) > 0.2 * max(world.spent.values()), "the audit found next to nothing"


def test_the_noise_that_is_drawn_has_the_law_that_was_charged_for(tmp_path):
    """400 draws of six cells: the mean of (noise/σ)² is 1 ± 5·√(2/n) (α = 6·10⁻⁷); half the scale gives ¼, Laplace
    noise 2."""
    plan, read = World(live_config(tmp_path)).plan(random_rows(3, 40, users=7), SLOT)
    contributions, noise = as_drawn(plan, read), recorded(8)
    with combined() as seen:
        for _ in range(400):
            speed_of(plan.terms).draw(plan, contributions, noise)
    squares = np.square(np.array(seen.noise) / plan.scales.values)
    assert squares.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / squares.size))


def test_ranges_around_the_true_data_are_caught(tmp_path):
    def around_the_truth(read: WindowRows, *given: Any, **named: Any) -> Plan:
        plan = plan_window(read, *given, **named)
        counts = read.contributions.counts
        means = read.contributions.cell_sums() // counts.by_cell(counts.samples)
        part = msgspec.structs.replace(
            plan.values, lower=np.clip(means - 100, 0, U - 200), upper=np.clip(means - 100, 0, U - 200) + 200
        )
        return msgspec.structs.replace(plan, values=part)

    with pytest.raises(AssertionError, match="the plan looked at values"):
        worst_losses(live_config(tmp_path), 0, around_the_truth)


@pytest.mark.parametrize(("build", "short"), [(fleet, 1), (live_config, None)], ids=["one µε short", "nothing left"])
def test_a_user_who_cannot_pay_is_not_in_the_numbers_and_pays_nothing(tmp_path, build, short):
    """With a whole grant, or half of the budget, their values change the numbers and are charged."""
    rows, config = random_rows(3, 40, users=7), build(tmp_path)
    user, budget = int(rows["user"][0]), config.privacy.ledger_budget
    enough = config.window_grant if short else budget // 2
    for left, absent in ((enough - short if short else 0, True), (enough, False)):
        world = World(config)
        world.spent[user] = budget - left
        plan, read = world.plan(rows, SLOT)
        exact = integers_of(plan, read, recorded(1))[0]
        assert (plan.charges[plan.users == user].tolist() == [0]) == absent
        moved = [exact - integers_of(plan, world.plan(of, SLOT)[1], recorded(1))[0] for of in others(rows, user, 1)]
        assert np.any(moved) != absent
