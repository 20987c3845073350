"""The worst-case error E and the plan that releases state: no values are further off, and a recorded day shows
CHOP-USER."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.recordings import path_of_day, recordings
from dpcore.noise import Noise
from stream.cli import app
from stream.statistics.values.draw import exact_values
from stream.statistics.values.worst_bias import worst_biases
from tests.support import hourly
from tests.support.builders import bus_config, random_rows
from tests.support.releasing import build_messages, planned


@pytest.mark.parametrize("settings", [{}, {"speed.sum_cap": 0.3}, {"speed.suppression": "none", "speed.sum_cap": 0}])
def test_whatever_the_values_no_exact_release_is_biased_by_more_than_stated_and_the_mean_attains_it(
    tmp_path: Path, settings: dict[str, object]
) -> None:
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


def test_users_alike_have_the_error_that_check_states(tmp_path: Path) -> None:
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
def test_a_replay_of_a_recorded_day_shows_windows_in_which_chop_user_was_used(tmp_path: Path) -> None:
    file = tmp_path / "hexveil.toml"
    file.write_text(hourly.BUS.read_text())
    releases = tmp_path / "releases.ndjson"
    arguments = ["replay", str(recordings() / path_of_day("2017-03-21")), "--format", "capmetro"]
    done = CliRunner().invoke(app, [*arguments, "--offline", "--out", str(releases), "--config", str(file)])
    assert done.exit_code == 0, done.output
    markers = [
        line["value"] for line in map(json.loads, releases.read_text().splitlines()) if "window.v1" in line["topic"]
    ]
    plans = [marker["plan"] for marker in markers]
    used = [plan["cells_per_user"] for plan in plans if plan["retained"] == "suppressed"]
    assert len(used) >= len(plans) // 2
    assert all(cells["after"] <= cells["before"] for cells in used)
    assert all(marker["worst_error"]["mean"] > 0 for marker in markers)
