"""Who asks: clients, among whom costly answers and the room for sending are shared, and the networks that they are
of."""

from __future__ import annotations

from ipaddress import ip_network

from aiohttp import web

from stream.http_server import site_of

_ONE_NETWORK = {4: 24, 6: 48}
"""Bits, by version of the protocol, of an address that are of the network of one operator or of one customer of
theirs."""


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
