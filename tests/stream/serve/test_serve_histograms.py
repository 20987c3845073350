"""Range queries over released spatial histograms, from real messages through a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dpcore.spatial import Rectangles, histogram_from_release
from stream.messages.message import SPATIAL_HISTOGRAM, schema
from stream.serve.received import received
from stream.serve.window_store import View
from tests.stream.serve.made_windows import MECHANISMS, START, histogram_message, with_histograms
from tests.stream.serve.serving import serving
from tests.stream.serve.taking import arrivals, outcomes
from tests.support.builders import bus_config


async def test_ranges_are_answered_as_the_release_itself_answers_them(
    kafka: str, tmp_path: Path, topic_name: str
) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages, histograms = with_histograms(tmp_path, overrides)
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        listed = (await (await client.get("/api/v1/histograms")).json())["windows"]
        assert [window["window"]["start"] for window in listed] == [START]
        assert listed[0]["complete"]
        assert [one["mechanism"] for one in listed[0]["histograms"]] == sorted(MECHANISMS)
        assert listed[0]["histograms"][0]["domain"]["rows"] == 64
        assert "structure" not in listed[0]["histograms"][0]
        for name, message in histograms.items():
            answer = await client.get(f"/api/v1/histograms/{START}/{name}")
            assert await answer.read() == message.value
            histogram = histogram_from_release(json.loads(message.value))
            for west, south, east, north in ((-98, 30, -97.4, 30.6), (-97.8, 30.21, -97.63, 30.37)):
                box = {"bbox": f"{west},{south},{east},{north}", "mechanism": name}
                answer = await client.get(f"/api/v1/histograms/{START}/count", params=box)
                assert answer.status == 200, await answer.text()
                body = await answer.json()
                ranges = Rectangles.of_boxes(histogram.domain, [[south, west, north, east]])
                (raw,), interval = histogram.answers(ranges), histogram.intervals(ranges)
                assert interval is not None
                low, high = body["interval"]
                assert [low, high] == [interval.low[0], interval.high[0]]
                assert body["raw"] == pytest.approx(raw, abs=1e-6)
                assert body["value"] == pytest.approx(min(max(raw, low), high), abs=1e-6)
                kept = {key: body[key] for key in ("unit", "mechanism", "epsilon", "relation")}
                assert kept == {"unit": "1", "mechanism": name, "epsilon": 1.0, "relation": "participation"}
                assert body["window"]["start"] == START


REFUSED = {
    "bbox=-98.2,30,-97.4,30.6&mechanism=ug": "west -98.2",
    "bbox=-98,30,-97.4,31&mechanism=ug": "north 31",
    "bbox=-97.4,30,-97.4,30.6&mechanism=ug": "longitudes from -180 to 180",
    "bbox=-98,30.6,-97.4,30&mechanism=ug": "south < north",
    "bbox=-98,30,-97.4&mechanism=ug": "four numbers",
    "bbox=-98,30,-97.4,nan&mechanism=ug": "four numbers",
    "bbox=-98,30,-97.4,1e999&mechanism=ug": "four numbers",
    "mechanism=ug": "bbox is missing",
    "bbox=-98,30,-97.4,30.6": "several histograms",
}


async def test_a_bad_range_is_refused_with_value_bound_and_remedy(kafka: str, tmp_path: Path, topic_name: str) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages, _ = with_histograms(tmp_path, overrides)
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        for query, said in REFUSED.items():
            answer = await client.get(f"/api/v1/histograms/{START}/count?{query}")
            problem = await answer.json()
            assert (answer.status, answer.content_type) == (400, "application/problem+json"), query
            assert said in problem["title"]
            assert problem["detail"]
        unknown = await client.get(f"/api/v1/histograms/{START}/count?bbox=-98,30,-97.4,30.6&mechanism=none")
        assert unknown.status == 404


def test_a_histogram_whose_parts_do_not_fit_is_refused_though_its_schema_holds(tmp_path: Path) -> None:
    message = histogram_message("bus", "ug")
    body = json.loads(message.value)
    body["structure"]["x_edges"][-1] += 1
    assert jsonschema.Draft202012Validator(schema(SPATIAL_HISTOGRAM)).is_valid(body)
    assert received(SPATIAL_HISTOGRAM, "a", json.dumps(body).encode()) is None
    assert received(SPATIAL_HISTOGRAM, "a", message.value) is not None


def test_a_window_is_complete_only_with_its_histograms(tmp_path: Path) -> None:
    messages, _ = with_histograms(tmp_path, {"feed.name": "bus"})
    view = View()
    *first, last, marker = messages
    assert set(outcomes(view, arrivals((*first, marker), 1))) == {"taken"}
    assert outcomes(view, arrivals([last])) == ["completed"]
