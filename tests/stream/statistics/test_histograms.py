"""Spatial histograms in the service: which users count, what they are charged, and that this depends on no other user.
The worst-case error E and the plan that releases state: no values are further off, and a recorded day shows CHOP-USER.
"""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.recordings import path_of_day, recordings
from dpcore.accounting import rho_of_pure
from dpcore.budget import to_micro
from dpcore.contributions import Counts
from dpcore.noise import Noise
from dpcore.spatial import Rectangles, histogram_from_release
from dpcore.spatial.regions import Footprints
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, digest
from stream.statistics import window_release
from stream.statistics.histograms.fixes import fixes_of
from stream.statistics.histograms.histograms import contributing, draw_histograms, exact_counts, region_domain
from stream.statistics.plan import Allowance, Due, Plan, PlanError, decode_plan, encode_plan
from stream.statistics.values.cell_statistics import worst_biases
from stream.statistics.values.draw import exact_values
from stream.statistics.values.plan import plan_values
from tests.dpcore.spatial.mechanisms import assert_alike
from tests.support import hourly, releasing
from tests.support.builders import EVERY_MECHANISM, SLOT, bus_config, located_rows, random_rows, with_histograms
from tests.support.command import run
from tests.support.nightly import nightly_but
from tests.support.releasing import bodies_of, build_messages, components_of, planned, planned_with_fixes, released
from tests.support.schemas import validate

RELATIONS = ["values", "participation"]
PAPERS = dict.fromkeys(("e2epriv", "euler", "htf"), "paper")


Transcript = list[tuple[np.ndarray, np.ndarray]]


def transcript(config: Config, windows: list[np.ndarray]) -> Transcript:
    """Integers before noise of every window of a day through the real planner, budgets carried from window to
    window."""
    spent: dict[int, int] = {}
    releases: Transcript = []
    for number, rows in enumerate(windows):
        users = np.unique(rows["user"]).tolist()
        left = np.array([config.privacy.ledger_budget - spent.get(user, 0) for user in users], dtype=np.int64)
        plan, contributions, fixes = planned_with_fixes(config, rows, left, SLOT + 3600 * number)
        for user, charge in zip(contributions.counts.users.tolist(), plan.charges.tolist(), strict=True):
            spent[user] = spent.get(user, 0) + charge
            assert spent[user] <= config.privacy.ledger_budget
        mine = contributing(plan, fixes)
        releases.append((exact_counts(plan.terms.histogram, mine), components_of(plan, mine)))
    return releases


def windows_paid(config: Config, windows: list[np.ndarray], user: int) -> int:
    """The number of windows whose histograms the user pays for if nobody else is present."""
    spent = paid = 0
    for number, rows in enumerate(windows):
        own = rows[rows["user"] == user]
        left = np.full(len(np.unique(own["user"])), config.privacy.ledger_budget - spent, dtype=np.int64)
        plan, _, fixes = planned_with_fixes(config, own, left, SLOT + 3600 * number)
        spent += int(plan.charges.sum())
        paid += len(fixes) > 0 and bool((plan.charges >= plan.terms.histogram.cost).any())
    return paid


def day(seed: int, windows: int = 5) -> list[np.ndarray]:
    return [located_rows(seed * 10 + k, 60, users=8, slot=SLOT + 3600 * k) for k in range(windows)]


def moves_too_much(config: Config, windows: list[np.ndarray]) -> bool:
    """Whether some user who leaves moves the histograms of a day by more than the windows they pay for allow."""
    everyone = transcript(config, windows)
    points, terms = config.histogram.fixes_per_user, planned_with_fixes(config, windows[0])[0].terms.histogram
    region = Footprints.sensitivity(region_domain(terms), terms.regions.diameter_m)
    for user in np.unique(np.concatenate([rows["user"] for rows in windows])).tolist():
        without = transcript(config, [rows[rows["user"] != user] for rows in windows])
        paid = windows_paid(config, windows, user)
        for part, sensitivity in enumerate((points, region)):
            moved = sum(int(np.abs(a[part] - b[part]).sum()) for a, b in zip(everyone, without, strict=True))
            if moved > sensitivity * paid:
                return True
    return False


def tight(relation: str, tmp_path: Path, **overrides: object) -> Config:
    """The budget pays for two of five windows, so users are refused, which must not depend on anybody else."""
    return with_histograms(relation, tmp_path, ["euler", "ug"], **({"privacy.budget": 6.5} | overrides))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", nightly_but([0], range(3)))
@pytest.mark.parametrize("fixes_per_user", [1, 3])
def test_a_user_who_leaves_moves_the_histograms_of_a_day_by_no_more_than_their_own_windows_paid_for(
    tmp_path, relation, seed, fixes_per_user
):
    config = tight(relation, tmp_path, **{"histogram.fixes_per_user": fixes_per_user})
    assert not moves_too_much(config, day(seed))


