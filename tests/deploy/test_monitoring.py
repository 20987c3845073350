"""Alerts fire on their fault and name a runbook; every expression parses and every metric in it exists in the code. Two
registries: what is inside the trust boundary is never on the public one, and neither can name anybody. Grafana is in no
package registry that tests reach, so the dashboards are held against the types that Grafana publishes."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from stream.app.worker import Worker
from stream.local.kafka import REPO_ROOT
from stream.metrics import OperatorMetrics
from stream.serve.api import SERVICE, make_app
from stream.serve.metrics import PublicMetrics
from tests.support.builders import riders_config

_METRIC = re.compile(r"\bhexveil_[a-z_]+\b")
_ENDING = re.compile(r"_(total|bucket|sum|count)\b")
"""What a name has in an expression beyond the name in the code."""
_DATASOURCE = "hexveil-prometheus"


@pytest.fixture(scope="session")
def promtool() -> str:
    binary = shutil.which("promtool")
    assert binary is not None, "promtool is missing; install it (Debian: apt-get install prometheus)"
    return binary


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def described(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The name and labels of each collector as declared, including collectors without a sample."""
    return {c._name: set(c._labelnames) for c in registry._collector_to_names if hasattr(c, "_labelnames")}  # type: ignore[attr-defined]


def _alerts(repo_root: Path) -> list[dict[str, object]]:
    groups = yaml.safe_load((repo_root / "config/prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboards() -> dict[str, dict[str, Any]]:
    folder = REPO_ROOT / "config" / "grafana" / "dashboards"
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def test_the_prometheus_configuration_and_rules_are_valid_where_they_lie_and_as_they_are_mounted(
    promtool, repo_root, tmp_path
):
    _run(promtool, "check", "config", "config/prometheus.yml", cwd=repo_root)
    volumes = yaml.safe_load((repo_root / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    for volume in volumes:
        source, target, *_ = volume.split(":")
        if source.startswith("./"):
            there = tmp_path / target.removeprefix("/etc/prometheus/")
            copy = shutil.copytree if (repo_root / source).is_dir() else shutil.copy
            copy(repo_root / source, there)
    _run(promtool, "check", "config", "prometheus.yml", cwd=tmp_path)


def test_each_alert_fires_on_its_fault_and_only_then(promtool, repo_root):
    _run(promtool, "test", "rules", "alerts_test.yml", cwd=repo_root / "tests/deploy")


def test_every_alert_links_a_section_of_the_runbooks_and_is_tested(repo_root):
    sections = set(re.findall(r"^## (\w+)$", (repo_root / "docs/runbooks.md").read_text(), re.MULTILINE))
    tested = (repo_root / "tests/deploy/alerts_test.yml").read_text()
    names = {str(rule["alert"]) for rule in _alerts(repo_root)}
    assert names == sections
    for rule in _alerts(repo_root):
        name = str(rule["alert"])
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.docs }}}}/runbooks.html#{name.lower()}"
        assert f'alertname="{name}"' in tested
        assert f"alertname: {name}}}" in tested


def test_a_firing_alert_links_its_runbook_by_an_address(promtool, repo_root, tmp_path):
    docs = yaml.safe_load((repo_root / "config/prometheus.yml").read_text())["global"]["external_labels"]["docs"]
    assert re.fullmatch(r"https?://[^/]+", docs)
    fires = f"""
rule_files: ["{repo_root}/config/prometheus/alerts.yml"]
tests:
  - interval: 1m
    external_labels: {{docs: "{docs}"}}
    input_series: [{{series: 'up{{job="hexveil-worker"}}', values: "0x20"}}]
    alert_rule_test:
      - eval_time: 10m
        alertname: TargetDown
        exp_alerts:
          - exp_labels: {{severity: critical, job: hexveil-worker}}
            exp_annotations:
              summary: A Hexveil process does not answer its scrape.
              runbook_url: "{docs}/runbooks.html#targetdown"
"""
    (tmp_path / "address.yml").write_text(fires)
    _run(promtool, "test", "rules", "address.yml", cwd=tmp_path)


def test_the_public_dashboard_names_no_operator_metric():
    panels = dashboards()["public"]["panels"]
    used = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in _METRIC.findall(_ENDING.sub("", target["expr"]))
    }
    assert used
    assert not used & described(OperatorMetrics().registry).keys()


@pytest.mark.parametrize("name", ["operator", "public", "estimates"])
def test_dashboards_have_fixed_uids_and_use_the_provisioned_source(repo_root, name):
    provisioning = repo_root / "config/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    dashboard = dashboards()[name]
    assert dashboard["uid"] == f"hexveil-{name}"
    assert source["uid"] == _DATASOURCE
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    used |= {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel["targets"]}
    assert used == {_DATASOURCE}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


