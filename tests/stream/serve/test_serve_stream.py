"""The event stream sends every complete window once and in order; a client that lags or reconnects delays no other. The
list of feeds says where the speeds of the configured feed come from, and nothing of others. Released estimates as
series for Grafana: what Prometheus scrapes, and rows of JSON."""

import asyncio
import json
import re
import resource
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Route
from prometheus_client.parser import text_string_to_metric_families

from bench import sse
from stream.config import Config
from stream.http_server import allow_files
from stream.local import REPO_ROOT, KafkaServer
from stream.messages.lines import line_of
from stream.messages.topics import create_topics
from stream.serve import broadcast
from stream.serve.api import SERVICE, make_app
from stream.serve.window_store import WindowView
from tests.stream.serve.browser import PATIENCE_MS, needs_chromium
from tests.stream.serve.city import BUSY, LONELY, city_config, window
from tests.stream.serve.made_places import WEST_SIDE, city_files
from tests.stream.serve.made_windows import windows_of
from tests.stream.serve.serving import origin_of, publish, ready, released, serving, serving_file
from tests.support.builders import bus_config, riders_config

STREAM = "/api/v1/stream"
Event = tuple[int, dict[str, Any]]


async def events(answer: ClientResponse) -> AsyncIterator[Event]:
    """Events of a stream as a browser reads them."""
    fields: dict[str, str] = {}
    async for line in answer.content:
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif "data" in fields:
            assert fields["event"] == "window"
            yield int(fields["id"]), json.loads(fields["data"])
            fields = {}


async def first(
    client: TestClient, count: int, query: str = "", last_event_id: int | None = None, seconds: float = 20
) -> list[Event]:
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    async with asyncio.timeout(seconds), client.get(STREAM + query, headers=headers) as answer:
        assert answer.content_type == "text/event-stream"
        received = []
        async for event in events(answer):
            received.append(event)
            if len(received) == count:
                return received
    raise AssertionError(f"the stream ended after {len(received)} of {count} events")


async def test_each_finished_window_is_told_once_in_order_and_a_client_that_comes_back_misses_none(
    kafka, tmp_path, topic_name
):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    windows = windows_of(tmp_path, overrides, 4)
    config = bus_config(tmp_path, **overrides)
    async with serving(config, windows[0] + windows[1]) as client:
        past = await first(client, 2, "?after=0")
        assert [number for number, _ in past] == sorted({number for number, _ in past})
        assert [body["complete"] for _, body in past] == [True, True]
        listed = (await (await client.get("/api/v1/windows")).json())["windows"]
        assert [body for _, body in past] == listed[::-1]

        live = asyncio.create_task(first(client, 2))
        await asyncio.sleep(0.3)
        await publish(kafka, windows[2] + windows[2] + windows[3])
        received = await live
        assert [body["window"]["start"] for _, body in received] == ["2017-03-21T14:00:00Z", "2017-03-21T15:00:00Z"]

        everything = [*past, *received]
        for last, _ in everything[:-1]:
            resumed = await first(client, sum(number > last for number, _ in everything), last_event_id=last)
            assert resumed == [event for event in everything if event[0] > last]
            assert resumed == await first(client, len(resumed), f"?after={last}")
    async with serving(config) as client:
        assert await first(client, 4, "?after=0") == everything, "another instance numbers events otherwise"


async def test_an_id_ahead_of_every_marker_begins_anew(kafka, tmp_path, topic_name):
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    (window,) = windows_of(tmp_path, overrides, 1)
    async with serving(bus_config(tmp_path, **overrides), window) as client:
        (event,) = await first(client, 1, last_event_id=2**62)
        assert event[1]["complete"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TestClient]:
    """A service without windows, for all tests that only ask."""
    feed = {"feed.name": f"t-{uuid.uuid4().hex[:12]}", "kafka.bootstrap": kafka}
    async with serving(bus_config(tmp_path_factory.mktemp("feed"), **feed)) as client:
        yield client


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("last_event_id", ["x", "-1", "1.5", "9" * 30, "1,2", ""])
async def test_an_id_that_is_none_is_refused(asked, last_event_id):
    async with asked.get(STREAM, headers={"Last-Event-ID": last_event_id}) as answer:
        problem = await answer.json()
        assert (answer.status, answer.content_type) == (400, "application/problem+json")
        assert "Last-Event-ID" in problem["title"]


