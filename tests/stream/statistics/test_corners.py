"""Regions that users declare in the service: their own events decide, the noise is that of as many as may count. Which
fixes represent a user: their own alone, the last or spread evenly, whatever the order of rows."""

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain
from dpcore.spatial.euler import Euler
from dpcore.spatial.mechanism import noisy_counts
from stream.config import Config
from stream.config.loading import ConfigError
from stream.config.section import BoundingBox
from stream.evaluation.histograms import evaluate_histograms
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.protocol.release_protocol import statistics_of
from stream.statistics.histograms.fixes import Fixes, fixes_of
from stream.statistics.histograms.histograms import contributing, draw_histograms, histogram_body, region_domain
from stream.statistics.plan import Plan, PlanError
from stream.storage.row_store import ROW
from stream.terms import Terms
from tests.support.builders import SLOT, located_rows, with_histograms
from tests.support.releasing import components_of, plan_of, planned_with_fixes
from tests.support.schemas import validate

CELLS = 24
SOUTH, WEST, HEIGHT, WIDTH = 30.1, -97.9, 0.5 / CELLS, 0.4 / CELLS
"""The south-west corner of the box of the tests, and the sides of its cells of regions in degrees: 2.3 and 1.6 km."""
CELL = h3.str_to_int(h3.latlng_to_cell(30.2, -97.7, 7))
EULER = {"rows": CELLS, "columns": CELLS, "diameter_m": 1300.0, "origin": "declared"}
Corner = tuple[float, float]


def declaring(tmp_path: Path, per_user: int = 2, **overrides: Any) -> Config:
    """Users declare up to ``per_user`` regions of at most 1.3 km."""
    euler = EULER | {"regions_per_user": per_user}
    quality = {"feed.quality.teleport_km_h": 0, "feed.quality.frozen": "0s"}
    return with_histograms("participation", tmp_path, ["euler"], **({"histogram.euler": euler} | quality | overrides))


def declared(user: int, minute: int, corners: list[Corner], cell: int = CELL) -> np.ndarray:
    """The rows of one region; corners in cells of regions from the south-west corner of the box."""
    rows = np.zeros(len(corners), dtype=ROW)
    rows["cell"], rows["user"], rows["time"] = cell, user, (SLOT + 60 * minute) * 1_000_000
    rows["lat"] = [round((SOUTH + x * HEIGHT) * 1e7) for x, _ in corners]
    rows["lng"] = [round((WEST + y * WIDTH) * 1e7) for _, y in corners]
    return rows


def around(x: float, y: float, reach: float = 0.2) -> list[Corner]:
    """A diamond around a place: around a vertex it meets nine components."""
    return [(x - reach, y), (x + reach, y), (x, y - reach), (x, y + reach)]


def planned(config: Config, rows: np.ndarray, broke: Sequence[int] = ()) -> tuple[Plan, Fixes]:
    """``broke``: users whose budget pays for nothing."""
    left = np.where(np.isin(np.unique(rows["user"]), broke), 0, config.privacy.ledger_budget)
    plan, _, fixes = planned_with_fixes(config, rows, left)
    return plan, fixes


def components(config: Config, rows: np.ndarray, broke: Sequence[int] = ()) -> np.ndarray:
    """The counts before noise of the users who pay."""
    plan, fixes = planned(config, rows, broke)
    return components_of(plan, contributing(plan, fixes))


def city(seed: int) -> np.ndarray:
    """Random regions of eight users, up to four each, of one to six corners, some outside of the box."""
    rng = np.random.default_rng(seed)
    parts = []
    for user in range(1, 9):
        for minute in range(int(rng.integers(0, 5))):
            middle = rng.uniform(-0.5, CELLS + 0.5, 2)
            corners = [tuple(middle + rng.normal(0, 0.4, 2)) for _ in range(int(rng.integers(1, 7)))]
            parts.append(declared(user, minute, corners))
    rows = np.concatenate(parts)
    return rows[rng.permutation(len(rows))]


@pytest.mark.parametrize("seed", range(4))
def test_users_who_cannot_pay_add_nothing_to_regions_and_fixes(tmp_path, seed):
    config, rows, broke = declaring(tmp_path, 2), city(seed), (2, 5, 7)
    paying = rows[~np.isin(rows["user"], broke)]
    assert np.array_equal(components(config, rows, broke), components(config, paying))
    plan, fixes = planned(config, rows, broke)
    counted = contributing(plan, fixes)
    assert not np.isin([*counted.user, *counted.corners.user], broke).any()


