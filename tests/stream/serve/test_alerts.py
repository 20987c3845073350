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
from itertools import chain
from pathlib import Path
from typing import Any

import h3
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from stream.config import Config, ConfigError, load_config
from stream.config.alerts import AlertRule, WebhookConfig
from stream.local.kafka import REPO_ROOT
from stream.messages.message import Message
from stream.serve.alerts import watching as delivering
from stream.serve.alerts.rules import Alert, Judged, Usual, alerts
from stream.serve.alerts.watching import WAITING, Alerts, Webhook
from stream.serve.api import SERVICE
from stream.serve.metrics import PublicMetrics
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import BUSY, JAM, STEADY, USUAL_DAY, Cell, city_config, window
from tests.stream.serve.made_windows import completed
from tests.stream.serve.serving import append, json_of, served, serving_file
from tests.support.builders import riders_config
from tests.support.environment import write_secret
from tests.support.feeding import until_true

SECRET = "5" * 64
BELOW = {"name": "jam", "below": 18.0, "windows": 2, "false_alarms_per_day": 1.0}
SLOWER = {"name": "slow", "slower_percent": 25.0, "false_alarms_per_day": 1.0}
ALERTS = "/api/v1/alerts"
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
        async with self.server:
            yield str(self.server.make_url("/alerts"))


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


def metric(client: TestClient, name: str, **labels: str) -> float | None:
    return client.server.app[SERVICE].metrics.registry.get_sample_value(f"hexveil_public_{name}", labels)


async def reaches(client: TestClient, value: float, name: str, **labels: str) -> None:
    """Wait until the metric has the value."""
    await until_true(lambda: metric(client, name, **labels) == value, 60)


async def test_a_new_alert_reaches_list_stream_metric_and_a_receiver_that_misbehaves_once(tmp_path):
    """The receiver answers 500, then nothing, then breaks the connection, and then accepts: the same signed bytes."""
    receiver, file = Receiver("500", "hang", "drop"), tmp_path / "releases.ndjson"
    async with receiver.listening() as url:
        config = config_with(tmp_path, BELOW, url=url)
        append(file, window(config, 0), window(config, 1, JAM))
        async with serving_file(config, file) as client:
            assert (await json_of(client, ALERTS))["alerts"] == [], "one window of a jam is none of two"
            async with client.get("/api/v1/stream") as stream:
                await stream.content.readuntil(b"\n\n")
                append(file, window(config, 2, JAM))
                await stream.content.readuntil(b"event: alert\n")
                event = json.loads((await stream.content.readline()).removeprefix(b"data: "))
                (named,) = (await json_of(client, ALERTS))["alerts"]
                await reaches(client, 1.0, "webhook_deliveries_total", outcome="delivered")
            append(file, window(config, 3, JAM))
            while (await json_of(client, ALERTS))["alerts"][0]["window"]["start"] != "2017-03-21T15:00:00Z":
                await asyncio.sleep(0.02)
            (still,) = (await json_of(client, ALERTS))["alerts"]
            assert (still["new"], metric(client, "alerts_total", rule="jam")) == (False, 1.0)
            assert metric(client, "alerts_active", rule="jam") == 1.0
            assert metric(client, "webhook_deliveries_total", outcome="delivered") == 1.0
            assert (metric(client, "webhook_attempts_failed_total") or 0) >= 3.0
        assert named["id"] == f"bus/jam/2017-03-21T14:00:00Z/{BUSY}"
        assert (named["cell"], named["limit"], named["new"]) == (BUSY, 18.0, True)
        assert named["first_window"] == "2017-03-21T13:00:00Z"
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
            assert (await json_of(client, f"{ALERTS}?window=2017-03-21T14:00:00Z"))["alerts"] == [named]
        assert len(receiver.requests) == sent, "a restart tells nothing again"


def days_of(config: Config) -> list[list[Message]]:
    """The same hour of three usual days and of one with a jam."""
    return [window(config, day * DAY, city) for day, city in enumerate([USUAL_DAY, USUAL_DAY, USUAL_DAY, JAM])]


