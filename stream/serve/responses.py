"""HTTP answers: problems, entity tags, cache headers, and bodies that are built and compressed only once."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from stream.serve.addresses import client_of
from stream.serve.sending import Sending

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
class _Body:
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
        self._kept: OrderedDict[str, _Body] = OrderedDict()
        self._making: dict[str, asyncio.Task[_Body]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether the body of this key is kept or being made, so that one more answer costs nothing."""
        return key in self._kept or key in self._making

    async def answer(
        self,
        request: web.Request,
        key: str,
        make: Callable[[], bytes],
        kind: str,
        filename: str | None = None,
    ) -> web.Response:
        """The body that ``make`` returns (run in a thread), or 304 if the client already has it.

        Where readers can ask for many different bodies, :meth:`stream.serve.turns.Turns.answer` calls this.
        Raises :class:`Problem` 503 while too much else is being sent.
        """
        return self._sent(request, await self._body(key, make, kind), kind, filename)

    async def ready(self, request: web.Request, plain: bytes, kind: str, key: str | None = None) -> web.Response:
        """A body that is there already, or 304 if the client already has it. A small one waits for no thread.

        ``key``: made of the body where it is not given. Raises :class:`Problem` 503 while too much else is being sent.
        """
        key = key_of(plain) if key is None else key
        if len(plain) < _IN_THREAD and key not in self:
            return self._sent(request, self._keep(key, _packed(plain, kind)), kind, None)
        return await self.answer(request, key, lambda: plain, kind)

    def once(self, request: web.Request, plain: bytes, kind: str) -> web.Response:
        """A small body that was just made, or 304 if the client already has it; nothing of it is kept.

        Raises :class:`Problem` 503 while too much else is being sent.
        """
        return self._sent(request, _Body(plain, None, _tag_of(plain)), kind, None)

    def _sent(self, request: web.Request, body: _Body, kind: str, filename: str | None) -> web.Response:
        known = _offered(request, body.tag)
        headers = {"Cache-Control": _CACHE_CONTROL, "Vary": "Accept-Encoding"}
        if known is not None:
            return web.Response(status=304, headers=headers | {"ETag": known})
        if filename is not None:
            headers["Content-Disposition"] = f'attachment; filename="{filename}"'
        data, headers["ETag"] = body.plain, f'"{body.tag}"'
        if body.packed is not None and accepts_gzip(request.headers.get("Accept-Encoding", "")):
            data, headers["ETag"] = body.packed, f'"{body.tag}{_PACKED}"'
            headers["Content-Encoding"] = "gzip"
        charset = "utf-8" if kind.startswith("text/") else None
        if not self.sending.has_room_for(data, client_of(request)):
            raise Problem(503, "too many large answers are being read", "try again later", {"Retry-After": "30"})
        return self.sending.answer(request, data, kind, headers, charset)

    async def _body(self, key: str, make: Callable[[], bytes], kind: str) -> _Body:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make, kind))
            task.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(task)

    async def _make(self, key: str, make: Callable[[], bytes], kind: str) -> _Body:
        # One job for both: a body whose compression waited for a thread of its own would be held all that time.
        return self._keep(key, await asyncio.to_thread(lambda: _packed(make(), kind)))

    def _keep(self, key: str, body: _Body) -> _Body:
        if body.size <= self._max_bytes // 4:
            self._kept[key] = body
            self._size += body.size
            while self._size > self._max_bytes:
                _, old = self._kept.popitem(last=False)
                self._size -= old.size
        return body


def _tag_of(plain: bytes) -> str:
    return hashlib.sha256(plain).hexdigest()[:32]


def _packed(plain: bytes, kind: str) -> _Body:
    """The body with its compressed form, where that is worth it."""
    is_worth_it = len(plain) >= _MIN_GZIP and kind != PARQUET
    return _Body(plain, gzip.compress(plain, compresslevel=6, mtime=0) if is_worth_it else None, _tag_of(plain))


def _offered(request: web.Request, tag: str) -> str | None:
    """The entity tag of this body in If-None-Match, if the client already has it."""
    for one in request.if_none_match or ():
        if one.value in (tag, tag + _PACKED):
            return f'"{one.value}"'
        if one.value == "*":
            return f'"{tag}"'
    return None


def accepts_gzip(accepted: str) -> bool:
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
