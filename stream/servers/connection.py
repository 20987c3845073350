"""Settings and starts of Kafka clients: address, encryption and credentials; and reading of secret files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
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