async def test_a_client_that_does_not_read_holds_nobody_up_and_is_cut_off(kafka, tmp_path, topic_name, monkeypatch):
    def large(window: WindowView) -> bytes:
        return b'id: %d\nevent: window\ndata: "%b"\n\n' % (window.number, b"x" * 60_000)

    monkeypatch.setattr(broadcast, "frame_of", large)
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    windows = windows_of(tmp_path, overrides, 12)
    async with serving(bus_config(tmp_path, **overrides)) as client:
        service = client.server.app[SERVICE]
        monkeypatch.setattr(service.broadcast, "queue", 4)
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((client.host, client.port))
        stalled.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        reading = asyncio.create_task(first(client, len(windows)))
        while service.metrics.registry.get_sample_value("hexveil_public_sse_clients") != 2:
            await asyncio.sleep(0.02)
        for window in windows:
            await publish(kafka, window)
        assert len(await reading) == len(windows)
        assert service.metrics.registry.get_sample_value("hexveil_public_sse_dropped_total") == 1
        while service.metrics.registry.get_sample_value("hexveil_public_sse_clients"):
            await asyncio.sleep(0.02)
        stalled.close()


async def test_a_broker_that_is_away_is_waited_for_and_what_is_known_is_served_meanwhile(tmp_path):
    broker = KafkaServer(tmp_path / "kafka")
    overrides = {"feed.name": "bus", "kafka.bootstrap": broker.bootstrap}
    config = bus_config(tmp_path, **overrides)
    before, after = windows_of(tmp_path, overrides, 2)
    try:
        await asyncio.to_thread(broker.start)
        await create_topics(config)
        await publish(broker.bootstrap, before)
        async with TestClient(TestServer(make_app(config))) as client:
            await ready(client)
            await asyncio.to_thread(broker.stop)
            assert (await (await client.get("/api/v1/hexagons")).json())["complete"]
            async with TestClient(TestServer(make_app(config))) as late:
                assert (await late.get("/healthz")).status == 200
                assert (await late.get("/readyz")).status == 503
                pending = [asyncio.create_task(first(each, 2, "?after=0", seconds=200)) for each in (client, late)]
                await asyncio.to_thread(broker.start)
                await publish(broker.bootstrap, after)
                for bodies in await asyncio.gather(*pending):
                    assert [body["cells"] for _, body in bodies] == [len(before) - 1, len(after) - 1]
            registry = client.server.app[SERVICE].metrics.registry
            assert registry.get_sample_value("hexveil_public_windows_total") == 2
    finally:
        broker.stop()


async def test_streams_are_limited_in_number_and_end_with_the_service(kafka, tmp_path, topic_name, monkeypatch):
    monkeypatch.setattr("stream.serve.broadcast.MAX_STREAMS", 1)
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    async with serving(config) as client, client.get(STREAM) as open_stream:
        async with client.get(STREAM) as refused:
            problem = await refused.json()
            assert (refused.status, refused.content_type) == (503, "application/problem+json")
            assert "all 1 event streams" in problem["title"]
            assert int(refused.headers["Retry-After"]) > 0
        head = await client.head(STREAM)
        assert (head.status, head.content_type) == (200, "text/event-stream")
        assert open_stream.status == 200
        async with asyncio.timeout(60):
            await client.server.close()
            with pytest.raises(StopAsyncIteration):
                await anext(events(open_stream))


async def test_a_stream_that_waits_for_a_broker_that_is_away_does_not_hold_up_the_end_of_the_service(tmp_path):
    """Without its end, the server would wait for it twice 60 s."""
    config = bus_config(tmp_path, **{"kafka.bootstrap": "127.0.0.1:9"})
    async with TestClient(TestServer(make_app(config))) as client, client.get(STREAM) as open_stream:
        assert open_stream.status == 200
        async with asyncio.timeout(30):
            await client.server.close()
            with pytest.raises(StopAsyncIteration):
                await anext(events(open_stream))


async def test_a_quiet_stream_is_kept_alive_by_comments(kafka, tmp_path, topic_name, monkeypatch):
    monkeypatch.setattr(broadcast, "PING_SECONDS", 0.05)
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    async with serving(config) as client, asyncio.timeout(120), client.get(STREAM) as answer:
        received = b""
        while received.count(b": ping\n\n") < 2:
            received += await answer.content.readany()
        assert received.startswith(b"retry: ")


@pytest.mark.nightly
def test_the_bench_of_streams_measures_the_service_as_it_is_installed():
    figures = sse.streams(sse.Sizes(readers=3, stalled=0, windows=1, cells=5, pause=0.0))
    assert figures["readers"] == 3
    assert 0 < figures["alone"]["median_reader_ms"] <= figures["alone"]["last_reader_ms"]
    assert figures["serve_memory_mb"]["with_readers"] >= 1


