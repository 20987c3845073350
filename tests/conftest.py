"""Real servers for the tests (one Kafka broker per run, one Redis per worker process), and a tape of noise for each."""

import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import RedisServer
from tests.support.broker import shared_bootstrap
from tests.support.broker_classes import java_options
from tests.support.forking import forking
from tests.support.redis_servers import EMBEDDED
from tests.support.tapes import recorded_noise

__all__ = ["recorded_noise"]

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options())
# Tests start hundreds of Python processes; with cached bytecode each module is compiled only once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

IN_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process is one of several that run tests."""

# No property of the tests is about time, and the machine may be busy.
for profile, examples in (("every run", 50), ("nightly", 500)):
    settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="nightly tests, too, and every test of a Redis on both servers")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--all") else "every run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out of a run that nobody asked for all of them."""
    if not config.getoption("--all"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


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
def hexveil(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The words that start the command line in a process of its own, without the second of its imports."""
    folder, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if IN_PARALLEL:
        folder, owner = folder.parent, os.getppid()
    return (*forking(folder / "forking", owner), "stream")


@pytest.fixture
def topic_name() -> str:
    """A topic (or group) name that no other test uses; derive more of them by a suffix."""
    return f"t-{uuid.uuid4().hex[:12]}"
