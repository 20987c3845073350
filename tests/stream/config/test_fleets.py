"""The table of fleets: ``init`` writes its rows, the shipped live files are two of them, and the README prints it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpcore.relation import NeighbouringRelation
from stream.cli import app
from stream.config import load_config
from stream.config.fleets import FLEET_MAPS
from stream.local import REPO_ROOT

VALUES, PARTICIPATION = NeighbouringRelation.VALUES, NeighbouringRelation.PARTICIPATION
ROWS = [(relation, row) for relation, rows in FLEET_MAPS.items() for row in rows]
CELL_KM2 = {5: "250", 6: "36", 7: "5", 8: "0.7"}


def written(path: Path, relation: NeighbouringRelation, vehicles: int) -> str:
    done = CliRunner().invoke(app, ["init", str(path), "--relation", relation, "--vehicles", str(vehicles)])
    assert done.exit_code == 0, done.output
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("relation", "row"), ROWS)
def test_a_live_map_is_fresh_within_a_minute_and_its_budget_lasts(relation, row, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Under "values" grants roll to the end of the day; under "participation" a budget of 4 pays for two half-hours."""
    written(tmp_path / "mine.toml", relation, row.vehicles + 1)
    config = load_config(tmp_path / "mine.toml")
    margin = config.window.publication_margin
    assert (config.window.allowed_delay + margin if margin else config.window.allowed_delay).total_seconds() <= 60
    assert (config.hexagons.resolution, config.window.slot) == (row.resolution, row.slot)
    if relation == PARTICIPATION:
        assert (config.privacy.accounting, config.privacy.budget) == ("zcdp", 4.0)
        assert config.privacy.windows is not None
        assert config.privacy.windows >= 2 * 3, "two half-hours touch three windows each at most"
    else:
        assert (config.privacy.accounting, config.privacy.admission) == ("zcdp", "rolling")
        assert (config.hexagons.merge_until, config.speed.clipping, config.speed.sum_cap) == (None, "residual", 0.0)


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
        f"resolution {row.resolution}, {CELL_KM2[row.resolution]} km² | {row.slot.total_seconds() / 60:g} min | "
        f"{row.within:.0%} | ±{row.half_width:g} km/h |"
        for relation, row in ROWS
    ]
    assert "\n".join(lines) in (REPO_ROOT / "README.md").read_text(encoding="utf-8")
