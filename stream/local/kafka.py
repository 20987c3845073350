"""Apache Kafka on this machine: its Java, its jars and one broker, for the demo and the tests."""

import base64
import functools
import hashlib
import os
import re
import shutil
import socket
import struct
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from stream.local.server import LOOPBACK, LocalServerError, Server, StartError, free_port, last_lines

REPO_ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("kafka-pom.xml")
"""The pom from which Maven downloads what a broker needs."""
JARS_ENV = "HEXVEIL_KAFKA_JARS"
MIN_JAVA = 17

OFFLINE_HINT = (
    "Without Kafka, `hexveil replay FILE --offline` runs the same windows and mechanisms over a recording and needs "
    "neither Java nor Maven."
)


def _jars_folder() -> Path:
    """Folder of the broker's jars: in a clone beside the sources, else in the user's cache (XDG_CACHE_HOME)."""
    if (REPO_ROOT / "pyproject.toml").is_file():
        return REPO_ROOT / ".local" / "kafka" / "jars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hexveil" / "kafka" / "jars"


JARS = _jars_folder()


class JavaMissingError(LocalServerError):
    """Java is missing or too old for Kafka."""


class MavenMissingError(LocalServerError):
    """The Kafka jars are missing and cannot be downloaded."""


def find_java() -> str:
    """Path of a Java of at least version 17 (JAVA_HOME, then PATH); raises :class:`JavaMissingError`."""
    remedy = f"Install Java {MIN_JAVA} or later (Debian: apt-get install default-jre-headless). {OFFLINE_HINT}"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise JavaMissingError(f"Kafka needs Java and there is none on PATH. {remedy}")
    major = _major_version(java)
    if major is None:
        raise JavaMissingError(f"{java} does not tell its version. {remedy}")
    if major < MIN_JAVA:
        raise JavaMissingError(f"{java} is Java {major}; Kafka needs {MIN_JAVA}. {remedy}")
    return java


@functools.cache
def _major_version(java: str) -> int | None:
    """What ``java`` says of itself, once per process: asking takes a Java of its own."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    major = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(major[1]) if major else None


def kafka_jars() -> Path:
    """Folder with the broker's jars, which Maven downloads on first use; HEXVEIL_KAFKA_JARS names an existing one.

    Raises :class:`MavenMissingError` if they are missing and cannot be downloaded.
    """
    named = os.environ.get(JARS_ENV)
    if named:
        if not any(Path(named).glob("kafka_2.13-*.jar")):
            raise MavenMissingError(
                f"{JARS_ENV}={named} holds no kafka_2.13-*.jar; name a folder that does, or unset it."
            )
        return Path(named)
    # The mark is written last and names the pom, so an interrupted download, or one of other versions, is repeated.
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
        output = last_lines(done.stdout + done.stderr)
        raise MavenMissingError(f"Maven could not fetch the Kafka jars; check the network, then try again.\n{output}")


class KafkaServer(Server):
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
        """``settings``: further lines of ``server.properties``, a later line overrides an earlier one with the same
        key.

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
            self._format([java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *common], settings)
        heap = [f"-Xmx{self.heap_mb}m", f"-Xms{min(self.heap_mb, 128)}m", "-XX:+UseSerialGC"]
        command = [java, *heap, "-XX:+ExitOnOutOfMemoryError", *common, "kafka.Kafka", str(settings)]
        self._run(command, lambda: _brokers(self.port) > 0, self.start_seconds)
        return self

    def _format(self, java: list[str], settings: Path) -> None:
        """Give the folder an identity. Only the passwords of users need Kafka's storage tool and a Java of its own."""
        if not self._users:
            write_identity(self.folder / "data", node=1, cluster=random_uuid())
            return
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", random_uuid(), "-c", str(settings)]
        for name, secret in self._users.items():
            tool += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={secret}]"]
        done = subprocess.run(tool, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartError(f"Kafka could not format {self.folder}:\n{done.stdout}{done.stderr}")

    def _settings(self) -> str:
        ports = {"host": LOOPBACK, "port": self.port, "controller_port": self.controller_port}
        return _SETTINGS.format(data=self.folder / "data", **ports) + self._further.format(**ports)

    def __enter__(self) -> Self:
        return self.start()


# One node, so one replica of everything and no wait for more group members. Releases of a recording carry timestamps
# of years ago, which any retention would delete at its first look: that look (log.initial.task.delay) comes after a
# day. A simulated clock may run ahead. Topics are created, never guessed. Nobody waits for the controller's records
# without content, two a second, which cost an idle broker half of its processor time.
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
metadata.max.idle.interval.ms=0
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


def random_uuid() -> str:
    """A random UUID in Kafka's notation. None begins with a dash, which Kafka's tool takes for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def write_identity(folder: Path, node: int, cluster: str) -> None:
    """Mark ``folder`` as the data of broker ``node`` of ``cluster``, in the words of Kafka's storage tool."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = {"version": 1, "cluster.id": cluster, "node.id": node, "directory.id": random_uuid()}
    lines = (f"{name}={value}\n" for name, value in identity.items())
    (folder / "meta.properties").write_text("".join(lines), encoding="utf-8")


def _brokers(port: int) -> int:
    """Number of unfenced brokers in a Metadata v0 answer. An open port alone does not mean that the broker is ready."""
    request = struct.pack(">hhih", 3, 0, 1, 0) + struct.pack(">i", 1) + struct.pack(">h", 1) + b"-"
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2.0) as link:
            link.sendall(struct.pack(">i", len(request)) + request)
            with link.makefile("rb") as stream:
                answer = stream.read(12)
    except OSError:
        return 0
    return int(struct.unpack(">iii", answer)[2]) if len(answer) == 12 else 0
