"""Relation "participation": releases of two streams that differ by one user may differ only in noisy numbers. Residual
clipping under "participation": ranges from released values alone, noise that falls at the same charge, and means that
are undone."""

import json
from fractions import Fraction
from typing import Any

import h3
import msgspec
import numpy as np
import pytest
from scipy import stats

from dpcore.contributions import Contributions
from dpcore.errors import BudgetError, OverflowBoundError
from dpcore.noise import Noise
from dpcore.participation import UNIT, weighed
from stream.config import Config, ConfigError
from stream.config.public_cells import public_cells
from stream.messages.cells import Clipping, cells_of
from stream.messages.message import HEXAGON_SPEED
from stream.serve.city.combining import combined
from stream.statistics.participation.draw import exact_integers, participation_of
from stream.statistics.plan import ParticipationPart, Plan, decode_plan, encode_plan
from stream.statistics.residual_clipping import response_of, with_ranges
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from stream.statistics.values.cell_statistics import MECHANISMS
from stream.storage.row_store import ROW
from stream.terms import MOVING_KM_H, Terms
from tests.dpcore.silence import Silence
from tests.support import hourly
from tests.support.builders import SLOT, SMALL, random_rows, riders, zcdp_config
from tests.support.command import run
from tests.support.nightly import nightly
from tests.support.releasing import bodies_of, build_messages, draw, planned
from tests.support.schemas import validate

WEIGHTS = ("share", "user", "sample")
EVERY = ["mean", "variance", "p15", "p50", "p85"]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1 / 3, 2.0, 7.77])
def test_shares_are_whole_micro_epsilon_that_add_up_to_one_full_contribution(tmp_path, weight, epsilon):
    wanted = {"participation.weight": weight, "privacy.epsilon": epsilon, "speed.statistics": EVERY}
    terms = participation_of(Terms.of(riders(tmp_path, **wanted)))
    parts = terms.part_grants
    assert parts.dtype == np.int64
    assert (parts >= 1).all()
    assert parts.sum() == terms.unit_grant
    t, s = terms.scales
    for bound, part, numerator, denominator in zip(
        terms.sensitivities.tolist(), parts.tolist(), t.tolist(), s.tolist(), strict=True
    ):
        assert Fraction(bound * denominator, numerator) * 1_000_000 <= part


def test_an_epsilon_too_small_for_its_parts_is_refused(tmp_path):
    for weight, epsilon in (("share", 0.000_001), ("user", 0.000_007), ("sample", 0.000_01)):
        wanted = {"participation.weight": weight, "privacy.epsilon": epsilon, "speed.statistics": EVERY}
        with pytest.raises(BudgetError, match="lower cells_per_user"):
            _ = participation_of(Terms.of(riders(tmp_path, **wanted))).scales
    with pytest.raises(OverflowBoundError, match="larger epsilon"):
        _ = participation_of(Terms.of(riders(tmp_path, **wanted | {"privacy.epsilon": 0.000_05}))).scales


@pytest.mark.parametrize("weight", ["share", "user"])
def test_a_whole_weight_is_divided_exactly_over_thousands_of_samples(tmp_path, weight):
    config = riders(tmp_path, **{"participation.weight": weight, "participation.cells_per_user": 3})
    rows = random_rows(5, 9000, users=2)
    rows["user"][:10] = 7
    plan, contributions = planned(config, rows)
    kept = contributions.retain(plan.retained)
    weights = np.concatenate([piece.weights for piece in weighed(kept, weight)])
    pair = np.repeat(np.arange(len(kept.counts.samples)), kept.counts.samples)
    by_pair = np.bincount(pair, weights, len(kept.counts.samples)).astype(np.int64)
    whole = by_pair[kept.counts.samples > 0] if weight == "user" else kept.counts.by_user(by_pair)
    assert (whole == UNIT).all()
    assert weights.min() >= UNIT // 9000


@pytest.mark.parametrize("seed", range(5))
def test_what_a_user_contributes_depends_on_their_own_events_only(tmp_path, seed):
    config = riders(tmp_path, **{"participation.cells_per_user": 2})
    rows = random_rows(seed, 200)

    def mine(of: np.ndarray, user: int) -> list[tuple[int, int]]:
        plan, contributions = planned(config, of)
        counts, kept = contributions.counts, plan.retained
        own = (counts.users[counts.pair_user] == user) & (kept > 0)
        return list(zip(counts.cells[counts.pair_cell[own]].tolist(), kept[own].tolist(), strict=True))

    for user in (1, 5, 9):
        assert mine(rows, user) == mine(rows[rows["user"] == user], user)
        assert len(mine(rows, user)) <= 2


