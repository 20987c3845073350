"""``hexveil tune`` finds settings whose share of narrow intervals other noise confirms, and writes what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from stream.cli import app
from stream.config import load_config
from stream.diagnosis.reading import read_recording
from stream.evaluation.leading import Leading, Outcome, Want, released, simulate, with_terms
from stream.evaluation.tuning import EPSILONS, Recording
from tests.support import hourly
from tests.support.builders import SLOT, random_rows, riders_config

CONFIGS = {"values": str(hourly.BUS), "participation": str(hourly.RIDERS)}
GRIDS = {"values": "5", "participation": "5,6"}
WANTED = "±10 km/h for 75 % of events"


DOMAIN = {"HEXVEIL_FEED__DOMAIN": '{"south": 30.1, "west": -97.95, "north": 30.5, "east": -97.55}'}


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of 40 buses, simulated."""
    file = tmp_path_factory.mktemp("city") / "hour.ndjson"
    span = ["--start", "2026-03-02T14:00:00Z", "--duration", "1h", "--interval", "60s", "--pace", "max"]
    done = CliRunner().invoke(
        app, ["simulate", "--vehicles", "40", *span, "--config", str(hourly.BUS), "--out", str(file)], env=DOMAIN
    )
    assert done.exit_code == 0, done.output
    return file


