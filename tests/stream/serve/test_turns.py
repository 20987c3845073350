"""Costly answers wait in a bounded queue that no single client can close to the others. Bodies are made and compressed
one after the other, and kept within bounds. A client that never reads holds little of the service's memory, and not for
long. Real connections."""

import asyncio
import contextlib
import gzip
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from stream.serve import sending
from stream.serve.guards import problems
from stream.serve.responses import JSON, Answers, Problem, Turns, key_of
from stream.serve.sending import SEND_BUFFER, Sending, bound_every_answer, client_of
from tests.stream.serve.serving import unreading
from tests.support.feeding import until_true


def request_of(remote: str | None) -> web.Request:
    return make_mocked_request("GET", "/").clone(remote=remote)


FIRST, FLOOD, ANN, BOB, CEM, DEE = (f"192.0.{network}.1" for network in range(6))
"""Clients of different networks."""


@asynccontextmanager
async def turn_of(turns: Turns, client: str) -> AsyncIterator[None]:
    """A turn to make an answer that nobody else wants."""
    async with turns.unless_kept(request_of(client), uuid.uuid4().hex, Answers()):
        yield


@asynccontextmanager
async def occupied(turns: Turns) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Somebody has the turn until the function is called."""
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(turn_of(turns, FIRST))
        yield turn.aclose


async def asked(turns: Turns, client: str, served: list[str]) -> asyncio.Task[None]:
    async def work() -> None:
        async with turn_of(turns, client):
            served.append(client)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    return task


async def refused(tasks: list[asyncio.Task[None]]) -> int:
    """How many of the requests were answered with 503."""
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    problems = [answer for answer in answers if isinstance(answer, Problem)]
    assert all(problem.status == 503 and problem.headers["Retry-After"] == "5" for problem in problems)
    return len(problems)


Crowd = tuple[int, list[str], list[str]]
"""How many may have a turn or wait, the clients in the order in which they ask, and those that are served."""


def of_one_network(address: str, most: int, *others: str) -> Crowd:
    """Clients of one network fill the queue before ``others`` come, and one more of them afterwards."""
    flood = [address.format(number) for number in range(1, most + 2)]
    return most, [*flood[:-1], *others, flood[-1]], [*flood[: most - len(others) - 1], *others]


CROWDS: dict[str, Crowd] = {
    "a flood": (8, [FLOOD] * 50 + [ANN, BOB, ANN], [FLOOD, ANN, BOB, FLOOD, ANN, FLOOD, FLOOD]),
    "equals": (4, [ANN, BOB, CEM, DEE, ANN], [ANN, BOB, CEM]),
    "a few of IPv6": of_one_network("2001:db8:0:{}::1", 4, "2001:db8:1::1", "192.0.2.1"),
    "many of IPv6": of_one_network("2001:db8:0:{}::1", 16, "2001:db8:1::1", "192.0.2.1"),
    "a few of IPv4": of_one_network("192.0.2.{}", 4, "198.51.100.1", "2001:db8:1::1"),
    "many of IPv4": of_one_network("192.0.2.{}", 16, "198.51.100.1", "2001:db8:1::1"),
}


@pytest.mark.parametrize(("most", "asking", "expected"), CROWDS.values(), ids=CROWDS)
async def test_clients_take_turns_and_where_the_queue_is_full_who_or_whose_network_has_most_gives_way_at_once(
    most, asking, expected
):
    turns, served = Turns("things", most, 5), []
    async with occupied(turns) as pass_on:
        tasks = [await asked(turns, client, served) for client in asking]
        await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) == len(asking) - len(expected)
        await pass_on()
        assert await refused(tasks) == len(asking) - len(expected)
    assert served == expected


@pytest.mark.parametrize("something_else_is_made", [False, True])
async def test_requests_for_one_answer_share_one_turn_and_all_get_it(something_else_is_made):
    turns, answers, made = Turns("things", 4, 5), Answers(), []

    def make() -> bytes:
        made.append(1)
        return b"{}"

    async def ask(number: int) -> int:
        return (await turns.answer(answers, request_of(f"198.51.{number}.1"), "key", make, JSON)).status

    async with occupied(turns) if something_else_is_made else nullcontext() as pass_on:
        tasks = [asyncio.create_task(ask(number)) for number in range(40)]
        await asyncio.sleep(0)
        rest = [await asked(turns, name, []) for name in (ANN, BOB)]
        if pass_on:
            await pass_on()
        assert [*await asyncio.gather(*tasks)] == [200] * 40
        assert await refused(rest) == 0
    assert len(made) == 1


async def test_where_the_one_that_waits_goes_away_the_next_that_wants_the_answer_takes_its_place():
    turns, answers = Turns("things", 4, 5), Answers()

    async def ask() -> int:
        return (await turns.answer(answers, request_of(ANN), "key", lambda: b"{}", JSON)).status

    async with occupied(turns) as pass_on:
        first, *others = [asyncio.create_task(ask()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await gone(first)
        await pass_on()
        async with asyncio.timeout(5):
            assert [*await asyncio.gather(*others)] == [200, 200]


async def test_a_request_that_goes_away_leaves_its_place_and_its_turn_to_others():
    turns, served = Turns("things", 3, 5), []
    async with occupied(turns) as pass_on:
        left, stays = await asked(turns, ANN, served), await asked(turns, BOB, served)
        left.cancel()
        await gone(left)
        late = await asked(turns, CEM, served)
        assert not late.done()
        await pass_on()
        stays.cancel()  # as its turn comes
        await gone(stays)
        await asyncio.wait_for(late, 5)
    async with asyncio.timeout(5), turn_of(turns, DEE):
        served.append(DEE)
    assert served[-2:] == [CEM, DEE]


async def gone(task: Awaitable[object]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("failing", [ValueError, asyncio.CancelledError])
async def test_work_that_fails_passes_its_turn_on(failing):
    turns = Turns("things", 2, 5)
    for _ in range(3):
        with pytest.raises(failing):
            async with turn_of(turns, ANN):
                raise failing


@pytest.mark.parametrize(
    ("remote", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("/run/serve.sock", ""),
        (None, ""),
    ],
)
def test_a_client_is_an_address_or_the_network_of_its_site(remote, client):
    assert client_of(request_of(remote)) == client


LARGE = 1 << 17
"""Bytes of a body that is not compressed in the event loop."""


async def test_each_body_is_compressed_before_the_next_one_is_made(monkeypatch):
    steps: list[str] = []
    compress = gzip.compress

    def noted(*given: bytes, **how: int) -> bytes:
        steps.append("compressed")
        return compress(*given, **how)

    def make(content: bytes) -> bytes:
        steps.append("made")
        return content

    monkeypatch.setattr(gzip, "compress", noted)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    answers, request = Answers(), make_mocked_request("GET", "/")
    bodies = [os.urandom(LARGE) for _ in range(8)]
    await asyncio.gather(
        *(answers.answer(request, str(number), partial(make, body), JSON) for number, body in enumerate(bodies))
    )
    assert steps == ["made", "compressed"] * len(bodies)


async def test_a_small_body_that_is_there_already_waits_for_no_thread():
    end, executor = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    busy = executor.submit(end.wait)
    try:
        answers, request = Answers(), make_mocked_request("GET", "/", headers={"Accept-Encoding": "gzip"})
        async with asyncio.timeout(60):
            first = await answers.ready(request, b"x" * 2000, JSON)
            again = await answers.ready(request, b"x" * 2000, JSON)
        assert first.headers["Content-Encoding"] == "gzip"
        assert first.headers["ETag"] == again.headers["ETag"]
        assert not busy.done()
    finally:
        end.set()


async def test_very_many_small_bodies_take_no_more_than_a_few_large_ones():
    answers, request = Answers(max_bytes=1 << 20), make_mocked_request("GET", "/")
    keys = [str(number) for number in range(5_000)]
    for key in keys:
        await answers.ready(request, key.encode(), JSON, key)
    assert sum(key in answers for key in keys) <= 1 << 10
    assert keys[-1] in answers


BODY = os.urandom(1 << 22)
CLIENTS = 20


class Large:
    """A service with one large answer; it records the connections on which it answers."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.transports = answers, []

    async def handler(self, request: web.Request) -> web.Response:
        self.transports.append(request.transport)
        return await self.answers.answer(request, key_of("large"), lambda: BODY, JSON)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[problems])
        app.router.add_get("/", self.handler)
        app.on_response_prepare.append(bound_every_answer)
        return app

    def held(self) -> list[int]:
        """Bytes that transport and system hold for each connection that is open."""
        return [
            one.get_write_buffer_size() + one.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            for one in self.transports
            if not one.is_closing()
        ]


