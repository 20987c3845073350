"""Serves the dashboard: static files of the package, their security headers, and an optional basemap by byte ranges.

Parts of a file that is too large to be sent, or kept, as a whole.
"""

import asyncio
import mimetypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from stream.config import Config
from stream.messages.tables import can_write_parquet
from stream.serve.city.city import City
from stream.serve.responses import JSON, Answers, Body, Problem, packed
from stream.serve.sending import client_of
from stream.serve.window_store import View

LARGEST_RANGE = 4 << 20
"""Bytes of a file that one request may read: more than any tile of a map or directory of an archive has."""


def part_of(path: Path, request: web.Request) -> tuple[bytes, int, dict[str, str]]:
    """The bytes that the request asks for, all without a range, with the status and headers of their answer.

    Raises :class:`Problem` 413 and 416.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        size, tag = about.st_size, f'"{about.st_mtime_ns:x}-{about.st_size:x}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        is_part = "Range" in request.headers and request.headers.get("If-Range", tag) == tag
        start, stop = _bounds(request, size) if is_part else (0, size)
        if stop - start > LARGEST_RANGE:
            title = f"{stop - start} bytes are asked for at once, above {LARGEST_RANGE}"
            raise Problem(413, title, "ask for them by shorter ranges")
        file.seek(start)
        body = file.read(stop - start)
    if not is_part:
        return body, 200, headers
    return body, 206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}


def _bounds(request: web.Request, size: int) -> tuple[int, int]:
    """The first byte of the request's range, and that behind its last."""
    try:
        asked = request.http_range
        start, stop, _ = asked.indices(size)
    except ValueError:
        start = stop = 0
    else:
        if not asked.start and request.headers["Range"].lower().startswith("bytes=-"):
            start = stop  # the last 0 bytes, which aiohttp reads as all (RFC 9110, section 14.1.2)
    if start >= stop:
        title = f"the file has no bytes {request.headers['Range'][:80]!r}"
        raise Problem(416, title, f"ask for one range of its {size} bytes", {"Content-Range": f"bytes */{size}"})
    return start, stop


_KINDS, _BYTES = {".js": "text/javascript", ".md": "text/markdown"}, "application/octet-stream"
STATIC = resources.files("stream") / "serve" / "static"
PMTILES = b"PMTiles"
_TYPE, _VECTOR = 99, 1
"""Where the header of an archive says what its tiles are, and its number for vectors (PMTiles Version 3)."""
MOST_READ = 4
"""Parts of the basemap that are read at the same time, so that many requests do not fill the memory."""

# MapLibre's worker is a file of our own, and map images are made in the page (data: and blob:). Nothing else is needed.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)


def security_headers(frame_ancestors: Sequence[str]) -> dict[str, str]:
    """Headers of the page's files; only pages of ``frame_ancestors`` may show it in a frame."""
    framing = " ".join(frame_ancestors) or "'none'"
    return {
        "Content-Security-Policy": f"{POLICY}; frame-ancestors {framing}",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }


@cache
def read_assets() -> Mapping[str, tuple[Body, str]]:
    """All built files by their path below ``/``, with their media types; read and compressed once in a process."""
    files = {file.name: file for file in STATIC.iterdir() if file.is_file()}
    files |= {f"assets/{file.name}": file for file in (STATIC / "assets").iterdir() if file.is_file()}
    kinds = {name: _KINDS.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or _BYTES for name in files}
    return {name: (packed(file.read_bytes(), kinds[name]), kinds[name]) for name, file in files.items()}


class BasemapError(ValueError):
    """A basemap that cannot be used; the message says why."""


def check_basemap(path: Path) -> Path:
    """The path of a PMTiles archive. Raises :class:`BasemapError`."""
    try:
        with path.open("rb") as file:
            start = file.read(len(PMTILES))
    except OSError as error:
        raise BasemapError(f"{path}: {error.strerror or error}; name a PMTiles archive") from None
    if start != PMTILES:
        raise BasemapError(f"{path} is not a PMTiles archive; make one with 'pmtiles extract' or 'pmtiles convert'")
    return path


def has_vectors(archive: Path) -> bool:
    """Whether the tiles of a PMTiles archive are vectors, whose roads can carry colours, and no pictures."""
    with archive.open("rb") as file:
        return file.read(_TYPE + 1)[_TYPE:] == bytes([_VECTOR])


class Pages:
    """Handlers for the page, and for what it requests besides the read API."""

    def __init__(self, config: Config, view: View, answers: Answers, city: City, basemap: Path | None) -> None:
        self._assets = read_assets()
        self._view, self._answers, self._basemap = view, answers, basemap
        self._feed = config.feed.name
        self._security = security_headers(config.public.frame_ancestors)
        self._reading = asyncio.Semaphore(MOST_READ)
        domain = config.feed.domain
        self._settings: dict[str, Any] = {
            "build": self._assets["index.html"][0].tag,
            "feed": config.feed.name,
            "map": config.public.map,
            "derived_speeds": config.feed.derivation,
            "domain": [domain.west, domain.south, domain.unrolled_east, domain.north],
            "basemap": basemap is not None,
            "parquet": can_write_parquet(),
            "alerting": bool(config.public.alerts),
            "places": city.named,
            "lines": city.drawn or (basemap is not None and has_vectors(basemap)),
            "network": city.drawn,
            "street_names": city.writes_names,
            "attribution": city.attribution,
            "areas": bool(city.by_name),
            "scheduled": city.timed,
        }

    async def asset(self, request: web.Request) -> web.Response:
        """A built file; the page itself at ``/``."""
        name = request.match_info.get("name", "")
        path = f"assets/{name}" if name else request.path.lstrip("/") or "index.html"
        if path not in self._assets:
            raise web.HTTPNotFound
        # Names under assets/ contain a hash of the content, so they never change; the page itself must be revalidated.
        kept = "public, max-age=31536000, immutable" if name else "no-cache"
        return self._answers.sent(request, *self._assets[path], self._security | {"Cache-Control": kept})

    async def settings(self, request: web.Request) -> web.Response:
        """The settings that the page needs before any window."""
        feeds = sorted({self._feed} | self._view.feeds())
        body = msgspec.json.encode(self._settings | {"feeds": feeds})
        return await self._answers.ready(request, body, JSON)

    async def tiles(self, request: web.Request) -> web.Response:
        """The basemap by byte ranges, or as a whole where it is small."""
        if self._basemap is None:
            raise web.HTTPNotFound
        # Chromium keeps ranges in blocks of 4 KiB. A second request for the same range got it cut at the end of a
        # block.
        try:
            async with self._reading:
                body, status, headers = await asyncio.to_thread(part_of, self._basemap, request)
        except OSError:
            raise web.HTTPNotFound from None  # it was removed while the server runs
        if not self._answers.sending.has_room_for(body, client_of(request)):
            raise Problem(503, "too many large answers are being read", "try again later", {"Retry-After": "30"})
        answer = self._answers.sending.answer(request, body, _BYTES, headers | {"Cache-Control": "no-store"})
        answer.set_status(status)
        return answer


def add_pages(
    app: web.Application, config: Config, view: View, answers: Answers, city: City, basemap: Path | None = None
) -> None:
    """Add routes for the dashboard at ``/`` and for what it needs besides the read API."""
    pages = Pages(config, view, answers, city, basemap)
    app.router.add_get("/", pages.asset)
    app.router.add_get("/licences.md", pages.asset)
    app.router.add_get("/assets/{name}", pages.asset)
    app.router.add_get("/dashboard/settings", pages.settings)
    app.router.add_get("/dashboard/basemap.pmtiles", pages.tiles)
