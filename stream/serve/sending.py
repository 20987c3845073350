"""Sends bodies to clients piece by piece, so that a client that does not read occupies little memory, and not for
long.

Who a client is, for costly answers and room for sending are shared among clients, and absolute addresses of the service
as it names them, also behind a proxy that ends TLS or serves it below a path.
"""

import asyncio
import re
import socket
from collections import Counter
from ipaddress import ip_network

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from stream.http_server import site_of

SEND_BUFFER = 32 * 1024
"""Bytes that the system and the transport each buffer for a client that does not read; the rest waits."""
STALL_SECONDS = 30.0
"""How long a client may leave one piece unread before its connection is closed."""
MAX_SENDING_BYTES = 256 << 20
"""Bytes of different bodies that may be sent at the same time; half of them to one client."""


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


async def bound_every_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Called before each answer is sent: limits how much the system and the transport buffer for its client."""
    transport = request.transport
    if transport is not None and (link := transport.get_extra_info("socket")) is not None:
        transport.set_write_buffer_limits(high=SEND_BUFFER)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


class Sending:
    """The bodies that are being sent. One that several clients read counts once.

    What a client receives counts twice where it asks for more, so that one that reads slowly leaves room for others: of
    n such clients each gets one part of n + 1, and one part stays free.
    """

    def __init__(self, max_bytes: int = MAX_SENDING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._answers: Counter[tuple[str, int, int]] = Counter()
        """How often a body is being sent to a client: by client, identity of the body, and its bytes."""

    @property
    def size(self) -> int:
        """Bytes of all different bodies that are being sent."""
        return sum({body: size for _, body, size in self._answers}.values())

    def has_room_for(self, body: bytes, client: str) -> bool:
        """Whether ``body`` may be sent to ``client`` now.

        One that fits into a buffer, or that is being sent already, always may, and one of any size if no other is.
        """
        if len(body) <= SEND_BUFFER or not self._answers or any(one == id(body) for _, one, _ in self._answers):
            return True
        received = sum(size for other, _, size in self._answers if other == client)
        return self.size + received + len(body) <= self._max_bytes

    def answer(
        self, request: web.Request, body: bytes, kind: str, headers: dict[str, str], charset: str | None = None
    ) -> web.Response:
        """An answer with ``body``, sent in pieces."""
        headers = headers | {"Content-Length": str(len(body))}
        return web.Response(body=Pieces(body, kind, request, self), content_type=kind, charset=charset, headers=headers)

    def begin(self, body: bytes, client: str) -> None:
        """Count one more answer with ``body``, to ``client``."""
        self._answers[client, id(body), len(body)] += 1

    def end(self, body: bytes, client: str) -> None:
        """Count one answer less, because ``client`` received ``body`` or disconnected."""
        key = client, id(body), len(body)
        self._answers[key] -= 1
        if not self._answers[key]:
            del self._answers[key]


class Pieces(Payload):
    """The body of an answer, written in pieces of which each has :data:`STALL_SECONDS`."""

    def __init__(self, body: bytes, content_type: str, request: web.Request, sending: Sending) -> None:
        super().__init__(body, content_type=content_type)
        self._size = len(body)
        self._request, self._sending, self._client = request, sending, client_of(request)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text."""
        body: bytes = self._value
        return body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write everything. Raises :class:`ConnectionResetError` for a client that reads too slowly, and ends it."""
        self._sending.begin(self._value, self._client)
        try:
            for first in range(0, len(self._value), SEND_BUFFER):
                async with asyncio.timeout(STALL_SECONDS):
                    await writer.write(self._value[first : first + SEND_BUFFER])
                    await writer.drain()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None
        finally:
            self._sending.end(self._value, self._client)
