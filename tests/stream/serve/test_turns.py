"""Costly answers wait in a bounded queue that no single client can close to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext

import pytest
from aiohttp.test_utils import make_mocked_request

from stream.serve.addresses import client_of
from stream.serve.responses import JSON, Answers, Problem, Turns


@asynccontextmanager
async def occupied(turns: Turns) -> AsyncIterator[asyncio.Event]:
    """Somebody has the turn until the event is set."""
    done, begun = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with turns.take("first"):
            begun.set()
            await done.wait()

    task = asyncio.create_task(work())
    await begun.wait()
    yield done
    done.set()
    await task


async def asked(turns: Turns, client: str, served: list[str]) -> asyncio.Task[None]:
    async def work() -> None:
        async with turns.take(client):
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


async def test_a_flood_fills_the_queue_alone_and_gives_way_to_whoever_comes_with_less() -> None:
    turns, served = Turns("things", 8, 5), []
    async with occupied(turns) as done:
        flood = [await asked(turns, "flood", served) for _ in range(50)]
        assert sum(task.done() for task in flood) == 43, "seven wait behind the one at work"
        honest = [await asked(turns, name, served) for name in ("ann", "bob", "ann")]
        done.set()
        assert await refused(honest) == 0
        assert await refused(flood) == 46
    assert served == ["flood", "ann", "bob", "flood", "ann", "flood", "flood"], "and clients take turns"


async def test_among_equals_the_queue_refuses_who_comes_last() -> None:
    turns, served = Turns("things", 4, 5), []
    async with occupied(turns) as done:
        tasks = [await asked(turns, name, served) for name in ("ann", "bob", "cem", "dee")]
        assert tasks[3].done()
        again = await asked(turns, "ann", served)
        done.set()
        assert await refused([*tasks, again]) == 2
    assert served == ["ann", "bob", "cem"]


@pytest.mark.parametrize(
    ("flooding", "others"),
    [
        ("2001:db8:0:{}::/64", ("2001:db8:1::/64", "192.0.2.1")),
        ("192.0.2.{}", ("198.51.100.1", "2001:db8:1::/64")),
    ],
)
@pytest.mark.parametrize("most", [4, 16])
async def test_among_equals_a_network_that_has_most_gives_way(
    flooding: str, others: tuple[str, ...], most: int
) -> None:
    turns, served = Turns("things", most, 5), []
    async with occupied(turns) as done:
        flood = [await asked(turns, flooding.format(number), served) for number in range(1, most + 1)]
        honest = [await asked(turns, name, served) for name in others]
        again = await asked(turns, flooding.format(most + 1), served)
        done.set()
        assert await refused(honest) == 0
        assert await refused([*flood, again]) == len(others) + 2
    assert served == [flooding.format(number) for number in range(1, most - len(others))] + list(others)


@pytest.mark.parametrize("something_else_is_made", [False, True])
async def test_requests_for_one_answer_share_one_turn_and_all_get_it(something_else_is_made: bool) -> None:
    turns, answers, made = Turns("things", 4, 5), Answers(), []

    def make() -> bytes:
        made.append(1)
        return b"{}"

    async def ask(number: int) -> int:
        request = make_mocked_request("GET", "/").clone(remote=f"192.0.{number}.1")
        async with turns.unless_kept(request, "key", answers):
            return (await answers.answer(request, "key", make, JSON, "revalidate")).status

    async with occupied(turns) if something_else_is_made else nullcontext() as done:
        tasks = [asyncio.create_task(ask(number)) for number in range(40)]
        await asyncio.sleep(0)
        rest = [await asked(turns, name, []) for name in ("ann", "bob")]
        if done:
            done.set()
        assert [*await asyncio.gather(*tasks)] == [200] * 40
        assert await refused(rest) == 0
    assert len(made) == 1


async def test_where_the_one_that_waits_goes_away_the_next_that_wants_the_answer_takes_its_place() -> None:
    turns, answers = Turns("things", 4, 5), Answers()

    async def ask() -> int:
        request = make_mocked_request("GET", "/").clone(remote="192.0.2.1")
        async with turns.unless_kept(request, "key", answers):
            return (await answers.answer(request, "key", lambda: b"{}", JSON, "revalidate")).status

    async with occupied(turns) as done:
        first, *others = [asyncio.create_task(ask()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await gone(first)
        done.set()
        async with asyncio.timeout(5):
            assert [*await asyncio.gather(*others)] == [200, 200]


async def test_a_request_that_goes_away_leaves_its_place_and_its_turn_to_others() -> None:
    turns, served = Turns("things", 3, 5), []
    async with occupied(turns) as done:
        left, stays = await asked(turns, "ann", served), await asked(turns, "bob", served)
        left.cancel()
        await gone(left)
        late = await asked(turns, "cem", served)
        assert not late.done()
        done.set()
        await asyncio.sleep(0)
        stays.cancel()  # as its turn comes
        await gone(stays)
        await asyncio.wait_for(late, 5)
    async with asyncio.timeout(5), turns.take("dee"):
        served.append("dee")
    assert served[-2:] == ["cem", "dee"]


async def gone(task: Awaitable[object]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("failing", [ValueError, asyncio.CancelledError])
async def test_work_that_fails_passes_its_turn_on(failing: type[BaseException]) -> None:
    turns = Turns("things", 2, 5)
    for _ in range(3):
        with pytest.raises(failing):
            async with turns.take("ann"):
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
def test_a_client_is_an_address_or_the_network_of_its_site(remote: str | None, client: str) -> None:
    assert client_of(make_mocked_request("GET", "/").clone(remote=remote)) == client
