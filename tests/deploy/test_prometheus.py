"""A real Prometheus scrapes a real worker and a real ``serve``: every panel has data, every rule evaluates, and none
fires. ``prometheus`` must be on PATH (Debian: apt-get install prometheus)."""

import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import h3
import numpy as np
import yaml

from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, end_process, free_port, spawn, tail
from stream.storage.keys import FeedKeys
from tests.support import hourly
from tests.support.builders import SLOT
from tests.support.environment import worker_environment
from tests.support.feeding import create_topic, produce, until, until_true


class RefusedError(Exception):
    """Prometheus answered with an error; the text is its own."""


class Prometheus:
    """Asks a running Prometheus by its HTTP API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: object) -> Any:
        """The ``data`` of the answer. Raises :class:`RefusedError` if there is none, and OSError if nothing answers."""
        asked = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise RefusedError(refused.read().decode()) from None

    def greatest(self, expression: str, seconds: float) -> float | None:
        """The greatest value of any series in the last ``seconds``, as a panel would draw it; None where it has no
        data.

        A value that is no number, such as a quantile of a histogram that saw nothing, is no data. Raises
        :class:`RefusedError`.
        """
        now = time.time()
        drawn = self.ask("query_range", query=expression, start=now - seconds, end=now, step=1)
        values = [float(value) for series in drawn["result"] for _, value in series["values"]]
        return max((value for value in values if math.isfinite(value)), default=None)

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that is loaded, with the health of its last evaluation."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(configuration: Path, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with ``configuration``, as it lies, and its data in ``folder``, which is made."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing; install it (Debian: apt-get install prometheus)"
    folder.mkdir()
    log, here = folder / "server.log", f"{LOOPBACK}:{free_port()}"
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    process = spawn([program, *options, f"--web.listen-address={here}"], log)
    try:
        prometheus, deadline = Prometheus(f"http://{here}"), time.monotonic() + 60.0
        while True:
            assert process.poll() is None, f"prometheus ended:\n{tail(log)}"
            assert time.monotonic() < deadline, f"prometheus does not answer:\n{tail(log)}"
            with suppress(OSError, RefusedError):
                prometheus.rules()
                break
            time.sleep(0.05)
        yield prometheus
    finally:
        end_process(process, 10.0)


SHIPPED = REPO_ROOT / "config" / "prometheus.yml"
BUS = str(hourly.BUS)
SECONDS = 120.0
"""Length of what a panel draws here: longer than the run."""
AT_ZERO = {
    "max(hexveil_outbox_windows)": "a window is due for less than a scrape",
    "sum(hexveil_consumer_lag_messages)": "the lag lasts for less than a scrape",
    "sum(rate(hexveil_events_duplicate_total[5m]))": "Kafka delivers events again only after a failure",
    "sum(rate(hexveil_events_lost_total[5m]))": "retention removes events only after days",
    "sum(increase(hexveil_publish_failures_total[10m]))": "a failure",
    "sum(increase(hexveil_redis_errors_total[10m]))": "a failure",
    "sum(increase(hexveil_ledger_errors_total[10m]))": "a failure",
    "sum(increase(hexveil_ledger_errors_total[24h]))": "a failure",
    "sum(increase(hexveil_noise_redraw_total[10m]))": "two workers closed a window at once",
    "sum(hexveil_public_messages_invalid_total)": "somebody else writes to the output topics",
    "sum(rate(hexveil_public_messages_duplicate_total[5m]))": "a window is published again only after a failure",
}
"""Expressions of panels that may stay at 0 in a run without a fault, each with what would raise them. They have data
all the same; every other one rises above 0 here."""
RENAMED = {
    "hexveil_open_windows": "hexveil_windows_open",
    "hexveil_public_messages_total": "hexveil_public_message_total",
    "hexveil_released_mean": "hexveil_released_median",
    'job="hexveil-serve"': 'job="hexveil-public"',
    'le="1.0"': 'le="1.5"',
}
"""A name or label of the code, and another that an expression has in its place."""
_SELECTOR = re.compile(r"\b(?:hexveil_\w+|up)\b(?:\{[^}]*\})?")


class Panel(NamedTuple):
    """What a panel of a dashboard shows, and by which expression."""

    title: str
    expression: str


def panels() -> list[Panel]:
    """Every expression of every shipped dashboard."""
    dashboards = {
        file.stem: json.loads(file.read_text()) for file in sorted(SHIPPED.parent.glob("grafana/dashboards/*"))
    }
    return [
        Panel(f"{name}: {panel['title']}", target["expr"])
        for name, dashboard in dashboards.items()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def alerts() -> list[dict[str, Any]]:
    """Every rule of every file that the shipped configuration names."""
    files = [SHIPPED.parent / name for name in yaml.safe_load(SHIPPED.read_text())["rule_files"]]
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def selected(rules: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """What the rules read, as panels: the rules themselves say nothing while all is well."""
    return [Panel(rule["alert"], selector) for rule in rules for selector in _SELECTOR.findall(rule["expr"])]


def problems(prometheus: Prometheus, drawn: Sequence[Panel], *, positive: bool) -> list[tuple[Panel, str]]:
    """Panels whose expression errs, has no data or, if it should be ``positive``, stays at 0."""
    wrong = []
    for panel in drawn:
        try:
            greatest = prometheus.greatest(panel.expression, SECONDS)
        except RefusedError as error:
            wrong.append((panel, str(error)))
            continue
        if greatest is None:
            wrong.append((panel, "no data"))
        elif positive and greatest <= 0 and panel.expression not in AT_ZERO:
            wrong.append((panel, "never above 0"))
    return wrong


def every_problem(prometheus: Prometheus) -> list[tuple[Panel, str]]:
    """Of the panels, and of what the rules read."""
    return problems(prometheus, panels(), positive=True) + problems(prometheus, selected(alerts()), positive=False)


def configured(folder: Path, ports: Mapping[str, int]) -> Path:
    """The shipped configuration with a target for each job at its port, and a second between scrapes."""
    configuration = yaml.safe_load(SHIPPED.read_text())
    configuration["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(SHIPPED.parent / name) for name in configuration["rule_files"]]
    configuration["scrape_configs"] = [
        {name: job[name] for name in ("job_name", "metrics_path") if name in job}
        | {"static_configs": [{"targets": [f"{LOOPBACK}:{ports[job['job_name']]}"]}]}
        for job in configuration["scrape_configs"]
    ]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    return file


def events(seed: int, hours: int, users: int = 12) -> list[bytes]:
    """Of two cells in each hour: one with every user, one with a single user. One message in ten is rubbish."""
    rng = np.random.default_rng(seed)
    encoded = [b"rubbish"] * (hours * users)
    for moment in rng.choice(hours * 3_600_000, 10 * hours * users, replace=False).tolist():
        user = int(rng.integers(users))
        lat, lng = h3.cell_to_latlng(h3.latlng_to_cell(30.4 if user == 0 else 30.2, -97.7, 7))
        body = {"user": f"bus-{user}", "time": SLOT * 1000 + moment, "lat": lat, "lng": lng, "speed": 30.0}
        encoded.append(json.dumps(body).encode())
    return encoded


@contextmanager
def commands(hexveil: Sequence[str], folder: Path, env: dict[str, str], *names: str) -> Iterator[None]:
    """``hexveil worker`` and the like, running."""
    with ExitStack() as stack:
        for name in names:
            log = folder / f"{name}.log"
            process = spawn([*hexveil, name, "--config", BUS], log, cwd=folder, env=env)
            stack.callback(end_process, process, 30.0)
        yield


def visit(address: str) -> None:
    """A reader's requests: one that is answered, and two that are refused."""
    for path in ("/api/v1/windows", "/api/v1/cells/nothing", "/nothing"):
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(address + path, timeout=20).close()


