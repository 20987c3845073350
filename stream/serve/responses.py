"""HTTP answers: problems, entity tags, cache headers, and bodies that are built and compressed only once.

Costly answers are made one at a time, so that many requests at once cannot fill memory or processor.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from stream.serve.sending import Sending, client_of, network_of

Make = Callable[[], bytes]
"""Makes a body, in a thread."""
Headers = Mapping[str, str] | None
"""What an answer has besides the headers of all."""
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
        self, answers: Answers, request: web.Request, key: str, make: Make, kind: str, headers: Headers = None
    ) -> web.Response:
        """:meth:`Answers.answer`, in turn where the body has to be made.

        ``make`` and what it refers to are held while the request waits, so they have to be small or shared.
        """
        async with self.unless_kept(request, key, answers):
            return await answers.answer(request, key, make, kind, headers)

    @asynccontextmanager
    async def unless_kept(self, request: web.Request, key: str, answers: Answers) -> AsyncIterator[None]:
        """A turn to make the answer; none where it is kept or being made.

        Requests for an answer for which another one waits take no place: they wait for what becomes of that one.
        Raises :class:`Problem` 503 where too many wait already.
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


JSON = "application/json"
GEOJSON = "application/geo+json"
CSV = "text/csv"
PARQUET = "application/vnd.apache.parquet"
PROBLEM = "application/problem+json"

_CACHE_CONTROL = "public, no-cache"
"""Every answer is asked for again by its entity tag. Not even a complete window is fixed by its address: another replay
of the same hours has other numbers, and another version of the service says more of the same ones.
"""
_MIN_GZIP = 1024
_PACKED = "-gzip"
_IN_THREAD = 64 * 1024
"""Bodies of this many bytes or more are compressed outside of the event loop."""
_BESIDE = 1024
"""Bytes that a kept body takes beside its own: there may be very many small ones."""


