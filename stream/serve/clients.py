"""The client of a request and its network: costly answers and room for sending are shared among clients."""

from __future__ import annotations

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
