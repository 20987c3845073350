"""On a Redis Cluster every window is released once, with the rows of one server, whichever master dies or hangs
meanwhile."""

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from aiohttp.test_utils import TestClient, TestServer
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from stream.app.doctor import examine
from stream.app.worker import Worker
from stream.config import Config
from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, free_port
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.storage import client as clients
from stream.storage.client import each, redis_client
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import NotSealedError, RowStore
from tests.support.builders import SLOT, bus_config, in_order, random_rows
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.environment import write_secret
from tests.support.redis_cluster import Certificates, LocalCluster, Node
from tests.support.shards import AFTER_US, HOUR, N, closing, note_ends, outlasting, read_on

PARTITIONS = [f"bus/{number}" for number in range(6)]
PASSWORD = "w-secret"


@pytest.fixture(scope="module")
def cluster(redis_binary: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "nodes", redis_binary) as servers:
        yield servers


@pytest.fixture
def config(cluster: LocalCluster, tmp_path: Path, topic_name: str) -> Config:
    """Of a feed whose worker has the rights that docs/security.md grants, and no more."""
    line = re.search(r"^user worker on #SHA256 (.*)$", (REPO_ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    rights = line[1].replace("{bus}", f"{{{topic_name}}}").replace("{part:bus:", f"{{part:{topic_name}:").split()
    cluster.grant("worker", PASSWORD, *rights, "+cluster|slots", "+command", "+asking")
    write_secret(tmp_path / "password", PASSWORD)
    login = {"redis.username": "worker", "redis.password_file": str(tmp_path / "password")}
    return bus_config(tmp_path, **cluster.settings | login, **{"feed.name": topic_name})


@pytest.fixture
async def client(config: Config, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redis]:
    """Less patient with a node that does not answer than a worker's, so that the tests are over sooner."""
    monkeypatch.setattr(clients, "CLUSTER_SECONDS", 1.5)
    async with redis_client(config.redis) as redis:
        yield redis


def batch(partition: int, slot: int) -> np.ndarray:
    return in_order(random_rows(partition + slot // HOUR % 97, N, slot=slot))


SLOTS = [SLOT + HOUR * hour for hour in range(3)]
LOGS = {name: [batch(number, slot) for slot in SLOTS] for number, name in enumerate(PARTITIONS)}
"""A batch of every window in each partition."""


def counts(publisher: Collected) -> list[tuple[Any, ...]]:
    """What a release says that noise does not touch."""
    bodies = [json.loads(message.value) for message in publisher.messages]
    return sorted(
        (body["window"]["start"], body.get("cell", ""), body.get("events", 0), body.get("users", 0)) for body in bodies
    )


def masters(cluster: LocalCluster, config: Config) -> tuple[Node, list[Node]]:
    """The master that holds the ledger, and the others, which hold rows only."""
    keys = FeedKeys.of(config)
    ledger = cluster.master_of(keys.generation)
    rows = {cluster.master_of(PartKeys(keys, name).progress) for name in PARTITIONS}
    return ledger, sorted(rows - {ledger}, key=lambda node: node.port)


def kill(node: Node) -> None:
    node.process.kill()
    node.process.wait()


async def stored(client: Redis, config: Config, logs: dict[str, list[np.ndarray]]) -> RowStore:
    """The rows of a feed on the cluster that holds what lies in the ``logs`` of its partitions."""
    state = RowStore.of(client, config)
    await Ledger.of(client, config).start_generation(birth=0)
    await state.list_partitions(PARTITIONS, AFTER_US)
    for name, log in logs.items():
        await read_on(state, name, log, 0)
    return state


async def assert_released_as_on_one_server(
    client: Redis, redis: Redis, config: Config, publisher: Collected, expected: Collected
) -> None:
    """All of :data:`LOGS`, once, with the same counts and charges."""
    assert sum(events for _, _, events, _ in counts(expected)) == len(SLOTS) * len(PARTITIONS) * N
    assert counts(publisher) == counts(expected)
    assert (await RowStore.of(client, config).look()).slots == [], "what was released is deleted"
    period = config.slotting.period_of(SLOT).key
    assert await Ledger.of(client, config).total(period) == await Ledger.of(redis, config).total(period)


async def released_on_one_server(
    redis: Redis, config: Config, logs: dict[str, list[np.ndarray]], slots: list[int]
) -> Collected:
    publisher, state = Collected(), RowStore.of(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    for name, log in logs.items():
        await read_on(state, name, log, 0)
    for slot in slots:
        await protocol_of(redis, config, publisher).close(slot)
    return publisher


async def test_traffic_does_not_keep_a_window_from_being_sealed_and_a_shard_that_was_set_back_does(client, config):
    state = RowStore.of(client, config)
    for number in range(2):
        await read_on(state, PARTITIONS[number], [batch(number, SLOT)], 0)
    seen = await state.look()
    await read_on(state, PARTITIONS[0], [batch(0, SLOT), batch(0, SLOT + HOUR)], 1)
    await state.seal(SLOT, seen.offsets)
    assert len(await state.read(SLOT)) == 2 * N
    later = (await state.look()).offsets | {PARTITIONS[1]: 2 * N}
    with pytest.raises(NotSealedError, match="bus/1"):
        await state.seal(SLOT + HOUR, later)
    with pytest.raises(NotSealedError, match="bus/1"):
        await state.read(SLOT + HOUR)


async def test_a_cluster_that_cannot_be_reached_is_an_error_after_which_workers_try_again(tmp_path):
    """redis-py's own error is none that says so."""
    ports = [free_port(), free_port()]
    config = bus_config(
        tmp_path, **{"redis.url": f"redis://{LOOPBACK}:{ports[0]}", "redis.cluster": [f"{LOOPBACK}:{ports[1]}"]}
    )
    async with aclosing(redis_client(config.redis)) as client:
        for call in (client.ping, RowStore.of(client, config).look):
            with pytest.raises(RedisError):
                await call()
        with pytest.raises(RedisError):
            await each(client, "return 1", [(["a"], []), (["b"], [])])


async def test_a_user_that_a_cluster_refuses_is_told_so(config, tmp_path):
    write_secret(tmp_path / "password", "guess")
    for login in ({}, {"username": None, "password_file": None}):
        async with aclosing(redis_client(config.redis.model_copy(update=login))) as refused:
            with pytest.raises(AuthenticationError):
                await refused.ping()


async def test_a_shard_of_rows_that_may_evict_them_is_refused_before_a_window_is_closed(
    cluster, client, config, monkeypatch
):
    """Rows could go while their seal stays, and the window would be released without them. Kafka is not asked here."""

    async def sound(_: LedgerCheck) -> None:
        return

    monkeypatch.setattr(LedgerCheck, "verify", sound)
    check = LedgerCheck(config, client, Ledger.of(client, config), Known())
    _, (rows_only, *_) = masters(cluster, config)
    await check.verify_all()
    rows_only.client.config_set("maxmemory", "1gb")
    rows_only.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(LedgerError, match="or rows"):
            await check.verify_all()
    finally:
        rows_only.client.config_set("maxmemory-policy", "noeviction")
        rows_only.client.config_set("maxmemory", "0")


async def test_doctor_says_what_the_cluster_is_and_what_is_wrong_with_it(cluster, config, tmp_path):
    """The configuration of its own has no broker, so the last finding is that Kafka does not answer."""
    away = {"kafka.bootstrap": f"{LOOPBACK}:{free_port()}"}
    findings = {finding.check: finding for finding in await examine(bus_config(tmp_path, **cluster.settings, **away))}
    assert findings["redis cluster"].found == "3 masters, 3 replicas, state ok"
    # The node that is asked may not know the address of every replica in its first seconds.
    assert re.search(r"s between this machine and [3456] nodes of Redis$", findings["clock skew"].found)
    assert all(finding.ok for check, finding in findings.items() if check != "kafka")
    cluster.nodes[1].client.config_set("appendfsync", "everysec")
    single = {finding.check: finding for finding in await examine(bus_config(tmp_path, **cluster.one_node, **away))}
    assert not single["redis cluster"].ok
    assert "name other nodes of the cluster in redis.cluster" in single["redis cluster"].found
    all_nodes = bus_config(tmp_path, **cluster.settings, **away)
    differs = next(finding for finding in await examine(all_nodes) if finding.check == "redis fsync")
    assert not differs.ok
    assert f"{LOOPBACK}:{cluster.nodes[1].port} everysec" in differs.found
    cluster.nodes[1].client.config_set("appendfsync", "always")


async def test_over_tls_a_window_is_released_with_the_rows_of_one_server_and_a_foreign_cluster_is_refused(
    redis, tmp_path, topic_name
):
    binary = shutil.which("redis-server")  # the embedded server is built without TLS
    if binary is None:
        pytest.skip("no redis-server on PATH; Debian: apt-get install redis-server")
    authority, foreign = trustme.CA(), trustme.CA()
    issued = authority.issue_cert(LOOPBACK)
    files = Certificates(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key")
    authority.cert_pem.write_to_path(str(files.authority))
    foreign.cert_pem.write_to_path(str(tmp_path / "foreign.pem"))
    files.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(files.key))
    with LocalCluster(tmp_path / "nodes", binary, files) as encrypted:
        where = encrypted.settings | {"feed.name": topic_name}
        config = bus_config(tmp_path, **where, **{"redis.ca_file": str(files.authority)})
        logs = {name: [batch(number, SLOT)] for number, name in enumerate(PARTITIONS)}
        expected, publisher = await released_on_one_server(redis, config, logs, [SLOT]), Collected()
        async with redis_client(config.redis) as client:
            state = await stored(client, config, logs)
            await note_ends(state, logs)
            await closing(client, config, publisher).close(SLOT)
        assert counts(publisher) == counts(expected)
        unlike = bus_config(tmp_path, **where, **{"redis.ca_file": str(tmp_path / "foreign.pem")})
        with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
            await redis_client(unlike.redis).get("hv")


async def test_windows_are_released_once_with_the_rows_of_one_server_while_slots_move_to_other_masters(
    cluster, client, redis, config
):
    """Those of two partitions while rows come in and are read, and that of the ledger while a window is charged and
    committed."""
    expected = await released_on_one_server(redis, config, LOGS, SLOTS)
    publisher, keys = Collected(), FeedKeys.of(config)
    state = await stored(client, config, {name: log[:1] for name, log in LOGS.items()})

    async def moving(key: str, work: Awaitable[Any]) -> None:
        await asyncio.gather(asyncio.to_thread(cluster.move, key, 0.2), work)

    async def read_all() -> None:
        for name, log in LOGS.items():
            await read_on(state, name, log, 1)
        await note_ends(state, LOGS)

    await moving(PartKeys(keys, PARTITIONS[0]).progress, read_all())
    await moving(
        PartKeys(keys, PARTITIONS[1]).progress, outlasting(lambda: closing(client, config, publisher).close(SLOTS[0]))
    )
    await moving(keys.generation, outlasting(lambda: closing(client, config, publisher).close(SLOTS[1])))
    met = [node.client.info("errorstats") for node in cluster.nodes]
    assert any("errorstat_ASK" in errors or "errorstat_TRYAGAIN" in errors for errors in met), met
    await outlasting(lambda: closing(client, config, publisher).close(SLOTS[2]))
    await assert_released_as_on_one_server(client, redis, config, publisher, expected)


async def test_windows_are_released_once_with_the_rows_of_one_server_whichever_masters_die_or_hang(
    cluster, client, redis, config
):
    """No server is started again."""
    expected = await released_on_one_server(redis, config, LOGS, SLOTS)
    publisher = Collected()
    state = await stored(client, config, {name: log[:1] for name, log in LOGS.items()})
    ledger, (first, second) = masters(cluster, config)
    kill(first)  # while rows of the second window come in
    for name, log in LOGS.items():
        await read_on(state, name, log, 1)
    await note_ends(state, LOGS)
    await outlasting(lambda: closing(client, config, publisher).close(SLOTS[0]))
    await close_until(closing(client, config, publisher), SLOTS[1], "seal")
    kill(second)  # the attempt after it begins anew
    await note_ends(state, LOGS)
    await outlasting(lambda: closing(client, config, publisher).close(SLOTS[1]))
    await close_until(closing(client, config, publisher), SLOTS[2], "charge")
    cluster.replicated(ledger)
    begun = time.monotonic()
    ledger.process.send_signal(signal.SIGSTOP)
    await note_ends(state, LOGS)
    await outlasting(lambda: closing(client, config, publisher).close(SLOTS[2]))
    print(f"closed {time.monotonic() - begun:.1f} s after the ledger's master hung")
    await assert_released_as_on_one_server(client, redis, config, publisher, expected)


async def ready(config: Config) -> tuple[int, list[str]]:
    """What ``/readyz`` of a worker that has begun answers over HTTP: its status, and what is missing."""
    worker = Worker(config)
    worker.ready.set()
    site: Any = worker.app.web
    site.init_server()
    try:
        async with TestClient(TestServer(site.web_app)) as http, http.get("/readyz") as answer:
            return answer.status, (await answer.json())["problems"]
    finally:
        await worker.redis.aclose()


async def test_a_worker_is_ready_only_while_every_primary_answers(cluster, client, config):
    """The last test here: one shard is dead at its end, while the others answer."""
    for node in cluster.nodes:
        node.process.send_signal(signal.SIGCONT)
    primary = cluster.master_of("x")
    replicas = {int(port) for _, port, _ in primary.client.execute_command("ROLE")[2]}
    for node in cluster.nodes:
        if node.port in replicas:
            kill(node)
    assert await ready(config) == (200, [])
    kill(primary)
    assert await ready(config) == (503, ["Redis does not answer on every primary"])
    assert any(node.answers() for node in cluster.nodes)
