"""Encrypted, authenticated Kafka with access control: each process has what it needs and no more. ``serve`` on a Unix
socket, which it never takes from another process, and behind nginx, which asks for a login."""

import asyncio
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientSession, encode_basic_auth
from aiohttp.test_utils import TestClient, TestServer
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from stream.config import Config, ConfigError
from stream.local.kafka import KafkaServer
from stream.local.server import LOOPBACK, free_port
from stream.messages.lines import line_of
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from stream.messages.topics import create_topics
from stream.serve.api import make_app
from stream.servers.connection import kafka_options
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger
from tests.stream.serve.serving import released
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import environment, working, write_secret
from tests.support.feeding import recorded_hour, until
from tests.support.nginx import needs_nginx, nginx

USERS = {"worker": "w-secret", "source": "s-secret", "serve": "r-secret"}
TOPIC, GROUP = 2, 3
READ, WRITE = 3, 4
LITERAL, ALLOW = 3, 3
SETTINGS = """\
listeners=PLAINTEXT://{{host}}:{{port}},CONTROLLER://{{host}}:{{controller_port}},SECURE://{{host}}:{secure}
advertised.listeners=PLAINTEXT://{{host}}:{{port}},SECURE://{{host}}:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={keystore}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
RIGHTS = {
    "source": [(TOPIC, "bus.positions", WRITE)],
    "worker": [
        (TOPIC, "bus.positions", READ),
        (GROUP, "hexveil-worker", READ),
        *[(TOPIC, topic, right) for topic in OUTPUT_TOPICS for right in (READ, WRITE)],
    ],
    "serve": [(TOPIC, topic, READ) for topic in (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)],
}
"""What docs/operators.md tells an operator to grant."""


class Secured:
    """A broker whose loopback plaintext listener is the administrator's and whose other listener is everybody
    else's."""

    def __init__(self, server: KafkaServer, address: str, authority: Path, folder: Path) -> None:
        self.server, self.address, self.authority, self.folder = server, address, authority, folder

    def overrides(self, name: str) -> dict[str, str]:
        secret = write_secret(self.folder / f"{name}.password", USERS[name] + "\n")
        return {
            "kafka.bootstrap": self.address,
            "kafka.security_protocol": "SASL_SSL",
            "kafka.username": name,
            "kafka.password_file": str(secret),
            "kafka.ca_file": str(self.authority),
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    keystore = folder / "broker.pem"
    issued = authority.issue_cert(LOOPBACK)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    keystore.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the only form that Kafka reads
        + b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    )
    secure = free_port()
    settings = SETTINGS.format(secure=secure, keystore=keystore)
    with KafkaServer(folder / "kafka", settings=settings, users=USERS) as server:
        yield Secured(server, f"{LOOPBACK}:{secure}", folder / "ca.pem", folder)


async def grant(secured: Secured) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=secured.server.bootstrap)
    await admin.start()
    for name, rights in RIGHTS.items():
        for kind, resource, right in rights:
            request = CreateAclsRequest(kind, resource, LITERAL, f"User:{name}", "*", right, ALLOW)
            answer = await admin._send_to_controller(request)
            assert answer.creation_responses[0][0] == 0, answer
    await admin.close()


def configured(secured: Secured, name: str, tmp_path: Path, **more: str) -> Config:
    return bus_config(tmp_path, **secured.overrides(name) | more)


async def test_worker_source_and_serve_do_their_work_with_the_documented_rights_and_nothing_else_is_open(
    hexveil, secured, redis_url, redis, tmp_path
):
    await create_topics(bus_config(tmp_path, **{"kafka.bootstrap": secured.server.bootstrap}))
    await grant(secured)
    await Ledger(redis, "bus").start_generation(birth=0)
    inside = {"redis.url": redis_url, "privacy.user_key_file": str(tmp_path / "user.key")}
    inside |= {"operator.port": str(free_port()), "window.lateness": "event-time", "window.idle_timeout": "2s"}
    async with (
        working(hexveil, environment(secured.overrides("worker") | inside), tmp_path, hourly.BUS),
        TestClient(TestServer(make_app(configured(secured, "serve", tmp_path)))) as client,
    ):
        replay = [*hexveil, "replay", str(recorded_hour(tmp_path)), "--format", "canonical"]
        source = {"window.lateness": "event-time", "config": str(hourly.BUS)}
        env = environment(secured.overrides("source") | source)
        await asyncio.to_thread(subprocess.run, replay, env=env, cwd=tmp_path, check=True)

        async def complete() -> bool:
            windows = (await (await client.get("/api/v1/windows")).json())["windows"]
            return any(window["complete"] for window in windows)

        await until(complete)
    for name, topic in (("serve", "bus.positions"), ("serve", REJECTED), ("source", HEXAGON_SPEED)):
        consumer = AIOKafkaConsumer(topic, **kafka_options(configured(secured, name, tmp_path).kafka), group_id=None)
        with pytest.raises(TopicAuthorizationFailedError):
            await asyncio.wait_for(consumer.start(), 120)
        await consumer.stop()
    for name, topic in (("serve", HEXAGON_SPEED), ("source", WINDOW)):
        producer = AIOKafkaProducer(**kafka_options(configured(secured, name, tmp_path).kafka))
        await producer.start()
        with pytest.raises(KafkaError):
            await asyncio.wait_for(producer.send_and_wait(topic, b"forged"), 120)
        await producer.stop()