class Problem(Exception):  # noqa: N818  (RFC 9457 calls it a problem)
    """An error as RFC 9457 problem+json. ``title`` states the value and the bound, ``detail`` the remedy."""

    def __init__(self, status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.detail, self.headers = status, title, detail, headers or {}

    def response(self) -> web.Response:
        """The answer."""
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        headers = {"Cache-Control": "no-store"} | self.headers
        return web.Response(status=self.status, body=msgspec.json.encode(body), content_type=PROBLEM, headers=headers)


def problem_of(error: web.HTTPException) -> Problem:
    """An error that aiohttp raised, as a problem."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return Problem(405, f"{error.method} is not allowed here", f"use {allowed}", {"Allow": allowed})
    phrase = HTTPStatus(error.status).phrase
    return Problem(error.status, phrase, "see /api/v1/openapi.json for every path")


def key_of(*parts: object) -> str:
    """A key that identifies everything on which a body depends, within this process."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Body:
    """The bytes of an answer, as they are and compressed."""

    plain: bytes
    packed: bytes | None
    tag: str
    """Entity tag of the plain body; that of the compressed body has a suffix, because its bytes differ."""

    @property
    def size(self) -> int:
        """Bytes that it takes while it is kept."""
        return len(self.plain) + len(self.packed or b"") + _BESIDE


class Answers:
    """Builds and compresses each body once, and keeps the newest ones.

    The same key always has the same bytes. Entity tags are strong: they are digests of the bytes.
    """

    def __init__(self, max_bytes: int = 64 << 20, sending: Sending | None = None) -> None:
        """``sending``: that of other answers, where these are to count against the same bound."""
        self._max_bytes = max_bytes
        self._size = 0
        self.sending = sending or Sending()
        self._kept: OrderedDict[str, Body] = OrderedDict()
        self._making: dict[str, asyncio.Task[Body]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether the body of this key is kept or being made, so that one more answer costs nothing."""
        return key in self._kept or key in self._making

    async def answer(
        self, request: web.Request, key: str, make: Make, kind: str, headers: Headers = None
    ) -> web.Response:
        """The body that ``make`` returns (run in a thread), or 304 if the client already has it.

        Where readers can ask for many different bodies, :meth:`stream.serve.responses.Turns.answer` calls this.
        Raises :class:`Problem` 503 while too much else is being sent.
        """
        return self.sent(request, await self._body(key, make, kind), kind, headers)

    async def ready(self, request: web.Request, plain: bytes, kind: str, key: str | None = None) -> web.Response:
        """A body that is there already, or 304 if the client already has it. A small one waits for no thread.

        ``key``: made of the body where it is not given. Raises :class:`Problem` 503 while too much else is being sent.
        """
        key = key_of(plain) if key is None else key
        if len(plain) < _IN_THREAD and key not in self:
            return self.sent(request, self._keep(key, packed(plain, kind)), kind)
        return await self.answer(request, key, lambda: plain, kind)

    def sent(self, request: web.Request, body: Body, kind: str, given: Headers = None) -> web.Response:
        """The answer with a body, compressed where the client can read that, and the headers that are ``given``.

        304 if the client already has it. Raises :class:`Problem` 503 while too much else is being sent.
        """
        known = _offered(request, body.tag)
        headers = {"Cache-Control": _CACHE_CONTROL, "Vary": "Accept-Encoding"} | dict(given or {})
        if known is not None:
            return web.Response(status=304, headers=headers | {"ETag": known})
        data, headers["ETag"] = body.plain, f'"{body.tag}"'
        if body.packed is not None and _accepts_gzip(request.headers.get("Accept-Encoding", "")):
            data, headers["ETag"] = body.packed, f'"{body.tag}{_PACKED}"'
            headers["Content-Encoding"] = "gzip"
        charset = "utf-8" if kind.startswith("text/") else None
        if not self.sending.has_room_for(data, client_of(request)):
            raise Problem(503, "too many large answers are being read", "try again later", {"Retry-After": "30"})
        return self.sending.answer(request, data, kind, headers, charset)

    async def _body(self, key: str, make: Make, kind: str) -> Body:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make, kind))
            task.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(task)

    async def _make(self, key: str, make: Make, kind: str) -> Body:
        # One job for both: a body whose compression waited for a thread of its own would be held all that time.
        return self._keep(key, await asyncio.to_thread(lambda: packed(make(), kind)))

    def _keep(self, key: str, body: Body) -> Body:
        if body.size <= self._max_bytes // 4:
            self._kept[key] = body
            self._size += body.size
            while self._size > self._max_bytes:
                _, old = self._kept.popitem(last=False)
                self._size -= old.size
        return body


def packed(plain: bytes, kind: str) -> Body:
    """The body with its compressed form, where that is worth it."""
    is_worth_it = len(plain) >= _MIN_GZIP and kind != PARQUET
    small = gzip.compress(plain, compresslevel=6, mtime=0) if is_worth_it else None
    return Body(plain, small, hashlib.sha256(plain).hexdigest()[:32])


def attached(end: str, feed: str, *times: str) -> dict[str, str]:
    """The header with which a browser keeps an answer as a file, named by what it is of."""
    named = "-".join(["hexveil", feed, *(time.replace("-", "").replace(":", "") for time in times)])
    return {"Content-Disposition": f'attachment; filename="{named}{end}"'}


def _offered(request: web.Request, tag: str) -> str | None:
    """The entity tag of this body in If-None-Match, if the client already has it."""
    for one in request.if_none_match or ():
        if one.value in (tag, tag + _PACKED):
            return f'"{one.value}"'
        if one.value == "*":
            return f'"{tag}"'
    return None


def _accepts_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    weights = {}
    for part in accepted.lower().split(","):
        name, _, parameter = part.strip().partition(";")
        key, _, text = parameter.strip().partition("=")
        try:
            weights[name.strip()] = float(text) if key.strip() == "q" else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