@pytest.mark.parametrize(("soft", "hard", "raised"), [(64, 10_000, 1256), (64, 500, 500), (5000, 10_000, None)])
def test_the_limit_of_open_files_is_raised_to_what_connections_need(monkeypatch, soft, hard, raised):
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    assert allow_files(1256) == (raised or soft)
    assert made == ([] if raised is None else [(raised, hard)])


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_documented_reader_misses_no_window_though_a_proxy_answers_502(browser, tmp_path):
    """The first connection ends after one window; after the 502 the browser's EventSource is closed for good."""
    (snippet,) = re.findall(r"```js\n(.*?)```", (REPO_ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    windows = windows_of(tmp_path, {"feed.name": "bus"}, 3)
    file = tmp_path / "windows.ndjson"
    file.write_text("".join(line_of(message) for window in windows for message in window), encoding="utf-8")
    answers: list[tuple[int, str]] = []

    async def behind_a_proxy(route: Route) -> None:
        status, body = answers.pop(0) if answers else (0, "")
        if status:
            await route.fulfill(status=status, body=body, content_type="text/event-stream")
        else:
            await route.continue_()

    async with serving_file(bus_config(tmp_path), file) as client:
        ((number, window),) = await first(client, 1, "?after=0")
        answers += [(200, f"id: {number}\nevent: window\nretry: 1\ndata: {json.dumps(window)}\n\n"), (502, "")]
        page = await browser.new_page()
        try:
            await page.route("**/api/v1/stream*", behind_a_proxy)
            await page.goto(f"{origin_of(client)}/healthz")
            follow = snippet.replace("5000", "10")
            call = "follow('', 0, (told) => window.starts.push(told.window.start))"
            await page.evaluate(f"() => {{ {follow}; window.starts = []; {call}; }}")
            await page.wait_for_function("window.starts.length >= 3", timeout=PATIENCE_MS)
            starts = await page.evaluate("window.starts")
        finally:
            await page.close()
    assert not answers
    assert starts == [json.loads(made[-1].value)["window"]["start"] for made in windows]


async def listed(config: Config, releases: Path) -> tuple[list[dict[str, str | None]], str | None]:
    """The feeds of the API, and what the dashboard hears about the configured one."""
    async with serving_file(config, releases) as client:
        feeds = (await (await client.get("/api/v1/feeds")).json())["feeds"]
        return feeds, (await (await client.get("/dashboard/settings")).json())["derived_speeds"]


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    file = tmp_path / "releases.ndjson"
    file.write_text("".join(line_of(message) for message in released(tmp_path)))
    return file


@pytest.mark.parametrize("speeds", ["missing", "derived"])
async def test_under_values_derived_speeds_are_said_to_be_protected_by_participation_alone(speeds, tmp_path, releases):
    (feed,), shown = await listed(bus_config(tmp_path, **{"feed.speeds": speeds}), releases)
    assert (feed["feed"], feed["derived_speeds"], shown) == ("bus", speeds, speeds)
    assert feed["note"] is not None
    assert "a derived speed is public as well and is not protected" in feed["note"]
    assert feed["note"].endswith("To protect derived speeds, use relation 'participation'.")


async def test_under_participation_derived_speeds_need_no_note(tmp_path, releases):
    config = riders_config(tmp_path, **{"feed.speeds": "missing"})
    feeds, shown = await listed(config, releases)
    own = {"feed": config.feed.name, "map": "live", "derived_speeds": "missing", "note": None}
    assert own in feeds
    assert shown == "missing"


async def test_reported_speeds_and_feeds_that_are_not_configured_have_neither_source_nor_note(tmp_path, releases):
    nothing = {"derived_speeds": None, "note": None}
    assert await listed(bus_config(tmp_path), releases) == ([{"feed": "bus", "map": "live"} | nothing], None)
    feeds, _ = await listed(bus_config(tmp_path, **{"feed.name": "tram", "feed.speeds": "derived"}), releases)
    assert [(feed["feed"], feed["derived_speeds"]) for feed in feeds] == [("bus", None), ("tram", "derived")]
    assert feeds[0] == {"feed": "bus", "map": None} | nothing


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


async def test_series_say_what_the_api_says_of_areas_routes_and_cells_and_nothing_of_what_has_no_estimate(tmp_path):
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