def test_charging_the_exact_loss_of_speed_under_values_would_be_caught(tmp_path, monkeypatch):
    """The exact loss depends on the counts of others. If it were charged, admission to later windows would depend on
    them, and the histograms would reveal who was present.
    """

    def exact_loss(counts: Counts, due: Due, allowance: Allowance, asked: np.ndarray, memory: object) -> Plan:
        alone = Due(msgspec.structs.replace(due.terms, histogram=None), due.window, due.generation)
        plan = plan_values(counts, alone, allowance)
        charges = plan.charges
        pays = (charges > 0) & (charges + asked <= allowance.left)
        return msgspec.structs.replace(plan, due=due, charges=np.where(pays, charges + asked, 0))

    monkeypatch.setattr(window_release, "plan_values", exact_loss)
    config = tight("values", tmp_path, **{"speed.suppression": "none"})
    assert any(moves_too_much(config, day(seed)) for seed in range(6))


@pytest.mark.parametrize(
    ("relation", "epsilon", "parts"),
    [
        *((relation, 1.0000005, [333_334, 333_333, 333_333]) for relation in RELATIONS),
        ("zcdp", 0.1, [rho_of_pure(micro) for micro in (33_334, 33_333, 33_333)]),
    ],
)
def test_a_charge_holds_the_histograms_budget_to_the_smallest_unit(tmp_path, relation, epsilon, parts):
    """Under zCDP each histogram costs half of its ε squared, rounded up."""
    config = with_histograms(relation, tmp_path, ["htf", "sparse", "ug"], **{"histogram.epsilon": epsilon})
    rows = located_rows(3, 300)
    plan, contributions, fixes = planned_with_fixes(config, rows)
    alone, _ = planned(config.model_copy(update={"histogram": None}), rows)
    assert plan.terms.histogram.cost == config.histogram_grant == sum(parts)
    assert relation == "zcdp" or list(plan.terms.histogram.epsilons) == parts
    seen = np.isin(contributions.counts.users, fixes.users)
    without = np.full(len(seen), config.privacy.epsilon_micro) if relation == "values" else alone.charges
    assert np.array_equal(plan.charges, without + np.where(seen, sum(parts), 0))


@pytest.mark.parametrize(
    ("relation", "goal"), [*((relation, "absolute") for relation in (*RELATIONS, "zcdp")), ("values", "relative")]
)
def test_every_mechanism_becomes_one_valid_message_that_reads_back_to_the_histogram_that_was_drawn(
    tmp_path, relation, goal, monkeypatch
):
    """Under "participation" with the papers' own parameters: regions are discarded, and counts inferred."""
    settings = {"zcdp": {"histogram.epsilon": 0.5}, "participation": {"histogram.preset": PAPERS}}.get(relation, {})
    config = with_histograms(relation, tmp_path, **settings, **{"histogram.goal": goal})
    drawn = []

    def keep(*arguments):
        drawn.extend(draw_histograms(*arguments))
        return drawn

    monkeypatch.setattr(releasing, "draw_histograms", keep)
    messages = released(config, located_rows(5, 400))
    bodies = bodies_of(messages)
    assert [body["mechanism"] for body in bodies] == sorted(EVERY_MECHANISM)
    for body, histogram in zip(bodies, drawn, strict=True):
        validate(SPATIAL_HISTOGRAM, body)
        read_back = histogram_from_release(body)
        ranges = Rectangles.of_cells([[0, 1, 2, 5], [0, 7, 0, 7], [3, 3, 3, 3]])
        assert_alike(histogram.histogram, read_back, ranges)
        assert read_back.to_release() == {"domain": body["domain"], "structure": body["structure"]}
    (marker,) = bodies_of(messages, WINDOW)
    validate(WINDOW, marker)
    assert marker["mechanisms"] == sorted(EVERY_MECHANISM)
    assert marker["histogram_epsilon"] == config.histogram.epsilon
    assert to_micro(sum(body["epsilon"] for body in bodies), round_up=False) <= config.histogram.epsilon_micro
    assert marker["messages"] == len(messages) - 1
    assert marker["digest"] == digest(message.value for message in messages[:-1])
    assert [m.topic for m in messages].count(HEXAGON_SPEED) == marker["messages"] - len(bodies)


