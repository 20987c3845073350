"""Sensors on buses, from the simulator to releases, files, alerts and the API: the unit is everywhere, and no speed
is.
"""

from __future__ import annotations

import asyncio
import csv
import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.cli import app
from stream.config import load_config
from stream.local import REPO_ROOT, free_port
from stream.messages.message import OUTPUT_TOPICS
from stream.storage.keys import FeedKeys
from tests.stream.serve.serving import serving_file
from tests.support.environment import worker_environment
from tests.support.feeding import create_topic
from tests.support.schemas import validate
from tests.support.topics_reader import read_all

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
    for suffix in ("ndjson", "csv", "geojson", "parquet"):
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
    fields = parquet.read_schema(folder / "releases.parquet")
    assert {fields.field(name).metadata[b"unit"].decode() for name in ("mean", "mean_scale", "estimate_mean")} == {UNIT}
    said = "\n".join(line for line in json.dumps(bodies, ensure_ascii=False).split(",") if "km" in line)
    assert not said, "nothing of it is a speed"
    async with serving_file(load_config(folder / "air.toml"), folder / "releases.ndjson") as client:
        alerts = await (await client.get("/api/v1/alerts")).json()
        assert [(rule["above"], rule["unit"]) for rule in alerts["rules"]] == [(40.0, UNIT)]
        listed = (await (await client.get("/ogc/collections")).json())["collections"]
        assert all(f"Statistics of PM2.5 ({UNIT}) in H3 hexagons" in one["description"] for one in listed)
        items = await (await client.get(f"/ogc/collections/{listed[0]['id']}/items?limit=50")).json()
        assert {one["properties"]["estimate_mean_unit"] for one in items["features"]} <= {UNIT, None}
        (start,) = {marker["window"]["start"] for marker in markers[:1]}
        together = await (await client.get(f"/api/v1/means?from={start}&to=2026-11-21T00:00:00Z")).json()
        assert {cell["mean"]["unit"] for cell in together["cells"] if cell["mean"]} == {UNIT}


async def test_a_worker_that_reads_dust_from_kafka_publishes_its_unit_in_every_message(
    folder: Path, hexveil: Sequence[str], kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"window.lateness": "event-time", "window.idle_timeout": "4s", "window.max_age": "36500d"}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **settings)
    ready = (
        ("topics", "create"),
        ("ledger", "adopt", "--since", "2026-11-20", "--no-other-ledger"),
        ("replay", folder / "day.ndjson", "--speed", "max"),
    )
    await create_topic(kafka, topic_name, 2)
    for words in ready:
        command = [*hexveil, *map(str, words), "--config", str(EXAMPLE)]
        await asyncio.to_thread(subprocess.run, command, env=env, cwd=tmp_path, check=True, timeout=300)
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen([*hexveil, "worker", "--config", str(EXAMPLE)], env=env, cwd=tmp_path, stderr=log)
    try:
        async with asyncio.timeout(240):
            while await redis.hlen(FeedKeys(topic_name).closed) < 2:
                await asyncio.sleep(0.5)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, (tmp_path / "worker.log").read_text()[-3000:]
    records = await read_all(kafka, topic_name, OUTPUT_TOPICS)
    bodies = [json.loads(record.value) for record in records]
    markers = [body for body in bodies if "generation" in body]
    assert {(body["value"], body["clipping"]["unit"]) for body in markers} == {("PM2.5", UNIT)}
    means = [body["mean"] for body in bodies if "mean" in body]
    assert {mean["unit"] for mean in means} == {UNIT}
    assert np.mean([mean["raw"] for mean in means]) > 10


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
