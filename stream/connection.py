"""How clients reach Kafka: address, encryption and credentials as configured, in the form that aiokafka wants."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from aiokafka.helpers import create_ssl_context

from stream.config import ConfigError
from stream.config.servers import KafkaConfig


def kafka_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Keyword arguments for any aiokafka client. Raises :class:`ConfigError` for a file that cannot be used."""
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": kafka.security_protocol}
    if kafka.encrypted:
        options["ssl_context"] = tls_context(kafka)
    if kafka.authenticated:
        options |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.username,
            "sasl_plain_password": password(kafka),
        }
    return options


def password(kafka: KafkaConfig) -> str:
    """The first line of the password file; never kept in the configuration, so never shown with it."""
    assert kafka.password_file is not None
    text = _read(kafka.password_file, "kafka.password_file").splitlines()
    if not text or not text[0]:
        raise ConfigError(f"kafka.password_file {kafka.password_file} is empty; write the password into its first line")
    return text[0]


def tls_context(kafka: KafkaConfig) -> ssl.SSLContext:
    """Verifies the broker by ``ca_file`` (default: the system's authorities); shows a client certificate if there is one."""
    for name in ("ca_file", "certificate_file", "key_file"):
        path = getattr(kafka, name)
        if path is not None:
            _read(path, f"kafka.{name}")
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=None if kafka.ca_file is None else str(kafka.ca_file),
            certfile=None if kafka.certificate_file is None else str(kafka.certificate_file),
            keyfile=None if kafka.key_file is None else str(kafka.key_file),
        )
    except ssl.SSLError as error:
        raise ConfigError(
            f"kafka: the TLS files cannot be used: {error}; give PEM files that belong together"
        ) from None
    return context


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from None
