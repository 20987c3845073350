"""Relation "participation": nothing but noisy numbers may differ between streams that differ by one user."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import h3
import jsonschema
import numpy as np
import pytest
from scipy import stats

from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from stream import participation
from stream.cells import public_cells
from stream.closing import slotting_of
from stream.config import Config, ConfigError, load_config
from stream.events import ROW
from stream.local import REPO_ROOT
from stream.participation import cell_grant, exact_integers, own_choice, plan_participation
from stream.pipeline import build_messages, contributions_of, draw, plan_window
from stream.plan import Plan
from stream.releases import schema
from tests.builders import SLOT, random_rows

BOX = {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}


def riders(tmp_path: Path, **overrides: object) -> Config:
    settings = {"privacy.user_key_file": str(tmp_path / "user.key"), "feed.domain": BOX, "hexagons.resolution": 7}
    return load_config(REPO_ROOT / "config" / "riders.toml", **(settings | overrides))


def planned(config: Config, rows: np.ndarray, left: np.ndarray | None = None) -> tuple[Plan, Contributions]:
    held = contributions_of(rows, config)
    slotting = slotting_of(config)
    allowed = np.full(held.counts.n_users, config.privacy.budget_micro) if left is None else left
    window, period = slotting.window(SLOT), slotting.period_of(SLOT)
    return plan_window(held.counts, allowed, config, window, period, "11111111-1111-4111-8111-111111111111"), held


@pytest.mark.parametrize("seed", range(6))
def test_removing_one_user_moves_the_integers_by_no_more_than_his_charge(tmp_path: Path, seed: int) -> None:
    config = riders(tmp_path, **{"participation.cells_per_user": 2, "participation.samples_per_cell": 3})
    rows = random_rows(seed, 200)
    plan, held = planned(config, rows)
    charges = dict(zip(held.counts.users.tolist(), np.frombuffer(plan.charges, "<i8").tolist(), strict=True))
    t, s = np.frombuffer(plan.numerators, "<i8"), np.frombuffer(plan.denominators, "<i8")
    with_all = exact_integers(plan, held)
    for user in held.counts.users.tolist():
        other_plan, other = planned(config, rows[rows["user"] != user])
        moved = np.abs(with_all - exact_integers(other_plan, other)).sum(axis=1)
        loss = sum(Fraction(int(m) * int(q), int(p)) for m, p, q in zip(moved, t, s, strict=True))
        assert loss * 1_000_000 <= charges[user] <= config.privacy.epsilon_micro


def test_neighbouring_streams_under_one_noise_tape_differ_in_noisy_values_only(tmp_path: Path) -> None:
    config = riders(tmp_path)
    rows = random_rows(1, 150)

    def stripped(of: np.ndarray) -> list[object]:
        plan, held = planned(config, of)
        tape = Noise(np.random.default_rng(9).bytes)
        out = []
        for message in build_messages(plan, held, tape, config, None)[0]:
            body = json.loads(message.value)
            for name in ("users", "events", "mean", "variance"):
                if isinstance(body.get(name), dict):
                    body[name] = {key: body[name][key] for key in ("unit",)}
            body.pop("digest", None)
            out.append((message.topic, message.key, message.headers, message.timestamp_ms, body))
        return out

    everyone = stripped(rows)
    assert stripped(rows[rows["user"] != rows["user"][0]]) == everyone
    assert stripped(np.zeros(0, dtype=ROW)) == everyone, "an empty window looks different"
    assert len(everyone) == len(public_cells(config)) + 1


def test_every_message_validates(tmp_path: Path) -> None:
    config = riders(tmp_path)
    plan, held = planned(config, random_rows(2, 100))
    for message in build_messages(plan, held, Noise(), config, None)[0]:
        jsonschema.Draft202012Validator(schema(message.topic)).validate(json.loads(message.value))


@pytest.mark.parametrize("seed", range(5))
def test_what_a_user_contributes_depends_on_his_own_events_only(tmp_path: Path, seed: int) -> None:
    config = riders(tmp_path, **{"participation.cells_per_user": 2})
    rows = random_rows(seed, 200)

    def mine(of: np.ndarray, user: int) -> list[tuple[int, int]]:
        plan, held = planned(config, of)
        counts, kept = held.counts, np.frombuffer(plan.retained, "<i8")
        own = (counts.users[counts.pair_user] == user) & (kept > 0)
        return list(zip(counts.cells[counts.pair_cell[own]].tolist(), kept[own].tolist(), strict=True))

    for user in (1, 5, 9):
        assert mine(rows, user) == mine(rows[rows["user"] == user], user)
        assert len(mine(rows, user)) <= 2


def test_the_95_percent_interval_of_counts_and_means_holds_the_truth(tmp_path: Path) -> None:
    """n = 40 draws of every public cell; caps do not bind; α = 1e-6. Intervals of ratios are conservative."""
    config = riders(tmp_path, **{"participation.cells_per_user": 6, "participation.samples_per_cell": 100})
    plan, held = planned(config, random_rows(3, 300, users=40))
    exact = exact_integers(plan, held)
    covered = total = mean_covered = mean_total = 0
    seen = exact[1] > 0
    truth = 32.5 + exact[2][seen] * 0.005 / exact[1][seen]
    for _ in range(40):
        columns = draw(plan, held, Noise())
        inside = (columns["events"].low <= exact[1]) & (exact[1] <= columns["events"].high)
        covered, total = covered + int(inside.sum()), total + len(inside)
        good = (columns["mean"].low[seen] <= truth + 1e-3) & (truth - 1e-3 <= columns["mean"].high[seen])
        mean_covered, mean_total = mean_covered + int(good.sum()), mean_total + len(good)
    assert stats.binomtest(covered, total, 0.95, "less").pvalue > 1e-6
    assert stats.binomtest(mean_covered, mean_total, 0.95, "less").pvalue > 1e-6


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("speed.suppression", "chop-user", "raw counts"),
        ("speed.allocation", "exact-loss", "raw counts"),
        ("speed.clipping", "joint", "reads counts"),
        ("speed.post_processing", ["empirical-bayes", "kalman"], "exact counts"),
        ("speed.min_users", 2, "who was there"),
    ],
)
def test_everything_driven_by_counts_is_refused_with_the_reason(
    tmp_path: Path, key: str, value: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        riders(tmp_path, **{key: value})


def test_an_area_of_too_many_cells_or_none_is_refused_before_it_is_enumerated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_cells"):
        public_cells(riders(tmp_path, **{"hexagons.resolution": 15}))
    with pytest.raises(ConfigError, match="max_cells"):
        public_cells(riders(tmp_path, **{"participation.max_cells": 3}))
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


World = tuple[tuple[tuple[int, ...], ...], ...]
"""windows × users × cells visited."""
Planner = Callable[[Counts, np.ndarray, Config], tuple[np.ndarray, np.ndarray]]


def honest(counts: Counts, left: np.ndarray, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """(retained, charges) of the real planner."""
    slotting = slotting_of(config)
    plan = plan_participation(counts, left, config, slotting.window(SLOT), slotting.period_of(SLOT), "g")
    return np.frombuffer(plan.retained, "<i8"), np.frombuffer(plan.charges, "<i8")


def first_contributors(counts: Counts, left: np.ndarray, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Planted bug: a cell takes its first contributor only, so one user decides about another."""
    kept, charges = honest(counts, left, config)
    first = np.zeros(len(kept), dtype=bool)
    first[counts.cell_start[:-1]] = True
    return np.where(first, kept, 0), charges


