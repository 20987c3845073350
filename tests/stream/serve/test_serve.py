"""The public service on a real broker is rebuilt from the topics and marks incomplete windows. Complete windows as
files: the tables of their messages, with names, kinds and refusals. Range queries over released spatial histograms,
from real messages."""

import json
import sys

import jsonschema
import pytest

from dpcore.spatial import Rectangles, histogram_from_release
from stream.messages.cells import cells_of, with_estimates
from stream.messages.message import HEXAGON_SPEED, LARGEST_NUMBER, WINDOW, schema
from stream.messages.tables import table_of
from stream.serve.hexagons import MAX_RANGE_BYTES
from stream.serve.reading.intake import Arrival
from stream.serve.received import received
from stream.serve.window_store import View
from tests.stream.serve.city import CELLS, city_config, window
from tests.stream.serve.made_windows import (
    MECHANISMS,
    START,
    arrivals,
    completed,
    outcomes,
    windows_of,
    with_histograms,
)
from tests.stream.serve.serving import json_of, released, served, serving
from tests.support.builders import bus_config
from tests.support.schemas import mutations


def test_a_window_is_complete_only_when_marker_count_and_digest_agree(tmp_path):
    *cells, marker = released(tmp_path)
    view = View()
    assert set(outcomes(view, arrivals((marker, *cells[:-1])))) == {"taken"}
    assert view.find(None, "bus") is None
    assert outcomes(view, arrivals((cells[0], cells[-1]))) == ["duplicate", "completed"]
    tampered, altered = View(), cells[0]._replace(value=cells[0].value.replace(b'"epsilon":2.0', b'"epsilon":2.5'))
    assert altered != cells[0]
    assert set(outcomes(tampered, arrivals((altered, *cells[1:], marker)))) == {"taken"}
    assert tampered.find(None, "bus") is None


@pytest.mark.parametrize("topic", [HEXAGON_SPEED, WINDOW])
def test_what_the_view_accepts_and_refuses_is_what_the_schema_says(tmp_path, topic):
    made = released(tmp_path, **{"speed.statistics": ["mean", "p50"], "speed.min_users": 2})
    good = json.loads(next(message.value for message in made if message.topic == topic))
    validator = jsonschema.Draft202012Validator(schema(topic))
    assert received(topic, "good", json.dumps(good).encode()) is not None
    changed = [*mutations(good), good | {"status": "suppressed"}, good | {"cell": "8748"}]
    assert len(changed) > 100
    for number, body in enumerate(changed):
        accepted = received(topic, str(number), json.dumps(body).encode()) is not None
        assert accepted == (validator.is_valid(body) and largest(body) <= LARGEST_NUMBER), body


def largest(body: object) -> float:
    """The largest magnitude of a number in a JSON value."""
    if isinstance(body, dict | list):
        return max(map(largest, body.values() if isinstance(body, dict) else body), default=0.0)
    return abs(body) if isinstance(body, int | float) else 0.0


def test_old_windows_are_forgotten_in_the_order_of_their_markers_and_stay_so(tmp_path):
    first, second, third = windows_of(tmp_path, 3)
    view = completed(View(max_windows=2), third, first, second)
    assert [window.start[11:13] for window in view.completed()] == ["12", "13"]
    assert outcomes(view, [Arrival(third[0].topic, "late", third[0].value, 0)]) == ["forgotten"]


async def test_the_api_serves_what_the_topics_hold(tmp_path, own_feed):
    *cells, marker = released(tmp_path, **own_feed)
    rubbish = cells[0]._replace(value=b"rubbish")
    async with serving(bus_config(tmp_path, **own_feed), (*cells, cells[0], rubbish, marker)) as client:
        (listed,) = (await json_of(client, "/api/v1/windows"))["windows"]
        assert listed["complete"]
        start = listed["window"]["start"]
        assert await json_of(client, f"/api/v1/windows/{start}") == listed
        path = f"/api/v1/hexagons?window={start}"
        hexagons = (await json_of(client, path))["hexagons"]
        assert hexagons == [json.loads(with_estimates(message.value, *cells_of([message.value]))) for message in cells]
        shape = await json_of(client, f"{path}&format=geojson")
        assert [feature["properties"]["cell"] for feature in shape["features"]] == [m.key.decode() for m in cells]
        for restriction in ("bbox=0,0,1,1", "resolution=6"):
            assert (await json_of(client, f"{path}&{restriction}"))["hexagons"] == [], restriction
        for restriction in ("bbox=-180,-90,180,90", "resolution=7"):
            assert (await json_of(client, f"{path}&{restriction}"))["hexagons"] == hexagons, restriction
        assert (await json_of(client, "/api/v1/hexagons"))["window"]["start"] == start
        history = await json_of(client, f"/api/v1/cells/{cells[0].key.decode()}")
        assert history["releases"] == hexagons[:1]
        metrics = await (await client.get("/metrics")).text()
        assert "hexveil_public_messages_duplicate_total" in metrics
        assert "hexveil_events" not in metrics


KINDS = {"csv": "text/csv", "geojson": "application/geo+json", "parquet": "application/vnd.apache.parquet"}


