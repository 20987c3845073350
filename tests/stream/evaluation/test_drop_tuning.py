"""``hexveil tune --want "see a drop …"`` finds the least budget at which a live map shows a planted drop in time."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config import ConfigError, load_config
from stream.config.rewriting import rewritten
from stream.evaluation.drop_tuning import DropSearch
from stream.evaluation.leading import EXAMPLE_OF_A_DROP, DropWant
from tests.support import hourly
from tests.support.builders import SLOT, located, random_rows

WANT = DropWant(8.0, 30.0, 0.5)


def configuration(folder: Path, relation: str = "values") -> Path:
    """The hourly configuration of a relation, with windows of 15 minutes, in ``folder``."""
    source = hourly.BUS if relation == "values" else hourly.RIDERS
    file = folder / "hexveil.toml"
    text = source.read_text(encoding="utf-8").replace("var/user.key", str(folder / "user.key"))
    file.write_text(text.replace('slot = "1h"', 'slot = "15m"'), encoding="utf-8")
    return file


def day() -> np.ndarray:
    """Two hours of 60 vehicles in six places that are far apart."""
    quarters = [random_rows(k, 900, users=60, slot=SLOT + 900 * k) for k in range(8)]
    for k, rows in enumerate(quarters):
        rows["time"] = (SLOT + 900 * k) * 1_000_000 + np.arange(len(rows)) * 1_000_000
    return located(np.concatenate(quarters), 1)


def test_the_chosen_budget_is_the_least_that_reaches_the_want_and_other_noise_confirms_it(tmp_path: Path) -> None:
    search = DropSearch(configuration(tmp_path), day(), WANT, 400.0, 1, 1)
    tuning = search.run([5], [timedelta(minutes=15)])
    chosen = tuning.chosen
    assert chosen is not None
    assert chosen.flagged >= WANT.share
    assert min(trial.budget for trial in tuning.trials) < chosen.budget, "cheaper ones were tried"
    same = [trial for trial in tuning.trials if (trial.way, trial.budget) == (chosen.way, chosen.budget)]
    assert [trial.reaches for trial in same] == [True, True], "under the noise of the search, and under other noise"
    assert load_config(configuration(tmp_path), **chosen.keys).privacy.budget == pytest.approx(chosen.budget, rel=0.01)


def test_a_slot_whose_map_comes_too_late_is_not_tried(tmp_path: Path) -> None:
    search = DropSearch(configuration(tmp_path), day(), WANT, 12.0, 1, 1)
    tuning = search.run([5], [timedelta(minutes=15), timedelta(minutes=30)])
    late = (5, timedelta(minutes=30)), ""
    assert list(tuning.skipped) == [late]
    assert "0:35:00" in tuning.skipped[late], "the slot, and five minutes for late events"
    search = DropSearch(configuration(tmp_path), day(), WANT, 12.0, 1, 1)
    with pytest.raises(ConfigError, match="on the screen after"):
        search.run([5], [timedelta(hours=1)])


def test_each_relation_tries_what_it_allows(tmp_path: Path) -> None:
    for relation, residual in (("values", True), ("participation", False)):
        search = DropSearch(configuration(tmp_path, relation), day(), WANT, 12.0, 1, 1)
        names = [way.name for way in search.ways()]
        assert ("zCDP, rolling" in names, "pure ε" in names) == (residual, residual)
        assert len(names) == len(set(names)) >= 2


@pytest.mark.parametrize(
    "text",
    [
        "see a drop of 0 km/h within 30 min in 80 % of cells",
        *(
            f"see a drop of 8 km/h within {minutes} min in {share} % of cells"
            for minutes, share in ((0, 80), (61, 80), (30, 0))
        ),
    ],
)
def test_a_want_that_cannot_be_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=EXAMPLE_OF_A_DROP):
        DropWant.parse(text, 65.0)


def test_a_want_is_read_as_it_is_written() -> None:
    want = DropWant.parse(EXAMPLE_OF_A_DROP, 65.0)
    assert want == DropWant(8.0, 30.0, 0.8)
    assert str(want) == EXAMPLE_OF_A_DROP
    assert DropWant.parse("±5 km/h for 80 % of events", 65.0) is None


def test_a_key_with_no_value_is_taken_out_of_a_configuration() -> None:
    text = "[privacy]\nepsilon = 1.0  # of a window\nbudget = 12.0\n"
    assert rewritten(text, {"privacy.epsilon": None, "privacy.delta": None}, "x") == "[privacy]\nbudget = 12.0\n"


def test_the_command_writes_what_it_chose_and_says_what_is_nearest_if_nothing_reaches_the_want(tmp_path: Path) -> None:
    config, recording, tuned = configuration(tmp_path), tmp_path / "day.ndjson", tmp_path / "tuned.toml"
    simulated = ["--start", "2017-03-21T13:00:00Z", "--duration", "90m", "--vehicles", "60", "--out", str(recording)]
    assert CliRunner().invoke(app, ["simulate", "--config", str(config), *simulated]).exit_code == 0
    grids = ["--resolutions", "5", "--slots", "15m", "--draws", "1"]
    asked = ["tune", str(recording), "--config", str(config), *grids]
    rich = [*asked, "--want", "see a drop of 4 km/h within 60 min in 30 % of cells", "--budget", "400"]
    written = CliRunner().invoke(app, [*rich, "--write", str(tuned), "--json"])
    report = json.loads(written.stdout)
    assert (report["private"], report["chosen"]["reaches"]) == (False, True)
    assert load_config(tuned).privacy.budget == pytest.approx(report["chosen"]["budget"], rel=0.01)
    poor = CliRunner().invoke(app, [*asked, "--want", EXAMPLE_OF_A_DROP, "--budget", "0.01"])
    assert (poor.exit_code, "The nearest" in poor.stdout, "NOT PRIVATE" in poor.stderr) == (1, True, True)
