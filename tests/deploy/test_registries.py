"""Two registries: what is inside the trust boundary is never on the public one, and neither can name anybody."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Counter

from stream.app.worker import Worker
from stream.local import REPO_ROOT
from stream.metrics import OperatorMetrics
from stream.serve.api import SERVICE, make_app
from stream.serve.metrics import PublicMetrics
from tests.support.builders import riders_config

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
    r"user|vehicle|trip|cell|hexagon|plate|device|budget|spent|charge|admitted|exhausted|late|reject"
)
"""Words that no name of a public metric, and no label of any metric, may contain."""
STRANGER = "written-by-a-stranger"


def described(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The name and labels of each collector as declared, including collectors without a sample."""
    return {c._name: set(c._labelnames) for c in registry._collector_to_names if hasattr(c, "_labelnames")}  # type: ignore[attr-defined]


def public_problems(registry: CollectorRegistry) -> list[str]:
    """The metrics of a public registry that must not be public."""
    metrics = described(registry)
    return [name for name, labels in metrics.items() if PUBLIC.get(name) != labels or SENSITIVE.search(name)]


def test_the_public_registry_holds_only_the_allowed_names_and_labels() -> None:
    registry = PublicMetrics().registry
    assert public_problems(registry) == []
    assert set(described(registry)) == set(PUBLIC)


@pytest.mark.parametrize(
    ("name", "labels"),
    [("hexveil_public_events", []), ("hexveil_public_users_refused", []), ("hexveil_public_windows", ["cell"])],
)
def test_a_metric_nobody_allowed_is_caught_on_the_public_registry(name: str, labels: list[str]) -> None:
    registry = CollectorRegistry()
    Counter(name, "Planted.", labels, registry=registry)
    assert public_problems(registry) == [name]


def test_no_name_is_on_both_registries_and_the_public_service_never_imports_the_operators() -> None:
    assert not set(described(OperatorMetrics().registry)) & set(PUBLIC)
    for path in (REPO_ROOT / "stream" / "serve").rglob("*.py"):
        imported = [n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        assert "stream.metrics" not in imported, path


async def test_no_label_of_a_worker_faust_included_can_name_a_user_a_vehicle_or_a_cell(tmp_path: Path) -> None:
    worker = Worker(riders_config(tmp_path))
    labels = set().union(*described(worker.metrics.registry).values())
    assert {"reason", "version"} <= labels
    assert not [label for label in labels if SENSITIVE.search(label)]
    await worker.redis.aclose()


async def test_a_stranger_cannot_write_into_the_public_metrics(tmp_path: Path) -> None:
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


def test_every_public_metric_is_described_in_the_documents() -> None:
    text = (REPO_ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in PUBLIC if f"`{name}" not in text] == []
