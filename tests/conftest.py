"""Real servers for the tests: one Kafka broker per run, one Redis per worker process."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

from stream.local import REPO_ROOT, KafkaServer, RedisServer
from tests.support.broker import shared_bootstrap
from tests.support.broker_classes import java_options
from tests.support.forking import forking
from tests.support.redis_servers import EMBEDDED

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())
# Tests start hundreds of Python processes; with cached bytecode each module is compiled only once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported and collected lives to the end, so looking for garbage meanwhile is in vain.
gc.disable()

IN_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process is one of several that run tests."""

# To free what such a process has, object by object, would take seconds. Everything registered later is done before.
if IN_PARALLEL:
    atexit.register(os._exit, 0)

# No property of the tests is about time, and the machine may be busy.
settings.register_profile("hexveil", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hexveil")

LONG = (
    "test_cluster.py",
    "test_damaged_logs.py",
    "test_demo.py",
    "test_documents.py",
    "test_faults.py",
    "test_lateness.py",
    "test_local.py",
    "test_log_ends.py",
    "test_output_scan.py",
    "test_prometheus.py",
    "test_publication.py",
    "test_worker.py",
    "test_worker_cluster.py",
    "test_worker_histograms.py",
    "test_worker_outages.py",
    "test_worker_participation.py",
)
"""Files with tests that last long, most of it waiting for servers and clocks."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first, in every other process: while they wait the others compute, and none runs alone at the end."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    waiting = -(-processes // 2)
    long = [item for item in items if item.path.name in LONG]
    others = iter([item for item in items if item.path.name not in LONG])
    share = -(-len(items) // processes)  # every process begins with a stretch of this length
    ordered: list[pytest.Item] = []
    for process in range(processes):
        stretch = long[process // 2 :: waiting] if process % 2 == 0 else []
        ordered += [*stretch, *itertools.islice(others, max(share - len(stretch), 0))]
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, because they live as long as the run."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Exempt what a process has at its end from the collections that follow, of which nobody would read what they warn of."""
    if IN_PARALLEL:
        gc.freeze()


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return REPO_ROOT


@pytest.fixture(scope="session")
def shared_data(repo_root: Path) -> Path:
    """Folder of the recordings: HEXVEIL_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("HEXVEIL_DATA") or repo_root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no recordings in {folder}; let HEXVEIL_DATA name their folder")
    return folder


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a real broker, shared by all workers of the run; topics must be created (no guessing)."""
    if IN_PARALLEL:
        yield shared_bootstrap(tmp_path_factory.getbasetemp().parent / "broker", owner=os.getppid())
        return
    with KafkaServer() as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def redis_binary(request: pytest.FixtureRequest) -> str | None:
    """Server program of every Redis of a test: the embedded one, or as :mod:`tests.support.redis_servers` asks for."""
    if getattr(request, "param", EMBEDDED) == EMBEDDED:
        return None
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH; Debian: apt-get install redis-server")
    return binary


@pytest.fixture(scope="session")
def redis_server(redis_binary: str | None) -> Iterator[RedisServer]:
    with RedisServer(binary=redis_binary) as server:
        yield server


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of an emptied Redis; its address is ``redis_url``."""
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def hexveil() -> Iterator[tuple[str, ...]]:
    """The words that start the command line in a process of its own, without the second of its imports."""
    with forking() as words:
        yield *words, "stream"


@pytest.fixture
def topic_name() -> str:
    """A topic (or group) name that no other test uses; derive more of them by a suffix."""
    return f"t-{uuid.uuid4().hex[:12]}"
