"""The dashboard: static files from the package, their security headers, and an optional basemap by byte ranges."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
from aiohttp import web

from stream.config import Config
from stream.serve.usual import Usual
from stream.serve.view import View

STATIC = resources.files("stream") / "serve" / "static"
PMTILES = b"PMTiles"

# MapLibre's worker is a module of our own; map images are made in the page (data: and blob:). Nothing else is needed.
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
        "frame-ancestors 'none'",
    )
)
SECURITY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Asset:
    """One static file, plain and compressed, ready to send."""

    body: bytes
    compressed: bytes
    content_type: str
    tag: str

    @classmethod
    def read(cls, file: Traversable) -> Asset:
        """From the package."""
        body = file.read_bytes()
        kind = {".js": "text/javascript", ".md": "text/markdown"}.get(Path(file.name).suffix)
        found = kind or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return cls(body, gzip.compress(body, 6, mtime=0), found, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def read_assets() -> dict[str, Asset]:
    """All built files by their path below ``/``."""
    found = {file.name: Asset.read(file) for file in STATIC.iterdir() if file.is_file()}
    folder = STATIC / "assets"
    found |= {f"assets/{file.name}": Asset.read(file) for file in folder.iterdir() if file.is_file()}
    return found


class BasemapError(ValueError):
    """A basemap that cannot be served; the message says why."""


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


def add_pages(app: web.Application, config: Config, view: View, basemap: Path | None = None) -> None:
    """Serve the dashboard at ``/``, what it needs to know beside the read API, and the usual values it compares with."""
    assets = read_assets()
    usual = Usual(view)
    domain = config.feed.domain
    settings = msgspec.json.encode(
        {"domain": [domain.west, domain.south, domain.east, domain.north], "basemap": basemap is not None}
    )

    async def asset(request: web.Request) -> web.Response:
        name = request.match_info.get("name", "")
        found = assets.get(f"assets/{name}" if name else request.path.lstrip("/") or "index.html")
        if found is None:
            raise web.HTTPNotFound(headers=SECURITY)
        # Names under assets/ carry a hash of their content; the page that names them must be asked for anew.
        kept = "public, max-age=31536000, immutable" if name else "no-cache"
        headers = SECURITY | {"ETag": found.tag, "Cache-Control": kept, "Vary": "Accept-Encoding"}
        if found.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        if packed:
            headers["Content-Encoding"] = "gzip"
        body = found.compressed if packed else found.body
        text = found.content_type.startswith("text/")
        return web.Response(
            body=body, headers=headers, content_type=found.content_type, charset="utf-8" if text else None
        )

    async def facts(request: web.Request) -> web.Response:
        return web.Response(body=settings, content_type="application/json", headers=SECURITY)

    async def usual_values(request: web.Request) -> web.Response:
        window = view.find(request.query.get("window"), request.query.get("feed"))
        if window is None:
            body = msgspec.json.encode({"title": "no such window", "status": 404, "detail": "see /api/v1/windows"})
            raise web.HTTPNotFound(text=body.decode(), content_type="application/problem+json")
        found = await asyncio.to_thread(usual.over, window, usual.earlier(window))
        response = web.Response(body=msgspec.json.encode(found), content_type="application/json")
        response.enable_compression()
        return response

    async def tiles(request: web.Request) -> web.StreamResponse:
        if basemap is None:
            raise web.HTTPNotFound(headers=SECURITY)
        return web.FileResponse(basemap, headers=SECURITY | {"Content-Type": "application/octet-stream"})

    app.router.add_get("/", asset)
    app.router.add_get("/licences.md", asset)
    app.router.add_get("/assets/{name}", asset)
    app.router.add_get("/dashboard.json", facts)
    app.router.add_get("/basemap.pmtiles", tiles)
    app.router.add_get("/api/v1/usual", usual_values)