async def test_a_wrong_password_and_a_foreign_authority_are_refused(secured, tmp_path):
    wrong = write_secret(tmp_path / "wrong", "guess\n")
    foreign = tmp_path / "foreign.pem"
    trustme.CA().cert_pem.write_to_path(str(foreign))
    for key, file in (("kafka.password_file", wrong), ("kafka.ca_file", foreign)):
        options = kafka_options(configured(secured, "serve", tmp_path, **{key: str(file)}).kafka)
        consumer = AIOKafkaConsumer(**options, group_id=None)
        with pytest.raises(KafkaError):
            await asyncio.wait_for(consumer.start(), 120)
        await consumer.stop()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kafka.security_protocol": "SASL_SSL"}, "needs username and password_file"),
        ({"kafka.username": "x", "kafka.password_file": "y"}, "takes no username"),
        ({"kafka.ca_file": "ca.pem"}, "uses no TLS files"),
        ({"kafka.security_protocol": "SSL", "kafka.certificate_file": "c.pem"}, "go together"),
        ({"redis.username": "worker"}, "has no password_file"),
        ({"redis.url": "redis://:secret@h:1/0", "redis.password_file": "x"}, "url holds credentials"),
        ({"redis.url": "redis://h:1/0?password=secret", "redis.password_file": "x"}, "url holds credentials"),
        ({"redis.ca_file": "ca.pem"}, "begins with rediss://"),
        ({"redis.url": "rediss://h:1/0", "redis.key_file": "k.pem"}, "go together"),
    ],
)
def test_credentials_that_do_not_fit_the_address_are_refused_without_being_shown(tmp_path, settings, why):
    with pytest.raises(ConfigError, match=why) as refused:
        bus_config(tmp_path, **settings)
    assert "secret" not in str(refused.value)


SASL = {"kafka.security_protocol": "SASL_PLAINTEXT", "kafka.username": "serve"}
TLS = {"kafka.security_protocol": "SSL"}
REDIS = {"redis.url": "rediss://127.0.0.1:1/0"}


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
@pytest.mark.parametrize(
    ("key", "settings", "why"),
    [
        ("kafka.password_file", SASL, r"kafka\.password_file .*unusable"),
        ("kafka.ca_file", TLS, r"TLS files cannot be used|kafka\.ca_file unusable"),
        ("redis.password_file", REDIS, "redis"),
        ("redis.ca_file", REDIS, "redis"),
        ("redis.certificate_file", REDIS | {"redis.key_file": "unusable"}, "redis"),
    ],
)
def test_a_file_of_credentials_that_cannot_be_used_is_named(tmp_path, monkeypatch, key, settings, why, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        write_secret(Path("unusable"), content)
    config = bus_config(tmp_path, **settings | {key: "unusable"})
    with pytest.raises(ConfigError, match=why):
        kafka_options(config.kafka) if key.startswith("kafka") else redis_client(config.redis)


Serve = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def serve(hexveil: Sequence[str], tmp_path: Path) -> Iterator[Serve]:
    """Starts a process that serves one window at ``serve.sock``."""
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, released(tmp_path))))
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [*hexveil, "serve", "releases.ndjson", "--config", str(hourly.BUS)],
                cwd=tmp_path,
                env=environment({"public.socket": str(tmp_path / "serve.sock")}),
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def until_it_listens(process: subprocess.Popen[str], socket: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


@needs_nginx
async def test_the_documented_nginx_asks_for_a_login_before_anything_of_serve_is_read(serve, tmp_path):
    await until_it_listens(serve(), tmp_path / "serve.sock")
    (tmp_path / "users").write_text("desk:{PLAIN}pass\n")
    here = {
        "/run/hexveil/serve.sock": str(tmp_path / "serve.sock"),
        "/etc/nginx/traffic.users": str(tmp_path / "users"),
    }
    paths = ("/", "/api/v1/hexagons", "/api/v1/stream", "/ogc", "/metrics", "/readyz")
    async with nginx(tmp_path, "operators.md", **here) as address, ClientSession() as session:
        known, unknown = ({"Authorization": encode_basic_auth("desk", word)} for word in ("pass", "guess"))
        for headers, status in (({}, 401), (unknown, 401), (known, 200)):
            for path in paths:
                async with session.get(address + path, headers=headers) as answer:
                    assert answer.status == status, path
        async with session.get(f"{address}/ogc", headers=known) as answer:
            links = (await answer.json(content_type=None))["links"]
        assert all(link["href"].startswith(f"{address}/") for link in links), links


async def test_a_socket_is_for_its_group_and_is_taken_over_only_from_a_process_that_ended(serve, tmp_path):
    socket, first = tmp_path / "serve.sock", serve()
    await until_it_listens(first, socket)
    while stat.S_IMODE(socket.stat().st_mode) != 0o660:
        await asyncio.sleep(0.05)
    second = serve()
    said = await asyncio.to_thread(lambda: second.communicate(timeout=60)[1])
    assert second.returncode == 2
    assert f"cannot listen on unix:{socket} (public.socket): Address already in use" in said
    first.kill()
    first.wait()
    await until_it_listens(serve(), socket)
