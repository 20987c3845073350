"""Rules on released means: which cells they name, who is told, and a receiver that misbehaves.

BUSY's noise has a scale below 0.1 km/h and its jam lies 4.8 km/h below the limits here, so a draw that changes what is
named has a probability below 1e-20.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h3
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from stream.config import Config, ConfigError, load_config
from stream.config.alerts import AlertRule, WebhookConfig
from stream.local import REPO_ROOT
from stream.messages.lines import line_of
from stream.messages.message import Message
from stream.serve.alerts import watching as delivering
from stream.serve.alerts.rules import Judged, Usual, alerts
from stream.serve.alerts.watching import WAITING, Alerts, Delivery, Webhook
from stream.serve.api import SERVICE
from stream.serve.metrics import PublicMetrics
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import BUSY, JAM, STEADY, USUAL_DAY, Cell, city_config, window
from tests.stream.serve.serving import serving_file
from tests.support.builders import riders_config
from tests.support.environment import write_secret

SECRET = "5" * 64
BELOW = {"name": "jam", "below": 18.0, "windows": 2, "false_alarms_per_day": 1.0}
SLOWER = {"name": "slow", "slower_percent": 25.0, "false_alarms_per_day": 1.0}
UNSURE = 22.0
"""A noisy count with which a mean of 10 km/h is below 30 km/h but for a probability of 0.7 %."""
DAY = 24
"""Hours."""


class Receiver:
    """A real HTTP server that does with each request what the next of its manners says, and afterwards accepts."""

    def __init__(self, *manners: str) -> None:
        self.manners = list(manners)
        self.requests: list[tuple[Mapping[str, str], bytes]] = []
        app = web.Application()
        app.router.add_post("/alerts", self.handle)
        self.server = TestServer(app)

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.headers.copy(), await request.read()))
        manner = self.manners.pop(0) if self.manners else "accept"
        if manner == "hang":
            await asyncio.sleep(30)
        if manner == "drop" and request.transport is not None:
            request.transport.abort()
        if manner.isdecimal():
            return web.Response(status=int(manner), headers={"Location": "/elsewhere"})
        return web.Response(status=204)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        await self.server.start_server()
        try:
            yield str(self.server.make_url("/alerts"))
        finally:
            await self.server.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(delivering, "TIMEOUT_SECONDS", 2.0)


def config_with(tmp_path: Path, *rules: Mapping[str, Any], url: str | None = None) -> Config:
    overrides: dict[str, Any] = {"public.alerts": list(rules)}
    if url is not None:
        write_secret(tmp_path / "secret", SECRET + "\n")
        overrides["public.webhook"] = {"url": url, "secret_file": str(tmp_path / "secret")}
    return city_config(tmp_path, **overrides)


def text_of(messages: list[Message]) -> str:
    return "".join(map(line_of, messages))


async def listed(client: TestClient, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/api/v1/alerts{query}")
    assert answer.status == 200
    body: dict[str, Any] = await answer.json()
    return body


def metric(client: TestClient, name: str, **labels: str) -> float | None:
    return client.server.app[SERVICE].metrics.registry.get_sample_value(f"hexveil_public_{name}", labels)


async def reaches(client: TestClient, value: float, name: str, **labels: str) -> None:
    """Wait until the metric has the value."""
    async with asyncio.timeout(60):
        while metric(client, name, **labels) != value:
            await asyncio.sleep(0.02)


async def test_a_new_alert_reaches_list_stream_metric_and_a_receiver_that_misbehaves_once(tmp_path):
    """The receiver answers 500, then nothing, then breaks the connection, and then accepts: the same signed bytes."""
    receiver, file = Receiver("500", "hang", "drop"), tmp_path / "releases.ndjson"
    async with receiver.listening() as url:
        config = config_with(tmp_path, BELOW, url=url)
        file.write_text(text_of(window(config, 0) + window(config, 1, JAM)))
        async with serving_file(config, file) as client:
            assert (await listed(client))["alerts"] == [], "one window of a jam is none of two"
            async with client.get("/api/v1/stream") as stream:
                await stream.content.readuntil(b"\n\n")
                with file.open("a") as grown:
                    grown.write(text_of(window(config, 2, JAM)))
                await stream.content.readuntil(b"event: alert\n")
                event = json.loads((await stream.content.readline()).removeprefix(b"data: "))
                (named,) = (await listed(client))["alerts"]
                await reaches(client, 1.0, "webhook_deliveries_total", outcome="delivered")
            with file.open("a") as grown:
                grown.write(text_of(window(config, 3, JAM)))
            while (await listed(client))["alerts"][0]["window"]["start"] != "2017-03-21T15:00:00Z":
                await asyncio.sleep(0.02)
            (still,) = (await listed(client))["alerts"]
            assert (still["new"], metric(client, "alerts_total", rule="jam")) == (False, 1.0)
            assert metric(client, "alerts_active", rule="jam") == 1.0
            assert metric(client, "webhook_deliveries_total", outcome="delivered") == 1.0
            assert (metric(client, "webhook_attempts_failed_total") or 0) >= 3.0
        assert named["id"] == f"bus/jam/2017-03-21T14:00:00Z/{BUSY}"
        assert (named["cell"], named["first_window"], named["limit"], named["new"]) == (
            BUSY,
            "2017-03-21T13:00:00Z",
            18.0,
            True,
        )
        assert event["alerts"] == [named]
        sent = len(receiver.requests)
        assert sent >= 4
        for headers, body in receiver.requests:
            assert json.loads(body) == event
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
            assert headers["webhook-signature"] == f"v1,{expected}"
            assert headers["webhook-id"] == event["id"] == "bus/jam/2017-03-21T14:00:00Z"
        async with serving_file(config, file) as client:
            assert (await listed(client, "?window=2017-03-21T14:00:00Z"))["alerts"] == [named]
        assert len(receiver.requests) == sent, "a restart tells nothing again"


async def test_a_rule_against_usual_names_what_is_slower_by_more_than_noise_explains(tmp_path):
    elsewhere = {"name": "elsewhere", "slower_km_h": 3.0, "false_alarms_per_day": 1.0, "cells": [STEADY]}
    config = config_with(tmp_path, SLOWER, elsewhere)
    file = tmp_path / "releases.ndjson"
    days = [USUAL_DAY, USUAL_DAY, USUAL_DAY, JAM]
    file.write_text(text_of([message for day, city in enumerate(days) for message in window(config, day * DAY, city)]))
    async with serving_file(config, file) as client:
        answer = await listed(client)
        (named,) = answer["alerts"]
        assert (named["rule"], named["cell"]) == ("slow", BUSY)
        assert named["usual"] == pytest.approx(22.0, abs=0.5)
        assert named["limit"] == pytest.approx(0.75 * 22.0, abs=0.4)
        assert [(rule["name"], rule["cells"]) for rule in answer["rules"]] == [("slow", 4), ("elsewhere", 1)]
        assert (await listed(client, "?window=2017-03-23T12:00:00Z"))["alerts"] == [], "two earlier windows are too few"
        assert (await client.get("/api/v1/alerts?window=2016-01-01T00:00:00Z")).status == 404


def number_of(raw: float, scale: float) -> dict[str, Any]:
    return {"value": raw, "raw": raw, "scale": scale, "interval": [raw - scale, raw + scale], "unit": "km/h"}


def ratio_window(raw: float, count: float, **more: Any) -> WindowView:
    """A window under "participation" of one cell of which a mean and a noisy count of scale 2 were released."""
    body = {"cell": BUSY, "status": "published", "mean": number_of(raw, 0.1), "users": number_of(count, 2.0)} | more
    marker = {"relation": "participation", "clipping": {"lower": 0.0, "upper": 100.0}, "period": {"timezone": "UTC"}}
    made = WindowView("riders", "2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z", complete=True)
    made.cells, made.marker = {BUSY: json.dumps(body).encode()}, json.dumps(marker | more.get("marker", {})).encode()
    return made


@pytest.mark.parametrize(
    ("raw", "count", "named"), [(10.0, 400.0, True), (10.0, 20.0, False), (10.0, 0.5, False), (29.9, 400.0, False)]
)
def test_under_participation_the_noisy_count_decides_how_sure_a_mean_is(raw, count, named):
    rule = AlertRule(name="jam", below=30.0, false_alarms_per_day=0.01)
    assert bool(alerts(rule, [Judged(ratio_window(raw, count), ())], Usual())) == named


@pytest.mark.parametrize("relation", ["participation", "values"])
@pytest.mark.parametrize("raw", [2.0, 12.0, 27.0, 29.9, 31.0, 60.0])
def test_to_be_above_a_limit_is_to_be_below_it_of_what_is_turned_around(raw, relation):
    """The range is [0, 100]; of 2 and 12 both relations are sure."""
    of = {"users": 400, "mean": number_of(raw, 1.0)} if relation == "values" else {}
    turned = of | {"mean": number_of(100.0 - raw, 1.0)} if of else {}
    marker = {"marker": {"relation": relation}}
    below = AlertRule(name="low", below=30.0, false_alarms_per_day=0.01)
    above = AlertRule(name="high", above=70.0, false_alarms_per_day=0.01)
    low, high = ratio_window(raw, 400.0, **of, **marker), ratio_window(100.0 - raw, 400.0, **turned, **marker)
    said = [bool(alerts(rule, [Judged(window, ())], Usual())) for rule, window in ((below, low), (above, high))]
    assert said[0] == said[1]
    assert said[0] or raw > 12.0
    assert not alerts(above, [Judged(low, ())], Usual())


def test_a_rule_needs_all_its_windows_and_is_new_once():
    rule = AlertRule(name="jam", below=30.0, windows=2, false_alarms_per_day=0.01)
    low, high = Judged(ratio_window(10.0, 400.0), ()), Judged(ratio_window(50.0, 400.0), ())
    counts = {
        "one": [low],
        "broken": [low, high, low],
        "begun": [low, low, high],
        "first": [low, low],
        "going on": [low, low, low],
    }
    said = {name: [alert.new for alert in alerts(rule, windows, Usual())] for name, windows in counts.items()}
    assert said == {"one": [], "broken": [], "begun": [True], "first": [True], "going on": [False]}


def test_each_of_a_rules_windows_is_sure_on_its_own():
    """The second window alone would be a mistake with a probability of 0.7 %, which a certain one beside it does not
    excuse."""
    once = AlertRule(name="jam", below=30.0, false_alarms_per_day=0.01)
    twice = once.model_copy(update={"windows": 2})
    sure, unsure = Judged(ratio_window(10.0, 400.0), ()), Judged(ratio_window(10.0, UNSURE), ())
    assert alerts(once, [sure], Usual())
    assert alerts(twice, [sure, unsure], Usual()) == alerts(twice, [unsure, sure], Usual()) == []


def merged(window: WindowView, start: str, *excludes: str) -> WindowView:
    """The window at another time, in which its cell is what those finer ones leave of it."""
    cells = {
        cell: json.dumps(json.loads(body) | {"excludes": excludes}).encode() for cell, body in window.cells.items()
    }
    return replace(window, start=start, cells=cells)


def test_a_rule_holds_in_consecutive_windows_of_the_same_area_only():
    rule = AlertRule(name="jam", below=30.0, windows=2, false_alarms_per_day=0.01)
    now = Judged(merged(ratio_window(10.0, 400.0), "2017-03-21T12:00:00Z", STEADY), ())
    same = Judged(merged(ratio_window(10.0, 400.0), "2017-03-21T11:00:00Z", STEADY), ())
    whole = Judged(merged(ratio_window(10.0, 400.0), "2017-03-21T11:00:00Z"), ())
    assert [alert.cell for alert in alerts(rule, [now, same], Usual())] == [BUSY]
    assert alerts(rule, [now, whole], Usual()) == []


@pytest.mark.parametrize("excludes", [(), (STEADY,)], ids=["whole", "rest"])
def test_a_rule_against_usual_compares_a_rest_with_the_same_rest_only(tmp_path, excludes):
    config = city_config(tmp_path)
    rule = AlertRule(**SLOWER)
    cities = [USUAL_DAY, USUAL_DAY, USUAL_DAY, JAM]
    views = [
        WindowView("bus", f"2017-03-2{day}T12:00:00Z", f"2017-03-2{day}T13:00:00Z", complete=True) for day in range(4)
    ]
    for day, (made, city) in enumerate(zip(views, cities, strict=True)):
        *cells, marker = window(config, day * DAY, city)
        made.cells = {str(json.loads(cell.value)["cell"]): cell.value for cell in cells}
        made.marker = marker.value
    *earlier, now = views
    assert [alert.cell for alert in alerts(rule, [Judged(now, earlier)], Usual())] == [BUSY]
    earlier[0] = merged(earlier[0], earlier[0].start, *excludes)
    assert bool(alerts(rule, [Judged(now, earlier)], Usual())) == (not excludes), "two releases of an area are too few"


async def test_a_delivery_that_cannot_be_made_stops_no_other(tmp_path):
    write_secret(tmp_path / "secret", SECRET)
    receiver = Receiver()
    async with receiver.listening() as url:
        metrics = PublicMetrics()
        sender = Webhook(WebhookConfig(url=url, secret_file=tmp_path / "secret"), metrics)
        sender.offer(Delivery("no bytes", None))  # type: ignore[arg-type]
        sender.offer(Delivery("next", b"{}"))
        task = asyncio.create_task(sender.run())
        async with asyncio.timeout(120):
            while not receiver.requests:
                await asyncio.sleep(0.02)
        task.cancel()
    assert metrics.registry.get_sample_value("hexveil_public_webhook_deliveries_total", {"outcome": "failed"}) == 1


async def test_after_a_restart_a_jam_that_goes_on_is_told_once_and_a_late_window_changes_no_gauge(tmp_path):
    config = config_with(tmp_path, BELOW)
    both = {**JAM, STEADY: Cell(60, 1, 10.0)}
    file = tmp_path / "releases.ndjson"
    file.write_text(text_of([message for hour in (0, 1, 2) for message in window(config, hour, JAM)]))

    async def grow(hour: int, city: Mapping[str, Cell]) -> None:
        with file.open("a") as grown:
            grown.write(text_of(window(config, hour, city)))

    async with serving_file(config, file) as client:
        await reaches(client, 1.0, "alerts_active", rule="jam")
        assert metric(client, "alerts_total", rule="jam") == 0.0, "what was there at the start is not told"
        await grow(3, JAM)
        await reaches(client, 1.0, "alerts_total", rule="jam")
        (going_on,) = (await listed(client))["alerts"]
        assert not going_on["new"]
        await grow(7, both)  # two windows have not arrived, so its jam is none of two
        await reaches(client, 0.0, "alerts_active", rule="jam")
        await grow(4, both)
        await grow(5, both)
        await reaches(client, 2.0, "alerts_total", rule="jam")
        assert metric(client, "alerts_active", rule="jam") == 0.0, "a window that is not the newest"
        await grow(6, USUAL_DAY)
        await grow(8, both)
        await reaches(client, 4.0, "alerts_total", rule="jam")
        assert metric(client, "alerts_active", rule="jam") == 2.0


async def test_windows_that_nobody_judges_in_time_are_counted_and_a_service_that_ended_judging_is_not_well(
    tmp_path, monkeypatch
):
    async def broken(alerts: Alerts) -> None:
        raise OSError("planted")

    monkeypatch.setattr(Alerts, "run", broken)
    config, file = config_with(tmp_path, BELOW), tmp_path / "releases.ndjson"
    file.write_text(text_of(window(config, 0)))
    async with serving_file(config, file) as client:
        for _ in range(WAITING + 3):
            client.server.app[SERVICE].alerts.announce(
                WindowView("bus", "2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z")
            )
        assert metric(client, "windows_unjudged_total") == 3
        health = await client.get("/healthz")
        assert (health.status, "judging" in (await health.json())["status"]) == (503, True)


async def test_what_a_window_is_judged_with_is_put_together_once(tmp_path, monkeypatch):
    config, file = config_with(tmp_path, SLOWER), tmp_path / "releases.ndjson"
    file.write_text(text_of(window(config, 0)))
    async with serving_file(config, file) as client:
        await listed(client)
        searches: list[str] = []
        earlier_of_each = Usual.earlier_of_each

        def counted(usual: Usual, view: View, windows: Sequence[WindowView]) -> list[list[WindowView]]:
            searches.extend(window.start for window in windows)
            return earlier_of_each(usual, view, windows)

        monkeypatch.setattr(Usual, "earlier_of_each", counted)
        await listed(client)
        assert searches == []
        with file.open("a") as grown:
            grown.write(text_of(window(config, 1)))
        while (await listed(client))["window"]["start"] != "2017-03-21T13:00:00Z":
            await asyncio.sleep(0.02)
        assert searches.count("2017-03-21T13:00:00Z") == 1


async def test_the_queue_is_bounded_and_what_is_refused_is_not_sent_again(tmp_path):
    write_secret(tmp_path / "secret", SECRET)
    receiver = Receiver("302", "400", "429")
    async with receiver.listening() as url:
        metrics = PublicMetrics()
        sender = Webhook(WebhookConfig(url=url, secret_file=tmp_path / "secret"), metrics)
        for number in range(WAITING + 5):
            sender.offer(Delivery(str(number), b"{}"))
        task = asyncio.create_task(sender.run())
        counted = metrics.registry.get_sample_value
        outcomes = "hexveil_public_webhook_deliveries_total"
        async with asyncio.timeout(120):
            while (counted(outcomes, {"outcome": "delivered"}) or 0) < WAITING - 2:
                await asyncio.sleep(0.02)
        task.cancel()
    assert [headers["webhook-id"] for headers, _ in receiver.requests[:4]] == ["5", "6", "7", "7"]
    assert counted(outcomes, {"outcome": "dropped"}) == 5
    assert counted(outcomes, {"outcome": "failed"}) == 2


async def test_a_receiver_that_is_not_there_holds_up_nobody(tmp_path, unused_tcp_port):
    config = config_with(tmp_path, BELOW | {"windows": 1}, url=f"http://127.0.0.1:{unused_tcp_port}/alerts")
    file = tmp_path / "releases.ndjson"
    file.write_text(text_of(window(config, 0)))
    async with serving_file(config, file) as client:
        with file.open("a") as grown:
            grown.write(text_of(window(config, 1, JAM)))
        assert (await client.get("/api/v1/windows")).status == 200
        await reaches(client, 1.0, "webhook_deliveries_total", outcome="failed")
        assert len((await listed(client))["alerts"]) == 1


@pytest.mark.parametrize("content", [None, "short"], ids=["missing", "short"])
def test_a_secret_that_cannot_be_used_is_refused_with_a_remedy(tmp_path, content):
    if content is not None:
        write_secret(tmp_path / "secret", content)
    with pytest.raises(ConfigError, match=r"public.webhook.secret_file.*openssl rand"):
        Webhook(WebhookConfig(url="http://127.0.0.1/", secret_file=tmp_path / "secret"), PublicMetrics())


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([{**BELOW, "slower_km_h": 3.0}], "give one of below, above, slower_km_h, slower_percent"),
        ([BELOW, BELOW], "more than one rule is named jam"),
        ([{**BELOW, "cells": ["x"]}], "is no H3 cell"),
        ([{**BELOW, "cells": ["0x" + BUSY]}], "is no H3 cell"),
        ([{**BELOW, "cells": [" " + BUSY]}], "is no H3 cell"),
        ([{**BELOW, "cells": [h3.cell_to_parent(BUSY, 5)]}], "has resolution 5, but released cells have"),
        ([{**BELOW, "area": {"south": 1.0, "west": 1.0, "north": 2.0, "east": 2.0}}], "outside feed.domain"),
        ([{**BELOW, "belo": 1.0}], "write public.alerts.0.below"),
        ([{**BELOW, "windows": 13}], "public.alerts.0.windows: found 13; write a whole number of at least 1"),
    ],
)
def test_a_rule_that_cannot_be_judged_is_refused(tmp_path, rules, said):
    with pytest.raises(ConfigError, match=said):
        config_with(tmp_path, *rules)


def test_a_cell_is_written_as_messages_write_it(tmp_path):
    config = config_with(tmp_path, BELOW | {"cells": [BUSY.upper()]})
    assert config.public.alerts[0].cells == (BUSY,)


@pytest.mark.parametrize("mechanism", ["levy", "fixed-quantile", "epsilon-quantile", "auto"])
def test_a_mean_within_a_range_that_noise_chose_has_no_rules(tmp_path, mechanism):
    with pytest.raises(ConfigError, match="so no bound on false alarms holds; set it to one of allocated"):
        city_config(tmp_path, **{"public.alerts": [BELOW], "speed.mean_mechanism": mechanism})
    assert city_config(tmp_path, **{"public.alerts": [BELOW], "speed.mean_mechanism": "baseline"})


def test_rules_need_a_mean_and_a_webhook_needs_rules(tmp_path):
    with pytest.raises(ConfigError, match=r"put 'mean' into it"):
        city_config(tmp_path, **{"public.alerts": [BELOW], "speed.statistics": ["variance"]})
    with pytest.raises(ConfigError, match="webhook without alerts"):
        config_with(tmp_path, url="http://127.0.0.1/")


def test_participation_has_no_rules_against_usual(tmp_path):
    with pytest.raises(ConfigError, match="use below"):
        riders_config(tmp_path, **{"public.alerts": [SLOWER]})


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "https://me:pw@x/", "http://x/#a", "http://x/ y", "/x"])
def test_a_webhook_goes_to_http_addresses_only(tmp_path, url):
    with pytest.raises(ConfigError, match="no http or https address"):
        config_with(tmp_path, url=url)


@pytest.mark.parametrize("name", ["bus-fleet", "riders-live"])
def test_the_commented_rule_of_a_shipped_configuration_is_a_sound_one(tmp_path, name):
    shipped = (REPO_ROOT / "config" / f"{name}.toml").read_text(encoding="utf-8")
    start, end = shipped.index("# [[public.alerts]]"), shipped.index("# [public.webhook]")
    file = tmp_path / "hexveil.toml"
    file.write_text(shipped[:start] + re.sub(r"(?m)^# ", "", shipped[start:end]) + shipped[end:], encoding="utf-8")
    (rule,) = load_config(file).public.alerts
    assert (rule.name, rule.windows) == ("jam", 2)
    documented = (REPO_ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert f'cells = ["{rule.cells[0]}"]' in documented or name == "riders-live", "whose hexagons are finer"
