"""Redis >= 7.0 and Valkey >= 8 are supported. With an older server every command names the version found, the one
needed and the remedy.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stream.app.doctor import examine
from stream.local import REPO_ROOT, LocalServerError, RedisServer, end_process, free_port, spawn
from stream.messages.topics import create_topics
from stream.servers.connection import NEEDED, REMEDY, ServerVersion, ServerVersionError, require_supported
from tests.support.builders import bus_config

VALKEY = {"server_name": "valkey", "redis_version": "7.2.4"}


@pytest.mark.parametrize(
    ("info", "text", "supported"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14", False),
        ({"redis_version": "7.0.0"}, "Redis 7.0.0", True),
        ({"redis_version": "8.2"}, "Redis 8.2", True),
        ({"redis_version": "10.0.1"}, "Redis 10.0.1", True),
        ({"redis_version": "unknown"}, "Redis unknown", False),
        ({**VALKEY, "valkey_version": "7.2.11"}, "Valkey 7.2.11", False),
        ({**VALKEY, "valkey_version": "8.0.0"}, "Valkey 8.0.0", True),
        ({**VALKEY, "valkey_version": "9.1.2"}, "Valkey 9.1.2", True),
    ],
)
def test_a_server_is_supported_from_redis_7_0_and_valkey_8_on(info: dict[str, str], text: str, supported: bool) -> None:
    version = ServerVersion.from_info(info)
    assert (str(version), version.supported) == (text, supported)


def test_an_old_server_is_refused_with_the_version_found_the_one_needed_and_the_remedy() -> None:
    with pytest.raises(ServerVersionError, match=r"redis://a is Redis 6\.2\.14.*Redis 7\.0 or Valkey 8\.0.*upgrade it"):
        require_supported({"redis_version": "6.2.14"}, "redis://a")


async def test_the_embedded_server_tells_its_version(redis: Redis) -> None:
    version = require_supported(await redis.info("server"), "embedded")
    assert version.name == "Valkey"


async def test_doctor_passes_on_the_embedded_server(kafka: str, redis: Redis, redis_url: str, tmp_path: Path) -> None:
    config = bus_config(tmp_path, **{"kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    findings = await examine(config)
    assert [finding for finding in findings if not finding.ok and not finding.check.startswith("retention")] == []
    (version,) = (finding for finding in findings if finding.check == "redis version")
    assert "Valkey 9" in version.found
    assert NEEDED in version.found


@pytest.fixture
def old_binary(tmp_path: Path) -> str:
    program = tmp_path / "redis-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{REPO_ROOT}/tests/support/old_redis.py" "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_an_old_server_on_path_is_not_used(old_binary: str) -> None:
    with (
        pytest.raises(LocalServerError, match=r"redis-server is Redis 6\.2\.14.*upgrade"),
        RedisServer(binary=old_binary),
    ):
        pass


async def listening(port: int) -> None:
    """Wait until a server listens on the loopback port."""
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise AssertionError(f"nothing listens on port {port} after a minute")


async def test_doctor_and_worker_name_an_old_server_and_what_to_do(
    hexveil: Sequence[str],
    kafka: str,
    old_binary: str,
    tmp_path: Path,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    server = spawn([old_binary, "--port", str(port)], tmp_path / "old.log")
    try:
        config = bus_config(tmp_path, **{"redis.url": f"redis://127.0.0.1:{port}/0", "kafka.bootstrap": kafka})
        await listening(port)
        version = [finding for finding in await examine(config) if finding.check == "redis version"]
        await create_topics(config)
        monkeypatch.setenv("HEXVEIL_REDIS__URL", config.redis.url)
        monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
        monkeypatch.setenv("HEXVEIL_KAFKA__GROUP", topic_name)
        monkeypatch.setenv("HEXVEIL_OPERATOR__PORT", str(free_port()))
        monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "user.key"))
        command = [*hexveil, "worker", "--config", "config/bus-fleet.toml"]
        worker = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=120, check=False)
    finally:
        end_process(server, 5)
    assert [(finding.ok, finding.found, finding.remedy) for finding in version] == [
        (False, f"Redis 6.2.14; needed: {NEEDED}", REMEDY)
    ]
    assert worker.returncode == 1
    assert f"is Redis 6.2.14, and {NEEDED} is needed: {REMEDY}" in worker.stderr
