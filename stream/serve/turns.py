"""Costly answers are made one at a time, so that many requests at once cannot fill memory or processor."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp import web

from stream.serve.responses import Answers, Problem

_ONE_SITE = 64
"""Bits of an IPv6 address that are of a site: whoever has one address of it has them all."""
_ONE_NETWORK = {4: 24, 6: 48}
"""Bits, by version of the protocol, of an address that are of the network of one operator or of one customer of theirs."""


class Turns:
    """A queue of bounded length before one kind of answer, in which clients take turns.

    One client may fill the queue. Where it is full, whoever has fewer requests in it than another takes the place of that
    one's newest. Among equals, whoever is of a network with fewer requests takes a place of the network that has most.
    Limit: whoever has addresses in as many networks as the queue has places can still close it to all others.
    """

    def __init__(self, kind: str, most: int, retry_seconds: int) -> None:
        """``kind``: what is asked for, in the plural. ``most`` may have a turn or wait for one; others may try again later."""
        self._kind, self._most, self._retry_seconds = kind, most, retry_seconds
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Places in the queue by client, those of the next one first."""
        self._sought: dict[str, asyncio.Event] = {}
        """Keys of the answers for which a request waits here; set when it has its turn or leaves."""

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


def client_of(request: web.Request) -> str:
    """Who asks: the address that the connection comes from, or the IPv6 network of its site."""
    try:
        address = ip_address(request.remote or "")
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Network((address, _ONE_SITE), strict=False))
    return str(address)


def network_of(client: str) -> str:
    """The wider network of a client, which several clients may share."""
    try:
        network = ip_network(client)
    except ValueError:
        return client
    return str(network.supernet(new_prefix=_ONE_NETWORK[network.version]))
