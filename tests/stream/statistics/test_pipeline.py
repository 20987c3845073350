"""Plans and messages are reproducible and valid, cost no more than was charged, and say which values were clamped.
Adaptive resolution in the service: sparse hexagons are released through their parents, and nobody is charged twice."""

import json

import h3
import jsonschema
import msgspec
import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config, ConfigError
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
from stream.statistics.merging import by_planned_cells, widths
from stream.statistics.plan import Plan, PlanError, decode_plan, encode_plan
from stream.statistics.values.cell_statistics import MECHANISMS, planned_statistics
from stream.statistics.window_rows import contributions_of
from tests.support.builders import SLOT, bus_config, random_rows, riders_config, uneven_rows
from tests.support.closing import Collected, protocol_of
from tests.support.releasing import bodies_of, build_messages, draw, planned
from tests.support.schemas import validate
from tests.support.stored_rows import store


class Recorded(Noise):
    """Noise whose every draw is on record: the scales asked for and the integers added."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(3).bytes)
        self.asked: list[tuple[list[int], list[int]]] = []
        self.added: list[int] = []

    def discrete_laplace(self, numerator, denominator=1, size=None):
        drawn = super().discrete_laplace(numerator, denominator, size)
        self.asked.append((np.asarray(numerator).tolist(), np.asarray(denominator).tolist()))
        self.added += drawn.tolist()
        return drawn


@pytest.mark.parametrize("settings", [{}, {"speed.sum_cap": 0}, {"speed.statistics": ["mean"]}])
def test_the_draw_adds_noise_of_the_planned_scales_to_the_planned_integers_and_nothing_else(tmp_path, settings):
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


def test_the_same_rows_in_any_order_with_duplicates_give_the_same_plan_and_messages(tmp_path):
    config = bus_config(tmp_path)
    rows = random_rows(1, 300)
    shuffled = np.random.default_rng(0).permutation(np.concatenate([rows, rows[:50]]))

    def messages(of: np.ndarray):
        plan, contributions = planned(config, of)
        return encode_outbox(build_messages(plan, contributions, Noise(np.random.default_rng(5).bytes), None)[0])

    assert messages(rows) == messages(shuffled)


def test_every_message_validates_and_the_marker_vouches_for_the_rest(tmp_path):
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


def test_a_value_outside_its_range_is_clamped_and_says_so(tmp_path):
    config = bus_config(tmp_path, **{"privacy.epsilon": 0.01})
    plan, contributions = planned(config, random_rows(4, 40))
    bodies = bodies_of(build_messages(plan, contributions, Noise())[0], HEXAGON_SPEED)
    assert any(body["mean"]["clamped"] for body in bodies if body["status"] == "published")
    for body in bodies:
        mean = body["mean"]
        assert 0 <= mean["value"] <= 65
        assert mean["clamped"] == (mean["raw"] != mean["value"])
        assert mean["interval"][0] <= mean["value"] <= mean["interval"][1]


def test_a_cell_below_min_users_is_suppressed_and_costs_nobody_anything(tmp_path):
    config = bus_config(tmp_path, **{"speed.min_users": 100})
    plan, contributions = planned(config, random_rows(6, 100))
    bodies = bodies_of(build_messages(plan, contributions, Noise())[0], HEXAGON_SPEED)
    assert {body["status"] for body in bodies} == {"suppressed"}
    assert not any("mean" in body for body in bodies)
    assert not plan.charges.any()


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_mean_mechanism_charges_within_the_grant_and_messages_name_it(tmp_path, name):
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


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "variance"], ["p50"], ["mean", "p15", "p50", "p85"]])
def test_a_window_without_rows_is_a_close_marker_and_nothing_else(tmp_path, statistics):
    config = bus_config(tmp_path, **{"speed.statistics": statistics})
    plan, contributions = planned(config, random_rows(1, 0))
    (marker,) = build_messages(plan, contributions, Noise(), None)[0]
    assert json.loads(marker.value)["messages"] == 0


MERGING = {"hexagons.merge_until": 30.0, "hexagons.coarsest_resolution": 4, "speed.post_processing": []}


def planned_merged(config: Config, rows: np.ndarray) -> tuple[Plan, Contributions, Contributions]:
    """Plan, contributions by hexagon, contributions by cell."""
    plan, contributions = planned(config, rows)
    return plan, contributions, by_planned_cells(plan, contributions)


def test_users_without_budget_do_not_enter_the_caps(tmp_path):
    """Every sample is retained, and only the caps bound what a user adds to a sum."""
    kept = {"speed.sum_cap": 0.3, "speed.clipping": "none", "speed.suppression": "none", "speed.statistics": ["mean"]}
    config, rows = bus_config(tmp_path, **MERGING | kept), uneven_rows(1)
    long = rows[rows["user"] == 1].repeat(20)
    long["time"] += np.arange(len(long)) % 1000 + 1
    more = np.concatenate([rows[rows["user"] != 1], long])
    left = np.where(np.unique(more["user"]) == 1, 0, config.privacy.ledger_budget)
    refused, _ = planned(config, more, left)
    without, _ = planned(config, rows[rows["user"] != 1])
    shared = np.isin(refused.cells, without.cells)
    by_resolution = [
        {int(cell) >> 52 & 15: cap for cell, cap in zip(plan.cells.tolist(), plan.caps.tolist(), strict=True)}
        for plan in (refused, without)
    ]
    assert shared.any()
    assert by_resolution[0] == by_resolution[1]


def test_a_parent_is_wider_than_its_children_by_the_root_of_seven():
    child = h3.latlng_to_cell(30.3, -97.7, 7)
    cells = [h3.str_to_int(cell) for cell in (child, h3.cell_to_parent(child, 6), h3.cell_to_parent(child, 5))]
    assert widths(np.array(cells, dtype=np.uint64), 7) == pytest.approx([1.0, 7**0.5, 7.0])


def test_every_event_is_released_in_exactly_one_cell_and_valid_excludes_say_which_not(tmp_path):
    config = bus_config(tmp_path, **MERGING)
    rows = uneven_rows(2)
    plan, contributions, pooled = planned_merged(config, rows)
    assert decode_plan(encode_plan(plan)) == plan
    messages, _ = build_messages(plan, pooled, Noise())
    for message in messages:
        validate(message.topic, json.loads(message.value))
    bodies = bodies_of(messages, HEXAGON_SPEED)
    assert sum(body["events"] for body in bodies) == len(contributions.values) == 1200
    assert len({body["resolution"] for body in bodies}) > 1
    for body in bodies:
        assert h3.get_resolution(body["cell"]) == body["resolution"]
    counts = contributions.counts
    events = zip(counts.cells.tolist(), counts.by_cell(counts.samples).tolist(), strict=True)
    hexagons = {f"{cell:x}": n for cell, n in events}
    for body in bodies:
        gone = [(h3.get_resolution(cell), cell) for cell in body.get("excludes", [])]
        events = sum(
            n
            for h, n in hexagons.items()
            if h3.cell_to_parent(h, body["resolution"]) == body["cell"]
            and not any(h3.cell_to_parent(h, resolution) == cell for resolution, cell in gone)
        )
        assert events == body["events"]


def test_merging_narrows_intervals_to_the_target_or_reaches_the_coarsest(tmp_path):
    config = bus_config(tmp_path, **MERGING | {"speed.statistics": ["mean"]})
    plain = bus_config(tmp_path, **{"speed.statistics": ["mean"], "speed.post_processing": []})
    rows = uneven_rows(4)

    def widths(of: Config) -> list[tuple[int, float, int]]:
        plan, _, pooled = planned_merged(of, rows)
        bodies = bodies_of(build_messages(plan, pooled, Noise())[0], HEXAGON_SPEED)
        return [(body["resolution"], body["mean"]["scale"] * np.log(20), body["events"]) for body in bodies]

    narrow, wide = widths(config), widths(plain)
    assert sum(half <= 30 for _, half, _ in narrow) / len(narrow) > sum(half <= 30 for _, half, _ in wide) / len(wide)
    assert all(resolution == 4 for resolution, half, _ in narrow if half > 2 * 30)


def test_rows_in_other_hexagons_than_planned_are_never_drawn(tmp_path):
    config = bus_config(tmp_path, **MERGING)
    plan, contributions = planned(config, uneven_rows(5))
    fewer = contributions_of(uneven_rows(5)[:60], config.value.upper_quanta)
    assert fewer.counts.n_cells != contributions.counts.n_cells
    with pytest.raises(PlanError, match="hexagons"):
        by_planned_cells(plan, fewer)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hexagons.merge_until": 0}, "merge_until"),
        ({"hexagons.merge_until": 10, "hexagons.coarsest_resolution": 7}, "coarsest_resolution"),
        ({"hexagons.merge_until": 10, "speed.statistics": ["variance"]}, "merge_until"),
        ({"hexagons.merge_until": 10, "speed.mean_mechanism": "levy"}, "merge_until"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused_with_the_remedy(tmp_path, settings, named):
    with pytest.raises(ConfigError, match=named):
        bus_config(tmp_path, **settings)
    with pytest.raises(ConfigError, match="merging depends on true counts"):
        riders_config(tmp_path, **{"hexagons.merge_until": 10.0})


async def test_the_service_releases_mixed_resolutions_once(redis, tmp_path):
    config = bus_config(tmp_path, **MERGING)
    await store(redis, config, uneven_rows(6))
    sink = Collected()
    result = await protocol_of(redis, config, sink).close(SLOT)
    bodies = [msgspec.json.decode(message.value) for message in sink.messages if message.topic == HEXAGON_SPEED]
    assert result.messages == len(bodies) + 1
    assert len({body["resolution"] for body in bodies}) > 1