def rule_problems(prometheus: Prometheus) -> list[str]:
    """Shipped rules that are not loaded, do not evaluate or fire, though nothing is wrong.

    Tests beside this one put messages on the shared broker that must be refused, so ``PublicMessagesRefused`` may fire;
    that it fires on its fault alone shows ``alerts_test.yml``.
    """
    loaded = {rule["name"]: rule for rule in prometheus.rules()}
    assert loaded.keys() == {rule["alert"] for rule in alerts()}
    return [
        f"{name}: {rule['health']}, {rule['state']}, {rule.get('lastError')}"
        for name, rule in loaded.items()
        if rule["health"] != "ok" or (rule["state"] == "firing" and name != "PublicMessagesRefused")
    ]


async def test_every_panel_has_data_and_every_rule_evaluates_over_a_worker_and_serve_and_a_renamed_metric_is_noticed(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    ports = {"hexveil-worker": free_port(), "hexveil-serve": free_port()}
    settings = {"window.lateness": "event-time", "window.idle_timeout": "2s", "speed.min_users": "2"}
    ports["hexveil-estimates"] = ports["hexveil-serve"]
    public = {"public.port": str(ports["hexveil-serve"])}
    env = worker_environment(tmp_path, kafka, redis_url, ports["hexveil-worker"], topic_name, **settings, **public)

    async def has_closed() -> bool:
        return int(await redis.hlen(FeedKeys(topic_name).closed)) >= 2

    await create_topic(kafka, topic_name, 2)
    for command in (["topics", "create"], ["ledger", "adopt", "--since", "2017-03-21", "--no-other-ledger"]):
        subprocess.run([*hexveil, *command, "--config", BUS], env=env, cwd=tmp_path, check=True)
    with (
        commands(hexveil, tmp_path, env, "worker", "serve"),
        running_prometheus(configured(tmp_path, ports), tmp_path / "prometheus") as prometheus,
    ):
        await until_true(lambda: {job["health"] for job in prometheus.ask("targets")["activeTargets"]} == {"up"}, 60)
        await produce(kafka, topic_name, events(1, hours=2), 2)
        await until(has_closed)
        await produce(kafka, topic_name, events(2, hours=1), 2)
        address = f"http://{LOOPBACK}:{ports['hexveil-serve']}"
        with urllib.request.urlopen(f"{address}/api/v1/stream", timeout=20):
            deadline = time.monotonic() + 40
            while (wrong := every_problem(prometheus)) and time.monotonic() < deadline:
                visit(address)
                time.sleep(1)
        assert not wrong, wrong
        ages = [prometheus.greatest(panel.expression, SECONDS) for panel in panels() if "time()" in panel.expression]
        assert all(age is not None and age < time.time() - SLOT for age in ages), f"counted from 1970: {ages}"
        assert rule_problems(prometheus) == []
        with urllib.request.urlopen(f"http://{LOOPBACK}:{ports['hexveil-worker']}/operator", timeout=20) as answer:
            said = answer.read().decode()
        assert answer.headers.get_content_type() == "text/html"
        assert re.search(r"not-json</th><td>\d+</td>", said), said
        assert f"Feed {topic_name}" in said
        for old, new in RENAMED.items():
            named = [panel for panel in [*panels(), *selected(alerts())] if old in panel.expression]
            wrong = [panel._replace(expression=panel.expression.replace(old, new)) for panel in named]
            assert problems(prometheus, wrong, positive=False) == [(panel, "no data") for panel in wrong] != []
        ((_, said),) = problems(prometheus, [Panel("planted", "sum(")], positive=False)
        assert "parse error" in said


def test_the_shipped_configuration_is_loaded_where_it_lies(tmp_path):
    with running_prometheus(SHIPPED, tmp_path / "prometheus") as prometheus:
        loaded = yaml.safe_load(prometheus.ask("status/config")["yaml"])
        shipped = yaml.safe_load(SHIPPED.read_text())
        assert loaded["global"].items() >= shipped["global"].items()
        assert [job["job_name"] for job in loaded["scrape_configs"]] == [
            job["job_name"] for job in shipped["scrape_configs"]
        ]
        assert [(rule["name"], rule["query"] != "") for rule in prometheus.rules()] == [
            (rule["alert"], True) for rule in alerts()
        ]
