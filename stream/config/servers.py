"""Sections ``[kafka]``, ``[redis]``, ``[operator]`` and ``[public]``: the servers that are used and the addresses to
serve.

Addresses of servers: checks host names and ports.
"""

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from stream.config.alerts import AlertRule, WebhookConfig
from stream.config.section import Section

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def known_host(host: str) -> str:
    """``host`` if it is an IP address or a DNS name. Underscores are allowed because names of containers have them.

    Raises :class:`ValueError` for other text.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        labels = host.removesuffix(".").split(".")
        if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
            raise ValueError(f"{host!r} is neither an IP address nor a host name; write one like '127.0.0.1'") from None
    return host


def host_and_port(text: str) -> tuple[str, int]:
    """``host:port``, IPv6 addresses in brackets. Raises :class:`ValueError` with the remedy."""
    host, separator, port = text.rpartition(":")
    if not separator or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text!r} has no port; write host:port, like '127.0.0.1:9092' or '[::1]:9092'")
    if not port.isdecimal() or not 0 < int(port[:9]) < 65_536:
        raise ValueError(f"port {port!r} of {text!r} is not a number from 1 to 65535; write one like '127.0.0.1:9092'")
    return known_host(host.removeprefix("[").removesuffix("]")), int(port)


def redacted(url: str) -> str:
    """``url``, or a text that quotes one, without user, password and the values of its query; fit to be shown."""
    without_user = re.sub(r"(?<=://).*@", "***@", url)
    address, mark, query = without_user.partition("?")
    return address + mark + re.sub(r"(?<==)[^&#\s]*|^[^=&#\s]+(?=&|#|\s|$)", "***", query)


Host = Annotated[str, AfterValidator(known_host)]
Port = Annotated[int, Field(ge=0, le=65_535)]


def _nodes(text: str) -> str:
    for node in text.split(","):
        host_and_port(node.strip())
    return text


def _redis_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(
            f"the port of {redacted(url)!r} is not a number; write an address like 'redis://127.0.0.1:6379/0'"
        ) from None
    if parts.scheme == "unix":
        return url
    known_host(parts.hostname or "")
    if port == 0 or not re.fullmatch(r"(/\d{0,9})?", parts.path):
        raise ValueError(
            f"{redacted(url)!r} has no valid port or database; write both, like 'redis://127.0.0.1:6379/0'"
        )
    return url


class ServerConfig(Section):
    """TLS and login for connections to a server. ``ca_file``: the authority that signs its certificate; default: the
    system's.
    """

    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        raise NotImplementedError

    def check_tls_files(self, refusal: str) -> None:
        """Raise :class:`ValueError` if TLS files are given but not used, with ``refusal``, or if one of a pair is
        missing."""
        if not self.encrypted and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError(refusal)
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together; give both or neither")


class KafkaConfig(ServerConfig):
    """Brokers, consumer group, encryption and credentials."""

    bootstrap: Annotated[str, AfterValidator(_nodes)] = "127.0.0.1:9092"
    group: str = Field(
        default="hexveil-worker", min_length=1, max_length=249, description="a name in quotes, like 'hexveil-worker'"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def authenticated(self) -> bool:
        """Whether connections log in by SASL."""
        return self.security_protocol.startswith("SASL_")

    def _problems(self) -> Iterator[str]:
        if self.authenticated != (self.username is not None and self.password_file is not None):
            yield (
                f"security_protocol {self.security_protocol} {'needs' if self.authenticated else 'takes no'} username "
                "and password_file; give both with SASL_SSL or SASL_PLAINTEXT, neither otherwise"
            )
        self.check_tls_files(f"security_protocol {self.security_protocol} uses no TLS files; set it to SSL or SASL_SSL")


class RedisConfig(ServerConfig):
    """The Redis that holds state and ledger, and the credentials for it.

    ``cluster``: further nodes of a Redis Cluster of which ``url`` names one; empty for a server that is no part of a
    cluster. Clients learn the other nodes from whichever of these answers.
    """

    url: Annotated[str, AfterValidator(_redis_address)] = Field(
        default="redis://127.0.0.1:6379/0",
        pattern=r"^(redis|rediss|unix)://",
        description="an address like 'redis://127.0.0.1:6379/0', 'rediss://redis.example:6380/0' or "
        "'unix:///run/redis.sock'",
    )
    username: str | None = Field(default=None, min_length=1)
    cluster: tuple[Annotated[str, AfterValidator(_nodes)], ...] = ()

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.url.startswith("rediss://")

    def _problems(self) -> Iterator[str]:
        if self.cluster and (self.url.startswith("unix://") or urlsplit(self.url).path not in ("", "/", "/0")):
            yield (
                f"cluster names nodes of a Redis Cluster, which has hosts and database 0 only; write a url like "
                f"'redis://127.0.0.1:6379/0' instead of {redacted(self.url)!r}, or leave cluster out"
            )
        parts = urlsplit(self.url)
        in_url = parts.username is not None or parts.password is not None or "password=" in parts.query
        if in_url and (self.username is not None or self.password_file is not None):
            yield (
                "url holds credentials, and so do username and password_file; remove them from the url, which "
                "whoever lists the processes' environment can read"
            )
        if self.username is not None and self.password_file is None:
            yield f"username {self.username} has no password_file; name the file that holds its password"
        self.check_tls_files(f"{redacted(self.url)!r} uses no TLS files; write an address that begins with rediss://")


class SurfaceConfig(Section):
    """Address of an HTTP server of Hexveil."""

    host: Host = "127.0.0.1"
    port: Port


MapKind = Literal["live", "typical"]
"""What a map is for: to show what is, or what is typical of the hour."""


class PublicConfig(SurfaceConfig):
    """The public server: its address, the sites whose pages may read or embed it, its limits, and its alerts.

    ``cors_origins``: whose pages may read the API from a browser. ``frame_ancestors``: whose pages may show the
    dashboard in a frame; none by default. ``places``: file that ``hexveil gtfs`` wrote; ``areas``: GeoJSON file of
    named polygons; ``streets``: GeoJSON file of lines and points to colour; ``basemap``: PMTiles archive to draw under
    the hexagons. ``socket``: Unix socket to listen on, in place of host and port. ``map``: what the page opens on, the
    estimates of each window or what is typical of its hour.
    """

    socket: Path | None = None

    cors_origins: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    max_windows: int = Field(default=840, ge=1, le=1_000_000)
    map: MapKind = "live"
    places: Path | None = None
    areas: Path | None = None
    streets: Path | None = None
    basemap: Path | None = None
    alerts: tuple[AlertRule, ...] = Field(default=(), max_length=32)
    webhook: WebhookConfig | None = None

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        return f"http://{self.host}:{self.port}/" if self.socket is None else f"unix:{self.socket}"

    def _problems(self) -> Iterator[str]:
        names = [rule.name for rule in self.alerts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"alerts: more than one rule is named {', '.join(twice)}; give each a name of its own"
        if self.webhook is not None and not self.alerts:
            yield "webhook without alerts would never be told anything; give rules, or leave it out"
        for name, origins in (("cors_origins", self.cors_origins), ("frame_ancestors", self.frame_ancestors)):
            for origin in origins:
                if origin != "*" and not re.fullmatch(r"https?://[a-z0-9.-]+(:\d{1,5})?", origin):
                    yield (
                        f"{name} names {origin!r}, which is not an origin; write scheme, host and port only, "
                        "like 'https://maps.example.org', or '*' for every site"
                    )
