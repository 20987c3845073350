"""Sensors on buses, from the simulator to releases, files, alerts and the API: the unit is everywhere, and no speed
is.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config import load_config
from stream.local import REPO_ROOT
from tests.stream.serve.serving import serving_file
from tests.support.schemas import validate

EXAMPLE = REPO_ROOT / "examples" / "air-quality.toml"
UNIT = "µg/m³"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's commands with fewer buses, in a folder with the example: readings, releases, and these as tables."""
    made = tmp_path_factory.mktemp("air")
    config = made / "air.toml"
    config.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    start, readings = "2026-11-20T07:00:00-06:00", made / "day.ndjson"
    run("simulate", "--config", config, "--start", start, "--duration", "3h", "--vehicles", 120, "--out", readings)
    for suffix in ("ndjson", "csv", "geojson"):
        out = made / f"releases.{suffix}"
        run("replay", readings, "--config", config, "--offline", "--out", out)
    return made


async def test_the_commands_of_the_page_show_dust_in_every_release_file_and_alert(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "releases.ndjson").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        validate(line["topic"], line["value"])
    bodies = [line["value"] for line in lines]
    markers = [body for body in bodies if "generation" in body]
    assert [(body["value"], body["clipping"]) for body in markers] == [
        ("PM2.5", {"lower": 0.0, "upper": 100.0, "unit": UNIT})
    ] * 3
    means = [body["mean"] for body in bodies if "mean" in body]
    assert {mean["unit"] for mean in means} == {UNIT}
    assert np.mean([mean["raw"] for mean in means]) > 10, "the field of the simulator, not zeros"
    with (folder / "releases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["estimate_mean_unit"] for row in rows if row["estimate_mean"]} == {UNIT}
    features = json.loads((folder / "releases.geojson").read_text(encoding="utf-8"))["features"]
    assert {one["properties"]["mean_unit"] for one in features if one["properties"]["mean"] is not None} == {UNIT}
    said = "\n".join(line for line in json.dumps(bodies, ensure_ascii=False).split(",") if "km" in line)
    assert not said, "nothing of it is a speed"
    async with serving_file(load_config(folder / "air.toml"), folder / "releases.ndjson") as client:
        alerts = await (await client.get("/api/v1/alerts")).json()
        assert [(rule["above"], rule["unit"]) for rule in alerts["rules"]] == [(40.0, UNIT)]
        (start,) = {marker["window"]["start"] for marker in markers[:1]}
        together = await (await client.get(f"/api/v1/means?from={start}&to=2026-11-21T00:00:00Z")).json()
        assert {cell["mean"]["unit"] for cell in together["cells"] if cell["mean"]} == {UNIT}


def test_what_the_commands_say_of_another_value_is_in_its_unit(folder: Path) -> None:
    config = folder / "air.toml"
    checked, sheet = run("check", "--config", config), folder / "promise.html"
    assert "100 µg/m³ times k/n" in checked
    assert "measured speeds" not in checked
    run("check", "--config", config, "--sheet", sheet)
    report = run("evaluate", folder / "day.ndjson", "--config", config, "--trials", 1, "--json")
    scores = json.loads(report)["scores"]
    assert {score["unit"] for score in scores} == {UNIT}
    assert all(score["released"] <= 1 for score in scores), "what is typical is no estimate of the window"
