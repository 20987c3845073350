"""The table of fleets: ``init`` writes its rows, the shipped live files are two of them, and the README prints it."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpcore.relation import NeighbouringRelation
from dpcore.smoothing import MOST_CELLS
from stream.cli import app
from stream.config import Config, ConfigError, load_config
from stream.config.fleets import FLEET_MAPS
from stream.local import REPO_ROOT

VALUES, PARTICIPATION = NeighbouringRelation.VALUES, NeighbouringRelation.PARTICIPATION
ROWS = [(relation, row) for relation, rows in FLEET_MAPS.items() for row in rows]
LIVE_ROWS = [(relation, row) for relation, row in ROWS if row.kind == "live"]
CELL_KM2 = {5: "250", 6: "36", 7: "5", 8: "0.7"}


def written(path: Path, relation: NeighbouringRelation, vehicles: int, kind: str = "live") -> str:
    named = ["--relation", relation, "--vehicles", str(vehicles), "--map", kind]
    done = CliRunner().invoke(app, ["init", str(path), *named])
    assert done.exit_code == 0, done.output
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("relation", "row"), LIVE_ROWS)
def test_a_live_map_is_fresh_within_a_minute_and_its_budget_lasts(relation, row, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Under "values" grants roll to the end of the day; under "participation" a budget of 4 pays for two half-hours."""
    written(tmp_path / "mine.toml", relation, row.vehicles + 1)
    config = load_config(tmp_path / "mine.toml")
    margin = config.window.publication_margin
    assert (config.window.allowed_delay + margin if margin else config.window.allowed_delay).total_seconds() <= 60
    assert (config.hexagons.resolution, config.window.slot) == (row.resolution, row.slot)
    assert (config.speed.clipping, config.public.map) == (row.clipping, "live")
    if relation == PARTICIPATION:
        assert (config.privacy.accounting, config.privacy.budget) == ("zcdp", 4.0)
        assert config.privacy.windows is not None
        assert config.privacy.windows >= 2 * 3, "two half-hours touch three windows each at most"
    else:
        assert (config.privacy.accounting, config.privacy.admission) == ("zcdp", "rolling")
        assert (config.hexagons.merge_until, config.speed.sum_cap) == (None, 0.0)


def test_the_typical_map_of_a_small_fleet_says_so_and_is_charged_as_a_live_one(tmp_path: Path) -> None:
    live, file = load_config_of(tmp_path / "live.toml", "live"), tmp_path / "typical.toml"
    typical = load_config_of(file, "typical")
    assert (typical.public.map, typical.hexagons.resolution, typical.window.slot) == ("typical", 7, timedelta(hours=1))
    assert typical.privacy == live.privacy
    said = CliRunner().invoke(app, ["check", "--config", str(file)]).output
    assert "Typical, not live: the page opens on what each hour is usually like" in said
    assert json.loads(CliRunner().invoke(app, ["check", "--config", str(file), "--json"]).output)["map"] == "typical"
    assert "Typical" not in CliRunner().invoke(app, ["check", "--config", str(tmp_path / "live.toml")]).output


def load_config_of(file: Path, kind: str) -> Config:
    written(file, VALUES, 300, kind)
    return load_config(file)


def test_nothing_typical_is_promised_where_nothing_foretells_or_was_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"public\.map 'typical' shows what 'kalman' makes"):
        load_config(REPO_ROOT / "config/bus-fleet.toml", **{"public.map": "typical", "speed.post_processing": []})
    refused = CliRunner().invoke(
        app, ["init", str(tmp_path / "mine.toml"), "--relation", PARTICIPATION, "--map", "typical"]
    )
    assert refused.exit_code == 2
    assert "measured under relation 'values' alone" in refused.output
    assert not (tmp_path / "mine.toml").exists()


def test_the_shipped_riders_publish_no_more_cells_than_the_model_remembers(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["check", "--config", str(REPO_ROOT / "config/riders-live.toml")]).output
    assert "Every window publishes 3166 cells" in said
    assert "remembers" not in said
    wide = (REPO_ROOT / "config/riders-live.toml").read_text(encoding="utf-8").replace("south = 30.1", "south = 29.5")
    (tmp_path / "wide.toml").write_text(wide, encoding="utf-8")
    said = CliRunner().invoke(app, ["check", "--config", str(tmp_path / "wide.toml")]).output
    assert f"the model remembers {MOST_CELLS} of these cells. Make participation.geojson" in said


@pytest.mark.parametrize(
    ("name", "relation", "vehicles"), [("bus-live", VALUES, 1_600), ("riders-live", PARTICIPATION, 10_000)]
)
def test_the_shipped_live_files_are_what_init_writes(
    name: str, relation: NeighbouringRelation, vehicles: int, tmp_path: Path
) -> None:
    shipped = tomllib.loads((REPO_ROOT / "config" / f"{name}.toml").read_text(encoding="utf-8"))
    said = f"hexveil init config/{name}.toml --relation {relation} --vehicles {vehicles} --force"
    assert tomllib.loads(written(tmp_path / "mine.toml", relation, vehicles)) == shipped, said


def test_the_readme_prints_the_table() -> None:
    lines = [
        f'| "{relation}" | {f"{row.vehicles:,} or more".replace(",", " ") if row.vehicles else "fewer"} | '
        f"resolution {row.resolution}, {CELL_KM2[row.resolution]} km² | {row.slot.total_seconds() / 60:g} min"
        f"{', typical: not live' if row.kind == 'typical' else ''} | "
        f"{row.within:.0%} | ±{row.half_width:g} km/h |"
        for relation, row in ROWS
    ]
    assert "\n".join(lines) in (REPO_ROOT / "README.md").read_text(encoding="utf-8")
