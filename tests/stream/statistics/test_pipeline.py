"""Plans and messages are reproducible and valid, cost no more than was charged, and say which values were clamped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from scipy import stats

from dpcore.noise import Noise
from stream.messages.message import (
    HEXAGON_SPEED,
    WINDOW,
    decode_outbox,
    digest,
    encode_outbox,
    rejected_message,
    schema,
)
from stream.statistics.columns import DECIMALS
from stream.statistics.plan import decode_plan, encode_plan
from stream.statistics.values.cell_means import MECHANISMS
from stream.statistics.values.cell_statistics import planned_statistics
from stream.statistics.values.draw import exact_values
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.releasing import build_messages, draw, planned
from tests.support.schemas import validate


class Recorded(Noise):
    """Noise whose every draw is on record: the scales asked for and the integers added."""

    def __init__(self, shrink: int = 1) -> None:
        super().__init__(np.random.default_rng(3).bytes)
        self.shrink = shrink
        self.asked: list[tuple[list[int], list[int]]] = []
        self.added: list[int] = []

    def discrete_laplace(self, numerator, denominator=1, size=None):  # type: ignore[no-untyped-def]
        drawn = super().discrete_laplace(numerator, self.shrink * np.asarray(denominator), size)
        self.asked.append((np.asarray(numerator).tolist(), (self.shrink * np.asarray(denominator)).tolist()))
        self.added += drawn.tolist()
        return drawn


@pytest.mark.parametrize("settings", [{}, {"speed.sum_cap": 0}, {"speed.statistics": ["mean"]}])
def test_the_draw_adds_noise_of_the_planned_scales_to_the_planned_integers_and_nothing_else(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """Exact: one batch for the window, in the plan's order. What it costs is audited by ``tests/audit``."""
    config = bus_config(tmp_path, **settings)
    plan, contributions = planned(config, random_rows(4, 300))
    noise = Recorded()
    columns = draw(plan, contributions, noise)
    t, s = plan.scales.numerator, plan.scales.denominator
    assert noise.asked == [(t[t > 0].tolist(), s[t > 0].tolist())], "one batch, of exactly the planned scales"
    kept = contributions.retain(plan.retained)
    statistics = planned_statistics(plan)
    added = np.zeros(len(t), dtype=np.int64)
    added[t > 0] = noise.added
    for name, mine in zip(plan.terms.speed.statistics, added.reshape(len(statistics), -1), strict=True):
        integers = statistics[name].integers(kept) + mine
        expected = np.round(integers * statistics[name].unit(kept.counts, 0.01), DECIMALS[name])
        assert columns[name].raw.tolist() == expected.tolist()
    bug = Recorded(shrink=2)
    draw(plan, contributions, bug)
    assert bug.asked != noise.asked, "planted bug: half the scale is seen"


