"""The event stream sends every complete window once and in order; a client that lags or reconnects delays no other. The
list of feeds says where the speeds of the configured feed come from, and nothing of others. Released estimates as
series for Grafana: what Prometheus scrapes, and rows of JSON."""

import asyncio
import json
import re
import resource
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Route
from prometheus_client.parser import text_string_to_metric_families

from bench import sse
from stream.config import Config
from stream.http_server import allow_files
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.messages.topics import create_topics
from stream.serve import broadcast
from stream.serve.api import SERVICE, make_app
from stream.serve.window_store import WindowView
from tests.stream.serve.browser import PATIENCE_MS, needs_chromium
from tests.stream.serve.city import BUSY, LONELY, USUAL_DAY, city_config, windows
from tests.stream.serve.made_places import WEST_SIDE, city_files
from tests.stream.serve.made_windows import windows_of
from tests.stream.serve.serving import json_of, origin_of, publish, ready, released, served, serving, unreading
from tests.support.builders import bus_config, riders_config
from tests.support.feeding import until_true

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


async def test_each_finished_window_is_told_once_in_order_and_a_client_that_comes_back_misses_none(tmp_path, own_feed):
    windows = windows_of(tmp_path, 4, **own_feed)
    config = bus_config(tmp_path, **own_feed)
    async with serving(config, windows[0] + windows[1]) as client:
        past = await first(client, 2, "?after=0")
        assert [number for number, _ in past] == sorted({number for number, _ in past})
        assert [body["complete"] for _, body in past] == [True, True]
        listed = (await json_of(client, "/api/v1/windows"))["windows"]
        assert [body for _, body in past] == listed[::-1]

        live = asyncio.create_task(first(client, 2))
        await asyncio.sleep(0.3)
        await publish(own_feed["kafka.bootstrap"], windows[2] + windows[2] + windows[3])
        received = await live
        assert [body["window"]["start"] for _, body in received] == ["2017-03-21T14:00:00Z", "2017-03-21T15:00:00Z"]

        everything = [*past, *received]
        for last, _ in everything[:-1]:
            resumed = await first(client, sum(number > last for number, _ in everything), last_event_id=last)
            assert resumed == [event for event in everything if event[0] > last]
            assert resumed == await first(client, len(resumed), f"?after={last}")
        assert await first(client, 4, last_event_id=2**62) == everything, "an id ahead of every marker begins anew"
    async with serving(config) as client:
        assert await first(client, 4, "?after=0") == everything, "another instance numbers events otherwise"


async def test_an_id_that_is_none_is_refused(tmp_path):
    async with served(bus_config(tmp_path), []) as client:
        for last_event_id in ("x", "-1", "1.5", "9" * 30, "1,2", ""):
            async with client.get(STREAM, headers={"Last-Event-ID": last_event_id}) as answer:
                problem = await answer.json()
                assert (answer.status, answer.content_type) == (400, "application/problem+json")
                assert "Last-Event-ID" in problem["title"]


async def test_a_client_that_does_not_read_holds_nobody_up_and_is_cut_off(tmp_path, monkeypatch, own_feed):
    def large(window: WindowView) -> bytes:
        return b'id: %d\nevent: window\ndata: "%b"\n\n' % (window.number, b"x" * 60_000)

    monkeypatch.setattr(broadcast, "frame_of", large)
    windows = windows_of(tmp_path, 12, **own_feed)
    async with serving(bus_config(tmp_path, **own_feed)) as client:
        service = client.server.app[SERVICE]
        monkeypatch.setattr(service.broadcast, "queue", 4)
        stalled = unreading(client.port, STREAM)
        reading = asyncio.create_task(first(client, len(windows)))
        counted = service.metrics.registry.get_sample_value
        await until_true(lambda: counted("hexveil_public_sse_clients") == 2)
        for window in windows:
            await publish(own_feed["kafka.bootstrap"], window)
        assert len(await reading) == len(windows)
        assert counted("hexveil_public_sse_dropped_total") == 1
        await until_true(lambda: not counted("hexveil_public_sse_clients"))
        stalled.close()


async def test_a_broker_that_is_away_is_waited_for_and_what_is_known_is_served_meanwhile(tmp_path):
    broker = KafkaServer(tmp_path / "kafka")
    overrides = {"feed.name": "bus", "kafka.bootstrap": broker.bootstrap}
    config = bus_config(tmp_path, **overrides)
    before, after = windows_of(tmp_path, 2, **overrides)
    try:
        await asyncio.to_thread(broker.start)
        await create_topics(config)
        await publish(broker.bootstrap, before)
        async with TestClient(TestServer(make_app(config))) as client:
            await ready(client)
            await asyncio.to_thread(broker.stop)
            assert (await json_of(client, "/api/v1/hexagons"))["complete"]
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


async def ends_with_the_service(client: TestClient, stream: ClientResponse) -> None:
    """Within less than the 60 s for which a server waits twice for what does not end."""
    assert stream.status == 200
    async with asyncio.timeout(30):
        await client.server.close()
        with pytest.raises(StopAsyncIteration):
            await anext(events(stream))


async def test_streams_are_limited_in_number_kept_alive_by_comments_and_end_with_the_service(
    tmp_path, monkeypatch, own_feed
):
    monkeypatch.setattr(broadcast, "MAX_STREAMS", 1)
    monkeypatch.setattr(broadcast, "PING_SECONDS", 0.05)
    async with serving(bus_config(tmp_path, **own_feed)) as client, client.get(STREAM) as open_stream:
        async with client.get(STREAM) as refused:
            problem = await refused.json()
            assert (refused.status, refused.content_type) == (503, "application/problem+json")
            assert "all 1 event streams" in problem["title"]
            assert int(refused.headers["Retry-After"]) > 0
        head = await client.head(STREAM)
        assert (head.status, head.content_type) == (200, "text/event-stream")
        received = b""
        async with asyncio.timeout(120):
            while received.count(b": ping\n\n") < 2:
                received += await open_stream.content.readany()
        assert received.startswith(b"retry: ")
        await ends_with_the_service(client, open_stream)


