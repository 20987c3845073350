"""Redis with users, rights and TLS: each process has what the documents grant, and no more."""

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme

from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, end_process, find_redis, free_port, spawn
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.storage.client import redis_client
from stream.storage.keys import FeedKeys
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import environment, working, write_secret
from tests.support.feeding import recorded_hour, until
from tests.support.redis_servers import pytest_generate_tests  # noqa: F401 - each test on both servers
from tests.support.topics_reader import read_all

PASSWORDS = {"worker": "w-secret", "operator": "o-secret"}
LUA = REPO_ROOT / "stream" / "storage"


def granted() -> dict[str, set[str]]:
    """The commands that docs/security.md grants to each user."""
    return {
        name: {word[1:] for word in words.split() if word.startswith("+")}
        for name, words in re.findall(r"^user (worker|operator) (.*)$", documented(), re.MULTILINE)
    }


def documented() -> str:
    """The block of docs/security.md that goes into Redis's ACL file."""
    page = (REPO_ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    return re.search(r"```\n(user default off\n.*?)```", page, re.DOTALL)[1]


def acl_file(feed: str) -> str:
    """The documented rights, for ``feed`` and with passwords; the last user is the test's own."""
    lines = []
    for line in documented().replace("{bus}", f"{{{feed}}}").replace("{part:bus:", f"{{part:{feed}:").splitlines():
        name = line.split()[1]
        digest = hashlib.sha256(PASSWORDS.get(name, "").encode()).hexdigest()
        lines.append(line.replace("#SHA256", f"#{digest}"))
    return "\n".join([*lines, "user tester on >t-secret ~* &* +@all", ""])


class Guarded:
    """A Redis that requires a login."""

    def __init__(self, folder: Path, binary: str, feed: str, *settings: str, scheme: str = "redis") -> None:
        self.folder, self.feed, self.scheme, self.port = folder, feed, scheme, free_port()
        folder.mkdir(exist_ok=True)
        (folder / "users.acl").write_text(acl_file(feed))
        port = ["--port", "0", "--tls-port", str(self.port)] if scheme == "rediss" else ["--port", str(self.port)]
        kept = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""]
        command = [binary, "--bind", LOOPBACK, *port, "--dir", str(folder), "--aclfile", str(folder / "users.acl")]
        self.process = spawn([*command, *kept, *settings], folder / "log")

    def url(self) -> str:
        return f"{self.scheme}://{LOOPBACK}:{self.port}/1"

    def password_file(self, name: str) -> Path:
        return write_secret(self.folder / f"{name}.password", PASSWORDS[name] + "\n")

    def environment(self, name: str, **more: str) -> dict[str, str]:
        """Configuration of a process that logs in as ``name``."""
        ours = {"redis.url": self.url(), "redis.username": name, "redis.password_file": str(self.password_file(name))}
        return environment(ours | more)

    def tester(self, **options: object) -> redis.Redis:
        return redis.Redis.from_url(self.url(), username="tester", password="t-secret", **options)

    def wait(self, **options: object) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.tester(**options).ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)


@pytest.fixture
def guarded(redis_binary: str | None, tmp_path: Path, topic_name: str) -> Iterator[Guarded]:
    server = Guarded(tmp_path / "redis", redis_binary or find_redis(), topic_name)
    try:
        server.wait()
        yield server
    finally:
        end_process(server.process, 10)


