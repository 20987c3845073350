"""The public service on a real broker is rebuilt from the topics, marks incomplete windows, and shows nothing from
inside. Complete windows as files: the tables of their messages, with names, kinds and refusals. Range queries over
released spatial histograms, from real messages through a real broker."""

import ast
import asyncio
import json
import sys
import threading
from collections.abc import Sequence

import jsonschema
import pytest

from dpcore.spatial import Rectangles, histogram_from_release
from stream.local import REPO_ROOT
from stream.messages.cells import cells_of, with_estimates
from stream.messages.message import (
    HEXAGON_SPEED,
    LARGEST_NUMBER,
    SPATIAL_HISTOGRAM,
    WINDOW,
    digest,
    schema,
)
from stream.messages.tables import table_of
from stream.serve.hexagons import MAX_RANGE_BYTES, MAX_WAITING
from stream.serve.reading.intake import Arrival
from stream.serve.received import received
from stream.serve.window_store import View
from tests.stream.serve.city import CELLS, USUAL_DAY, city_config, window, windows
from tests.stream.serve.made_windows import MECHANISMS, START, arrivals, histogram_message, outcomes, with_histograms
from tests.stream.serve.serving import released, serving
from tests.support.builders import bus_config
from tests.support.schemas import mutations


def test_the_public_service_imports_neither_redis_nor_anything_from_inside_the_boundary():
    inside = {
        "redis",
        "stream.storage.row_store",
        "stream.storage.ledger",
        "stream.protocol.release_protocol",
        "stream.ingestion.reader",
        "stream.ingestion.decoding",
        "stream.app",
    }
    for path in (REPO_ROOT / "stream" / "serve").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name == bad or name.startswith(bad + ".") for name in names for bad in inside), path


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


def test_a_message_without_ce_id_or_of_a_time_that_is_none_is_refused(tmp_path):
    message = released(tmp_path)[0]
    assert received(message.topic, "", message.value) is None
    never = message.value.replace(b"2017-03-21T12", b"2017-03-41T12")
    assert received(message.topic, message.ce_id, never) is None


def test_a_complete_window_takes_nothing_more(tmp_path):
    made = released(tmp_path)
    view = View()
    assert outcomes(view, arrivals(made, 1))[-1] == "completed"
    altered = [m._replace(value=m.value.replace(b'"epsilon":2.0', b'"epsilon":2.5')) for m in made]
    assert all(changed.value != message.value for changed, message in zip(altered, made, strict=True))
    assert set(outcomes(view, arrivals(made))) == {"duplicate"}
    assert set(outcomes(view, arrivals(altered))) == {"invalid"}


def test_old_windows_are_forgotten_in_the_order_of_their_markers_and_stay_so(tmp_path):
    made = released(tmp_path)
    view = View(max_windows=2)
    days = [
        [m._replace(value=m.value.replace(b"-21T", b"-%dT" % day), headers=()) for m in made] for day in (23, 21, 22)
    ]
    for number, messages in enumerate(days, 1):
        body = json.loads(messages[-1].value) | {"digest": digest(m.value for m in messages[:-1])}
        messages[-1] = messages[-1]._replace(value=json.dumps(body).encode())
        day = [Arrival(m.topic, f"{number}/{i}", m.value, number) for i, m in enumerate(messages)]
        assert outcomes(view, day)[-1] == "completed"
    assert [window.start[8:10] for window in view.completed()] == ["21", "22"]
    assert outcomes(view, [Arrival(made[0].topic, "late", days[0][0].value, 0)]) == ["forgotten"]