async def test_a_stream_that_waits_for_a_broker_that_is_away_does_not_hold_up_the_end_of_the_service(tmp_path):
    config = bus_config(tmp_path, **{"kafka.bootstrap": "127.0.0.1:9"})
    async with TestClient(TestServer(make_app(config))) as client, client.get(STREAM) as open_stream:
        await ends_with_the_service(client, open_stream)


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
    windows = windows_of(tmp_path, 3)
    answers: list[tuple[int, str]] = []

    async def behind_a_proxy(route: Route) -> None:
        status, body = answers.pop(0) if answers else (0, "")
        if status:
            await route.fulfill(status=status, body=body, content_type="text/event-stream")
        else:
            await route.continue_()

    async with served(bus_config(tmp_path), chain(*windows)) as client:
        ((number, window),) = await first(client, 1, "?after=0")
        answers += [(200, f"id: {number}\nevent: window\nretry: 1\ndata: {json.dumps(window)}\n\n"), (502, "")]
        async with await browser.new_page() as page:
            await page.route("**/api/v1/stream*", behind_a_proxy)
            await page.goto(f"{origin_of(client)}/healthz")
            follow = snippet.replace("5000", "10")
            call = "follow('', 0, (told) => window.starts.push(told.window.start))"
            await page.evaluate(f"() => {{ {follow}; window.starts = []; {call}; }}")
            await page.wait_for_function("window.starts.length >= 3", timeout=PATIENCE_MS)
            starts = await page.evaluate("window.starts")
    assert not answers
    assert starts == [json.loads(made[-1].value)["window"]["start"] for made in windows]


async def listed(tmp_path: Path, config: Config) -> tuple[list[dict[str, str | None]], str | None]:
    """The feeds of the API with a window of "bus", and what the dashboard hears about the configured one."""
    async with served(config, released(tmp_path)) as client:
        feeds = (await json_of(client, "/api/v1/feeds"))["feeds"]
        return feeds, (await json_of(client, "/dashboard/settings"))["derived_speeds"]


@pytest.mark.parametrize("speeds", ["missing", "derived"])
async def test_under_values_derived_speeds_are_said_to_be_protected_by_participation_alone(speeds, tmp_path):
    (feed,), shown = await listed(tmp_path, bus_config(tmp_path, **{"feed.speeds": speeds}))
    assert (feed["feed"], feed["derived_speeds"], shown) == ("bus", speeds, speeds)
    assert feed["note"] is not None
    assert "a derived speed is public as well and is not protected" in feed["note"]
    assert feed["note"].endswith("To protect derived speeds, use relation 'participation'.")


async def test_nothing_is_noted_under_participation_of_reported_speeds_and_of_feeds_that_are_not_configured(tmp_path):
    riders = riders_config(tmp_path, **{"feed.speeds": "missing"})
    nothing = {"derived_speeds": None, "note": None}
    own = {"feed": riders.feed.name, "map": "live", "derived_speeds": "missing", "note": None}
    feeds, shown = await listed(tmp_path, riders)
    assert (own in feeds, shown) == (True, "missing")
    assert await listed(tmp_path, bus_config(tmp_path)) == ([{"feed": "bus", "map": "live"} | nothing], None)
    feeds, _ = await listed(tmp_path, bus_config(tmp_path, **{"feed.name": "tram", "feed.speeds": "derived"}))
    assert [(feed["feed"], feed["derived_speeds"]) for feed in feeds] == [("bus", None), ("tram", "derived")]
    assert feeds[0] == {"feed": "bus", "map": None} | nothing


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("hexveil_released_"), sample.labels.get("name", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_series_say_what_the_api_says_of_areas_routes_and_cells_and_nothing_of_what_has_no_estimate(tmp_path):
    config = city_config(tmp_path, **city_files(tmp_path))
    async with served(config, windows(config, [USUAL_DAY] * 3)) as client:
        newest = samples(await (await client.get("/api/v1/series/newest")).text())
        assert {name for _, name in newest} == {"", "all", WEST_SIDE, "route:10", "route:<b>2</b>"}
        area = (await json_of(client, "/api/v1/areas/route:10"))["estimate"]
        ends = [newest[column, "route:10"] for column in ("mean", "low", "high")]
        assert ends == pytest.approx([area["value"], *area["interval"]])
        assert newest["window_end_seconds", ""] == 1490108400.0, "2017-03-21T15:00:00Z"
        cell = (await json_of(client, f"/api/v1/cells/{BUSY}"))["releases"]
        day = "from=2017-03-21T00:00:00Z&to=2017-03-22T00:00:00Z"
        rows = (await json_of(client, f"/api/v1/series?{day}&of=all|{BUSY}|{LONELY}"))["rows"]
        assert [row["time"] for row in rows if row["name"] == BUSY] == [one["window"]["end"] for one in cell]
        speeds = [row["mean"] for row in rows if row["name"] == BUSY]
        assert speeds == pytest.approx([one["estimate"]["mean"]["value"] for one in cell])
        assert {row["name"] for row in rows} == {"all", BUSY}, "LONELY was never published"
        for wrong, status in (("of=nowhere", 404), ("of=a||b", 400), (f"of={'|'.join('a' * 201)}", 400)):
            await json_of(client, f"/api/v1/series/newest?{wrong}", status)
        await json_of(client, "/api/v1/series?from=2018-03-21T00:00:00Z&to=2018-03-22T00:00:00Z", 404)
