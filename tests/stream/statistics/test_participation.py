"""Relation "participation": releases of two streams that differ by one user may differ only in noisy numbers."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import h3
import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from dpcore.errors import BudgetError, OverflowBoundError
from dpcore.noise import Noise
from dpcore.participation import UNIT, weighed
from stream.cli import app
from stream.config import ConfigError
from stream.config.public_cells import public_cells
from stream.statistics.participation.draw import exact_integers
from stream.statistics.participation.plan import participation_of
from stream.statistics.values.cell_means import MECHANISMS
from stream.storage.row_store import ROW
from stream.terms import Terms
from tests.dpcore.silence import Silence
from tests.support import hourly
from tests.support.builders import random_rows, zcdp_config
from tests.support.participating import SMALL, riders
from tests.support.releasing import build_messages, draw, planned
from tests.support.schemas import validate

WEIGHTS = ("share", "user", "sample")
STATISTICS = (["mean"], ["mean", "moving_mean", "variance"], ["p50"], ["mean", "variance", "p15", "p50", "p85"])


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1 / 3, 2.0, 7.77])
def test_shares_are_whole_micro_epsilon_that_add_up_to_one_full_contribution(
    tmp_path: Path, weight: str, epsilon: float
) -> None:
    wanted = {"participation.weight": weight, "privacy.epsilon": epsilon, "speed.statistics": list(STATISTICS[3])}
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


def test_an_epsilon_too_small_for_its_parts_is_refused(tmp_path: Path) -> None:
    for weight, epsilon in (("share", 0.000_001), ("user", 0.000_007), ("sample", 0.000_01)):
        wanted = {"participation.weight": weight, "privacy.epsilon": epsilon, "speed.statistics": list(STATISTICS[3])}
        with pytest.raises(BudgetError, match="lower cells_per_user"):
            _ = participation_of(Terms.of(riders(tmp_path, **wanted))).scales
    with pytest.raises(OverflowBoundError, match="larger epsilon"):
        _ = participation_of(Terms.of(riders(tmp_path, **wanted | {"privacy.epsilon": 0.000_05}))).scales


@pytest.mark.parametrize("weight", ["share", "user"])
def test_a_whole_weight_is_divided_exactly_over_thousands_of_samples(tmp_path: Path, weight: str) -> None:
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


def test_every_message_validates_and_names_the_mechanism_of_its_mean(tmp_path: Path) -> None:
    config = riders(tmp_path)
    plan, contributions = planned(config, random_rows(2, 100))
    for message in build_messages(plan, contributions, Noise(), None)[0]:
        validate(message.topic, body := json.loads(message.value))
        assert "cell" not in body or body["mean"]["mechanism"] == "allocated"


@pytest.mark.parametrize("seed", range(5))
def test_what_a_user_contributes_depends_on_their_own_events_only(tmp_path: Path, seed: int) -> None:
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


def test_the_statistics_without_noise_are_those_of_the_weighted_samples(tmp_path: Path) -> None:
    """With every user in one cell and equally many samples the three weights agree with the pooled moments."""
    rows = random_rows(6, 240, users=8, places=1)
    rows = np.concatenate([rows[rows["user"] == user][:20] for user in range(1, 9)])
    for weight in WEIGHTS:
        config = riders(
            tmp_path,
            **{
                "participation.weight": weight,
                "participation.samples_per_cell": 100,
                "speed.statistics": list(STATISTICS[3]),
            },
        )
        plan, contributions = planned(config, rows)
        columns = draw(plan, contributions, Silence())
        at = int(np.searchsorted(public_cells(config), rows["cell"][0]))
        values = np.minimum(rows["value"], 6500) / 100
        assert columns["users"].value[at] == len(np.unique(rows["user"]))
        assert columns["mean"].value[at] == pytest.approx(values.mean(), abs=0.002)
        assert columns["variance"].value[at] == pytest.approx(values.var(), rel=0.001)
        for name, percent in (("p15", 15), ("p50", 50), ("p85", 85)):
            assert abs(columns[name].value[at] - np.percentile(values, percent)) < 2 * 65 / 32
        assert ("events" in columns) == (weight == "sample")


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_95_percent_interval_holds_what_noise_was_added_to(tmp_path: Path, weight: str, accounting: str) -> None:
    """n = 40 draws of each of 6 visited cells, α = 1e-6 a statistic; coverage of 78 % is refuted with power 0.9997.

    So is what intervals of half the width hold of the counts, the planted twin.
    """
    wanted = {"participation.weight": weight, "speed.statistics": list(STATISTICS[3])}
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
def test_check_refuses_everything_driven_by_counts_with_key_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, says: str
) -> None:
    arguments = ["check", "--config", str(hourly.RIDERS)]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    monkeypatch.setenv(f"HEXVEIL_SPEED__{key.upper()}", value)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"speed.{key}" in result.output
    assert says in result.output


@pytest.mark.parametrize("weight", WEIGHTS)
def test_check_says_how_far_off_a_count_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: str) -> None:
    monkeypatch.setenv("HEXVEIL_PARTICIPATION__WEIGHT", weight)
    arguments = ["check", "--config", str(hourly.RIDERS)]
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    config = riders(tmp_path)
    plan, contributions = planned(config, random_rows(1, 50))
    counted = draw(plan, contributions, Noise())["users" if weight != "sample" else "events"]
    assert report["weight"] == weight
    assert report["count_half_width"] == pytest.approx((counted.high - counted.low)[0] / 2 - 0.05, abs=0.01)
    assert (
        f"95 % interval is ± {report['count_half_width']:g} in every cell" in CliRunner().invoke(app, arguments).stdout
    )


def test_an_area_of_too_many_cells_or_none_is_refused_before_it_is_enumerated(tmp_path: Path) -> None:
    for resolution in (15, 11):
        with pytest.raises(ConfigError, match="more than 20000; choose a smaller area or a coarser resolution"):
            public_cells(riders(tmp_path, **{"hexagons.resolution": resolution}))
    tiny = {"south": 30.2, "west": -97.7, "north": 30.2001, "east": -97.6999}
    with pytest.raises(ConfigError, match="no cell centre"):
        public_cells(riders(tmp_path, **{"feed.domain": tiny}))


def test_a_geojson_area_gives_the_cells_whose_centre_it_holds(tmp_path: Path) -> None:
    ring = [[-97.8, 30.2], [-97.6, 30.2], [-97.6, 30.4], [-97.8, 30.4], [-97.8, 30.2]]
    file = tmp_path / "city.geojson"
    shape = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [shape]}))
    cells = public_cells(riders(tmp_path, **{"participation.geojson": str(file)}))
    centres = [h3.cell_to_latlng(f"{cell:x}") for cell in cells.tolist()]
    assert len(cells) > 20
    assert all(30.2 <= lat <= 30.4 and -97.8 <= lng <= -97.6 for lat, lng in centres)
    for broken in ("{}", "[]", '{"type":"Point","coordinates":[0,0]}', "nonsense"):
        bad = tmp_path / f"bad{hash(broken)}.geojson"
        bad.write_text(broken)
        with pytest.raises(ConfigError, match="GeoJSON"):
            public_cells(riders(tmp_path, **{"participation.geojson": str(bad)}))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_charges_are_full_contributions_times_their_epsilon_and_an_exhausted_user_vanishes(
    tmp_path: Path, weight: str
) -> None:
    config = riders(tmp_path, **{"participation.weight": weight})
    rows = random_rows(4, 120)
    plan, contributions = planned(config, rows)
    kept = plan.retained
    cells = contributions.counts.by_user((kept > 0).astype(np.int64))
    assert cells.max() > 1
    expected = config.privacy.epsilon_micro // 8 * cells if weight != "share" else np.full(len(cells), 2_000_000)
    assert (plan.charges == expected).all()
    left = np.full(contributions.counts.n_users, config.privacy.ledger_budget)
    left[2] = expected[2] - 1
    poor, _ = planned(config, rows, left)
    user = contributions.counts.users[2]
    without, rest = planned(config, rows[rows["user"] != user])
    assert poor.charges[2] == 0
    assert (exact_integers(poor, contributions) == exact_integers(without, rest)).all()
    left[2] += 1
    assert (exact_integers(planned(config, rows, left)[0], contributions) == exact_integers(plan, contributions)).all()
    assert participation_of(Terms.of(config)).own_choice(contributions.counts, np.zeros(0, dtype=np.uint64)).sum() == 0


@pytest.mark.parametrize("weight", WEIGHTS)
def test_odd_input_is_normal_input(tmp_path: Path, weight: str) -> None:
    """Events outside the list, one user with thousands of them, no events, a list of one cell, more cells than it
    has."""
    one_cell = {"south": 30.19, "west": -97.71, "north": 30.21, "east": -97.69}
    config = riders(
        tmp_path,
        **{"participation.weight": weight, "feed.domain": one_cell, "participation.cells_per_user": 1000},
    )
    assert len(public_cells(config)) == 1
    crowd = random_rows(7, 5000, users=1, places=1)
    outside = random_rows(8, 50, places=3)
    outside["cell"] = h3.str_to_int(h3.latlng_to_cell(48.85, 2.35, 7))
    for rows in (np.zeros(0, dtype=ROW), crowd, outside, np.concatenate([crowd, outside])):
        plan, contributions = planned(config, rows)
        messages = build_messages(plan, contributions, Noise(), None)[0]
        assert len(messages) == 2
        validate(messages[0].topic, json.loads(messages[0].value))
    plan, contributions = planned(config, outside)
    assert not plan.charges.any(), "an event outside the list was charged for"