def test_the_statistics_without_noise_are_those_of_the_weighted_samples(tmp_path):
    """With every user in one cell and equally many samples the three weights agree with the pooled moments."""
    rows = random_rows(6, 240, users=8, places=1)
    rows = np.concatenate([rows[rows["user"] == user][:20] for user in range(1, 9)])
    for weight in WEIGHTS:
        chosen = {"participation.samples_per_cell": 100, "speed.statistics": [*EVERY, "moving_mean"]}
        config = riders(tmp_path, **chosen, **{"participation.weight": weight})
        plan, contributions = planned(config, rows)
        columns = draw(plan, contributions, Silence())
        at = int(np.searchsorted(public_cells(config), rows["cell"][0]))
        values = np.minimum(rows["value"], 6500) / 100
        assert columns["users"].value[at] == len(np.unique(rows["user"]))
        assert columns["mean"].value[at] == pytest.approx(values.mean(), abs=0.002)
        assert columns["variance"].value[at] == pytest.approx(values.var(), rel=0.001)
        assert columns["moving_mean"].value[at] == pytest.approx(values[values >= MOVING_KM_H].mean(), abs=0.02)
        for name, percent in (("p15", 15), ("p50", 50), ("p85", 85)):
            assert abs(columns[name].value[at] - np.percentile(values, percent)) < 2 * 65 / 32
        assert ("events" in columns) == (weight == "sample")


CASES = [(weight, accounting) for accounting in ("pure", "zcdp") for weight in WEIGHTS]


@pytest.mark.parametrize(("weight", "accounting"), [*CASES[:4], *(nightly(*case) for case in CASES[4:])])
def test_every_95_percent_interval_holds_what_noise_was_added_to(tmp_path, weight, accounting):
    """n = 40 draws of each of 6 visited cells, α = 1e-6 a statistic; coverage of 78 % is refuted with power 0.9997.

    So is what intervals of half the width hold of the counts, the planted twin.
    """
    wanted = {"participation.weight": weight, "speed.statistics": [*EVERY, "moving_mean"]}
    by_rho = accounting == "zcdp"
    config = zcdp_config(tmp_path, 2.0, 4.0, **SMALL, **wanted) if by_rho else riders(tmp_path, **wanted)
    plan, contributions = planned(config, random_rows(3, 600, users=200))
    seen = exact_integers(plan, contributions)[:3].sum(axis=0) > 0
    quiet = draw(plan, contributions, Silence())
    names = [name for name in quiet if name != "users" or weight != "sample"]
    held_in, narrow = dict.fromkeys(names, 0), 0
    for _ in range(40):
        columns = draw(plan, contributions, Noise())
        for name in names:
            truth, slack = quiet[name].raw[seen], {"cdf": 1e-5}.get(name, 65 / 32 if name[0] == "p" else 0.06)
            inside = (columns[name].low[seen] - slack <= truth) & (truth <= columns[name].high[seen] + slack)
            held_in[name] += int(inside.reshape(len(inside), -1).all(axis=1).sum())
        count = columns[names[0]]
        narrow += int((np.abs(count.raw - quiet[names[0]].raw) < (count.high - count.low) / 4)[seen].sum())
    n = 40 * int(seen.sum())
    assert n == 240
    for name, hits in held_in.items():
        assert stats.binomtest(hits, n, 0.95, "less").pvalue > 1e-6, name
    assert stats.binomtest(narrow, n, 0.95, "less").pvalue < 1e-6


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        *(("mean_mechanism", name, "depends on counts") for name in (*MECHANISMS, "auto")),
        ("suppression", "chop-user", "true counts"),
        ("allocation", "exact-loss", "true counts"),
        ("sum_cap", "0.7", "counts of all users"),
        ("min_users", "2", "who was there"),
    ],
)
def test_check_refuses_everything_driven_by_counts_with_key_and_reason(tmp_path, monkeypatch, key, value, says):
    monkeypatch.chdir(tmp_path)
    run("check", "--config", hourly.RIDERS)
    monkeypatch.setenv(f"HEXVEIL_SPEED__{key.upper()}", value)
    said = run("check", "--config", hourly.RIDERS, code=2).output
    assert f"speed.{key}" in said
    assert says in said


