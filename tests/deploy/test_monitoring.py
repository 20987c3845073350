"""Alerts fire on their fault and name a runbook; every expression parses and every metric in it exists in the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from stream.metrics import OperatorMetrics
from stream.serve.metrics import PublicMetrics

_FORBIDDEN_LABELS = {"user", "vehicle", "route_id", "trip", "cell", "hexagon"}
_METRIC = re.compile(r"\bhexveil_[a-z_]+\b")
_DATASOURCE = "hexveil-prometheus"


@pytest.fixture(scope="session")
def promtool() -> str:
    binary = shutil.which("promtool")
    assert binary is not None, "promtool is missing; install it (Debian: apt-get install prometheus)"
    return binary


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _series(registry: CollectorRegistry) -> Iterator[tuple[str, tuple[str, ...]]]:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    for collector, names in registry._collector_to_names.items():
        for metric in collector.describe():
            for ending in endings[metric.type]:
                assert metric.name in names
                yield metric.name + ending, tuple(collector._labelnames)


@pytest.fixture(scope="session")
def operator_series() -> set[str]:
    return {name for name, _ in _series(OperatorMetrics().registry)}


@pytest.fixture(scope="session")
def public_series() -> set[str]:
    return {name for name, _ in _series(PublicMetrics().registry)}


def _alerts(repo_root: Path) -> list[dict[str, object]]:
    groups = yaml.safe_load((repo_root / "config/prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _dashboard(repo_root: Path, name: str) -> dict[str, object]:
    return json.loads((repo_root / f"config/grafana/dashboards/{name}.json").read_text())


def _expressions(dashboard: dict[str, object]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_prometheus_configuration_and_rules_are_valid_where_they_lie_and_as_they_are_mounted(
    promtool: str, repo_root: Path, tmp_path: Path
) -> None:
    _run(promtool, "check", "config", "config/prometheus.yml", cwd=repo_root)
    volumes = yaml.safe_load((repo_root / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    for volume in volumes:
        source, target, *_ = volume.split(":")
        if source.startswith("./"):
            there = tmp_path / target.removeprefix("/etc/prometheus/")
            copy = shutil.copytree if (repo_root / source).is_dir() else shutil.copy
            copy(repo_root / source, there)
    _run(promtool, "check", "config", "prometheus.yml", cwd=tmp_path)


def test_each_alert_fires_on_its_fault_and_only_then(promtool: str, repo_root: Path) -> None:
    _run(promtool, "test", "rules", "alerts_test.yml", cwd=repo_root / "tests/deploy")


@pytest.mark.nightly
def test_a_rule_that_never_fires_fails_its_test(promtool: str, repo_root: Path, tmp_path: Path) -> None:
    (tmp_path / "config/prometheus").mkdir(parents=True)
    (tmp_path / "tests/deploy").mkdir(parents=True)
    rules = (repo_root / "config/prometheus/alerts.yml").read_text()
    planted = rules.replace("max(hexveil_outbox_windows) > 0", "max(hexveil_outbox_windows) > 300")
    assert planted != rules
    (tmp_path / "config/prometheus/alerts.yml").write_text(planted)
    shutil.copy(repo_root / "tests/deploy/alerts_test.yml", tmp_path / "tests/deploy")
    with pytest.raises(AssertionError, match="OutboxBacklog"):
        _run(promtool, "test", "rules", "alerts_test.yml", cwd=tmp_path / "tests/deploy")


def test_every_alert_links_a_section_of_the_runbooks_and_is_tested(repo_root: Path) -> None:
    sections = set(re.findall(r"^## (\w+)$", (repo_root / "docs/runbooks.md").read_text(), re.MULTILINE))
    tested = (repo_root / "tests/deploy/alerts_test.yml").read_text()
    names = {str(rule["alert"]) for rule in _alerts(repo_root)}
    assert names == sections
    for rule in _alerts(repo_root):
        name = str(rule["alert"])
        assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.docs }}}}/runbooks.html#{name.lower()}"
        assert f'alertname="{name}"' in tested
        assert f"alertname: {name}}}" in tested


def test_a_firing_alert_links_its_runbook_by_an_address(promtool: str, repo_root: Path, tmp_path: Path) -> None:
    docs = yaml.safe_load((repo_root / "config/prometheus.yml").read_text())["global"]["external_labels"]["docs"]
    assert re.fullmatch(r"https?://[^/]+", docs)
    fires = {
        "rule_files": [str(repo_root / "config/prometheus/alerts.yml")],
        "tests": [
            {
                "interval": "1m",
                "external_labels": {"docs": docs},
                "input_series": [{"series": 'up{job="hexveil-worker"}', "values": "0x20"}],
                "alert_rule_test": [
                    {
                        "eval_time": "10m",
                        "alertname": "TargetDown",
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "critical", "job": "hexveil-worker"},
                                "exp_annotations": {
                                    "summary": "A Hexveil process does not answer its scrape.",
                                    "runbook_url": f"{docs}/runbooks.html#targetdown",
                                },
                            }
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "address.yml").write_text(yaml.safe_dump(fires))
    _run(promtool, "test", "rules", "address.yml", cwd=tmp_path)


def test_every_metric_of_the_alerts_exists_in_the_code(
    repo_root: Path, operator_series: set[str], public_series: set[str]
) -> None:
    used = {name for rule in _alerts(repo_root) for name in _METRIC.findall(str(rule["expr"]))}
    assert len(used) >= 10
    assert used <= operator_series | public_series


def test_every_metric_of_the_operator_dashboard_exists_in_the_code(repo_root: Path, operator_series: set[str]) -> None:
    used = {name for expr in _expressions(_dashboard(repo_root, "operator")) for name in _METRIC.findall(expr)}
    assert used <= operator_series


def test_the_public_dashboard_shows_public_metrics_of_the_code_only(repo_root: Path, public_series: set[str]) -> None:
    used = {name for expr in _expressions(_dashboard(repo_root, "public")) for name in _METRIC.findall(expr)}
    assert used <= public_series


def test_the_public_dashboard_names_no_operator_metric(repo_root: Path, operator_series: set[str]) -> None:
    used = {name for expr in _expressions(_dashboard(repo_root, "public")) for name in _METRIC.findall(expr)}
    assert used
    assert not used & operator_series


@pytest.mark.parametrize("name", ["operator", "public", "estimates"])
def test_every_dashboard_expression_parses(promtool: str, repo_root: Path, tmp_path: Path, name: str) -> None:
    rules = [{"record": "parsed", "expr": expr} for expr in _expressions(_dashboard(repo_root, name))]
    # Equal expressions would be refused as duplicate records; what is asked here is whether each parses.
    labelled = [{**rule, "labels": {"panel": str(number)}} for number, rule in enumerate(rules)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": labelled}]}))
    _run(promtool, "check", "rules", "rules.yml", cwd=tmp_path)


@pytest.mark.parametrize("name", ["operator", "public", "estimates"])
def test_dashboards_have_fixed_uids_and_use_the_provisioned_source(repo_root: Path, name: str) -> None:
    provisioning = repo_root / "config/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    dashboard = _dashboard(repo_root, name)
    assert dashboard["uid"] == f"hexveil-{name}"
    assert source["uid"] == _DATASOURCE
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    used |= {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel["targets"]}
    assert used == {_DATASOURCE}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_no_operator_metric_carries_a_label_that_could_name_somebody() -> None:
    labels = {label for _, names in _series(OperatorMetrics().registry) for label in names}
    assert labels
    assert not labels & _FORBIDDEN_LABELS


def test_every_operator_metric_is_described_in_the_documents(repo_root: Path, operator_series: set[str]) -> None:
    described = set(_METRIC.findall((repo_root / "docs/metrics.md").read_text()))
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in operator_series}
    assert bare <= described