def test_the_same_rows_in_any_order_with_duplicates_give_the_same_plan_and_messages(tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    rows = random_rows(1, 300)
    shuffled = np.random.default_rng(0).permutation(np.concatenate([rows, rows[:50]]))

    def messages(of: np.ndarray):
        plan, contributions = planned(config, of)
        return encode_outbox(build_messages(plan, contributions, Noise(np.random.default_rng(5).bytes), None)[0])

    assert messages(rows) == messages(shuffled)


def test_every_message_validates_and_the_marker_vouches_for_the_rest(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **{"speed.min_users": 2, "speed.statistics": ["mean", "moving_mean", "variance"]})
    plan, contributions = planned(config, random_rows(2, 60))
    messages = decode_outbox(encode_outbox(build_messages(plan, contributions, Noise(), None)[0]))
    for message in [*messages, rejected_message("bus", "not-json", "bus.positions", 0, 3, 9, 4)]:
        body, checker = json.loads(message.value), jsonschema.Draft202012Validator.FORMAT_CHECKER
        validate(message.topic, body)
        jsonschema.Draft202012Validator(schema(message.topic), format_checker=checker).validate(body)
        assert message.ce_id.startswith(message.topic)
    marker = json.loads(messages[-1].value)
    assert messages[-1].topic == WINDOW
    assert marker["messages"] == len(messages) - 1
    assert marker["digest"] == digest(message.value for message in messages[:-1])
    assert len({message.ce_id for message in messages}) == len(messages)
    assert all(message.timestamp_ms == (SLOT + 3600) * 1000 for message in messages)


def test_95_percent_intervals_cover_the_truth_and_half_the_noise_width_does_not(tmp_path: Path) -> None:
    """n = 60 windows × 6 cells, α = 1e-6; half the width, the planted twin, covers 78 % and is refuted with power
    0.9999."""
    config = bus_config(tmp_path)
    rows = random_rows(3, 400)
    plan, contributions = planned(config, rows)
    kept = contributions.retain(plan.retained)
    n = kept.counts.by_cell(kept.counts.samples)
    means = kept.cell_sums(plan.caps) / n * 0.01
    covered = narrow = total = 0
    for _ in range(60):
        for truth, message in zip(means, build_messages(plan, contributions, Noise(), None)[0], strict=False):
            body = json.loads(message.value)
            low, high = body["mean"]["interval"]
            covered += low <= truth <= high
            width = body["mean"]["scale"] * math.log(20) / 2
            narrow += abs(body["mean"]["raw"] - truth) <= width
            total += 1
    assert total == 360
    assert stats.binomtest(covered, total, 0.95, "less").pvalue > 1e-6
    assert stats.binomtest(narrow, total, 0.95, "less").pvalue < 1e-6


def test_a_value_outside_its_range_is_clamped_and_says_so(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **{"privacy.epsilon": 0.01})
    plan, contributions = planned(config, random_rows(4, 40))
    bodies = [
        json.loads(m.value) for m in build_messages(plan, contributions, Noise(), None)[0] if m.topic == HEXAGON_SPEED
    ]
    assert any(body["mean"]["clamped"] for body in bodies if body["status"] == "published")
    for body in bodies:
        mean = body["mean"]
        assert 0 <= mean["value"] <= 65
        assert mean["clamped"] == (mean["raw"] != mean["value"])
        assert mean["interval"][0] <= mean["value"] <= mean["interval"][1]


def test_a_plan_survives_storage_bit_for_bit(tmp_path: Path) -> None:
    plan, _ = planned(bus_config(tmp_path), random_rows(5, 100))
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(plan)).digest == plan.digest


def test_a_cell_below_min_users_is_suppressed_and_costs_nobody_anything(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **{"speed.min_users": 100})
    plan, contributions = planned(config, random_rows(6, 100))
    bodies = [json.loads(m.value) for m in build_messages(plan, contributions, Noise(), None)[0][:-1]]
    assert {body["status"] for body in bodies} == {"suppressed"}
    assert not any("mean" in body for body in bodies)
    assert not plan.charges.any()


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_mean_mechanism_charges_within_the_grant_and_messages_name_it(tmp_path: Path, name: str) -> None:
    settings = {"speed.mean_mechanism": name, "privacy.epsilon": 20.0}
    config = bus_config(tmp_path, **settings)
    plan, contributions = planned(config, random_rows(8, 300))
    charges = plan.charges
    assert (charges <= config.privacy.epsilon_micro).all()
    assert (charges > 0).all()
    for message in build_messages(plan, contributions, Noise(), None)[0]:
        validate(message.topic, body := json.loads(message.value))
        assert "cell" not in body or body["mean"]["mechanism"] == name
    assert planned(config, random_rows(8, 300))[0].digest == plan.digest


def test_percentile_intervals_hold_the_true_percentile(tmp_path: Path) -> None:
    """n = 80 draws × 6 cells × 3 percentiles; at least 94 % (intervals are conservative)."""
    config = bus_config(tmp_path, **{"speed.statistics": ["p15", "p50", "p85"], "privacy.epsilon": 8.0})
    plan, contributions = planned(config, random_rows(10, 800))
    truth = exact_values(plan, contributions.retain(plan.retained))
    inside = []
    for _ in range(80):
        columns = draw(plan, contributions, Noise())
        for name, column in ((name, columns[name]) for name in plan.terms.speed.statistics):
            inside.append((column.low <= truth[name]) & (truth[name] <= column.high))
    assert np.concatenate(inside).mean() >= 0.94


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "variance"], ["p50"], ["mean", "p15", "p50", "p85"]])
def test_a_window_without_rows_is_a_close_marker_and_nothing_else(tmp_path: Path, statistics: list[str]) -> None:
    config = bus_config(tmp_path, **{"speed.statistics": statistics})
    plan, contributions = planned(config, random_rows(1, 0))
    (marker,) = build_messages(plan, contributions, Noise(), None)[0]
    assert json.loads(marker.value)["messages"] == 0