async def test_complete_windows_are_downloaded_and_incomplete_ones_refused(tmp_path, monkeypatch, own_feed):
    messages, unfinished = windows_of(tmp_path, 2, **own_feed)
    values = [message.value for message in messages if message.topic == HEXAGON_SPEED]
    path, config = f"/api/v1/windows/{START}/download", bus_config(tmp_path, **own_feed)
    async with serving(config, [*messages, *unfinished[1:]]) as client:
        for suffix, kind in KINDS.items():
            answer = await client.get(f"{path}.{suffix}")
            assert (answer.status, answer.content_type) == (200, kind)
            assert await answer.read() == table_of(values, suffix)
            named = f'attachment; filename="hexveil-{config.feed.name}-20170321T120000Z.{suffix}"'
            assert answer.headers["Content-Disposition"] == named
            again = await client.get(f"{path}.{suffix}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        await json_of(client, path.replace("T12", "T14") + ".csv", 404)
        await json_of(client, path.replace("T12", "T13") + ".csv", 409)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with served(config, messages) as client:
        assert "hexveil[parquet]" in (await json_of(client, f"{path}.parquet", 501))["detail"]
        await json_of(client, f"/api/v1/download.parquet?{spanning(0, 1)}", 501)
        assert (await json_of(client, "/dashboard/settings"))["parquet"] is False


def spanning(first: int, last: int) -> str:
    """The query of a range, in hours from the first window."""
    return f"from=2017-03-21T{12 + first:02}:00:00Z&to=2017-03-21T{12 + last:02}:00:00Z"


async def test_a_range_is_every_complete_window_that_begins_in_it_oldest_first_within_a_bound(
    tmp_path, monkeypatch, own_feed
):
    config = city_config(tmp_path, **own_feed)
    hours = [window(config, hour) for hour in range(4)]
    unfinished = window(config, 4)[1:]
    values = [m.value for messages in hours[1:3] for m in messages if m.topic == HEXAGON_SPEED]
    async with serving(config, [*hours[1], *hours[0], *hours[3], *hours[2], *unfinished]) as client:
        for suffix in KINDS:
            answer = await client.get(f"/api/v1/download.{suffix}?{spanning(1, 3)}")
            assert answer.status == 200
            assert await answer.read() == table_of(values, suffix)
            assert answer.headers["Content-Disposition"].endswith(f'-20170321T130000Z-20170321T150000Z.{suffix}"')
            assert answer.headers["Cache-Control"] == "public, no-cache"
        everything = await client.get(f"/api/v1/download.csv?{spanning(0, 9)}")
        assert len((await everything.text()).splitlines()) == 1 + 4 * len(CELLS)
        for query in (spanning(4, 5), spanning(3, 1), spanning(1, 1)):
            await json_of(client, f"/api/v1/download.csv?{query}", 404)
        await json_of(client, f"/api/v1/download.csv?from={START}", 400)
        assert MAX_RANGE_BYTES == 16 << 20
        monkeypatch.setattr("stream.serve.hexagons.MAX_RANGE_BYTES", 5_000)
        assert "above 5000" in (await json_of(client, f"/api/v1/download.csv?{spanning(0, 8)}", 413))["title"]
        assert (await client.get(f"/api/v1/download.csv?{spanning(0, 1)}")).status == 200


NO_RANGES = {
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


async def test_ranges_are_answered_as_the_release_itself_answers_them_and_bad_ones_refused_with_the_reason(
    tmp_path, own_feed
):
    messages, histograms = with_histograms(tmp_path, **own_feed)
    count = f"/api/v1/histograms/{START}/count"
    async with serving(bus_config(tmp_path, **own_feed), messages) as client:
        (listed,) = (await json_of(client, "/api/v1/histograms"))["windows"]
        assert (listed["window"]["start"], listed["complete"]) == (START, True)
        assert [one["mechanism"] for one in listed["histograms"]] == sorted(MECHANISMS)
        assert listed["histograms"][0]["domain"]["rows"] == 64
        assert "structure" not in listed["histograms"][0]
        for name, message in histograms.items():
            answer = await client.get(f"/api/v1/histograms/{START}/{name}")
            assert await answer.read() == message.value
            histogram = histogram_from_release(json.loads(message.value))
            for west, south, east, north in ((-98, 30, -97.4, 30.6), (-97.8, 30.21, -97.63, 30.37)):
                box = f"bbox={west},{south},{east},{north}"
                body = await json_of(client, f"{count}?{box}&mechanism={name}")
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
        for query, said in NO_RANGES.items():
            problem = await json_of(client, f"{count}?{query}", 400)
            assert said in problem["title"], query
            assert problem["detail"], query
        await json_of(client, f"{count}?bbox=-98,30,-97.4,30.6&mechanism=none", 404)


def test_a_window_is_complete_only_with_its_histograms_of_which_a_list_needs_no_message_again(tmp_path):
    messages, _ = with_histograms(tmp_path)
    view = View()
    *first, last, marker = messages
    assert set(outcomes(view, arrivals((*first, marker), 1))) == {"taken"}
    assert outcomes(view, arrivals([last])) == ["completed"]
    (window,) = view.windows.values()
    for mechanism, value in window.histograms.items():
        body = json.loads(value)
        left = {name: body[name] for name in body if name not in ("feed", "window", "structure")}
        assert json.loads(window.histogram_summaries[mechanism]) == left
