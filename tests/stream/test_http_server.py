"""Whoever opens connections and asks for nothing keeps nobody else out. Real sockets; 127.0.0.2 is another address of
this machine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from stream.http_server import BoundedRunner
from stream.local import LOOPBACK

EXPECTING = b"GET %s HTTP/1.1\r\nHost: x\r\nExpect: %s\r\n\r\n"
ASKED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(most: int, idle_seconds: float, answer_after: float = 0.0) -> AsyncIterator[int]:
    """The port of a server that answers every request."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(answer_after)
        return web.Response(text="here")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = BoundedRunner(application, most, idle_seconds)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def connect(port: int, count: int, address: str = LOOPBACK) -> list[Link]:
    return [await asyncio.open_connection(LOOPBACK, port, local_addr=(address, 0)) for _ in range(count)]


async def open_of(links: list[Link], seconds: float = 0.2) -> int:
    """How many of the connections the server has not closed by then."""
    await asyncio.sleep(seconds)
    return sum(not reader.at_eof() and reader.exception() is None for reader, _ in links)


async def answered(link: Link) -> bool:
    reader, writer = link
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(20):
            writer.write(ASKED)
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
    return False


async def test_an_address_has_at_most_half_of_the_connections_and_others_are_answered() -> None:
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with served(8, 3600) as port:
        links = await connect(port, 20)
        assert await open_of(links) == 4
        others = [await answered(link) for link in await connect(port, 5, "127.0.0.2")]
        assert others == [True] * 4 + [False]
        for _, writer in links:
            writer.transport.abort()
        await asyncio.sleep(0.1)
        assert await answered((await connect(port, 1))[0])
        gc.collect()
        assert not faults, "each refused connection would be a traceback in the log"


@pytest.mark.parametrize("sent", [b"", ASKED[:20], ASKED], ids=["nothing", "half a head", "a request long ago"])
async def test_a_connection_that_asks_for_nothing_is_closed(sent: bytes) -> None:
    async with served(8, 0.3) as port:
        (link,) = await connect(port, 1)
        link[1].write(sent)
        async with asyncio.timeout(20):
            await link[0].read()


async def test_a_request_that_takes_longer_than_an_idle_connection_may_is_answered() -> None:
    async with served(8, 0.2, answer_after=0.8) as port:
        assert await answered((await connect(port, 1))[0])


@pytest.mark.parametrize("path", [b"/", b"/nowhere"])
async def test_what_a_server_cannot_be_expected_to_do_is_refused_without_a_word_of_it_and_fills_no_log(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp answered bytes that are no text with 500 and a traceback."""
    async with served(8, 3600) as port:
        for expected in (b"\xe9\xff", "é".encode(), b"200-ok"):
            (link,) = await connect(port, 1)
            link[1].write(EXPECTING % (path, expected))
            answer = await link[0].read()
            assert answer.startswith(b"HTTP/1.1 417 ")
            assert expected not in answer
        (link,) = await connect(port, 1)
        link[1].write(EXPECTING % (path, b"100-Continue"))
        assert await link[0].readline() == b"HTTP/1.1 100 Continue\r\n"
    assert not caplog.records
