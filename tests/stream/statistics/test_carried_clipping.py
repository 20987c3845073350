"""Carried clipping: charges stay the same, noise falls, and the ranges depend on released values alone."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.messages.message import HEXAGON_SPEED
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.protocol.parts import statistics_of
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.carried_clipping import NARROWEST_KMH, SPREAD, carry
from stream.statistics.participation.draw import exact_integers
from stream.statistics.plan import ParticipationPart, Plan, decode_plan, encode_plan
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory, intervals
from stream.storage.ledger import Ledger
from tests.dpcore.silence import Silence
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.participating import loss, riders
from tests.support.releasing import build_messages, draw, planned
from tests.support.schemas import validate

CARRIED = {"speed.clipping": "carried", "speed.post_processing": ["kalman"], "speed.statistics": ["mean", "p50"]}


def carried(config: Config, rows: np.ndarray, memory: Memory | None, slot: int = SLOT) -> tuple[Plan, Contributions]:
    """The plan of the window at ``slot`` with the ranges that ``memory`` gives."""
    plan, contributions = planned(config, rows, slot=slot)
    return carry(plan, memory), contributions


def remembered(config: Config) -> Memory:
    """The memory after one window of a lively city, released with real noise."""
    plan, contributions = carried(config, random_rows(3, 900, users=300), None, SLOT - 3600)
    memory = build_messages(plan, contributions, Noise(np.random.default_rng(1).bytes), None)[1]
    assert memory is not None
    return memory


@pytest.mark.parametrize("weight", ["share", "user", "sample"])
@pytest.mark.parametrize("seed", range(3))
def test_removing_one_user_moves_the_integers_by_no_more_than_their_charge(
    tmp_path: Path, weight: str, seed: int
) -> None:
    config = riders(tmp_path, **CARRIED, **{"participation.weight": weight, "participation.samples_per_cell": 3})
    memory = remembered(config)
    rows = random_rows(seed, 200)
    plan, contributions = carried(config, rows, memory)
    assert plan.ranges is not None
    charges = dict(zip(contributions.counts.users.tolist(), plan.charges.tolist(), strict=True))
    plain, _ = carried(config, rows, None)
    assert msgspec.structs.replace(plan, participation=ParticipationPart()) == plain, "ranges cost nothing"
    with_all = exact_integers(plan, contributions)
    assert (with_all >= 0).all()
    for user in contributions.counts.users.tolist():
        other_plan, other = carried(config, rows[rows["user"] != user], memory)
        assert np.array_equal(other_plan.ranges, plan.ranges)
        lost = loss(plan, with_all, exact_integers(other_plan, other))
        assert 0 < lost * 1_000_000 <= charges[user]


def test_a_range_taken_from_the_window_itself_is_caught_by_the_same_comparison(tmp_path: Path) -> None:
    """Planted bug: the range follows the means of this very window, so that one user moves everybody's numbers."""
    config = riders(tmp_path, **CARRIED)
    rows = random_rows(5, 200, users=12, places=1)
    rows["value"] = np.where(rows["user"] == rows["user"][0], 6500, 1000 + rows["user"].astype(np.int64) * 100)

    def from_itself(of: np.ndarray) -> tuple[Plan, np.ndarray]:
        plan, contributions = carried(config, of, None)
        top = int(of["value"].max())
        cells = len(plan.cells)
        lower, upper = np.zeros(cells, "<i8"), np.full(cells, top, "<i8")
        plan = msgspec.structs.replace(plan, participation=ParticipationPart(lower=lower, upper=upper))
        return plan, exact_integers(plan, contributions)

    (plan, one), (_, two) = from_itself(rows), from_itself(rows[rows["user"] != rows["user"][0]])
    assert loss(plan, one, two) > Fraction(config.privacy.epsilon_micro, 1_000_000)