@pytest.mark.parametrize("per_user", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_user_who_leaves_moves_the_counts_by_what_their_regions_may_and_nobody_elses_regions(
    tmp_path, seed, per_user
):
    config, rows = declaring(tmp_path, per_user), city(seed)
    plan, _ = planned(config, rows)
    bound = Euler(1300.0, regions_per_user=per_user).sensitivity(region_domain(plan.terms.histogram))
    everybody = components(config, rows)
    for user in range(1, 9):
        moved = everybody - components(config, rows[rows["user"] != user])
        assert (moved >= 0).all(), "who leaves takes their own regions with them, and adds none of others"
        assert moved.sum() <= bound


@pytest.mark.parametrize("per_user", [1, 2, 3])
def test_the_sensitivity_is_attained_and_the_last_regions_of_a_user_count(tmp_path, per_user):
    config = declaring(tmp_path, per_user)
    rows = np.concatenate([declared(1, minute, around(minute + 1.0, 3.0)) for minute in range(4)])
    counts = components(config, rows)
    plan, _ = planned(config, rows)
    assert counts.sum() == 9 * per_user == Euler(1300.0, per_user).sensitivity(region_domain(plan.terms.histogram))
    met = counts.sum(axis=1).nonzero()[0].tolist()
    assert (met[0], met[-1]) == (8 - 2 * per_user, 8), "the last regions, around the lines up to the fourth"


def test_corners_in_any_order_and_repeated_make_one_region_and_the_box_decides_by_region(tmp_path):
    config = declaring(tmp_path)
    region = declared(1, 0, [(-0.1, 2.5), (0.3, 2.5), (0.3, 2.3)])
    beyond = declared(1, 1, [(-0.1, 2.5), (-0.3, 2.5)])
    counts = components(config, region)
    assert counts.sum() == 1
    assert (components(config, np.concatenate([region[::-1], region, beyond])) == counts).all()
    fixes = fixes_of(np.concatenate([region, beyond]), Terms.of(config).reading.box, declared=True)
    assert len(fixes.corners.user) == 3, (
        "a region keeps its corners outside of the box; one that is outside does not count"
    )


def test_a_region_of_too_many_corners_is_refused_and_the_same_users_others_count(tmp_path):
    config = declaring(tmp_path, 1)
    rng = np.random.default_rng(1)
    many = declared(1, 5, [tuple(rng.uniform(2.1, 2.4, 2)) for _ in range(4200)])
    assert components(config, np.concatenate([declared(1, 0, around(5.5, 5.5)), many]))[10, 10] == 1


WIDEST = {"rows": 64, "columns": 64, "diameter_m": 1_000_000.0, "origin": "declared"}


@pytest.mark.parametrize("per_user", [1, 100])
def test_noise_that_cannot_be_drawn_is_refused_before_anyone_is_charged(tmp_path, per_user):
    table = {"histogram.euler": WIDEST | {"regions_per_user": per_user}, "histogram.epsilon": 1.000001}
    with pytest.raises(ConfigError, match="cannot be drawn; lower diameter_m, regions_per_user"):
        declaring(tmp_path, **table, **{"privacy.budget": 400.0})


def test_check_accepts_exactly_the_diameters_whose_noise_can_be_drawn(tmp_path):
    """Scales on both sides of the largest that is drawn."""
    accepted, drawn = [], []
    for diameter in range(100_000, 1_000_000, 90_000):
        table = WIDEST | {"diameter_m": float(diameter)}
        with suppress(ConfigError):
            declaring(tmp_path, **{"histogram.euler": table, "histogram.epsilon": 1.000001, "privacy.budget": 400.0})
            accepted.append(diameter)
        box = Domain(SOUTH, WEST, SOUTH + CELLS * HEIGHT, WEST + CELLS * WIDTH, 64, 64).in_metres()
        with suppress(ParameterError):
            noisy_counts(np.zeros(1, dtype=np.int64), 950_001, Euler(float(diameter)).sensitivity(box), Noise())
            drawn.append(diameter)
    assert accepted == drawn
    assert 0 < len(drawn) < 10


@pytest.mark.parametrize("per_user", [1, 3])
def test_components_have_the_noise_of_as_many_regions_as_may_count(tmp_path, per_user):
    """Mean |noise| of 2 209 components in 4 windows, 8 836 draws: its standard error is 1.1 %; 5 of them are
    allowed."""
    config = declaring(tmp_path, per_user)
    plan, fixes = planned(config, declared(1, 0, [])[:0])
    drawn = [draw_histograms(plan, fixes, Noise())[0] for _ in range(4)]
    scale = 9 * per_user / (0.95 * 1.1)
    assert np.mean([np.abs(one.histogram.components).mean() for one in drawn]) == pytest.approx(scale, rel=0.055)
    assert drawn[0].histogram.total.variance == pytest.approx(2 * (per_user / (0.05 * 1.1)) ** 2, rel=0.01)
    assert [one.fixes_per_user for one in drawn[:1]] == [1]


def test_a_user_pays_the_same_whatever_number_of_regions_they_declare(tmp_path):
    config = declaring(tmp_path, 3)
    rows = np.concatenate([declared(1, 0, around(2, 2)), *(declared(2, k, around(4, k + 1)) for k in range(5))])
    plan, _ = planned(config, rows)
    one, many = plan.charges.tolist()
    assert one == many == config.privacy.ledger_grant + config.histogram_grant


def test_the_message_says_what_is_counted_and_is_valid(tmp_path):
    plan, fixes = planned(declaring(tmp_path, 3), declared(1, 0, around(2, 2)))
    (drawn,) = draw_histograms(plan, fixes, Noise())
    window = {"start": "2017-03-21T07:00:00Z", "end": "2017-03-21T08:00:00Z"}
    body = json.loads(json.dumps(histogram_body(drawn, "riders", window)))
    validate(SPATIAL_HISTOGRAM, body)
    assert body["declared_regions"] == {"diameter_m": 1300.0, "per_user": 3}
    assert (body["fixes_per_user"], "regions" in body) == (1, False), "no fixes are counted, as for other regions"


def test_rows_are_read_as_the_plan_says_and_other_corners_than_planned_are_refused(tmp_path):
    """The plan of a worker with declared regions is drawn by one whose configuration computes them from fixes."""
    config, plain = declaring(tmp_path), with_histograms("participation", tmp_path, ["euler"])
    rows = np.concatenate([declared(1, 0, around(2, 2)), declared(2, 3, around(5, 5))])
    here, there = statistics_of(config), statistics_of(plain)
    plan, _ = plan_of(here, rows)
    drawn = there.draw(plan, there.arrange(rows, plan.window), Noise())
    assert [one.regions.regions_per_user for one in drawn.histograms] == [2]
    moved = rows.copy()
    moved["lat"][2] += 1
    with pytest.raises(PlanError, match="changed after they were planned"):
        here.draw(plan, here.arrange(moved, plan.window), Noise())


def test_an_evaluation_counts_declared_regions(tmp_path):
    rows = np.concatenate(
        [declared(user, minute, around(user + 1, minute + 2)) for user in (1, 2) for minute in (0, 1)]
    )
    (score, _) = evaluate_histograms(declaring(tmp_path), {SLOT: rows}, 1)
    assert (score.mechanism, score.counted) == ("euler", 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"histogram.euler": {"regions_per_user": 2}}, 'set origin = "declared"'),
        ({"histogram.euler": {"origin": "declared", "regions_per_user": 101}}, "regions_per_user"),
        ({"feed.quality.teleport_km_h": 400}, r"feed.quality.teleport_km_h would refuse.*set teleport_km_h = 0"),
        ({"histogram.epsilon": 0.001}, "lower histogram.euler.regions_per_user"),
        ({"feed.speeds": "derived"}, "set feed.speeds to 'reported'"),
        ({"feed.speeds": "missing"}, "set feed.speeds to 'reported'"),
    ],
)
def test_what_does_not_fit_declared_regions_is_refused_with_a_remedy(tmp_path, changes, expected):
    with pytest.raises(ConfigError, match=expected):
        declaring(tmp_path, **changes)