@pytest.mark.parametrize("weight", WEIGHTS)
def test_check_says_how_far_off_a_count_is(tmp_path, monkeypatch, weight):
    monkeypatch.setenv("HEXVEIL_PARTICIPATION__WEIGHT", weight)
    report = json.loads(run("check", "--config", hourly.RIDERS, "--json").stdout)
    config = riders(tmp_path)
    plan, contributions = planned(config, random_rows(1, 50))
    counted = draw(plan, contributions, Noise())["users" if weight != "sample" else "events"]
    assert report["weight"] == weight
    assert report["count_half_width"] == pytest.approx((counted.high - counted.low)[0] / 2, abs=0.01)
    said = run("check", "--config", hourly.RIDERS).stdout
    assert f"95 % interval is ± {report['count_half_width']:g} in every cell" in said


def test_an_area_of_too_many_cells_or_none_is_refused_before_it_is_enumerated(tmp_path):
    for resolution in (15, 11):
        with pytest.raises(ConfigError, match="more than 20000; choose a smaller area or a coarser resolution"):
            public_cells(riders(tmp_path, **{"hexagons.resolution": resolution}))
    tiny = {"south": 30.2, "west": -97.7, "north": 30.2001, "east": -97.6999}
    with pytest.raises(ConfigError, match="no cell centre"):
        public_cells(riders(tmp_path, **{"feed.domain": tiny}))


def test_a_geojson_area_gives_the_cells_whose_centre_it_holds(tmp_path):
    ring = [[-97.8, 30.2], [-97.6, 30.2], [-97.6, 30.4], [-97.8, 30.4], [-97.8, 30.2]]
    file = tmp_path / "city.geojson"
    shape = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [shape]}))
    cells = public_cells(riders(tmp_path, **{"participation.geojson": str(file)}))
    centres = [h3.cell_to_latlng(f"{cell:x}") for cell in cells.tolist()]
    assert len(cells) > 20
    assert all(30.2 <= lat <= 30.4 and -97.8 <= lng <= -97.6 for lat, lng in centres)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_charges_are_full_contributions_times_their_epsilon(tmp_path, weight):
    config = riders(tmp_path, **{"participation.weight": weight})
    rows = random_rows(4, 120)
    plan, contributions = planned(config, rows)
    kept = plan.retained
    cells = contributions.counts.by_user((kept > 0).astype(np.int64))
    assert cells.max() > 1
    expected = config.privacy.epsilon_micro // 8 * cells if weight != "share" else np.full(len(cells), 2_000_000)
    assert (plan.charges == expected).all()
    assert participation_of(Terms.of(config)).own_choice(contributions.counts, np.zeros(0, dtype=np.uint64)).sum() == 0


@pytest.mark.parametrize("weight", WEIGHTS)
def test_odd_input_is_normal_input(tmp_path, weight):
    """Events outside the list, one user with thousands of them, no events, a list of one cell, more cells than it
    has."""
    one_cell = {"south": 30.19, "west": -97.71, "north": 30.21, "east": -97.69}
    config = riders(
        tmp_path, **{"participation.weight": weight, "feed.domain": one_cell, "participation.cells_per_user": 1000}
    )
    assert len(public_cells(config)) == 1
    crowd = random_rows(7, 5000, users=1, places=1)
    outside = random_rows(8, 50, places=3)
    outside["cell"] = h3.str_to_int(h3.latlng_to_cell(48.85, 2.35, 7))
    for rows in (np.zeros(0, dtype=ROW), crowd, outside, np.concatenate([crowd, outside])):
        plan, contributions = planned(config, rows)
        messages = build_messages(plan, contributions, Noise(), None)[0]
        assert len(messages) == 2
        validate(messages[0].topic, body := json.loads(messages[0].value))
        assert body["mean"]["mechanism"] == "allocated"
    plan, contributions = planned(config, outside)
    assert not plan.charges.any(), "an event outside the list was charged for"


RESIDUAL: dict[str, Any] = {
    "speed.clipping": "residual",
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean", "p50"],
}


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
    return plan, contributions, bodies_of(messages, HEXAGON_SPEED), after


def fleet(number: int, speed: float, users: int = 4000, places: int = 6) -> np.ndarray:
    """Users who drive ``speed`` ± 13 km/h, each in two cells."""
    rows = random_rows(number, 2 * users, users=users, places=places, slot=SLOT + 3600 * number)
    rows["value"] = np.clip(np.random.default_rng(number).normal(100 * speed, 1300, len(rows)), 0, 6500)
    return rows