@pytest.fixture(autouse=True)
def user_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pseudonyms in every run, because ties among users are broken by them."""
    key = tmp_path / "user.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(key))
    monkeypatch.setenv(*next(iter(DOMAIN.items())))
    monkeypatch.chdir(tmp_path)


def tune(city: Path, relation: str, *arguments: str) -> Result:
    grids = ("--resolutions", GRIDS[relation], "--slots", "1h", "--draws", "2")
    command = ["tune", str(city), "--config", CONFIGS[relation], "--want", WANTED, *grids]
    return CliRunner().invoke(app, [*command, *arguments])


def outcome_of(city: Path, config: Path, *seeds: int, **overrides: Any) -> list[Outcome]:
    settings = load_config(config, **overrides)
    rows, _ = read_recording(settings, city, "canonical")
    windows, want = Recording(rows).windows(settings), Want.parse(WANTED, settings.value.upper)
    return [simulate(settings, windows, want, 4, seed) for seed in seeds]


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_the_written_configuration_reaches_the_want_and_other_noise_confirms_it(city: Path, relation: str) -> None:
    """n = 3 seeds of 4 draws: their mean share is at most 10 points below the wanted. Noise is seeded, so there is no
    false alarm; the planted twin, a fifth of ε, misses by more.
    """
    written, picture = Path("tuned.toml"), Path("tuned.svg")
    plotted = ("--plot", str(picture)) if relation == "values" else ()
    done = tune(city, relation, "--budget", "800", "--json", "--write", str(written), *plotted)
    assert done.exit_code == 0, done.output
    assert "NOT PRIVATE" in done.stderr
    assert "treat it as public" in done.stderr
    assert picture.exists() == bool(plotted)
    report = json.loads(done.stdout)
    assert report["private"] is False
    chosen = report["chosen"]
    assert chosen["share"] >= 0.75
    config = load_config(written)
    assert config.hexagons.resolution == chosen["resolution"]
    assert list(config.speed.statistics) == chosen["statistics"] == ["mean"]
    assert config.privacy.epsilon == chosen["epsilon"]
    assert chosen["budget"] <= config.privacy.budget <= 1.01 * chosen["budget"]
    confirming, *others = (outcome.share for outcome in outcome_of(city, written, 2, 3, 4, 5))
    assert confirming == chosen["share"], "the written budget refuses nobody"
    assert np.mean(others) >= 0.65
    poor = {"privacy.epsilon": config.privacy.epsilon / 5}
    assert outcome_of(city, written, 3, **poor)[0].share < 0.65, "planted: a fifth of epsilon"


def test_the_same_seed_gives_the_same_report_and_no_file_is_overwritten(city: Path) -> None:
    kept = Path("kept.toml")
    kept.write_text("mine")
    refused = tune(city, "participation", "--write", str(kept))
    assert (refused.exit_code, kept.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    one_grid = ("--resolutions", "5", "--draws", "1", "--budget", "800", "--json")
    forced = tune(city, "participation", *one_grid, "--write", str(kept), "--force")
    assert forced.exit_code == 0
    assert "by hexveil tune" in kept.read_text()
    assert tune(city, "participation", *one_grid).stdout == forced.stdout


def test_a_want_out_of_reach_says_what_came_nearest_and_what_is_needed(city: Path) -> None:
    done = tune(city, "participation", "--resolutions", "5", "--draws", "1", "--budget", "1", "--write", "never.toml")
    assert done.exit_code == 1
    assert "The nearest within the budget: budget" in done.stdout
    assert "What is needed: budget" in done.stdout
    assert not Path("never.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--want", "5 km/h for 80 % of events"), "'5 km/h for 80 % of events' is not a want; write one like '±5"),
        (("--want", "±33 km/h for 80 % of events"), "±33 km/h"),
        (("--want", "±5 km/h for 101 % of events"), "101 %"),
        (("--want", "±0 km/h for 80 % of events"), "±0 km/h"),
        (("--resolutions", "6,seven"), "'6,seven'"),
        (("--resolutions", "0016"), "'0016'"),
        (("--budget", "nan"), "nan is not a number"),
        (("--plot", "tuned.txt"), "cannot write tuned.txt"),
        (("--plot", "nowhere/tuned.png"), "cannot write nowhere/tuned.png"),
        (("--slots", "7h"), "7:00:00"),
        (("--slots", "soon"), "'soon' is not a duration"),
    ],
    ids=[
        "no sign",
        "too wide",
        "too many events",
        "nothing",
        "resolution",
        "zeros",
        "budget",
        "suffix",
        "folder",
        "slot",
        "duration",
    ],
)
def test_a_wrong_argument_is_named_with_an_example(city: Path, arguments: tuple[str, ...], named: str) -> None:
    done = tune(city, "values", *arguments)
    assert done.exit_code == 2
    assert named in done.stderr.replace("\n", "")


def test_a_horizon_is_refused_because_a_search_knows_one_period(city: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_PRIVACY__HORIZON", '{"period": "28d", "budget": 200.0}')
    done = tune(city, "values")
    assert done.exit_code == 2
    assert "does not know privacy.horizon" in done.stderr.replace("\n", " ")


def test_wants_are_read_in_several_spellings() -> None:
    for text in ("±5 km/h for 80 % of events", "+-5km/h for 80% of events", " +/- 5.0 KM/H for 80 percent of events "):
        assert Want.parse(text, 65.0) == Want(5.0, 0.8)
    assert str(Want(5.0, 0.8)) == "±5 km/h for 80 % of events"


def test_shares_are_of_events_and_cells_without_a_release_are_out_of_reach() -> None:
    grid = np.full(3, 6, dtype=np.uint64)
    covers, own = np.array([True, False, False]), np.array([True, True, True])
    leading = Leading(np.array([10.0, 30.0, 60.0]), np.array([2.0, 4.0, np.inf]), covers, own, grid)
    assert leading.share_within(3.9) == 0.1
    assert leading.share_within(4.0) == 0.4
    assert leading.reach_of(0.4) == 4.0
    assert leading.reach_of(0.41) == np.inf
    assert leading.covered() == 0.25
    assert leading.own_covered() == 1.0


def test_where_users_count_alike_intervals_are_also_judged_by_the_mean_over_users(tmp_path: Path) -> None:
    """Ten users with one event at 60 km/h each, and one with 90 at 10: 14.9 km/h over samples, 55.5 over users."""
    config = riders_config(
        tmp_path,
        **{
            "hexagons.resolution": 7,
            "participation.weight": "share",
            "speed.statistics": ["mean"],
            "privacy.epsilon": 900,
            "privacy.budget": 900,
        },
    )
    rows = random_rows(1, 100, users=1, places=1)
    rows["user"] = np.r_[np.full(90, 99), np.arange(10)]
    rows["value"] = np.r_[np.full(90, 1000), np.full(10, 6000)]
    leading, _ = released(config, {SLOT: rows}, 20, 1)
    assert leading.reach.max() < 5
    assert leading.covered() == 0.0
    assert leading.own_covered() >= 0.8


def test_a_recorded_part_of_a_day_is_priced_as_a_whole_one(city: Path) -> None:
    """One recorded hour of 24: whoever drove in it is taken to drive in all. Under "participation" each costs ε."""
    config = with_terms(load_config(CONFIGS["participation"]), 0.5, 24)
    (outcome,) = outcome_of(city, Path(CONFIGS["participation"]), 1, **{"privacy.epsilon": 0.5})
    assert outcome.budget == config.privacy.budget
    assert list(EPSILONS) == sorted(set(EPSILONS))