BOX = BoundingBox(south=30.1, west=-97.9, north=30.6, east=-97.5)


def by_hand(rows: np.ndarray, per_user: int) -> list[tuple[int, int, int]]:
    """(user, lat, lng) of the representatives, in plain Python."""
    places: dict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for row in rows.tolist():
        cell, user, time, lat, lng, _ = row
        if 301_000_000 <= lat < 306_000_000 and -979_000_000 <= lng < -975_000_000:
            place = (cell, lat, lng)
            places[user][time] = min(places[user].get(time, place), place)
    fixes = []
    for user in sorted(places):
        in_time = [places[user][time] for time in sorted(places[user])]
        kept = min(per_user, len(in_time))
        fixes += [(user, *in_time[(k + 1) * len(in_time) // kept - 1][1:]) for k in range(kept)]
    return fixes


@pytest.mark.parametrize("per_user", [1, 2, 5, 100])
@pytest.mark.parametrize("seed", range(5))
def test_representatives_are_those_that_plain_python_finds_in_any_order_of_rows(seed, per_user):
    """Times repeat with other positions, so that the rule for ties is tested, too."""
    rows = located_rows(seed, 300, users=25)
    rows["time"] -= rows["time"] % 900_000_000
    other = rows.copy()
    other["value"] = other["value"][::-1]  # measured values decide nothing, so histograms cost nothing of "values"
    assert fixes_of(rows, BOX).digest == fixes_of(other, BOX).digest
    for mixed in (rows, rows[np.random.default_rng(seed).permutation(len(rows))], other):
        fixes = fixes_of(mixed, BOX)
        chosen = fixes.representatives(per_user)
        assert list(zip(chosen.user.tolist(), chosen.lat.tolist(), chosen.lng.tolist(), strict=True)) == by_hand(
            rows, per_user
        )


def test_no_rows_and_no_box_are_nothing():
    none = fixes_of(located_rows(1, 0), BOX)
    assert (len(none), len(none.users), len(none.representatives(3))) == (0, 0, 0)
    assert fixes_of(located_rows(1, 10), None) is None