@asynccontextmanager
async def unread(service: Large) -> AsyncIterator[TestServer]:
    """The service with clients that sent a request and read nothing."""
    async with TestServer(service.app()) as server:
        clients = [unreading(server.port, "/") for _ in range(CLIENTS)]
        try:
            await until_true(lambda: sum(one.get_write_buffer_size() > 0 for one in service.transports) == CLIENTS)
            yield server
        finally:
            for client in clients:
                client.close()


async def test_a_client_that_never_reads_holds_a_few_buffers_and_not_the_answer():
    service = Large(Answers())
    async with unread(service):
        sizes = service.held()
        assert len(sizes) == CLIENTS
        assert max(sizes) <= 6 * SEND_BUFFER
        assert service.answers.sending.size == len(BODY), "all are sent the same body"


async def test_a_client_that_does_not_read_loses_its_connection_and_others_are_served(monkeypatch):
    monkeypatch.setattr(sending, "STALL_SECONDS", 1.0)
    service = Large(Answers())
    async with unread(service) as server:
        async with TestClient(server) as client:
            assert await (await client.get("/")).read() == BODY
        await until_true(lambda: not service.held())
        assert service.answers.sending.size == 0, "nothing is on its way any more"


async def test_answers_beyond_what_may_be_on_its_way_are_refused_until_there_is_room():
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


def test_a_client_that_reads_slowly_leaves_room_for_others():
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


def test_what_fits_into_a_buffer_may_be_sent_however_much_is_on_its_way():
    sending = Sending(max_bytes=len(BODY))
    sending.begin(BODY, "slow")
    assert sending.has_room_for(bytes(SEND_BUFFER), "slow")
    assert not sending.has_room_for(bytes(SEND_BUFFER + 1), "other")
