"""Relation "values" under zCDP: the promise, what is published, grants that roll, and ranges that follow earlier
releases."""

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpcore.accounting import NANO, epsilon_of_rho, rho_of
from dpcore.noise import Noise
from stream.cli import app
from stream.config import Config, ConfigError
from stream.messages.message import HEXAGON_SPEED, Message
from stream.statistics.columns import Derived
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Plan, spendable
from stream.statistics.residual_clipping import response_of, with_what_clipping_leaves_open
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from tests.support.builders import LIVE, SLOT, bus_config, live_config, random_rows
from tests.support.releasing import due_of
from tests.support.schemas import validate


def release(
    config: Config, rows: np.ndarray, memory: Memory | None, slot: int
) -> tuple[Plan, list[Message], Memory | None]:
    """A window with untouched budgets."""
    due, budget = due_of(config, slot), config.privacy.ledger_budget
    read = WindowRows.of(rows, due.terms.reading)
    left = spendable(np.full(read.counts.n_users, budget), read.counts.users, due, budget)
    plan = plan_window(read, due, Allowance(left, budget), memory=memory)
    contributions = by_planned_cells(plan, read.as_planned(plan).contributions)
    speed = speed_of(plan.terms)
    columns = speed.draw(plan, contributions, Noise())
    messages, after = compose(plan, speed.body(plan, contributions.counts, columns), columns, memory, sequence=1)
    return plan, messages, after


def bodies(messages: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(message.value) for message in messages if message.topic == HEXAGON_SPEED]


def test_a_budget_is_the_most_rho_that_converts_to_it(tmp_path):
    privacy = live_config(tmp_path, budget=12.0, delta=1e-6).privacy
    assert privacy.ledger_budget == rho_of(12.0, 1e-6)
    assert privacy.budget <= 12.0 < epsilon_of_rho(privacy.ledger_budget + 10**6, 1e-6)
    first_come = live_config(tmp_path, **{"privacy.admission": "first-come", "privacy.windows": 24}).privacy
    assert first_come.ledger_grant == rho_of(12.0, 1e-6) // 24


