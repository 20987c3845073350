"""HTTP: bytes on connections to the read API of ``hexveil serve``, and to the operator's port of a worker.

The port of ``hexveil push`` is in :mod:`bench.fuzzing.pushed`.
"""

from __future__ import annotations

import asyncio
import random
import re
from abc import abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import feed_config
from bench.fuzzing.mutation import NUMBERS, TEXTS, Mutator
from bench.fuzzing.releases import sound_windows
from stream.app.worker import Worker
from stream.http_server import BoundedRunner
from stream.local.server import LOOPBACK
from stream.serve.api import SERVICE, make_app
from stream.serve.reading.intake import Arrival, Intake

_PATHS = (
    "/", "/healthz", "/readyz", "/metrics", "/licences.md", "/assets/x", "/dashboard/settings",
    "/dashboard/basemap.pmtiles",
    "/api/v1/openapi.json", "/api/v1/windows?limit={}", "/api/v1/windows/{}",
    "/api/v1/hexagons?window={}&bbox={}&resolution={}&format={}",
    "/api/v1/cells/{}?limit={}", "/api/v1/histograms?limit={}", "/api/v1/histograms/{}/count?bbox={}&mechanism={}",
    "/api/v1/histograms/{}/{}",
    "/api/v1/windows/{}/other-day?day={}", "/api/v1/windows/{}/download.csv", "/api/v1/windows/{}/download.{}",
    "/api/v1/hexagons?feed={}", "/{}", "//{}", "/graph/", "/router/{}", "/stats/",
)  # fmt: skip
_ARGUMENTS = (
    *(text.encode("utf-8", "surrogatepass").decode("latin-1") for text in TEXTS if len(text) < 1000),
    *(number.decode() for number in NUMBERS), "bus",
    "2017-03-21T12:00:00Z", "2017-03-21T07:00:00-05:00", "-97.9,30.1,-97.5,30.6", "-97.8,30.2,-97.7,30.3",
    "87489e251ffffff", "ug", "euler", "json",
    "geojson", "parquet", "7", "%00", "%", "%zz", "%ff%fe", "%2e%2e%2f", "a" * 9000, "1&limit=2", "1;2", "#", "?", "*",
    "-180,-90,180,90",
)  # fmt: skip
_HEADERS = (
    "Accept-Encoding: gzip", "Accept-Encoding: gzip;q={}", "If-None-Match: *", 'If-None-Match: "{}"',
    "If-None-Match: {}", "Origin: {}", "Range: bytes={}-",
    "Last-Event-ID: {}", "Content-Length: {}", "Transfer-Encoding: chunked", "Transfer-Encoding: {}", "Connection: {}",
    "Expect: 100-continue", "Cookie: {}",
    "Host: {}", "Upgrade: websocket", "Accept: {}", "Content-Type: {}", "Access-Control-Request-Method: GET",
    "If-Modified-Since: {}", "X: " + "y" * 9000,
    "{}: {}", " folded", ":", "Content-Encoding: gzip",
)  # fmt: skip
_METHODS = (
    "GET",
    "GET",
    "GET",
    "GET",
    "HEAD",
    "OPTIONS",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "G" * 300,
    "",
)
_VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1\0", "")
_BODIES = (
    b"",
    b"",
    b"",
    b"{}",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"\0" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
)
_LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
_IDLE = 136
"""Connections that ask for nothing: more than half of those that an operator's port holds."""
_QUIET_SECONDS = 0.1
"""After so many seconds without a byte from the server, which runs in the same event loop, the client ends its side."""
_WAIT_SECONDS = 60.0
"""A connection that is neither answered nor closed for so long hangs. It is long, because the machine may be busy."""