async def test_worker_and_operator_do_their_work_with_the_documented_rights_and_nothing_else_is_open(
    hexveil, guarded, kafka, topic_name, tmp_path
):
    feed = {
        **dict.fromkeys(("feed.name", "feed.topic", "kafka.group"), topic_name),
        "kafka.bootstrap": kafka,
        "privacy.user_key_file": str(tmp_path / "user.key"),
        "operator.port": str(free_port()),
        "window.lateness": "event-time",
        "window.idle_timeout": "2s",
        "config": str(hourly.BUS),
    }
    await create_topics(bus_config(tmp_path, **{"feed.topic": topic_name, "kafka.bootstrap": kafka}))

    async def run(name: str, *arguments: str, code: int = 0, **more: str) -> str:
        """What the command says on stdout; what it says on stderr if it fails."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*hexveil, *arguments],
            env=guarded.environment(name, **feed | more),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert PASSWORDS[name] not in done.stdout + done.stderr
        return done.stderr if code else done.stdout

    await run("operator", "ledger", "adopt", "--since", "2017-03-21", "--no-other-ledger")
    await run("worker", "replay", str(recorded_hour(tmp_path)), "--format", "canonical")
    wrong = {"redis.password_file": str(write_secret(tmp_path / "wrong", "guess\n"))}
    said = await run("worker", "worker", code=1, **wrong)
    assert "Redis refuses" in said
    assert "password_file" in said
    assert "guess" not in said
    async with working(hexveil, guarded.environment("worker", **feed), tmp_path, hourly.BUS):
        await until(lambda: read_all(kafka, topic_name, [WINDOW]), 90)
        with redis.Redis.from_url(guarded.url(), username="worker", password=PASSWORDS["worker"]) as client:
            for refused in (
                ["GET", FeedKeys("other").generation],
                ["SET", FeedKeys("other").generation, "forged"],
                *map(str.split, ("FLUSHALL", "KEYS *", "SCAN 0", "SHUTDOWN", f"REPLICAOF {LOOPBACK} 1")),
                *map(str.split, ("CONFIG SET appendonly no", "ACL SETUSER worker +@all")),
                ["EVAL", "return redis.call('FLUSHALL')", "0"],
            ):
                with pytest.raises((redis.exceptions.NoPermissionError, redis.exceptions.ResponseError)):
                    client.execute_command(*refused)
    shown = json.loads(await run("operator", "ledger", "show", "--json"))
    assert next(iter(shown.values()))["users"] == 20
    findings = json.loads(await run("operator", "doctor", "--json"))
    assert all(finding["ok"] for finding in findings), findings
    tester = guarded.tester()
    denied = [entry for entry in tester.acl_log() if entry["username"] != "worker"]
    assert not denied, denied
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis.from_url(guarded.url()).ping()


def test_every_command_that_the_sources_send_is_granted_and_no_other():
    text = "\n".join(file.read_text() for file in [*LUA.rglob("*.lua"), *LUA.rglob("*.py")])
    sent = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", text)}
    python = re.findall(r"(?:_?redis|_calls|pipe|client)\.(\w+)\(", text)
    words = {
        "register_script": "evalsha",
        "delete": "del",
        "hscan_iter": "hscan",
        "scan_iter": "scan",
        "sscan_iter": "sscan",
    }
    not_commands = {"aclose", "call", "error_reply", "pcall", "execute", "execute_command", "from_url", "sha1hex"}
    not_commands |= {"get_node_from_key", "initialize", "pipeline"}
    sent |= {words.get(name, name) for name in python if name not in not_commands}
    beyond = {"ping", "select", "info", "script|load", "evalsha", "eval", "time"}
    rights = granted()
    assert sent - {"scan"} <= rights["worker"], sent - rights["worker"]
    assert rights["worker"] <= sent | beyond, rights["worker"] - sent - beyond
    assert rights["operator"] == rights["worker"] | {"scan", "config|get"}


def test_over_tls_the_server_is_verified_and_the_client_shows_its_certificate(tmp_path, topic_name):
    binary = shutil.which("redis-server")  # the embedded server is built without TLS
    if binary is None:
        pytest.skip("no redis-server on PATH; Debian: apt-get install redis-server")
    authority, foreign = trustme.CA(), trustme.CA()
    issued, ours = authority.issue_cert(LOOPBACK), authority.issue_cert("worker.example")
    for name, blobs in (
        ("ca.pem", [authority.cert_pem]),
        ("foreign.pem", [foreign.cert_pem]),
        ("server.pem", issued.cert_chain_pems),
        ("server.key", [issued.private_key_pem]),
        ("worker.pem", ours.cert_chain_pems),
        ("worker.key", [ours.private_key_pem]),
    ):
        (tmp_path / name).write_bytes(b"".join(blob.bytes() for blob in blobs))

    def at(name: str) -> str:
        return str(tmp_path / name)

    tls = ["--tls-cert-file", at("server.pem"), "--tls-key-file", at("server.key"), "--tls-ca-cert-file", at("ca.pem")]
    server = Guarded(tmp_path / "redis", binary, topic_name, *tls, scheme="rediss")
    files = {"ca_file": at("ca.pem"), "certificate_file": at("worker.pem"), "key_file": at("worker.key")}

    async def ping(url: str = server.url(), **changed: str | None) -> bool:
        given = {**files, "username": "worker", "password_file": str(server.password_file("worker")), **changed}
        overrides = {f"redis.{key}": value for key, value in given.items() if value is not None}
        async with redis_client(bus_config(tmp_path, **{"redis.url": url, **overrides}).redis) as client:
            return bool(await client.ping())

    try:
        server.wait(ssl_ca_certs=at("ca.pem"), ssl_certfile=at("worker.pem"), ssl_keyfile=at("worker.key"))
        assert asyncio.run(ping())
        for changed, why in (
            ({"ca_file": at("foreign.pem")}, "CERTIFICATE_VERIFY_FAILED"),
            ({"ca_file": None}, "CERTIFICATE_VERIFY_FAILED"),
            ({"url": server.url().replace(LOOPBACK, "localhost")}, "Hostname mismatch"),
        ):
            with pytest.raises(redis.exceptions.ConnectionError, match=why):
                asyncio.run(ping(**changed))
        with pytest.raises(redis.exceptions.ConnectionError):
            asyncio.run(ping(certificate_file=None, key_file=None))
        with pytest.raises(redis.exceptions.ConnectionError):
            asyncio.run(
                ping(server.url().replace("rediss", "redis"), ca_file=None, certificate_file=None, key_file=None)
            )
        wrong = write_secret(tmp_path / "wrong", "guess\n")
        with pytest.raises(redis.exceptions.AuthenticationError):
            asyncio.run(ping(password_file=str(wrong)))
    finally:
        end_process(server.process, 10)
