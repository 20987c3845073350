"""Settings of Kafka clients from the configuration: address, encryption and credentials; and reading of secret files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from stream.config import ConfigError
from stream.config.servers import KafkaConfig, ServerConfig


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
        if path is not None:
            _read(path, f"{name}.{key}")
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
    lines = _read(path, key).splitlines()
    if not lines or not lines[0]:
        raise ConfigError(f"{key} {path} is empty; write the password into its first line")
    return lines[0]


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from None
