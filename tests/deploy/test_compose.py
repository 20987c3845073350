"""The compose file: valid, nothing dangling, least privilege, and the trust boundary drawn by its networks. What
``deploy/`` ships for Kubernetes and systemd: least privilege, the trust boundary, and settings that the code accepts.
"""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream.config import load_config
from stream.local.kafka import REPO_ROOT
from stream.serve.sending import MAX_SENDING_BYTES
from stream.serve.window_store import MAX_BYTES
from tests.support import hourly


@pytest.fixture(scope="module")
def compose(repo_root: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((repo_root / "docker-compose.yml").read_text())
    return parsed


def bytes_of(size: str) -> int:
    """Bytes of ``512m`` or ``1gb``, as Compose, Redis and Java write them."""
    number, unit = re.fullmatch(r"(\d+)([kmg])b?", size.lower()).groups()
    return int(number) << {"k": 10, "m": 20, "g": 30}[unit]


def _mounts(service: dict[str, Any]) -> list[list[str]]:
    return [mount.split(":") for mount in service.get("volumes", [])]


def test_the_compose_file_follows_the_compose_specification(repo_root):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, "docker-compose.yml"], cwd=repo_root, check=True)


def test_no_name_dangles(compose, repo_root):
    services = compose["services"]
    used: dict[str, set[str]] = {"networks": set(), "volumes": set(), "secrets": set()}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for dependency, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[dependency]
        used["networks"] |= set(service["networks"])
        used["secrets"] |= set(service.get("secrets", []))
        for source, *_ in _mounts(service):
            if source.startswith("./"):
                assert (repo_root / source).exists(), source
            else:
                used["volumes"].add(source)
    for kind, names in used.items():
        assert names == set(compose[kind]), kind


def test_addresses_name_services_that_share_a_network(compose, repo_root):
    services = compose["services"]
    n_addresses = 0
    for name, service in services.items():
        text = " ".join(map(str, service.get("environment", {}).values()))
        for host in re.findall(r"\b(kafka|redis|worker|serve):\d+", text):
            assert host == name or set(services[host]["networks"]) & set(service["networks"]), (name, host)
            n_addresses += 1
    assert n_addresses >= 5
    scrapes = yaml.safe_load((repo_root / "config/prometheus.yml").read_text())["scrape_configs"]
    for host in re.findall(r"'(worker|serve)", str(scrapes)):
        assert set(services[host]["networks"]) & set(services["prometheus"]["networks"])


def test_every_service_has_the_least_privilege_it_can_run_with_and_limits_of_memory_and_of_processes(
    compose, repo_root
):
    for name, service in compose["services"].items():
        assert service["mem_limit"] == service["memswap_limit"], f"{name} may swap"
        assert 0 < service["pids_limit"] <= 1024, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] not in ("0", "root"), name
        assert "privileged" not in service, name
        for source, _, *mode in _mounts(service):
            assert not source.startswith("./") or mode == ["ro"], (name, source)
    total = sum(bytes_of(service["mem_limit"]) for service in compose["services"].values())
    assert f"{total / (1 << 30):g} GiB" in (repo_root / "docker-compose.yml").read_text()


def test_ports_are_on_loopback_and_what_readers_reach_cannot_reach_redis_the_worker_or_a_secret(compose):
    services = compose["services"]
    serve = services["serve"]
    for hidden in ("redis", "worker"):
        assert not set(serve["networks"]) & set(services[hidden]["networks"])
        assert "ports" not in services[hidden]
    assert "HEXVEIL_REDIS__URL" not in serve["environment"]
    assert "secrets" not in serve
    assert all(compose["networks"][network]["internal"] for network in ("inside", "releases"))
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_secrets_stay_out_of_the_repository_and_the_image(compose, repo_root):
    ignored = (repo_root / ".gitignore").read_text().splitlines()
    kept = (repo_root / ".dockerignore").read_text().splitlines()
    for secret in compose["secrets"].values():
        folder = secret["file"].removeprefix("./").split("/")[0]
        assert f"{folder}/" in ignored
        assert kept[0] == "*"
        assert f"!{folder}" not in kept


def test_redis_keeps_every_write_never_evicts_and_has_room_to_rewrite_its_file_when_it_is_full(compose):
    redis = compose["services"]["redis"]
    command = " ".join(redis["command"])
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command
    assert 2 * bytes_of(re.search(r"--maxmemory (\w+)", command)[1]) <= bytes_of(redis["mem_limit"])
    assert redis["volumes"] == ["redis:/data"]


def test_a_service_holds_more_memory_than_its_program_is_told_to_use(compose):
    services = compose["services"]
    heap = bytes_of(re.search(r"-Xmx(\w+)", services["kafka"]["environment"]["KAFKA_HEAP_OPTS"])[1])
    for name, most in (("kafka", heap), ("serve", MAX_BYTES + MAX_SENDING_BYTES)):
        assert 1.5 * most <= bytes_of(services[name]["mem_limit"]), name


def test_every_service_that_stays_says_how_it_is_except_sources(compose, repo_root):
    checks = {name: service.get("healthcheck") for name, service in compose["services"].items()}
    assert {name for name, check in checks.items() if check == {"disable": True}} == {"topics", "simulate"}
    assert {name for name, check in checks.items() if check is None} == {"grafana"}
    recipe = (repo_root / "Dockerfile").read_text()
    assert "HEALTHCHECK " in recipe
    assert str(checks["worker"]["test"][-1]) in recipe


