"""Settings and starts of Kafka clients: address, encryption and credentials; and reading of secret files."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError

from stream.config import ConfigError
from stream.config.secret_files import OpenSecretError, read_secret
from stream.config.servers import KafkaConfig, ServerConfig

log = structlog.get_logger()

Client = TypeVar("Client", AIOKafkaConsumer, AIOKafkaProducer)

START_SECONDS = 10.0
_PAUSE_SECONDS = 1.0


async def start_client(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Start a client of Kafka. If it fails, the client is stopped.

    Raises :class:`KafkaConnectionError` if that takes longer than :data:`START_SECONDS`, or if the client knows no
    broker. For a moment after its start, a broker lists none, not even itself. A client that heard this and then loses
    its connection has no address left and would wait without end.
    """
    started = False
    try:
        async with asyncio.timeout(START_SECONDS):
            await client.start()
        known = client.client if isinstance(client, AIOKafkaProducer) else client._client
        if not known.cluster.brokers():
            raise KafkaConnectionError("the broker lists no brokers yet")
        started = True
    except TimeoutError:
        raise KafkaConnectionError(f"no broker was found within {START_SECONDS:.0f} s") from None
    finally:
        if not started:
            await client.stop()


@asynccontextmanager
async def reading(kafka: KafkaConfig) -> AsyncIterator[AIOKafkaConsumer]:
    """A reader that runs within the context, started as by :func:`start_client`. It is in no group and commits nothing;
    if retention overtakes it, it continues with the oldest message that exists, not with the newest."""
    client = AIOKafkaConsumer(**kafka_options(kafka), enable_auto_commit=False, auto_offset_reset="earliest")
    await start_client(client)
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def administering(kafka: KafkaConfig) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that describes and creates topics within the context."""
    client = AIOKafkaAdminClient(**kafka_options(kafka))
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def connect(make: Callable[[], Client], stopping: Callable[[], bool]) -> Client:
    """A client from ``make`` that is started; waits until a broker answers. If ``stopping``, raises as
    :func:`start_client` does."""
    while True:
        client = make()
        try:
            await start_client(client)
        except (KafkaError, OSError) as error:
            if stopping():
                raise
            log.warning("kafka does not answer, trying again", reason=str(error), seconds=_PAUSE_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return client


def kafka_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Keyword arguments for any aiokafka client. Raises :class:`ConfigError` for a file that cannot be used."""
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": kafka.security_protocol}
    if kafka.encrypted:
        options["ssl_context"] = tls_context(kafka, "kafka")
    if kafka.authenticated:
        options |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.username,
            "sasl_plain_password": kafka_password(kafka),
        }
    return options


def kafka_password(kafka: KafkaConfig) -> str:
    """The password of ``kafka.username``. It is not part of the configuration, so it is never printed with it."""
    assert kafka.password_file is not None
    return first_line(kafka.password_file, "kafka.password_file")


def tls_context(section: ServerConfig, name: str) -> ssl.SSLContext:
    """TLS settings that verify the server by ``ca_file`` (default: the system's authorities) and present the client
    certificate, if there is one.

    ``name`` is the section's, for messages. Raises :class:`ConfigError` for files that cannot be used.
    """
    for key in ("ca_file", "certificate_file", "key_file"):
        path: Path | None = getattr(section, key)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{name}.{key} {path} cannot be read: {error}") from None
    try:
        context = ssl.create_default_context(cafile=section.ca_file)
        if section.certificate_file is not None:
            context.load_cert_chain(section.certificate_file, section.key_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{name}: the TLS files cannot be used: {error}; give PEM files that belong together"
        ) from None
    return context


def first_line(path: Path, key: str) -> str:
    """Content of a secret file; ``key`` names the file in messages. Raises :class:`ConfigError`."""
    try:
        lines = read_secret(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from None
    except OpenSecretError as error:
        raise ConfigError(f"{key} {error}") from None
    if not lines or not lines[0]:
        raise ConfigError(f"{key} {path} is empty; write the password into its first line")
    return lines[0]


LEAST = {"Redis": (7, 0), "Valkey": (8, 0)}
"""Oldest supported version of each server. Before 7.0, Redis keeps the append-only file as a single file, and CONFIG
GET accepts only one name."""


class ServerVersionError(RuntimeError):
    """The server is too old; the message names the version found, the one needed and the remedy."""


@dataclass(frozen=True)
class ServerVersion:
    """Name and version of a server, as it reports them."""

    name: str
    text: str

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Self:
        """Name and version by section "server" of INFO, where Valkey also reports Redis 7.2.4, for compatibility."""
        if info.get("server_name") == "valkey":
            return cls("Valkey", str(info["valkey_version"]))
        return cls("Redis", str(info["redis_version"]))

    @property
    def supported(self) -> bool:
        """Whether the version is at least that of :data:`LEAST`; False if it cannot be read."""
        numbers = self.text.split(".")[:2]
        return all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= LEAST[self.name]

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


NEEDED = " or ".join(f"{name} {major}.{minor}" for name, (major, minor) in LEAST.items()) + " or newer"
REMEDY = f"upgrade it to {NEEDED}; it will use the existing data"


def require_supported(info: Mapping[str, Any], where: str) -> ServerVersion:
    """The server's version. Raises :class:`ServerVersionError` if it is too old. ``where``: its address."""
    running = ServerVersion.from_info(info)
    if not running.supported:
        raise ServerVersionError(f"{where} is {running}, and {NEEDED} is needed: {REMEDY}")
    return running
