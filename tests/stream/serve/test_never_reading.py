"""A client that never reads holds little of the service's memory, and not for long. Real connections."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from stream.serve import sending
from stream.serve.guards import problems
from stream.serve.responses import JSON, Answers, key_of
from stream.serve.sending import SEND_BUFFER, Sending, bound_every_answer

BODY = os.urandom(1 << 22)
CLIENTS = 20


class Large:
    """A service with one large answer; it records the connections on which it answers."""

    def __init__(self, answers: Answers | None) -> None:
        self.answers, self.transports = answers, []

    async def handler(self, request: web.Request) -> web.Response:
        self.transports.append(request.transport)
        if self.answers is None:
            return web.Response(body=BODY)
        return await self.answers.answer(request, key_of("large"), lambda: BODY, JSON, "revalidate")

    def app(self) -> web.Application:
        app = web.Application(middlewares=[problems])
        app.router.add_get("/", self.handler)
        if self.answers is not None:
            app.on_response_prepare.append(bound_every_answer)
        return app

    def held(self) -> list[int]:
        """Bytes that transport and system hold for each connection that is open."""
        sizes = []
        for transport in self.transports:
            if not transport.is_closing():
                link = transport.get_extra_info("socket")
                sizes.append(transport.get_write_buffer_size() + link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        return sizes


@asynccontextmanager
async def unread(service: Large) -> AsyncIterator[TestServer]:
    """The service with clients that sent a request and read nothing."""
    async with TestServer(service.app()) as server:
        clients = []
        for _ in range(CLIENTS):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            clients.append(client)
        try:
            async with asyncio.timeout(120):
                while sum(transport.get_write_buffer_size() > 0 for transport in service.transports) < CLIENTS:
                    await asyncio.sleep(0.05)
            yield server
        finally:
            for client in clients:
                client.close()


async def test_a_client_that_never_reads_holds_a_few_buffers_and_not_the_answer() -> None:
    service = Large(Answers())
    async with unread(service):
        sizes = service.held()
        assert len(sizes) == CLIENTS
        print("bytes held per client", max(sizes))
        assert max(sizes) <= 6 * SEND_BUFFER
        async with asyncio.timeout(120):
            assert service.answers.sending.size == len(BODY), "all are sent the same body"


async def test_an_answer_written_at_once_is_held_whole_for_each_client() -> None:
    """Planted bug: the whole body is handed to the transport at once."""
    service = Large(None)
    async with unread(service):
        print("bytes held per client", max(service.held()))
        assert min(service.held()) > len(BODY) * 3 // 4


async def test_a_client_that_does_not_read_loses_its_connection_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "STALL_SECONDS", 1.0)
    service = Large(Answers())
    async with unread(service) as server:
        async with TestClient(server) as client:
            assert await (await client.get("/")).read() == BODY
        async with asyncio.timeout(120):
            while service.held():
                await asyncio.sleep(0.05)
        assert service.answers.sending.size == 0, "nothing is on its way any more"


async def test_answers_beyond_what_may_be_on_its_way_are_refused_until_there_is_room() -> None:
    answers = Answers()
    answers.sending = Sending(max_bytes=len(BODY) + 100)
    service = Large(answers)
    async with TestClient(TestServer(service.app())) as client:
        other = b"x" * len(BODY)
        answers.sending.begin(other, "192.0.2.1")
        refused = await client.get("/")
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "30"
        answers.sending.end(other, "192.0.2.1")
        assert await (await client.get("/")).read() == BODY
        head = await client.head("/", headers={"Accept-Encoding": "identity"})
        assert (head.status, head.headers["Content-Length"]) == (200, str(len(BODY)))


def test_a_client_that_reads_slowly_leaves_room_for_others() -> None:
    sending, bodies = Sending(max_bytes=6_000_000), [bytes([number]) * 1_000_000 for number in range(9)]
    for body in bodies[:3]:
        assert sending.has_room_for(body, "slow")
        sending.begin(body, "slow")
    assert not sending.has_room_for(bodies[3], "slow"), "half of the room is the most that one client gets"
    assert sending.has_room_for(bodies[0], "slow"), "what is being sent already takes no more"
    for body in bodies[3:5]:
        assert sending.has_room_for(body, "other")
        sending.begin(body, "other")
    assert not sending.has_room_for(bodies[5], "other")
    assert sending.has_room_for(bodies[5], "third"), "two that read slowly leave a third"
    for body, client in zip(bodies, ["slow"] * 3 + ["other"] * 2, strict=False):
        sending.end(body, client)
    assert sending.size == 0
    assert all(sending.has_room_for(bytes(6_000_000), client) for client in ("slow", "other"))


def test_what_fits_into_a_buffer_may_be_sent_however_much_is_on_its_way() -> None:
    sending = Sending(max_bytes=len(BODY))
    sending.begin(BODY, "slow")
    assert sending.has_room_for(bytes(SEND_BUFFER), "slow")
    assert not sending.has_room_for(bytes(SEND_BUFFER + 1), "other")