def test_a_mean_within_its_range_is_what_it_was_and_one_outside_is_clipped_to_its_end(tmp_path: Path) -> None:
    config = riders(tmp_path, **CARRIED)
    rows = random_rows(6, 240, users=8, places=1)
    rows = np.concatenate([rows[rows["user"] == user][:20] for user in range(1, 9)])
    plan, contributions = carried(config, rows, None)
    cells = plan.cells
    at = int(np.searchsorted(cells, rows["cell"][0]))
    own = np.array([np.minimum(rows["value"][rows["user"] == u], 6500).mean() / 100 for u in range(1, 9)])

    def mean(lower: float, upper: float) -> float:
        ends = [np.full(len(cells), round(100 * end), "<i8") for end in (lower, upper)]
        ranged = msgspec.structs.replace(plan, participation=ParticipationPart(lower=ends[0], upper=ends[1]))
        return float(draw(ranged, contributions, Silence())["mean"].value[at])

    for lower, upper in ((0.0, 65.0), (10.0, 60.0), (own.min() - 1, own.max() + 1), (own.min() + 3, own.max() - 2)):
        assert mean(lower, upper) == pytest.approx(np.clip(own, lower, upper).mean(), abs=0.02)


def test_narrower_ranges_mean_less_noise_at_the_same_charge(tmp_path: Path) -> None:
    config = riders(tmp_path, **CARRIED)
    rows = random_rows(3, 900, users=300)
    memory = remembered(config)
    (plain, contributions), (ranged, _) = carried(config, rows, None), carried(config, rows, memory)
    seen = exact_integers(plain, contributions)[:2].sum(axis=0) > 20 * 2**20
    widths = (ranged.ranges[1] - ranged.ranges[0])[seen] / 100
    assert seen.sum() >= 3
    assert (widths < 60).all()
    wide, narrow = draw(plain, contributions, Silence())["mean"], draw(ranged, contributions, Silence())["mean"]
    assert (narrow.scale[seen] < wide.scale[seen]).all()
    assert np.array_equal(plain.charges, ranged.charges)


def test_ranges_hold_what_was_released_widened_and_are_never_empty(tmp_path: Path) -> None:
    config = riders(tmp_path, **CARRIED)
    memory = remembered(config)
    plan, _ = carried(config, random_rows(1, 10), memory)
    cells = plan.cells
    low, high = intervals(memory, cells)
    lower, upper = plan.ranges / 100
    assert (lower <= low / SPREAD + 0.006).all()
    assert (upper >= np.minimum(high * SPREAD, 65) - 0.006).all()
    assert (upper - lower >= NARROWEST_KMH - 0.02).all()
    unknown = np.array([1, 2], dtype=np.uint64)
    assert [end.tolist() for end in intervals(memory, unknown)] == [[0.0, 0.0], [65.0, 65.0]]
    assert decode_memory(encode_memory(memory)) == memory
    assert decode_memory(encode_memory(msgspec.structs.replace(memory, low=b"12345678"))) is None
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speed.statistics": ["mean", "variance"]}, "do not give the variance of speeds"),
        ({"speed.post_processing": []}, "carries earlier releases over"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        riders(tmp_path, **(CARRIED | changes))


def test_under_values_clipping_is_not_carried_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'participation' only"):
        bus_config(tmp_path, **{"speed.clipping": "carried"})


async def test_windows_hand_their_released_means_on_as_ranges_which_every_message_states(
    redis: Redis, tmp_path: Path
) -> None:
    config = riders(tmp_path, **CARRIED)
    windows = split_by_slot(random_rows(7, 3000, users=200, hours=3), config)
    ledger, out = Ledger(redis, config.feed.name), io.StringIO()
    await ledger.start_generation(birth=0)
    await ledger.claim_policy(config.ledger_policy)
    closing = ReleaseProtocol.connect(
        statistics_of(config), redis, MemoryRows(dict(windows)), ledger, LinePublisher(out), Noise()
    )
    for slot in sorted(windows):
        await closing.close(slot)
    bodies = [json.loads(line)["value"] for line in out.getvalue().splitlines()]
    cells = [body for body in bodies if "cell" in body]
    for body in cells:
        validate(HEXAGON_SPEED, body)
    first = cells[0]["window"]["start"]
    assert all(("clipping" in body) == (body["window"]["start"] != first) for body in cells)
    narrowed = [body["clipping"]["upper"] - body["clipping"]["lower"] for body in cells if "clipping" in body]
    assert min(narrowed) < 60
    for body in cells:
        if "clipping" in body:
            assert body["clipping"]["lower"] - 0.001 <= body["mean"]["value"] <= body["clipping"]["upper"] + 0.001
