"""The OpenAPI document is valid, complete and correct: a generated client reads real data, and a fuzzer finds no
contradiction.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from openapi_spec_validator import validate
from pyarrow import parquet

from stream.messages.message import HEXAGON_SPEED, with_estimates
from stream.serve.api import make_app
from stream.serve.ogc.features import ROOT
from stream.serve.operations import BASE
from tests.stream.serve.made_places import city_files
from tests.stream.serve.made_windows import with_histograms
from tests.stream.serve.serving import serving
from tests.support.builders import bus_config
from tests.support.nightly import nightly_but

GENERATOR = "content_type_overrides:\n  application/vnd.apache.parquet: application/octet-stream\npost_hooks: []\n"


def address(client: TestClient) -> str:
    return str(client.make_url("/")).rstrip("/")


async def document_of(client: TestClient) -> dict[str, Any]:
    answer = await client.get(f"{BASE}/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = await answer.json()
    return document


async def run(*command: str, cwd: Path) -> str:
    """Run a command beside the service; its output."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


async def test_the_document_is_valid_and_describes_every_path_that_is_served(
    kafka: str, tmp_path: Path, topic_name: str
) -> None:
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    async with serving(config) as client:
        document = await document_of(client)
        validate(document)
        assert document["openapi"].startswith("3.1")
        assert all({"400", "503"} <= path["get"]["responses"].keys() for path in document["paths"].values())
        refused = await client.get(f"{BASE}/openapi.json?x=1")
        assert refused.status == 400
    served = {resource.canonical for resource in make_app(config).router.resources()}
    assert {path for path in served if path.startswith((BASE, ROOT)) and path != f"{ROOT}/"} == {
        *document["paths"],
        f"{BASE}/openapi.json",
        f"{BASE}/openapi.html",
    }
    names = [path["get"]["operationId"] for path in document["paths"].values()]
    assert len(set(names)) == len(names)
    for path in document["paths"].values():
        for parameter in path["get"]["parameters"]:
            assert parameter["description"]
            assert "example" in parameter


async def test_a_generated_client_reads_what_was_released(
    kafka: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages, _ = with_histograms(tmp_path, overrides)
    values = [message.value for message in messages if message.topic == HEXAGON_SPEED]
    released = [json.loads(with_estimates(value)) for value in values]
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        (tmp_path / "openapi.json").write_text(json.dumps(await document_of(client)))
        (tmp_path / "generator.yml").write_text(GENERATOR)
        command = "generate --path openapi.json --config generator.yml --fail-on-warning --output-path made"
        await run("-m", "openapi_python_client", *command.split(), cwd=tmp_path)
        monkeypatch.syspath_prepend(tmp_path / "made")
        await asyncio.to_thread(read_with_the_generated_client, address(client), released)


def read_with_the_generated_client(base: str, released: list[dict[str, Any]]) -> None:
    def function(tag: str, name: str) -> Any:
        return importlib.import_module(f"hexveil_client.api.{tag}.{name}").sync

    client = importlib.import_module("hexveil_client").Client(base_url=base)
    (window,) = function("windows", "list_windows")(client=client).windows
    assert window.complete
    start = window.window.start
    hexagons = function("hexagons", "list_hexagons")(client=client, window=start).hexagons
    # The client writes times with an offset instead of Z.
    assert [
        cell.to_dict() | {"window": said["window"]} for cell, said in zip(hexagons, released, strict=True)
    ] == released
    first = function("hexagons", "get_cell")(released[0]["cell"], client=client).releases
    assert [cell.mean.interval for cell in first] == [released[0]["mean"]["interval"]]
    count = function("histograms", "count_range")
    answer = count(start, client=client, bbox="-98,30,-97.4,30.6", mechanism="ug")
    assert answer.interval[0] < answer.value < answer.interval[1]
    problem = count(start, client=client, bbox="-98,30,-97.4,99", mechanism="ug")
    assert (problem.status, "north" in problem.title) == (400, True)
    listed = function("histograms", "list_histograms")(client=client).windows[0].histograms
    assert [one.mechanism for one in listed] == ["ag", "htf", "ug"]
    table = parquet.read_table(function("downloads", "download_parquet")(start, client=client).payload)
    assert table.num_rows == len(released)
    assert function("downloads", "download_csv")(start, client=client).count("\r\n") == len(released) + 1


@pytest.mark.parametrize("examples", nightly_but([1], [1, 6]))
async def test_a_fuzzer_finds_no_answer_that_the_document_does_not_allow(
    kafka: str, tmp_path: Path, topic_name: str, examples: int
) -> None:
    """Requests per path and phase: one in every run."""
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages, _ = with_histograms(tmp_path, overrides)
    async with serving(bus_config(tmp_path, **overrides | city_files(tmp_path)), messages) as client:
        output = await run(
            "-m",
            "schemathesis.cli",
            "run",
            f"{address(client)}{BASE}/openapi.json",
            # A stream has no end; which boxes, moments and cells exist no schema can say.
            f"--exclude-path={BASE}/stream",
            "--exclude-checks=positive_data_acceptance",
            "--generation-deterministic",
            f"--max-examples={examples}",
            "--request-timeout=20",
            "--no-color",
            cwd=tmp_path,
        )
    summary = re.search(r"(\d+) generated, (\d+) passed", output)
    assert summary is not None, output
    assert int(summary[1]) == int(summary[2]) > 60 * examples
