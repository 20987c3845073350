"""Settings of Kafka clients from the configuration: address, encryption and credentials; and reading of secret files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from aiokafka.helpers import create_ssl_context

from stream.config import ConfigError
from stream.config.servers import KafkaConfig, RedisConfig


def kafka_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Keyword arguments for any aiokafka client. Raises :class:`ConfigError` for a file that cannot be used."""
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": kafka.security_protocol}
    if kafka.encrypted:
        options["ssl_context"] = tls_context(kafka)
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


def tls_context(kafka: KafkaConfig) -> ssl.SSLContext:
    """Verifies the broker by ``ca_file`` (default: the system's authorities); sends a client certificate if one is configured."""
    files = tls_files(kafka, "kafka")
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=files["ca_file"], certfile=files["certificate_file"], keyfile=files["key_file"]
        )
    except ssl.SSLError as error:
        raise unusable("kafka", error) from None
    return context


def tls_files(section: KafkaConfig | RedisConfig, name: str) -> dict[str, str | None]:
    """Paths of the TLS files of a section, by their keys. Raises :class:`ConfigError` if one cannot be read."""
    files: dict[str, str | None] = {}
    for key in ("ca_file", "certificate_file", "key_file"):
        path: Path | None = getattr(section, key)
        if path is not None:
            _read(path, f"{name}.{key}")
        files[key] = None if path is None else str(path)
    return files


def unusable(name: str, error: ssl.SSLError) -> ConfigError:
    """The error to raise if the TLS files of section ``name`` do not belong together."""
    return ConfigError(f"{name}: the TLS files cannot be used: {error}; give PEM files that belong together")


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