async def test_a_rule_against_usual_names_what_is_slower_by_more_than_noise_explains(tmp_path):
    elsewhere = {"name": "elsewhere", "slower_km_h": 3.0, "false_alarms_per_day": 1.0, "cells": [STEADY]}
    config = config_with(tmp_path, SLOWER, elsewhere)
    async with served(config, chain(*days_of(config))) as client:
        answer = await json_of(client, ALERTS)
        (named,) = answer["alerts"]
        assert (named["rule"], named["cell"]) == ("slow", BUSY)
        assert named["usual"] == pytest.approx(22.0, abs=0.5)
        assert named["limit"] == pytest.approx(0.75 * named["usual"], abs=0.01)
        assert [(rule["name"], rule["cells"]) for rule in answer["rules"]] == [("slow", 4), ("elsewhere", 1)]
        early = await json_of(client, f"{ALERTS}?window=2017-03-23T12:00:00Z")
        assert early["alerts"] == [], "two earlier windows are too few"
        await json_of(client, f"{ALERTS}?window=2016-01-01T00:00:00Z", 404)


def number_of(raw: float, scale: float) -> dict[str, Any]:
    return {"value": raw, "raw": raw, "scale": scale, "interval": [raw - scale, raw + scale], "unit": "km/h"}


def released_mean(raw: float, count: float, relation: str = "participation", scale: float = 0.1) -> WindowView:
    """A window of one cell, of whose mean the noise has this ``scale``; that of a count under participation has 2."""
    users = number_of(count, 2.0) if relation == "participation" else round(count)
    body = {"cell": BUSY, "status": "published", "mean": number_of(raw, scale), "users": users}
    marker = {"relation": relation, "clipping": {"lower": 0.0, "upper": 100.0}, "period": {"timezone": "UTC"}}
    made = WindowView("riders", "2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z", complete=True)
    made.cells, made.marker = {BUSY: json.dumps(body).encode()}, json.dumps(marker).encode()
    return made


def judged(raw: float = 10.0, count: float = 400.0, *under: Any) -> Judged:
    return Judged(released_mean(raw, count, *under), ())


def named_by(rule: AlertRule, *windows: Judged) -> list[Alert]:
    return alerts(rule, windows, Usual())


ONCE = AlertRule(name="jam", below=30.0, false_alarms_per_day=0.01)
TWICE = ONCE.model_copy(update={"windows": 2})


@pytest.mark.parametrize(
    ("raw", "count", "named"), [(10.0, 400.0, True), (10.0, 20.0, False), (10.0, 0.5, False), (29.9, 400.0, False)]
)
def test_under_participation_the_noisy_count_decides_how_sure_a_mean_is(raw, count, named):
    assert bool(named_by(ONCE, judged(raw, count))) == named


@pytest.mark.parametrize("relation", ["participation", "values"])
@pytest.mark.parametrize("raw", [2.0, 12.0, 27.0, 29.9, 31.0, 60.0])
def test_to_be_above_a_limit_is_to_be_below_it_of_what_is_turned_around(raw, relation):
    """The range is [0, 100]; of 2 and 12 both relations are sure."""
    above = AlertRule(name="high", above=70.0, false_alarms_per_day=0.01)
    under = (relation, 1.0 if relation == "values" else 0.1)
    low, high = judged(raw, 400.0, *under), judged(100.0 - raw, 400.0, *under)
    is_low, is_high = bool(named_by(ONCE, low)), bool(named_by(above, high))
    assert is_low == is_high
    assert is_low or raw > 12.0
    assert not named_by(above, low)


def test_a_rule_needs_all_its_windows_and_is_new_once():
    low, high = judged(), judged(50.0)
    said: list[tuple[list[Judged], list[bool]]] = [
        ([low], []),
        ([low, high, low], []),
        ([low, low, high], [True]),
        ([low, low], [True]),
        ([low, low, low], [False]),
    ]
    for windows, new in said:
        assert [alert.new for alert in named_by(TWICE, *windows)] == new


def test_under_values_a_rule_knows_the_scale_of_the_noise():
    """At a scale of 2.82 km/h, 10 km/h are below 30 km/h but for a probability as the rule allows."""
    assert [len(named_by(ONCE, judged(10.0, 400.0, "values", scale))) for scale in (2.7, 2.9)] == [1, 0]


def test_each_of_a_rules_windows_is_sure_on_its_own():
    """A mean of 10 km/h of 22 noisy events is below 30 km/h but for 0.7 %, which a certain window does not excuse."""
    sure, unsure = judged(), judged(count=22.0)
    assert named_by(ONCE, sure)
    assert named_by(TWICE, sure, unsure) == named_by(TWICE, unsure, sure) == []


