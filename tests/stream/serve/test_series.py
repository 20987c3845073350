"""Released estimates as series for Grafana: what Prometheus scrapes, and rows of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from prometheus_client.parser import text_string_to_metric_families

from stream.messages.lines import line_of
from tests.stream.serve.city import BUSY, LONELY, city_config, window
from tests.stream.serve.made_places import WEST_SIDE, city_files
from tests.stream.serve.serving import serving_file

RANGE = "from=2017-03-21T00:00:00Z&to=2017-03-22T00:00:00Z"


async def get(client: TestClient, path: str, status: int = 200) -> str:
    async with client.get(path) as answer:
        assert answer.status == status, await answer.text()
        return await answer.text()


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("hexveil_released_"), sample.labels.get("name", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_series_say_what_the_api_says_of_areas_routes_and_cells_and_nothing_of_what_has_no_estimate(
    tmp_path: Path,
) -> None:
    config = city_config(tmp_path, **{"feed.name": "bus"} | city_files(tmp_path))
    messages = [message for hour in range(3) for message in window(config, hour)]
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, messages)), encoding="utf-8")
    async with serving_file(config, tmp_path / "releases.ndjson") as client:
        newest = samples(await get(client, "/api/v1/series/newest"))
        assert {name for _, name in newest} == {"", "all", WEST_SIDE, "route:10", "route:<b>2</b>"}
        area: dict[str, Any] = json.loads(await get(client, "/api/v1/areas/route:10"))["estimate"]
        ends = [newest[column, "route:10"] for column in ("mean", "low", "high")]
        assert ends == pytest.approx([area["value"], *area["interval"]])
        assert newest["window_end_seconds", ""] == 1490108400.0, "2017-03-21T15:00:00Z"
        cell = json.loads(await get(client, f"/api/v1/cells/{BUSY}"))["releases"]
        rows = json.loads(await get(client, f"/api/v1/series?{RANGE}&of=all|{BUSY}|{LONELY}"))["rows"]
        assert [row["time"] for row in rows if row["name"] == BUSY] == [one["window"]["end"] for one in cell]
        speeds = [row["mean"] for row in rows if row["name"] == BUSY]
        assert speeds == pytest.approx([one["estimate"]["mean"]["value"] for one in cell])
        assert {row["name"] for row in rows} == {"all", BUSY}, "LONELY was never published"
        for wrong, status in (("of=nowhere", 404), ("of=a||b", 400), (f"of={'|'.join('a' * 201)}", 400)):
            await get(client, f"/api/v1/series/newest?{wrong}", status)
        await get(client, "/api/v1/series?from=2018-03-21T00:00:00Z&to=2018-03-22T00:00:00Z", 404)