async def test_the_api_serves_what_the_topics_hold(kafka, tmp_path, topic_name):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    *cells, marker = released(tmp_path, **overrides)
    rubbish = cells[0]._replace(value=b"rubbish")
    async with serving(bus_config(tmp_path, **overrides), (*cells, cells[0], rubbish, marker)) as client:
        windows = (await (await client.get("/api/v1/windows")).json())["windows"]
        assert [window["complete"] for window in windows] == [True]
        start = windows[0]["window"]["start"]
        assert (await (await client.get(f"/api/v1/windows/{start}")).json()) == windows[0]
        query = {"window": start}
        answer = await client.get("/api/v1/hexagons", params=query)
        hexagons = (await answer.json())["hexagons"]
        assert hexagons == [json.loads(with_estimates(message.value, *cells_of([message.value]))) for message in cells]
        shape = await (await client.get("/api/v1/hexagons", params=query | {"format": "geojson"})).json()
        assert [feature["properties"]["cell"] for feature in shape["features"]] == [m.key.decode() for m in cells]
        for restriction, count in (
            ({"bbox": "0,0,1,1"}, 0),
            ({"bbox": "-180,-90,180,90"}, len(cells)),
            ({"resolution": "7"}, len(cells)),
            ({"resolution": "6"}, 0),
        ):
            answer = await client.get("/api/v1/hexagons", params=query | restriction)
            assert len((await answer.json())["hexagons"]) == count
        newest = await (await client.get("/api/v1/hexagons")).json()
        assert newest["window"]["start"] == start
        history = await (await client.get(f"/api/v1/cells/{cells[0].key.decode()}")).json()
        assert history["releases"] == [json.loads(with_estimates(cells[0].value, *cells_of([cells[0].value])))]
        metrics = await (await client.get("/metrics")).text()
        assert "hexveil_public_messages_duplicate_total" in metrics
        assert "hexveil_events" not in metrics


FIRST = "2017-03-21T12:00:00Z"