def request(rng: random.Random, paths: tuple[str, ...]) -> bytes:
    """One request with odd arguments and headers."""

    def filled(text: str) -> str:
        return re.sub(r"\{\}", lambda _: rng.choice(_ARGUMENTS), text)

    lines = [f"{rng.choice(_METHODS)} {filled(rng.choice(paths))} {rng.choice(_VERSIONS)}"]
    lines += ["Host: x"] * (rng.random() < 0.9) + [
        filled(rng.choice(_HEADERS)) for _ in range(rng.choice((0, 0, 1, 1, 2, 4)))
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + rng.choice(_BODIES)


class Requests(Target):
    """Connections that send one to three mutated requests, and then end their side."""

    contract = "answers without a 500, or a closed connection; the next request is answered"
    paths: tuple[str, ...] = _PATHS
    idle = _IDLE
    sound, answer = _LAST, b"HTTP/1.1 200"
    """A request that is always answered, and how its answer begins."""

    def request(self, rng: random.Random) -> bytes:
        """One request, with mutations."""
        return request(rng, self.paths)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        return self

    @abstractmethod
    async def application(self) -> web.Application:
        """What is asked."""

    def runner(self, application: web.Application) -> web.AppRunner:
        """What bounds the connections."""
        return BoundedRunner(application, 2 * _IDLE - 8, 3600.0)

    async def _start(self) -> None:
        self._runner = self.runner(await self.application())
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        self._port = self._runner.addresses[0][1]

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._loop.run_until_complete(self._runner.cleanup())
        asyncio.set_event_loop(None)
        self._loop.close()

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Sixty connections, then idle ones beyond the bound, and a sound request from another address after them."""
        mutator = Mutator(rng)
        for _ in range(60):
            data = b"".join(self.request(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
            data = (mutator.octets(data) if rng.random() < 0.5 else data) + _LAST
            hunt.attempt(data, lambda sent: self._loop.run_until_complete(self._check(sent)))
        answer = self._loop.run_until_complete(self._beside_idle_ones())
        hunt.attempt(answer, self._is_sound, mutated=())

    def _is_sound(self, answer: bytes) -> None:
        assert answer.startswith(self.answer), "a sound request is no longer answered"

    async def _beside_idle_ones(self) -> bytes:
        """The answer to another address while this one holds as many connections as it may, and has tried to open
        more."""
        idle = [await asyncio.open_connection(LOOPBACK, self._port) for _ in range(self.idle)]
        try:
            return await self._exchange(self.sound, ("127.0.0.2", 0))
        finally:
            for _, writer in idle:
                writer.transport.abort()

    async def _check(self, data: bytes) -> None:
        answer = await self._exchange(data)
        for status in _STATUS.findall(answer):
            assert int(status) < 500 or status in (b"501", b"503", b"505"), f"an answer with status {int(status)}"

    async def _exchange(self, data: bytes, address: tuple[str, int] | None = None) -> bytes:
        """Everything that the server sends to ``address`` until it closes the connection."""
        async with asyncio.timeout(_WAIT_SECONDS):
            answer = bytearray()
            reader, writer = await asyncio.open_connection(LOOPBACK, self._port, local_addr=address)
            try:
                writer.write(data)
                with suppress(TimeoutError):
                    while chunk := await asyncio.wait_for(reader.read(1 << 16), _QUIET_SECONDS):
                        answer += chunk
                writer.write_eof()  # not before: a server may drop a connection whose other side has ended
                return bytes(answer) + await reader.read()
            except OSError:
                return bytes(answer)
            finally:
                writer.transport.abort()


class _Loaded:
    """A source that holds a few sound windows."""

    open_files = 0

    async def run(self, intake: Intake) -> None:
        for number, window in enumerate(sound_windows()[:2], 1):
            await intake.take([Arrival(*message, number) for message in window])
        intake.caught_up.set()
        await asyncio.Event().wait()


class PublicApi(Requests):
    """The read API and the dashboard."""

    name = "http-serve"

    async def application(self) -> web.Application:
        """The service with sound windows."""
        config = feed_config("canonical")
        public = config.public.model_copy(update={"cors_origins": ("https://a.example",)})
        served = make_app(config.model_copy(update={"public": public}), None, _Loaded())
        assert served[SERVICE].metrics
        return served


class OperatorPort(Requests):
    """Health, readiness and metrics of a worker whose Redis does not answer."""

    name = "http-operator"
    paths = (
        "/healthz",
        "/readyz",
        "/metrics",
        "/",
        "/{}",
        "/graph/",
        "/router/{}",
        "/stats/",
        "/production/",
        "/tables/{}",
        "/table/{}/{}",
    )

    async def application(self) -> web.Application:
        """The pages of the worker's Faust application, without its services."""
        site: Any = Worker(feed_config("canonical")).app.web
        self._site = site
        site.init_server()
        application: web.Application = site.web_app
        return application

    def runner(self, application: web.Application) -> web.AppRunner:
        """The worker's own."""
        runner: web.AppRunner = self._site._runner
        return runner