def test_ranges_change_no_charge_and_no_scale_and_less_noise_is_left_in_the_mean(tmp_path):
    config, rows = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.2}), random_rows(3, 900, users=300)
    (plan, contributions), memory = planned(config, rows), None
    for hours, seed in ((-2, 0), (-1, 1)):
        *_, memory = release(config, random_rows(seed, 900, users=300), memory, SLOT + 3600 * hours)
    ranged = with_ranges(plan, memory)
    assert msgspec.structs.replace(ranged, participation=ParticipationPart()) == plan, "ranges cost nothing"
    assert decode_plan(encode_plan(ranged)) == ranged
    response = response_of(ranged)
    seen = exact_integers(plan, contributions)[:2].sum(axis=0) > 20 * 2**20
    narrow = seen & ((ranged.ranges[1] - ranged.ranges[0]) < 3000)
    assert narrow.sum() >= 3
    before, after = (draw(one, contributions, Silence())["mean"].scale for one in (plan, ranged))
    noise = np.sqrt(np.square(after) - np.square(response.open) / 2)
    assert (noise[narrow] * response.gain[narrow] < 0.6 * before[narrow]).all()


def test_nothing_is_clipped_until_two_windows_have_counted_users_of_these_cells(tmp_path):
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


def test_released_means_of_a_large_fleet_are_undone(tmp_path):
    """4 000 users drive 30 ± 13 km/h: means are within 5 of their deviations of the truth (α = 6·10⁻⁷ a cell), though
    clipping alone moves them towards the forecast."""
    config, memory = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.03}), None
    for number in range(6):
        speed = 30.0 if number < 5 else 36.0
        rows = fleet(number, speed)
        plan, contributions, bodies, memory = release(config, rows, memory, SLOT + 3600 * number)
    response, judged = response_of(plan), 0
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


def test_intervals_reach_as_far_as_what_clipping_leaves_open_however_little_noise_there_is(tmp_path):
    config = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 8.0})
    plan, contributions = planned(config, fleet(1, 30.0))
    middle = np.full(len(plan.cells), 3000)
    part = ParticipationPart(lower=middle - 400, upper=middle + 400, foretold=middle)
    plan = msgspec.structs.replace(plan, participation=part)
    mean, response = draw(plan, contributions, Silence())["mean"], response_of(plan)
    busy = exact_integers(plan, contributions)[:2].sum(axis=0) > 300 * 2**20
    assert busy.any()
    assert (response.open > 2).all()
    assert (np.minimum(mean.high - mean.raw, mean.raw - mean.low)[busy] >= 1.96 * response.open[busy]).all()


def test_readers_that_combine_cells_see_the_mean_of_a_cell_as_it_was_released(tmp_path):
    config, memory = riders(tmp_path, **RESIDUAL | {"speed.statistics": ["mean"]}), None
    for number in range(3):
        *_, bodies, memory = release(config, fleet(number, 30.0), memory, SLOT + 3600 * number)
    body = max(bodies, key=lambda body: body["users"]["raw"])
    (cell,) = cells_of([json.dumps(body).encode()])
    mean = combined([cell], Clipping(0.0, 65.0))["mean"]
    assert mean["raw"] == pytest.approx(body["mean"]["raw"], abs=0.02)
    assert mean["interval"] == pytest.approx(body["mean"]["interval"], abs=0.1)


def test_what_residual_clipping_does_not_go_with_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="do not give the variance of speeds"):
        riders(tmp_path, **RESIDUAL | {"speed.statistics": ["mean", "variance"]})
    with pytest.raises(ConfigError, match="only 'kalman' foretells"):
        riders(tmp_path, **RESIDUAL | {"speed.post_processing": []})


def test_a_jam_widens_the_ranges_of_its_cells_so_that_it_is_seen(tmp_path):
    config, memory, shown = riders(tmp_path, **RESIDUAL | {"privacy.epsilon": 0.5}), None, []
    for number in range(8):
        rows = fleet(number, 45.0 if number < 4 else 5.0, users=3000, places=2)
        rows["value"] = np.clip(rows["value"], 0, 6500)
        *_, bodies, memory = release(config, rows, memory, SLOT + 3600 * number)
        busy = [body for body in bodies if int(body["cell"], 16) in set(rows["cell"].tolist())]
        shown.append(np.mean([body["post_processed"]["mean"]["value"] for body in busy]))
    assert shown[3] == pytest.approx(44, abs=4)
    assert shown[7] < 14
