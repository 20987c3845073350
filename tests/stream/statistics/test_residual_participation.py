"""Residual clipping under "participation": ranges from released values alone, noise that falls at the same charge, and
means that are undone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.messages.message import HEXAGON_SPEED
from stream.serve.city.combining import combined, numbers_of
from stream.serve.window_store import Clipping
from stream.statistics.participation.draw import exact_integers
from stream.statistics.plan import ParticipationPart, Plan, decode_plan, encode_plan
from stream.statistics.residual_clipping import response_of, with_ranges
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from tests.dpcore.silence import Silence
from tests.support.builders import SLOT, random_rows
from tests.support.participating import riders
from tests.support.releasing import build_messages, draw, planned
from tests.support.schemas import validate

RESIDUAL: dict[str, Any] = {
    "speed.clipping": "residual",
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean", "p50"],
}
FIRST = 2
"""Windows before the first with ranges."""


def release(
    config: Config, rows: np.ndarray, memory: Memory | None, slot: int, noise: Noise | None = None
) -> tuple[Plan, Contributions, list[dict[str, Any]], Memory]:
    """A window with untouched budgets, and the memory after it."""
    plan, contributions = planned(config, rows, slot=slot)
    plan = with_ranges(plan, memory)
    messages, after = build_messages(plan, contributions, noise or Noise(np.random.default_rng(slot).bytes), memory)
    assert after is not None
    for message in messages:
        validate(message.topic, json.loads(message.value))
    bodies = [json.loads(message.value) for message in messages if message.topic == HEXAGON_SPEED]
    return plan, contributions, bodies, after


def remembered(config: Config) -> Memory:
    """The memory after windows of a lively city."""
    memory = None
    for number in range(FIRST):
        memory = release(config, random_rows(number, 900, users=300), memory, SLOT + 3600 * (number - FIRST))[-1]
    assert memory is not None
    return memory


def fleet(number: int, speed: float, users: int = 4000, places: int = 6) -> np.ndarray:
    """Users who drive ``speed`` ± 13 km/h, each in two cells."""
    rows = random_rows(number, 2 * users, users=users, places=places, slot=SLOT + 3600 * number)
    rows["value"] = np.clip(np.random.default_rng(number).normal(100 * speed, 1300, len(rows)), 0, 6500)
    return rows


def test_ranges_change_no_charge_and_no_scale_and_less_noise_is_left_in_the_mean(tmp_path: Path) -> None:
    config, rows = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.2}), random_rows(3, 900, users=300)
    (plan, contributions), memory = planned(config, rows), remembered(config)
    ranged = with_ranges(plan, memory)
    assert msgspec.structs.replace(ranged, participation=ParticipationPart()) == plan, "ranges cost nothing"
    assert decode_plan(encode_plan(ranged)) == ranged
    response = response_of(ranged)
    assert response is not None
    seen = exact_integers(plan, contributions)[:2].sum(axis=0) > 20 * 2**20
    narrow = seen & ((ranged.ranges[1] - ranged.ranges[0]) < 3000)
    assert narrow.sum() >= 3
    before, after = (draw(one, contributions, Silence())["mean"].scale for one in (plan, ranged))
    noise = np.sqrt(np.square(after) - np.square(response.open) / 2)
    assert (noise[narrow] * response.gain[narrow] < 0.6 * before[narrow]).all()


def test_nothing_is_clipped_until_two_windows_have_counted_users_of_these_cells(tmp_path: Path) -> None:
    config = riders(tmp_path, **RESIDUAL)
    plan, _, bodies, one = release(config, random_rows(1, 900, users=300), None, SLOT - 3600)
    assert plan.ranges is None
    assert all("clipping" not in body for body in bodies)
    plan, *_, two = release(config, random_rows(2, 900, users=300), one, SLOT)
    assert plan.ranges is None
    later = planned(config, random_rows(3, 900, users=300), slot=SLOT + 3600)[0]
    assert with_ranges(later, two).ranges is not None
    assert with_ranges(later, msgspec.structs.replace(two, seen=two.seen[::-1])).ranges is None, "other cells"
    late = planned(config, random_rows(3, 900, users=300), slot=SLOT + 30 * 3600)[0]
    assert with_ranges(late, two).ranges is None, "what is older than a day says nothing about users"
    assert decode_memory(encode_memory(two)) == two


def test_released_means_of_a_large_fleet_are_undone(tmp_path: Path) -> None:
    """4 000 users drive 30 ± 13 km/h: means are within 5 of their deviations of the truth (α = 6·10⁻⁷ a cell), though
    clipping alone moves them towards the forecast."""
    config, memory = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.03}), None
    for number in range(6):
        speed = 30.0 if number < 5 else 36.0
        rows = fleet(number, speed)
        plan, contributions, bodies, memory = release(config, rows, memory, SLOT + 3600 * number)
    response, judged = response_of(plan), 0
    assert response is not None
    assert plan.ranges is not None
    for place, body in enumerate(bodies):
        here = rows["value"][rows["cell"] == int(body["cell"], 16)] / 100
        if len(here) < 500:
            continue
        judged += 1
        raw, scale = (body["mean"][name] for name in ("raw", "scale"))
        assert abs(raw - here.mean()) < 5 * np.sqrt(2) * scale + 0.01
        value, (low, high) = (body["post_processed"]["mean"][name] for name in ("value", "interval"))
        assert min(value - low, high - value) >= 2.5 * response.open[place] - 0.02
        assert body["clipping"]["lower"] <= 36 <= body["clipping"]["stretched"]["upper"]
    assert judged >= 5
    narrow = response.gain < 0.9
    assert narrow.any()
    exact = exact_integers(plan, contributions)
    count = exact[:2].sum(axis=0)
    busy = narrow & (count > 300 * 2**20)
    clipped = (plan.ranges[0] + exact[1] / np.maximum(count, 1) * (plan.ranges[1] - plan.ranges[0])) / 100
    assert (np.abs(response.undone(clipped) - clipped)[busy] > 0.3).any(), "clipping alone is biased"


def test_intervals_reach_as_far_as_what_clipping_leaves_open_however_little_noise_there_is(tmp_path: Path) -> None:
    config = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 8.0})
    plan, contributions = planned(config, fleet(1, 30.0))
    middle = np.full(len(plan.cells), 3000)
    part = ParticipationPart(lower=middle - 400, upper=middle + 400, foretold=middle)
    plan = msgspec.structs.replace(plan, participation=part)
    mean, response = draw(plan, contributions, Silence())["mean"], response_of(plan)
    assert response is not None
    busy = exact_integers(plan, contributions)[:2].sum(axis=0) > 300 * 2**20
    assert busy.any()
    assert (response.open > 2).all()
    assert (np.minimum(mean.high - mean.raw, mean.raw - mean.low)[busy] >= 1.96 * response.open[busy]).all()


def test_a_jam_widens_the_ranges_of_its_cells_so_that_it_is_seen(tmp_path: Path) -> None:
    config, memory, shown = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.5}), None, []
    for number in range(8):
        rows = fleet(number, 45.0 if number < 4 else 5.0, users=3000, places=2)
        rows["value"] = np.clip(rows["value"], 0, 6500)
        *_, bodies, memory = release(config, rows, memory, SLOT + 3600 * number)
        busy = [body for body in bodies if int(body["cell"], 16) in set(rows["cell"].tolist())]
        shown.append(np.mean([body["post_processed"]["mean"]["value"] for body in busy]))
    assert shown[3] == pytest.approx(44, abs=4)
    assert shown[7] < 14


def test_readers_that_combine_cells_see_the_mean_of_a_cell_as_it_was_released(tmp_path: Path) -> None:
    config, memory = riders(tmp_path, **RESIDUAL | {"speed.statistics": ["mean"]}), None
    for number in range(3):
        *_, bodies, memory = release(config, fleet(number, 30.0), memory, SLOT + 3600 * number)
    body = max(bodies, key=lambda body: body["users"]["raw"])
    (cell,) = numbers_of([json.dumps(body).encode()])
    mean = combined([cell], Clipping(0.0, 65.0))["mean"]
    assert mean["raw"] == pytest.approx(body["mean"]["raw"], abs=0.02)
    assert mean["interval"] == pytest.approx(body["mean"]["interval"], abs=0.1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speed.statistics": ["mean", "variance"]}, "do not give the variance of speeds"),
        ({"speed.post_processing": []}, "only 'kalman' foretells"),
    ],
)
def test_what_residual_clipping_does_not_go_with_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        riders(tmp_path, **(RESIDUAL | changes))
