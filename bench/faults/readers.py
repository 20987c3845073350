"""Clients of the public service that misbehave: they ask for everything and do not read it."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from bench.faults.site import Site
from stream.local.server import LOOPBACK

_CLIENTS = 60
_ASKED = (b"/api/v1/stream", b"/api/v1/windows", b"/metrics")


def _ask(port: int, number: int) -> socket.socket | None:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(2)
    try:
        link.connect((LOOPBACK, port))
        link.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % _ASKED[number % len(_ASKED)])
    except OSError:
        link.close()
        return None
    return link


def readers_that_never_read(site: Site, seconds: float) -> None:
    """Sixty clients that ask and read nothing for ``seconds``. Raises :class:`RuntimeError` if others get no answer."""
    assert site.public is not None
    links = [_ask(site.public.port, number) for number in range(_CLIENTS)]
    time.sleep(seconds)
    _must_answer(site)
    for link in links:
        if link is not None:
            link.close()


def dead_readers(site: Site) -> None:
    """Sixty clients that reset their connection. Raises :class:`RuntimeError` if others get no answer."""
    assert site.public is not None
    for number in range(_CLIENTS):
        link = _ask(site.public.port, number)
        if link is not None:
            with suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
    _must_answer(site)


def _must_answer(site: Site) -> None:
    assert site.public is not None
    deadline = time.time() + 30
    while not site.public.is_ready():
        if time.time() > deadline:
            raise RuntimeError("the public service does not answer")
        time.sleep(0.2)
