"""What ``deploy/`` ships for Kubernetes and systemd: least privilege, the trust boundary, and settings that the code
accepts."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream.config import load_config
from stream.local import REPO_ROOT
from tests.support import hourly

KUBERNETES, SYSTEMD = REPO_ROOT / "deploy" / "kubernetes", REPO_ROOT / "deploy" / "systemd"
LEAST = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def manifests() -> list[dict[str, Any]]:
    """Everything that the kustomization lists."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {path.name for path in KUBERNETES.glob("*.yaml")}
    return [made for name in listed for made in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pods() -> dict[str, dict[str, Any]]:
    """Pod specifications by the name of what makes them."""
    return {
        made["metadata"]["name"]: made["spec"]["template"]["spec"]
        for made in manifests()
        if "template" in made.get("spec", {})
    }


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "kafka:9092") for entry in pod["containers"][0].get("env", [])}


def test_every_pod_has_the_least_privilege_it_can_run_with_a_limit_and_probes() -> None:
    assert set(pods()) == {"redis", "topics", "worker", "serve"}
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert container["securityContext"] == LEAST, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, f"{name}: HEXVEIL_REDIS_PORT would be refused as a misspelt key"
        assert "memory" in container["resources"]["limits"], name
        assert "hostNetwork" not in pod, name
        mounted, volumes = container["volumeMounts"], {volume["name"] for volume in pod.get("volumes", [])}
        assert {mount["name"] for mount in mounted} == (volumes or {"data"}), name
        probes = {"startupProbe", "readinessProbe", "livenessProbe"} & container.keys()
        assert len(probes) == (0 if name == "topics" else 3), name


def test_the_user_key_is_mounted_for_workers_alone_and_only_they_know_and_reach_redis() -> None:
    for name, pod in pods().items():
        secret = [volume["secret"] for volume in pod.get("volumes", []) if "secret" in volume]
        # fsGroup and 0440: what read_secret accepts of a file of another user
        assert secret == ([{"secretName": "user-key", "defaultMode": 0o440}] if name == "worker" else []), name
        assert ("HEXVEIL_REDIS__URL" in variables(pod)) == (name == "worker"), name
    assert pods()["worker"]["securityContext"]["fsGroup"] == pods()["worker"]["securityContext"]["runAsGroup"]
    rules = {
        made["spec"]["podSelector"].get("matchLabels", {}).get("app"): made["spec"].get("ingress", [])
        for made in manifests()
        if made["kind"] == "NetworkPolicy"
    }
    workers = {"podSelector": {"matchLabels": {"app": "worker"}}}
    assert rules == {
        None: [],
        "redis": [{"from": [workers], "ports": [{"port": 6379}]}],
        "serve": [{"ports": [{"port": 8080}]}],
    }


def test_redis_is_told_what_compose_tells_it() -> None:
    compose = yaml.safe_load((REPO_ROOT / "docker-compose.yml").read_text())["services"]
    (redis,) = pods()["redis"]["containers"]
    assert [word for word in redis["args"] if word not in ("--dir", "/data")] == compose["redis"]["command"]
    assert redis["image"] == compose["redis"]["image"]
    (image,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert f"{image['name']}:{image['newTag']}" == compose["worker"]["image"]


@pytest.mark.parametrize("name", ["worker", "serve", "topics"])
def test_the_settings_of_the_pods_are_configuration_and_their_probes_ask_its_ports(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pods()[name]
    for key, value in variables(pod).items():
        monkeypatch.setenv(key, value)
    config, (container,) = load_config(hourly.BUS), pod["containers"]
    assert config.kafka.bootstrap == "kafka:9092"
    if name == "topics":
        return
    surface = {"worker": config.operator, "serve": config.public}[name]
    assert surface.host == "0.0.0.0"
    assert [port["containerPort"] for port in container["ports"]] == [surface.port]
    probed = {probe: container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert probed == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    if name == "worker":
        (mount,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "user-key")
        assert config.privacy.user_key_file == Path(mount) / "user.key"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_builds_it_with_the_configuration_of_init(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path, dirs_exist_ok=True)
    shutil.copy(hourly.BUS, tmp_path / "hexveil.toml")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    built = list(yaml.safe_load_all(done.stdout))
    (configuration,) = (made["metadata"]["name"] for made in built if made["kind"] == "ConfigMap")
    assert done.stdout.count(f"name: {configuration}\n") == 7, (
        "the map, and a variable and a volume of each of three pods"
    )
    assert {made["metadata"].get("namespace") for made in built} == {None, "hexveil"}


def unit(name: str) -> configparser.SectionProxy:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(SYSTEMD / f"hexveil-{name}.service")
    return parsed["Service"]


def test_the_unit_of_serve_gets_no_key_and_a_wrong_configuration_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, serve = unit("worker"), unit("serve")
    assert worker["LoadCredential"] == "user.key:/etc/hexveil/user.key"
    assert "LoadCredential" not in serve
    for service in (worker, serve):
        assert service["DynamicUser"] == "yes"
        assert service["KillMode"] == "mixed", "SIGTERM would end the process that closes a window"
        assert service["RestartPreventExitStatus"] == "2"
        key, value = service["Environment"].replace("%d", "/run/credentials/w").replace("%t", "/run").split("=")
        monkeypatch.setenv(key, value)
    config = load_config(hourly.BUS)
    assert str(config.privacy.user_key_file) == "/run/credentials/w/user.key"
    assert str(config.public.socket) == "/run/hexveil/serve.sock"
    assert serve["RuntimeDirectory"] == "hexveil"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_units_and_finds_little_exposed(tmp_path: Path) -> None:
    units = []
    for path in SYSTEMD.glob("*.service"):
        units.append(tmp_path / path.name)
        units[-1].write_text(re.sub("/opt/hexveil/bin/hexveil", "/bin/true", path.read_text()))
    assert len(units) == 2
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *words, *units], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