def merged(window: WindowView, start: str, *excludes: str) -> WindowView:
    """The window at another time, in which its cell is what those finer ones leave of it."""
    cells = {
        cell: json.dumps(json.loads(body) | {"excludes": excludes}).encode() for cell, body in window.cells.items()
    }
    return replace(window, start=start, cells=cells)


def test_a_rule_holds_in_consecutive_windows_of_the_same_area_only():
    window = released_mean(10.0, 400.0)
    now, same = (Judged(merged(window, f"2017-03-21T{hour}:00:00Z", STEADY), ()) for hour in (12, 11))
    whole = Judged(merged(window, "2017-03-21T11:00:00Z"), ())
    assert [alert.cell for alert in named_by(TWICE, now, same)] == [BUSY]
    assert named_by(TWICE, now, whole) == []


@pytest.mark.parametrize("excludes", [(), (STEADY,)], ids=["whole", "rest"])
def test_a_rule_against_usual_compares_a_rest_with_the_same_rest_only(tmp_path, excludes):
    config = city_config(tmp_path)
    rule = AlertRule(**SLOWER)
    now, *earlier = completed(View(), *days_of(config)).ordered()
    assert [alert.cell for alert in alerts(rule, [Judged(now, earlier)], Usual())] == [BUSY]
    earlier[0] = merged(earlier[0], earlier[0].start, *excludes)
    assert bool(alerts(rule, [Judged(now, earlier)], Usual())) == (not excludes), "two releases of an area are too few"


async def test_after_a_restart_a_jam_that_goes_on_is_told_once_and_a_late_window_changes_no_gauge(
    tmp_path, unused_tcp_port
):
    """The receiver is not there, which holds up nobody."""
    config = config_with(tmp_path, BELOW, url=f"http://127.0.0.1:{unused_tcp_port}/alerts")
    file = tmp_path / "releases.ndjson"
    both = {**JAM, STEADY: Cell(60, 1, 10.0)}
    append(file, *(window(config, hour, JAM) for hour in (0, 1, 2)))
    async with serving_file(config, file) as client:
        await reaches(client, 1.0, "alerts_active", rule="jam")
        assert metric(client, "alerts_total", rule="jam") == 0.0, "what was there at the start is not told"
        append(file, window(config, 3, JAM))
        await reaches(client, 1.0, "alerts_total", rule="jam")
        (going_on,) = (await json_of(client, ALERTS))["alerts"]
        assert not going_on["new"]
        append(file, window(config, 7, both))  # two windows have not arrived, so its jam is none of two
        await reaches(client, 0.0, "alerts_active", rule="jam")
        append(file, window(config, 4, both), window(config, 5, both))
        await reaches(client, 2.0, "alerts_total", rule="jam")
        assert metric(client, "alerts_active", rule="jam") == 0.0, "a window that is not the newest"
        append(file, window(config, 6), window(config, 8, both))
        await reaches(client, 4.0, "alerts_total", rule="jam")
        assert metric(client, "alerts_active", rule="jam") == 2.0
        await reaches(client, 3.0, "webhook_deliveries_total", outcome="failed")


async def test_windows_that_nobody_judges_in_time_are_counted_and_a_service_that_ended_judging_is_not_well(
    tmp_path, monkeypatch
):
    async def broken(alerts: Alerts) -> None:
        raise OSError("planted")

    monkeypatch.setattr(Alerts, "run", broken)
    config = config_with(tmp_path, BELOW)
    async with served(config, window(config, 0)) as client:
        for _ in range(WAITING + 3):
            client.server.app[SERVICE].alerts.announce(
                WindowView("bus", "2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z")
            )
        assert metric(client, "windows_unjudged_total") == 3
        assert "judging" in (await json_of(client, "/healthz", 503))["status"]