PUBLIC = {
    "hexveil_public_windows": set(),
    "hexveil_public_messages": set(),
    "hexveil_public_messages_invalid": set(),
    "hexveil_public_messages_duplicate": set(),
    "hexveil_public_last_window_seconds": set(),
    "hexveil_public_sse_clients": set(),
    "hexveil_public_sse_dropped": set(),
    "hexveil_public_alerts": {"rule"},
    "hexveil_public_alerts_active": {"rule"},
    "hexveil_public_windows_unjudged": set(),
    "hexveil_public_webhook_deliveries": {"outcome"},
    "hexveil_public_webhook_attempts_failed": set(),
    "hexveil_public_requests": {"route", "code"},
    "hexveil_public_request_seconds": set(),
}
"""Every metric that may be seen outside, and its labels. Each counts requests or deliveries, or what released messages
say."""
SENSITIVE = re.compile(
    r"user|vehicle|route_id|trip|cell|hexagon|plate|device|budget|spent|charge|admitted|exhausted|late|reject"
)
"""Words that no name of a public metric, and no label of any metric, may contain."""
STRANGER = "written-by-a-stranger"


def test_the_public_registry_holds_only_the_allowed_names_and_labels_and_none_of_the_operators():
    """That ``serve`` never imports the operator's is the claim of ``tests/stream/test_floors.py``."""
    assert described(PublicMetrics().registry) == PUBLIC
    assert not described(OperatorMetrics().registry).keys() & PUBLIC.keys()
    assert not [name for name in PUBLIC if SENSITIVE.search(name)]


async def test_no_label_of_a_worker_faust_included_can_name_a_user_a_vehicle_or_a_cell(tmp_path):
    worker = Worker(riders_config(tmp_path))
    labels = set().union(*described(worker.metrics.registry).values())
    assert {"reason", "version"} <= labels
    assert not [label for label in labels if SENSITIVE.search(label)]
    await worker.redis.aclose()


async def test_a_stranger_cannot_write_into_the_public_metrics(tmp_path):
    """Whatever clients request, labels are route templates of the service and status codes."""
    public = make_app(riders_config(tmp_path, **{"kafka.bootstrap": "127.0.0.1:9"}))
    templates = {operation.path for operation in public[SERVICE].operations}
    async with TestClient(TestServer(public)) as client:
        for path in ("/{}", "/api/v1/cells/{}", "/api/v1/windows?feed={}", "/metrics/{}"):
            await client.get(path.format(STRANGER), headers={"User-Agent": STRANGER})
        text = await (await client.get("/metrics")).text()
    assert STRANGER not in text
    routes = set(re.findall(r'route="([^"]*)"', text))
    assert routes <= templates | {"unknown", "/healthz", "/readyz", "/metrics"}
    assert set(re.findall(r'(\w+)="', text)) == {"route", "code", "le"}


def test_every_metric_is_described_in_the_documents():
    text = (REPO_ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    metrics = described(OperatorMetrics().registry) | PUBLIC
    assert metrics.keys() <= set(_METRIC.findall(_ENDING.sub("", text)))


TYPES = REPO_ROOT / "examples" / "node_modules"
COMPILER = REPO_ROOT / "stream" / "serve" / "dashboard" / "node_modules" / ".bin" / "tsc"
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler")


def complaints(dashboards: dict[str, dict[str, Any]], folder: Path) -> str:
    """What the compiler says of dashboards as values of Grafana's own types; a field that they do not know is an
    error."""
    (folder / "node_modules").symlink_to(TYPES)
    for name, dashboard in dashboards.items():
        text = "import type { Dashboard } from '@grafana/schema';\n"
        text += f"export const dashboard: Dashboard = {json.dumps(dashboard, indent=1)};\n"
        (folder / f"{name}.ts").write_text(text, encoding="utf-8")
    files = [f"{name}.ts" for name in dashboards]
    return subprocess.run([COMPILER, *OPTIONS, *files], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(
    not (COMPILER.is_file() and (TYPES / "@grafana" / "schema").is_dir()),
    reason="no @grafana/schema in examples, or no tsc in stream/serve/dashboard; run: make test",
)
def test_every_dashboard_has_the_types_of_grafana_and_a_field_of_another_name_or_type_is_noticed(tmp_path):
    shipped = dashboards()
    assert set(shipped) == {"operator", "public", "estimates"}
    public = shipped["public"]
    wrong = {
        "typed": public | {"schemaVersion": "39"},
        "named": public | {"refreshed": "1m"},
        "nested": public | {"panels": [panel | {"gridPos": {"x": 0}} for panel in public["panels"]]},
    }
    said = complaints(shipped | wrong, tmp_path)
    assert {line.partition(".ts")[0] for line in said.splitlines() if not line.startswith(" ")} == set(wrong), said
