"""Addresses of servers: checks host names and ports, and that no two servers share an address."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from itertools import combinations, product
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_EVERY_ADDRESS = {"0.0.0.0", "::"}


class Address(NamedTuple):
    """Where a server listens, and the key of the configuration that sets it."""

    key: str
    host: str
    port: int


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


def check_apart(ours: Sequence[Address], servers: Sequence[Address]) -> None:
    """Raise :class:`ValueError` if two of ``ours`` share a port of one machine, or if one is the port of a server."""
    for one, other in (*combinations(ours, 2), *product(ours, servers)):
        if one.port == other.port != 0 and _one_machine(one.host, other.host):
            raise ValueError(
                f"{one.key} and {other.key} both take port {one.port} of this machine, where only one server can "
                "listen; "
                "choose another port for one of them"
            )


def _one_machine(one: str, other: str) -> bool:
    one, other = ("127.0.0.1" if host == "localhost" else host for host in (one, other))
    return one == other or bool({one, other} & _EVERY_ADDRESS and _is_local(one) and _is_local(other))


def _is_local(host: str) -> bool:
    try:
        return host in _EVERY_ADDRESS or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