def test_nothing_is_built_on_a_base_without_a_digest(repo_root):
    recipe = (repo_root / "Dockerfile").read_text().replace("\\\n", "")
    first = recipe.partition("AS build\nARG BASE\n")[2].splitlines()[0]
    assert first.startswith("RUN ")
    digest = f"@sha256:{'0f' * 32}"
    for base, code in [(f"python:3.11-slim{digest}", 0), ("python:3.11-slim", 1), (f"python{digest[:-1]}", 1), ("", 1)]:
        command = ["sh", "-c", first.removeprefix("RUN ")]
        done = subprocess.run(
            command, env={"BASE": base, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, base
        assert ("docs/operators.md#containers" in done.stderr) == bool(code)


def test_the_environment_of_the_services_is_configuration_the_code_accepts(compose, repo_root, monkeypatch):
    for service in compose["services"].values():
        for key, value in service.get("environment", {}).items():
            if key.startswith("HEXVEIL_"):
                monkeypatch.setenv(key, value)
    config = load_config(repo_root / "config/bus-fleet.toml")
    assert config.kafka.bootstrap == "kafka:9092"
    assert config.redis.url == "redis://redis:6379/0"
    assert str(config.privacy.user_key_file) == "/run/secrets/user_key"
    health = " ".join(compose["services"]["worker"]["healthcheck"]["test"])
    assert f":{config.operator.port}/readyz" in health
    assert compose["services"]["serve"]["ports"] == [f"127.0.0.1:{config.public.port}:{config.public.port}"]


def test_the_image_is_built_in_stages_and_runs_as_nobody_special(compose, repo_root):
    lines = (repo_root / "Dockerfile").read_text().splitlines()
    stages = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    assert len(stages) == 2
    assert compose["services"]["worker"]["user"] == "10001:10001"
    assert "USER 10001:10001" in lines[stages[1] :]
    made = " ".join(lines[stages[1] :])
    assert "groupadd --gid 10001 hexveil" in made
    assert "useradd --uid 10001 --gid 10001 " in made
    kept = {line[1:] for line in (repo_root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in lines[: stages[1]]:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (repo_root / source).exists(), source
                assert source.split("/")[0] in kept, source


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


def test_every_pod_has_the_least_privilege_it_can_run_with_a_limit_and_probes():
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


def test_the_user_key_is_mounted_for_workers_alone_and_only_they_know_and_reach_redis():
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


def test_redis_is_told_what_compose_tells_it():
    compose = yaml.safe_load((REPO_ROOT / "docker-compose.yml").read_text())["services"]
    (redis,) = pods()["redis"]["containers"]
    assert [word for word in redis["args"] if word not in ("--dir", "/data")] == compose["redis"]["command"]
    assert redis["image"] == compose["redis"]["image"]
    (image,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert f"{image['name']}:{image['newTag']}" == compose["worker"]["image"]


@pytest.mark.parametrize("name", ["worker", "serve", "topics"])
def test_the_settings_of_the_pods_are_configuration_and_their_probes_ask_its_ports(name, monkeypatch):
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
def test_kustomize_builds_it_with_the_configuration_of_init(tmp_path):
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


def test_the_unit_of_serve_gets_no_key_and_a_wrong_configuration_is_not_tried_again(monkeypatch):
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
def test_systemd_understands_the_units_and_finds_little_exposed(tmp_path):
    units = []
    for path in SYSTEMD.glob("*.service"):
        units.append(tmp_path / path.name)
        units[-1].write_text(re.sub("/opt/hexveil/bin/hexveil", "/bin/true", path.read_text()))
    assert len(units) == 2
    for words in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *words, *units], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_the_only_temporary_file_system_is_tmp_and_what_kafka_writes_outside_its_data_is_a_volume_or_under_it(compose):
    """Podman refuses ``uid`` and ``gid``, runc ignores ``mode`` over a folder of the image; /tmp is open in every
    image."""
    mounts = [mount for service in compose["services"].values() for mount in service.get("tmpfs", [])]
    assert len(mounts) >= 5
    assert set(mounts) == {"/tmp:mode=1777"}
    kafka = compose["services"]["kafka"]
    assert ["kafka-config", "/opt/kafka/config"] in _mounts(kafka)
    assert kafka["environment"]["LOG_DIR"] == "/tmp"


def test_the_base_of_both_stages_is_the_same_argument(compose, repo_root):
    lines = (repo_root / "Dockerfile").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["${BASE}", "${BASE}"]
    (default,) = [line.removeprefix("ARG BASE=") for line in lines if line.startswith("ARG BASE=")]
    assert compose["services"]["worker"]["build"]["args"] == {"BASE": f"${{HEXVEIL_BASE:-{default}}}"}


def test_a_simulated_fleet_runs_in_the_demo_profile_only(compose):
    profiles = {name: service.get("profiles") for name, service in compose["services"].items()}
    assert profiles.pop("simulate") == ["demo"]
    assert set(profiles.values()) == {None}