def test_the_relative_goal_adds_a_reading_of_the_same_draws_and_costs_nobody_more(tmp_path):
    by_goal = {}
    for goal in ("absolute", "relative"):
        config = with_histograms("values", tmp_path, ["htf", "sparse", "ug"], **{"histogram.goal": goal})
        plan, contributions, fixes = planned_with_fixes(config, located_rows(5, 400))
        messages, _ = build_messages(plan, contributions, Noise(np.random.default_rng(1).bytes), None, fixes)
        by_goal[goal] = plan.charges.tolist(), bodies_of(messages)
    assert by_goal["absolute"][0] == by_goal["relative"][0]
    for plain, both in zip(by_goal["absolute"][1], by_goal["relative"][1], strict=True):
        reading = both["structure"].pop("sparse", None)
        assert (reading is not None) == (both["mechanism"] != "ug")
        assert plain == both


def test_a_plan_is_stored_and_read_exactly_and_other_fixes_than_planned_are_refused(tmp_path):
    config = with_histograms("values", tmp_path)
    rows = located_rows(6, 200)
    plan, contributions, _ = planned_with_fixes(config, rows)
    again = decode_plan(encode_plan(plan))
    assert again == plan
    moved = rows.copy()
    moved["lat"][0] += 1_000
    with pytest.raises(PlanError, match="append-only"):
        build_messages(again, contributions, Noise(), None, fixes_of(moved, plan.terms.reading.box))
    with pytest.raises(PlanError, match="changed"):
        build_messages(again, contributions, Noise(), None)


@pytest.mark.parametrize("settings", [{}, {"speed.sum_cap": 0.3}, {"speed.suppression": "none", "speed.sum_cap": 0}])
def test_whatever_the_values_no_exact_release_is_biased_by_more_than_stated_and_the_mean_attains_it(tmp_path, settings):
    """The worst values for a mean: U where samples are given up or capped, 0 elsewhere."""
    config = bus_config(tmp_path, **settings)
    rows = random_rows(3, 300, users=25, places=12)
    plan, contributions = planned(config, rows)
    counts, stated = contributions.counts, worst_biases(plan, contributions.counts)
    pairs = np.repeat(np.arange(len(plan.retained)), counts.samples)
    given_up = np.arange(len(pairs)) - contributions.pair_start[pairs] >= plan.retained[pairs]
    rng, most = np.random.default_rng(1), np.zeros(counts.n_cells)
    worst = [np.full(len(pairs), 6500), np.where(given_up, 6500, 0)]
    for values in worst + [rng.choice([0, 6500], len(pairs)) for _ in range(60)]:
        changed = replace(contributions, quanta=values.astype(contributions.quanta.dtype))
        truth = exact_values(plan, changed)
        kept = exact_values(plan, changed.retain(plan.retained), plan.caps)
        for name, bias in stated.items():
            off = np.abs(kept[name] - truth[name])[plan.published]
            assert (off <= bias[plan.published] + (0.6 if name == "variance" else 0.006)).all(), name
        most = np.maximum(most, np.abs(kept["mean"] - truth["mean"]))
    biased = plan.published & (stated["mean"] > 1)
    assert (most[biased] > 0.4 * stated["mean"][biased]).all(), "half of what is stated would not do"
    assert biased.any() or plan.caps is None


def test_users_alike_have_the_error_that_check_states(tmp_path):
    """20 users with one sample in each of 3 cells, ε = 2 for two statistics: U·2·3/(2·20) km/h."""
    plain = {"speed.allocation": "uniform", "speed.clipping": "none", "speed.suppression": "none", "speed.sum_cap": 0}
    config = bus_config(tmp_path, **plain)
    rows = random_rows(1, 60, places=3)
    rows["cell"], rows["user"] = np.repeat(np.unique(rows["cell"]), 20), np.tile(np.arange(1, 21), 3)
    plan, contributions = planned(config, rows)
    messages, _ = build_messages(plan, contributions, Noise(), None)
    marker = json.loads(messages[-1].value)
    assert marker["worst_error"]["mean"] == pytest.approx(65 * 2 * 3 / (2 * 20), abs=0.01)


@pytest.mark.skipif(not (recordings() / path_of_day("2017-03-21")).exists(), reason="needs the recording of 2017-03-21")
@pytest.mark.nightly
def test_a_replay_of_a_recorded_day_shows_windows_in_which_chop_user_was_used(tmp_path):
    file, releases = tmp_path / "hexveil.toml", tmp_path / "releases.ndjson"
    file.write_text(hourly.BUS.read_text())
    day = recordings() / path_of_day("2017-03-21")
    run("replay", day, "--format", "capmetro", "--offline", "--out", releases, "--config", file)
    markers = [
        line["value"] for line in map(json.loads, releases.read_text().splitlines()) if "window.v1" in line["topic"]
    ]
    plans = [marker["plan"] for marker in markers]
    used = [plan["cells_per_user"] for plan in plans if plan["retained"] == "suppressed"]
    assert len(used) >= len(plans) // 2
    assert all(cells["after"] <= cells["before"] for cells in used)
    assert all(marker["worst_error"]["mean"] > 0 for marker in markers)