async def test_complete_windows_are_downloaded_and_incomplete_ones_refused(kafka, tmp_path, topic_name, monkeypatch):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages = released(tmp_path, **overrides)
    values = [message.value for message in messages if message.topic == HEXAGON_SPEED]
    path = f"/api/v1/windows/{FIRST}/download"
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        for suffix, kind in (
            ("csv", "text/csv"),
            ("geojson", "application/geo+json"),
            ("parquet", "application/vnd.apache.parquet"),
        ):
            answer = await client.get(f"{path}.{suffix}")
            assert answer.status == 200
            assert answer.content_type == kind
            assert await answer.read() == table_of(values, suffix)
            named = f'attachment; filename="hexveil-{topic_name}-20170321T120000Z.{suffix}"'
            assert answer.headers["Content-Disposition"] == named
            again = await client.get(f"{path}.{suffix}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        unknown = await client.get(path.replace("T12", "T13") + ".csv")
        assert unknown.status == 404
    other = f"{topic_name}-x"
    overrides["feed.name"] = other
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    messages = released(tmp_path, **overrides)
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        absent = await client.get(f"{path}.parquet")
        assert absent.status == 501
        assert "hexveil[parquet]" in (await absent.json())["detail"]
        range_of = await client.get(f"/api/v1/download.parquet?from={FIRST}&to=2017-03-21T13:00:00Z")
        assert range_of.status == 501
        assert (await (await client.get("/dashboard/settings")).json())["parquet"] is False
    overrides["feed.name"] = f"{topic_name}-y"
    messages = released(tmp_path, **overrides)
    async with serving(bus_config(tmp_path, **overrides), messages[1:]) as client:
        early = await client.get(f"{path}.csv")
        assert (early.status, early.content_type) == (409, "application/problem+json")


def spanning(first: int, last: int) -> str:
    """The query of a range, in hours from the first window."""
    return f"from=2017-03-21T{12 + first:02}:00:00Z&to=2017-03-21T{12 + last:02}:00:00Z"


async def test_a_range_is_every_complete_window_that_begins_in_it_oldest_first(kafka, tmp_path, topic_name):
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    hours = [window(config, hour) for hour in range(4)]
    unfinished = window(config, 4)[1:]
    values = [m.value for messages in hours[1:3] for m in messages if m.topic == HEXAGON_SPEED]
    async with serving(config, [*hours[1], *hours[0], *hours[3], *hours[2], *unfinished]) as client:
        for suffix in ("csv", "geojson", "parquet"):
            answer = await client.get(f"/api/v1/download.{suffix}?{spanning(1, 3)}")
            assert answer.status == 200
            assert await answer.read() == table_of(values, suffix)
            assert answer.headers["Content-Disposition"].endswith(f'-20170321T130000Z-20170321T150000Z.{suffix}"')
            assert answer.headers["Cache-Control"] == "public, no-cache"
        everything = await client.get(f"/api/v1/download.csv?{spanning(0, 9)}")
        assert len((await everything.text()).splitlines()) == 1 + 4 * len(CELLS)
        for query in (spanning(4, 5), spanning(3, 1), spanning(1, 1)):
            assert (await client.get(f"/api/v1/download.csv?{query}")).status == 404
        assert (await client.get(f"/api/v1/download.csv?from={FIRST}")).status == 400


async def test_a_range_that_is_too_large_is_refused_with_its_bound(tmp_path, kafka, topic_name, monkeypatch):
    assert MAX_RANGE_BYTES == 16 << 20
    monkeypatch.setattr("stream.serve.hexagons.MAX_RANGE_BYTES", 5_000)
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    async with serving(config, windows(config, [USUAL_DAY] * 3)) as client:
        refused = await client.get(f"/api/v1/download.csv?{spanning(0, 9)}")
        assert refused.status == 413
        assert "above 5000" in (await refused.json())["title"]
        assert (await client.get(f"/api/v1/download.csv?{spanning(0, 1)}")).status == 200


async def test_ranges_are_written_one_at_a_time_and_few_wait(tmp_path, kafka, topic_name, monkeypatch):
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    writing, most = 0, 0
    held_back = threading.Event()

    def slowly(values: Sequence[bytes], suffix: str) -> bytes:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        held_back.wait(60)
        writing -= 1
        return json.dumps([len(values), suffix]).encode()

    monkeypatch.setattr("stream.serve.hexagons.table_of", slowly)
    async with serving(config, windows(config, [USUAL_DAY] * 8)) as client:
        asked = [
            asyncio.create_task(client.get(f"/api/v1/download.csv?{spanning(0, last)}"))
            for last in range(1, MAX_WAITING + 4)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in done} == {503}
        held_back.set()
        statuses = sorted([(await task).status for task in asked])
        assert statuses == [200] * MAX_WAITING + [503] * 3
        assert most == 1
        held_back.clear()
        asked = [
            asyncio.create_task(client.get(f"/api/v1/download.csv?{spanning(1, last)}"))
            for last in range(2, MAX_WAITING + 3)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert (await client.get(f"/api/v1/download.csv?{spanning(0, 1)}")).status == 200, "what is kept needs no turn"
        held_back.set()
        await asyncio.wait(asked)


async def test_ranges_are_answered_as_the_release_itself_answers_them(kafka, tmp_path, topic_name):
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


async def test_a_bad_range_is_refused_with_value_bound_and_remedy(kafka, tmp_path, topic_name):
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


def test_a_histogram_whose_parts_do_not_fit_is_refused_though_its_schema_holds(tmp_path):
    message = histogram_message("bus", "ug")
    body = json.loads(message.value)
    body["structure"]["x_edges"][-1] += 1
    assert jsonschema.Draft202012Validator(schema(SPATIAL_HISTOGRAM)).is_valid(body)
    assert received(SPATIAL_HISTOGRAM, "a", json.dumps(body).encode()) is None
    assert received(SPATIAL_HISTOGRAM, "a", message.value) is not None


def test_a_window_is_complete_only_with_its_histograms(tmp_path):
    messages, _ = with_histograms(tmp_path, {"feed.name": "bus"})
    view = View()
    *first, last, marker = messages
    assert set(outcomes(view, arrivals((*first, marker), 1))) == {"taken"}
    assert outcomes(view, arrivals([last])) == ["completed"]
