"""Grafana is in no package registry that tests reach, so the dashboards are held against the types that Grafana
publishes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stream.local.kafka import REPO_ROOT

TYPES = REPO_ROOT / "examples" / "node_modules"
COMPILER = REPO_ROOT / "stream" / "serve" / "dashboard" / "node_modules" / ".bin" / "tsc"
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler")

pytestmark = pytest.mark.skipif(
    not (COMPILER.is_file() and (TYPES / "@grafana" / "schema").is_dir()),
    reason="no @grafana/schema in examples, or no tsc in stream/serve/dashboard; run: make test",
)


def dashboards() -> dict[str, dict[str, Any]]:
    folder = REPO_ROOT / "config" / "grafana" / "dashboards"
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


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