def test_check_says_that_grants_roll_and_warns_of_no_dark_windows(tmp_path):
    live_config(tmp_path)
    overrides = {
        f"HEXVEIL_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
        for key, value in LIVE.items()
        if value is not None
    }
    asked = ["check", "--config", str(tmp_path / "live.toml")]
    said = CliRunner().invoke(app, asked, env=overrides).output
    stated = json.loads(CliRunner().invoke(app, [*asked, "--json"], env=overrides).stdout)
    of_one = [epsilon_of_rho(rho_of(12.0, 1e-6) // windows, 1e-6) for windows in (23, 24, 25)]
    assert stated["epsilon_per_window"] in of_one, "of today's period, which may have 23 or 25 windows"
    assert stated["most_epsilon_of_a_window"] == stated["budget"] == pytest.approx(12.0)
    assert "12.0, 1e-06" in said
    assert "Grants roll" in said
    assert "go dark" not in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"privacy.windows": 3}, "leave windows out"),
        ({"privacy.admission": "first-come"}, "needs windows"),
        ({"privacy.admission": "first-come", "privacy.windows": 0}, "of at least 1"),
        ({"speed.suppression": "chop-user"}, "CHOP-USER is for pure ε"),
        ({"speed.mean_mechanism": "levy"}, "papers' mechanisms"),
        ({"speed.sum_cap": 0.5}, "clipping takes its place"),
        ({"speed.clipping": "none", "speed.statistics": ["p50"]}, "Laplace noise"),
        ({"speed.post_processing": []}, "only 'kalman' foretells"),
        ({"ledger.name": "city"}, "another feed draws"),
        ({"privacy.service": "5-24"}, "write them like '05:00-24:00'"),
        ({"privacy.service": "05:00-05:00"}, "end at another time"),
        ({"privacy.service": "05:00-24:00", "privacy.admission": "first-come", "privacy.windows": 3}, "remove it"),
    ],
)
def test_what_gaussian_noise_and_rolling_grants_do_not_go_with_is_refused_with_the_key(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        live_config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("service", "left"),
    [(None, 17), ("05:00-24:00", 17), ("06:00-10:00", 3), ("05:30-07:30", 1), ("05:00-01:00", 17), ("22:00-06:00", 3)],
)
def test_hours_of_service_say_which_windows_are_left(tmp_path, service, left):
    """The window is 07:00 to 08:00 in Austin; it always counts, whether or not it is in the hours."""
    config = live_config(tmp_path, **{"privacy.service": service} if service else {})
    due = due_of(config, SLOT)
    assert due.windows_left == left
    users = np.array([1, 2], dtype=np.uint64)
    granted = spendable(np.array([1000, 500]), users, due, 1000)
    assert granted.tolist() == [1000 // left, 500 // left], "whoever has spent half of it gets half"


def test_under_pure_epsilon_grants_roll_too_and_messages_state_that_of_who_has_spent_nothing(tmp_path):
    rolling = {"privacy.epsilon": None, "privacy.admission": "rolling", "speed.suppression": "none"}
    config = bus_config(tmp_path, **rolling)
    plan, messages, _ = release(config, random_rows(1, 200), None, SLOT)
    assert plan.charges.max() <= config.privacy.ledger_budget // plan.due.windows_left
    assert plan.charges.max() > 0.9 * config.privacy.ledger_budget / plan.due.windows_left
    body = json.loads(messages[0].value)
    assert body["epsilon"] == pytest.approx(48.0 / plan.due.windows_left, abs=1e-6)
    with pytest.raises(ConfigError, match="leave epsilon out"):
        bus_config(tmp_path, **rolling | {"privacy.epsilon": 1.0})
    with pytest.raises(ConfigError, match="one grant among all users"):
        bus_config(tmp_path, **rolling | {"speed.suppression": "chop-user"})


def test_every_message_states_rho_and_delta_and_fits_its_schema(tmp_path):
    config = live_config(tmp_path)
    plan, messages, memory = release(config, random_rows(1, 200), None, SLOT)
    for message in messages:
        body = json.loads(message.value)
        validate(message.topic, body)
        assert (body["accounting"], body["delta"]) == ("zcdp", 1e-6)
        assert body["rho"] * NANO == pytest.approx(plan.budget // plan.due.windows_left)
        assert body["epsilon"] == epsilon_of_rho(plan.budget // plan.due.windows_left, 1e-6)
    marker = json.loads(messages[-1].value)
    assert (marker["rho_budget"], marker["budget"]) == (plan.budget / NANO, config.privacy.budget)
    assert memory is not None
    assert decode_memory(encode_memory(memory)) == memory


def test_the_last_window_of_a_period_may_spend_all_that_is_left_and_the_first_an_even_share(tmp_path):
    config = live_config(tmp_path)
    period, budget, users = due_of(config).period, config.privacy.ledger_budget, np.arange(3, dtype=np.uint64)
    left = np.array([budget, budget // 2, 0])
    first, last = due_of(config, period.start), due_of(config, period.end - 3600)
    assert spendable(left, users, first, budget).tolist() == [budget // 24, budget // 2 // 24, 0]
    assert spendable(left, users, last, budget).tolist() == left.tolist()


def test_ranges_come_from_earlier_releases_and_the_released_mean_is_near_the_truth_of_a_large_fleet(tmp_path):
    """4 000 vehicles drive 30 ± 13 km/h in six cells: after six windows most ranges are narrower than [0, U], and
    released means are within 5 of their deviations of the truth (α = 6·10⁻⁷ a cell).
    """
    config, memory, rng = live_config(tmp_path), None, np.random.default_rng(4)
    for number in range(6):
        slot = SLOT + 3600 * number
        rows = random_rows(number, 8000, users=4000, slot=slot)
        rows["value"] = np.clip(rng.normal(3000, 1300, len(rows)), 0, 6500)
        plan, messages, memory = release(config, rows, memory, slot)
        assert plan.ranges is not None
    for body in bodies(messages):
        cell = rows["cell"] == int(body["cell"], 16)
        assert abs(body["mean"]["raw"] - rows["value"][cell].mean() / 100) < 5 * body["mean"]["scale"] + 0.01
        assert body["clipping"]["lower"] < 30 < body["clipping"]["upper"]
    few = live_config(tmp_path, budget=0.5)
    narrow, messages, _ = release(few, random_rows(1, 60, slot=SLOT), None, SLOT)
    assert all(body["mean"]["worst_error"] >= 65 for body in bodies(messages)), "all vehicles may be outside the range"
    assert narrow.ranges is not None
    assert np.median(narrow.ranges[1] - narrow.ranges[0]) < 3000, "where noise is large, ranges are narrow"


def test_a_smoothed_interval_reaches_at_least_as_far_as_what_clipping_leaves_open(tmp_path):
    """However sure the model is of itself."""
    config, memory = live_config(tmp_path), None
    for number in range(2):
        slot = SLOT + 3600 * number
        plan, _, memory = release(config, random_rows(number, 60, slot=slot), memory, slot)
    response, middle = response_of(plan), np.full(len(plan.cells), 30.0)
    assert response is not None
    assert response.open.max() > 1
    wider = with_what_clipping_leaves_open(plan, Derived("kalman", middle, (middle - 0.1, middle + 0.1)))
    assert wider.interval is not None
    assert (np.minimum(middle - wider.interval[0], wider.interval[1] - middle) >= 2.5 * response.open).all()


def test_a_jam_widens_the_ranges_of_its_cells_so_that_it_is_seen(tmp_path):
    config, memory = live_config(tmp_path, budget=60.0), None
    rng, shown = np.random.default_rng(2), []
    for number in range(8):
        slot, speed = SLOT + 3600 * number, 4500 if number < 4 else 500
        rows = random_rows(number, 6000, users=3000, places=2, slot=slot)
        rows["value"] = np.clip(rng.normal(speed, 600, len(rows)), 0, 6500)
        _, messages, memory = release(config, rows, memory, slot)
        shown.append(np.mean([body["post_processed"]["mean"]["value"] for body in bodies(messages)]))
    assert shown[3] == pytest.approx(45, abs=3)
    assert shown[7] == pytest.approx(5, abs=5)