def charged_after(counts: Counts, left: np.ndarray, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Planted bug: admitted while anything is left, charged afterwards."""
    return honest(counts, np.where(left > 0, config.privacy.budget_micro, 0), config)


def refund_on_restart(counts: Counts, left: np.ndarray, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Planted bug: the second window forgets what the first one charged."""
    return honest(counts, np.full(len(left), config.privacy.budget_micro), config)


def worst_loss(config: Config, planner: Planner) -> Fraction:
    """Largest loss, in ε, of any user over all worlds of 2 users, 3 windows and 2 cells: exact rational arithmetic."""
    cells = public_cells(config)[:2].tolist()
    t, s = participation.scales(config)
    visits = ((), (0,), (1,), (0, 1))
    cache: dict[World, list[np.ndarray]] = {}

    def transcript(world: World) -> list[np.ndarray]:
        if world in cache:
            return cache[world]
        spent = {1: 0, 2: 0}
        out = []
        for w, users in enumerate(world):
            events = [(cells[c], user, w * 10 + c, 6500) for user, where in enumerate(users, 1) for c in where]
            rows = np.zeros(len(events), dtype=ROW)
            for i, (cell, user, moment, value) in enumerate(events):
                rows[i] = (cell, user, moment, 0, 0, value)
            held = contributions_of(rows, config)
            left = np.array(
                [config.privacy.budget_micro - spent[u] for u in held.counts.users.tolist()], dtype=np.int64
            )
            kept, charges = planner(held.counts, left, config)
            for user, charge in zip(held.counts.users.tolist(), charges.tolist(), strict=True):
                spent[user] += charge
            kept_rows = held.retain(np.asarray(kept))
            base, _ = planned(config, rows)
            import msgspec

            out.append(exact_integers(msgspec.structs.replace(base, retained=np.asarray(kept, "<i8").tobytes()), held))
            assert kept_rows is not None
        cache[world] = out
        return out

    worst = Fraction(0)
    for world in itertools.product(itertools.product(visits, repeat=2), repeat=3):
        for gone in (0, 1):
            other = tuple(tuple(() if u == gone else where for u, where in enumerate(users)) for users in world)
            loss = Fraction(0)
            for one, two in zip(transcript(world), transcript(other), strict=True):
                for moved, numerator, denominator in zip(np.abs(one - two).sum(axis=1), t, s, strict=True):
                    loss += Fraction(int(moved) * int(denominator), int(numerator))
            worst = max(worst, loss)
    return worst


@pytest.fixture
def small_world(tmp_path: Path) -> Config:
    """ε = 1 per window for 2 cells, B = 1.5: the third half-grant is refused."""
    return riders(
        tmp_path,
        **{
            "privacy.epsilon": 1.0,
            "privacy.budget": 1.5,
            "participation.cells_per_user": 2,
            "participation.samples_per_cell": 1,
            "participation.max_cells": 500,
            "speed.statistics": ["mean"],
            "feed.domain": {"south": 30.2, "west": -97.75, "north": 30.27, "east": -97.65},
        },
    )


def test_the_worst_loss_over_all_small_worlds_is_the_budget(small_world: Config) -> None:
    worst = worst_loss(small_world, honest)
    assert worst <= Fraction(3, 2)
    assert worst > Fraction(3, 2) - Fraction(1, 10_000), "the accounting is looser than it says"


@pytest.mark.parametrize("bug", [first_contributors, charged_after, refund_on_restart])
def test_the_same_audit_catches_planted_accounting_bugs(small_world: Config, bug: Planner) -> None:
    assert worst_loss(small_world, bug) > Fraction(3, 2) + Fraction(1, 10)


def test_charges_are_cells_kept_times_epsilon_per_cell_and_an_exhausted_user_vanishes(tmp_path: Path) -> None:
    config = riders(tmp_path)
    rows = random_rows(4, 120)
    plan, held = planned(config, rows)
    kept = np.frombuffer(plan.retained, "<i8")
    cells = held.counts.by_user((kept > 0).astype(np.int64))
    assert (np.frombuffer(plan.charges, "<i8") == cells * cell_grant(config)).all()
    left = np.full(held.counts.n_users, config.privacy.budget_micro)
    left[2] = cell_grant(config) * cells[2] - 1
    poor, _ = planned(config, rows, left)
    user = held.counts.users[2]
    without, rest = planned(config, rows[rows["user"] != user])
    assert np.frombuffer(poor.charges, "<i8")[2] == 0
    assert (exact_integers(poor, held) == exact_integers(without, rest)).all()
    assert own_choice(held.counts, np.zeros(0, dtype=np.uint64), 3, 3).sum() == 0