async def test_what_a_window_is_judged_with_is_put_together_once(tmp_path, monkeypatch):
    config, file = config_with(tmp_path, SLOWER), tmp_path / "releases.ndjson"
    append(file, window(config, 0))
    async with serving_file(config, file) as client:
        await json_of(client, ALERTS)
        searches: list[str] = []
        earlier_of_each = Usual.earlier_of_each

        def counted(usual: Usual, view: View, windows: Sequence[WindowView]) -> list[list[WindowView]]:
            searches.extend(window.start for window in windows)
            return earlier_of_each(usual, view, windows)

        monkeypatch.setattr(Usual, "earlier_of_each", counted)
        await json_of(client, ALERTS)
        assert searches == []
        append(file, window(config, 1))
        while (await json_of(client, ALERTS))["window"]["start"] != "2017-03-21T13:00:00Z":
            await asyncio.sleep(0.02)
        assert searches.count("2017-03-21T13:00:00Z") == 1


async def test_the_queue_is_bounded_and_what_is_refused_or_cannot_be_made_is_not_sent_again(tmp_path):
    write_secret(tmp_path / "secret", SECRET)
    receiver, metrics = Receiver("302", "400", "429"), PublicMetrics()

    def counted(outcome: str) -> float | None:
        return metrics.registry.get_sample_value("hexveil_public_webhook_deliveries_total", {"outcome": outcome})

    async with receiver.listening() as url:
        sender = Webhook(WebhookConfig(url=url, secret_file=tmp_path / "secret"), metrics)
        bodies: dict[int, Any] = {8: None}
        for number in range(WAITING + 5):
            sender.offer(str(number), bodies.get(number, b"{}"))
        task = asyncio.create_task(sender.run())
        await until_true(lambda: (counted("delivered") or 0) >= WAITING - 3)
        task.cancel()
    assert [headers["webhook-id"] for headers, _ in receiver.requests[:5]] == ["5", "6", "7", "7", "9"]
    assert (counted("dropped"), counted("failed")) == (5, 3)


@pytest.mark.parametrize("content", [None, "short"], ids=["missing", "short"])
def test_a_secret_that_cannot_be_used_is_refused_with_a_remedy(tmp_path, content):
    if content is not None:
        write_secret(tmp_path / "secret", content)
    with pytest.raises(ConfigError, match=r"public.webhook.secret_file.*openssl rand"):
        Webhook(WebhookConfig(url="http://127.0.0.1/", secret_file=tmp_path / "secret"), PublicMetrics())


def rule(**changes: Any) -> dict[str, Any]:
    return {"public.alerts": [BELOW | changes]}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (rule(slower_km_h=3.0), "give one of below, above, slower_km_h, slower_percent"),
        ({"public.alerts": [BELOW, BELOW]}, "more than one rule is named jam"),
        *[(rule(cells=[cell]), "is no H3 cell") for cell in ("x", "0x" + BUSY, " " + BUSY)],
        (rule(cells=[h3.cell_to_parent(BUSY, 5)]), "has resolution 5, but released cells have"),
        (rule(area={"south": 1.0, "west": 1.0, "north": 2.0, "east": 2.0}), "outside feed.domain"),
        (rule(belo=1.0), "write public.alerts.0.below"),
        (rule(windows=13), "public.alerts.0.windows: found 13; write a whole number of at least 1"),
        (rule() | {"speed.statistics": ["variance"]}, r"put 'mean' into it"),
        *[
            (rule() | {"speed.mean_mechanism": mechanism}, "bound on false alarms holds; set it to one of allocated")
            for mechanism in ("levy", "fixed-quantile", "epsilon-quantile", "auto")
        ],
        ({"public.webhook": {"url": "http://127.0.0.1/", "secret_file": "secret"}}, "webhook without alerts"),
        *[
            ({"public.webhook": {"url": url, "secret_file": "secret"}}, "no http or https address")
            for url in ("ftp://x/", "http://", "https://me:pw@x/", "http://x/#a", "http://x/ y", "/x")
        ],
    ],
)
def test_a_rule_that_cannot_be_judged_and_a_webhook_that_cannot_be_told_are_refused(tmp_path, overrides, said):
    with pytest.raises(ConfigError, match=said):
        city_config(tmp_path, **overrides)


def test_a_cell_is_written_as_messages_write_it_and_a_mean_of_the_baseline_has_rules(tmp_path):
    config = city_config(tmp_path, **rule(cells=[BUSY.upper()]), **{"speed.mean_mechanism": "baseline"})
    assert config.public.alerts[0].cells == (BUSY,)


def test_participation_has_no_rules_against_usual(tmp_path):
    with pytest.raises(ConfigError, match="use below"):
        riders_config(tmp_path, **{"public.alerts": [SLOWER]})


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
