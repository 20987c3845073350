"""Costly answers are made one at a time, so that many requests at once cannot fill memory or processor."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from stream.serve.addresses import client_of, network_of
from stream.serve.responses import Answers, Problem

MOST_WAITING = 64
"""Answers of one kind that may be made or wait at the same time, where the kind has no bound of its own."""
RETRY_SECONDS = 5
"""After how long whoever was refused may try again, where the kind has no time of its own."""


class Turns:
    """A queue of bounded length before one kind of answer, in which clients take turns.

    One client may fill the queue. Where it is full, whoever has fewer requests in it than another takes the place of
    that one's newest. Among equals, whoever is of a network with fewer requests takes a place of the network that has
    most. Limit: whoever has addresses in as many networks as the queue has places can still close it to all others.
    """

    def __init__(self, kind: str, most: int, retry_seconds: int = RETRY_SECONDS) -> None:
        """``kind``: what is asked for, in the plural. ``most`` may have a turn or wait; others may try later."""
        self._kind, self._most, self._retry_seconds = kind, most, retry_seconds
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Places in the queue by client, those of the next one first."""
        self._sought: dict[str, asyncio.Event] = {}
        """Keys of the answers for which a request waits here; set when it has its turn or leaves."""

    async def answer(
        self,
        answers: Answers,
        request: web.Request,
        key: str,
        make: Callable[[], bytes],
        kind: str,
        filename: str | None = None,
    ) -> web.Response:
        """:meth:`Answers.answer`, in turn where the body has to be made.

        ``make`` and what it refers to are held while the request waits, so they have to be small or shared.
        """
        async with self.unless_kept(request, key, answers):
            return await answers.answer(request, key, make, kind, filename)

    @asynccontextmanager
    async def unless_kept(self, request: web.Request, key: str, answers: Answers) -> AsyncIterator[None]:
        """A turn to make the answer; none where it is kept or being made.

        Requests for an answer for which another one waits take no place: they wait for what becomes of that one.
        """
        while key not in answers and key in self._sought:
            await self._sought[key].wait()
        if key in answers:
            yield
            return
        left = self._sought[key] = asyncio.Event()
        try:
            await self._come_up(client_of(request))
        finally:
            del self._sought[key]
            left.set()
        try:
            yield
        finally:
            self._pass_on()

    @asynccontextmanager
    async def take(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn and have it. Raises :class:`Problem` 503 where too many wait already."""
        await self._come_up(client)
        try:
            yield
        finally:
            self._pass_on()

    async def _come_up(self, client: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        self._make_room(client)
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(client, place)
            elif place.exception() is None:
                self._pass_on()  # the turn came while the request went away
            raise

    def _make_room(self, client: str) -> None:
        if 1 + sum(map(len, self._waiting.values())) < self._most:
            return
        rival = self._rival(client)
        if rival is None:
            raise self._refusal()
        newest = self._waiting[rival][-1]
        self._leave(rival, newest)
        if not newest.done():
            newest.set_exception(self._refusal())

    def _rival(self, client: str) -> str | None:
        """Who has to make room for ``client``; among equals, the one who comes last."""
        most = max(map(len, self._waiting.values()), default=0)
        mine = len(self._waiting.get(client, ())) + 1
        rivals = [other for other, places in reversed(self._waiting.items()) if len(places) == most]
        if most > mine:
            return rivals[0]
        if most < mine:
            return None
        network: Counter[str] = Counter()
        for other, places in self._waiting.items():
            network[network_of(other)] += len(places)
        rival = max(rivals, key=lambda other: network[network_of(other)])
        return rival if network[network_of(rival)] > network[network_of(client)] + 1 else None

    def _pass_on(self) -> None:
        """Give the turn to the client whose turn it is, who then comes last."""
        while self._waiting:
            client = next(iter(self._waiting))
            places = self._waiting.pop(client)
            place = places.popleft()
            if places:
                self._waiting[client] = places
            if not place.done():
                place.set_result(None)
                return
        self._is_taken = False

    def _leave(self, client: str, place: asyncio.Future[None]) -> None:
        places = self._waiting.get(client)
        if places is not None and place in places:
            places.remove(place)
            if not places:
                del self._waiting[client]

    def _refusal(self) -> Problem:
        later = {"Retry-After": str(self._retry_seconds)}
        return Problem(503, f"too many {self._kind} are asked for at once", "try again later", later)
