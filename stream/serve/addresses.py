"""Absolute addresses of the service as the client names it, also behind a proxy that ends TLS or serves it below a
path.

The client of a request and its network: costly answers and room for sending are shared among clients.
"""

from __future__ import annotations

import re
from ipaddress import ip_network

from aiohttp import web

from stream.http_server import site_of

_ONE_NETWORK = {4: 24, 6: 48}
"""Bits of an address that name the network of one operator or customer, by version of the protocol."""


def client_of(request: web.Request) -> str:
    """Who asks: the address that the connection comes from, or the IPv6 network of its site."""
    return site_of(request.remote or "")


def network_of(client: str) -> str:
    """The wider network of a client, which several clients may share."""
    try:
        network = ip_network(client)
    except ValueError:
        return client
    return str(network.supernet(new_prefix=_ONE_NETWORK[network.version]))


_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?", re.ASCII)
_PREFIX = re.compile(r"(/[A-Za-z0-9._~\-]{1,64}){1,8}", re.ASCII)


def prefix_of(request: web.Request) -> str:
    """The path below which a proxy serves everything, by X-Forwarded-Prefix, like ``/traffic``; empty without one.

    Only the client's own answer depends on it. What is no plain path counts as none.
    """
    given = request.headers.get("X-Forwarded-Prefix", "").rstrip("/")
    return given if _PREFIX.fullmatch(given) else ""


def base_of(request: web.Request) -> str:
    """Scheme, host and prefix as the client names them, for absolute links; the prefix alone where the host is odd.

    A proxy that ends TLS says so in X-Forwarded-Proto. Only the client's own answer depends on these.
    """
    if not _HOST.fullmatch(request.host):
        return prefix_of(request)
    forwarded = request.headers.get("X-Forwarded-Proto", "").lower()
    scheme = forwarded if forwarded in ("http", "https") else request.scheme
    return f"{scheme}://{request.host}{prefix_of(request)}"
