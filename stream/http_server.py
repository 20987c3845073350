"""HTTP servers whose connections are bounded: how many, how many from one address, and how long without a request.

A connection costs an open file, whether it asks for anything or not. Without bounds, whoever opens enough of them keeps
all others out, and the process itself from files and servers that it needs.
"""

import asyncio
import errno
import os
import resource
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

log = structlog.get_logger()

OTHER_FILES = 256
"""Open files that a process needs besides its connections."""
_CONTINUE = "100-continue"
"""What any request may expect of a server (RFC 9110, 10.1.1)."""
_ONE_SITE = 64
"""Bits of an IPv6 address that are of a site: whoever has one address of it has them all."""


def site_of(address: str) -> str:
    """An address, or the IPv6 network of its site; empty if it is none."""
    try:
        known = ip_address(address)
    except ValueError:
        return ""
    if isinstance(known, IPv6Address):
        return str(known.ipv4_mapped or IPv6Network((known, _ONE_SITE), strict=False))
    return str(known)


def allow_files(needed: int) -> int:
    """Raise this process's limit of open files to ``needed``; warn if the system forbids it. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return soft
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        remedy = f"raise it (ulimit -Hn {needed}, LimitNOFILE={needed})"
        log.warning("limit of open files is too low", limit=allowed, needed=needed, remedy=remedy)
    return allowed


class _Connections:
    """The open connections of a server. One beyond the bounds is closed before a byte of it is read."""

    def __init__(self, server: web.Server, most: int) -> None:
        self._server, self._most = server, most
        self._site: dict[web.RequestHandler, str] = {}
        self._of_site: Counter[str] = Counter()

    def made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        web.Server.connection_made(self._server, handler, transport)
        site = site_of(str((transport.get_extra_info("peername") or ("",))[0]))
        if len(self._site) >= self._most or self._of_site[site] >= self._most // 2:
            # After the handler's own start, which fails with a traceback if its connection is gone by then.
            asyncio.get_running_loop().call_soon(transport.abort)
            return
        self._site[handler] = site
        self._of_site[site] += 1

    def lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        web.Server.connection_lost(self._server, handler, exc)
        site = self._site.pop(handler, None)
        if site is None:
            return
        self._of_site[site] -= 1
        if not self._of_site[site]:
            del self._of_site[site]


def _refusing_expectations(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> Any:
    """``handler`` behind a refusal of what a request expects besides 100-continue: aiohttp's own quotes the header, and
    fails with a traceback in the log where it is not text."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", _CONTINUE).lower() == _CONTINUE:
            return await handler(request)
        refusal = web.Response(status=417, text=f"Expect: the server knows {_CONTINUE} only; leave the header out")
        refusal.force_close()  # whether a body follows is unknown
        return refusal

    return handle


class BoundedRunner(web.AppRunner):
    """Runs an application with at most ``most`` connections, half of them from one address.

    Both are lower where the system allows fewer open files. A connection that has sent no whole request, or none since
    its last one, is closed after ``idle_seconds``.
    """

    def __init__(self, app: web.Application, most: int, idle_seconds: float, other_files: int = OTHER_FILES) -> None:
        """``other_files``: that the process needs besides."""
        super().__init__(app, access_log=None, keepalive_timeout=idle_seconds)
        self._most, self._other_files = most, other_files

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        limit = allow_files(self._most + self._other_files)
        connections = _Connections(server, max(2, min(self._most, limit - self._other_files)))
        # Handlers call these two at the begin and the end of a connection; aiohttp has no other place to bound their
        # number.
        server.connection_made = connections.made  # type: ignore[method-assign]
        server.connection_lost = connections.lost  # type: ignore[method-assign]
        server.request_handler = _refusing_expectations(server.request_handler)
        return server


async def serve_until(
    stopping: asyncio.Event, runner: web.AppRunner, at: tuple[str, int] | Path, backlog: int = 128
) -> None:
    """Serve what ``runner`` holds until ``stopping`` is set. Raises :class:`OSError` if it cannot listen.

    ``at``: host and port, or a Unix socket to make, to which its owner and its group alone may connect.
    """
    await runner.setup()
    try:
        if isinstance(at, Path):
            await _refuse_to_replace(at)
            await web.UnixSite(runner, at, backlog=backlog).start()
            at.chmod(0o660)
        else:
            await web.TCPSite(runner, *at, backlog=backlog).start()
        await stopping.wait()
    finally:
        await runner.cleanup()


async def _refuse_to_replace(socket: Path) -> None:
    """Raise :class:`OSError` if another process listens at ``socket``; one that ended leaves it."""
    with suppress(ConnectionRefusedError, FileNotFoundError):
        _, writer = await asyncio.open_unix_connection(socket)
        writer.close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
