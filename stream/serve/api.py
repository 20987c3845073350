"""Read API under ``/api/v1``, an event stream of finished windows, health and public metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import h3
import msgspec
from aiohttp import web
from prometheus_client import generate_latest

from stream.config import Config
from stream.serve.consumer import TopicReader
from stream.serve.metrics import PublicMetrics
from stream.serve.view import View, WindowView

_QUEUE = 64
"""Windows a slow reader may lag behind before its stream is ended; it resumes by Last-Event-ID."""
_PING_SECONDS = 15.0


class Service:
    """State shared by the handlers: the view, its reader, and the open event streams."""

    def __init__(self, config: Config) -> None:
        self.metrics = PublicMetrics()
        self.view = View()
        self.reader = TopicReader(config.kafka, self.view, self.metrics, self._announce)
        self._streams: set[asyncio.Queue[bytes | None]] = set()

    def _announce(self, window: WindowView) -> None:
        frame = self._frame(self.view.forgotten + len(self.view.completed), window)
        for queue in list(self._streams):
            if queue.full():
                self._streams.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(frame)

    @staticmethod
    def _frame(number: int, window: WindowView) -> bytes:
        return f"id: {number}\nevent: window\ndata: ".encode() + msgspec.json.encode(window.summary()) + b"\n\n"

    async def windows(self, request: web.Request) -> web.Response:
        """Newest first; ``limit`` (1..1000) and ``feed``."""
        limit = _whole(request, "limit", 100, 1, 1000)
        feed = request.query.get("feed")
        found = [window.summary() for window in self.view.ordered() if feed in (None, window.feed)]
        return _json(request, {"windows": found[:limit]})

    async def hexagons(self, request: web.Request) -> web.Response:
        """Cells of one window (``window`` = its start, default the newest), ``bbox`` west,south,east,north, ``format``."""
        window = self.view.find(request.query.get("window"), request.query.get("feed"))
        if window is None:
            raise _problem(404, "no such window", "see /api/v1/windows for the starts that are known")
        bodies = [msgspec.json.decode(value) for _, value in sorted(window.cells.items())]
        box = _bbox(request)
        if box is not None:
            bodies = [body for body in bodies if _inside(body["cell"], box)]
        if request.query.get("format", "json") == "geojson":
            return _json(request, {"type": "FeatureCollection", "features": [_feature(body) for body in bodies]})
        return _json(request, window.summary() | {"hexagons": bodies})

    async def cell(self, request: web.Request) -> web.Response:
        """Past releases of one cell, oldest first."""
        cell = request.match_info["cell"]
        if not h3.is_valid_cell(cell):
            raise _problem(400, f"{cell!r} is no H3 cell", "give its 15 hexadecimal digits")
        return _json(request, {"cell": cell, "releases": self.view.history(cell, request.query.get("feed"))})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one per finished window; ``Last-Event-ID`` resumes after that number."""
        text = request.headers.get("Last-Event-ID", "")
        if text and not text.isdigit():
            raise _problem(400, f"Last-Event-ID {text!r} is not a number", "send the id of the last event received")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        first = self.view.forgotten + 1
        past = [
            self._frame(first + i, window)
            for i, window in enumerate(self.view.completed)
            if text and first + i > int(text)
        ]
        self._streams.add(queue)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        self.metrics.sse_clients.inc()
        try:
            await response.write(b"retry: 2000\n\n" + b"".join(past))
            while True:
                try:
                    frame = await asyncio.wait_for(queue.get(), _PING_SECONDS)
                except TimeoutError:
                    frame = b": ping\n\n"
                if frame is None:
                    return response
                await response.write(frame)
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            self._streams.discard(queue)
            self.metrics.sse_clients.dec()

    async def health(self, request: web.Request) -> web.Response:
        """The process answers."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """Everything that retention kept was read."""
        ready = self.reader.caught_up.is_set()
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def public_metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=generate_latest(self.metrics.registry), content_type="text/plain", charset="utf-8")

    async def lifetime(self, app: web.Application) -> AsyncIterator[None]:
        """Read the topics while the service runs."""
        task = asyncio.create_task(self.reader.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def end_streams(self, app: web.Application) -> None:
        """Let open event streams finish at once."""
        for queue in list(self._streams):
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)


def make_app(config: Config) -> web.Application:
    """The aiohttp application."""
    service = Service(config)
    app = web.Application(middlewares=[_measured(service.metrics)])
    app.router.add_get("/api/v1/windows", service.windows)
    app.router.add_get("/api/v1/hexagons", service.hexagons)
    app.router.add_get("/api/v1/cells/{cell}", service.cell)
    app.router.add_get("/api/v1/stream", service.stream)
    app.router.add_get("/healthz", service.health)
    app.router.add_get("/readyz", service.ready)
    app.router.add_get("/metrics", service.public_metrics)
    app.cleanup_ctx.append(service.lifetime)
    app.on_shutdown.append(service.end_streams)
    return app


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _measured(metrics: PublicMetrics) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        started = time.monotonic()
        code = 500
        try:
            response = await handler(request)
            code = response.status
            return response
        except web.HTTPException as error:
            code = error.status
            raise
        finally:
            metrics.requests.labels(route, str(code)).inc()
            if not route.endswith("/stream"):
                metrics.request_seconds.observe(time.monotonic() - started)

    return middleware


def _json(request: web.Request, body: object) -> web.Response:
    """JSON with an ETag, compressed where the client takes it; 304 where it has it already."""
    data = msgspec.json.encode(body)
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    if tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers={"ETag": tag})
    response = web.Response(body=data, content_type="application/json", headers={"ETag": tag})
    response.enable_compression()
    return response


def _problem(status: int, title: str, remedy: str) -> web.HTTPException:
    body = msgspec.json.encode({"title": title, "status": status, "detail": remedy}).decode()
    kind = {400: web.HTTPBadRequest, 404: web.HTTPNotFound}[status]
    return kind(text=body, content_type="application/problem+json")


def _whole(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdigit() or not low <= int(text) <= high:
        raise _problem(400, f"{name}={text!r} is not a whole number from {low} to {high}", "correct it or leave it out")
    return int(text)


def _bbox(request: web.Request) -> tuple[float, float, float, float] | None:
    text = request.query.get("bbox")
    if text is None:
        return None
    try:
        west, south, east, north = (float(part) for part in text.split(","))
    except ValueError:
        west, south, east, north = 1.0, 1.0, 0.0, 0.0
    if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
        raise _problem(400, f"bbox={text!r} is no box", "give west,south,east,north in degrees")
    return west, south, east, north


def _inside(cell: str, box: tuple[float, float, float, float]) -> bool:
    lat, lng = h3.cell_to_latlng(cell)
    return bool(box[0] <= lng <= box[2] and box[1] <= lat <= box[3])


def _feature(body: dict[str, Any]) -> dict[str, Any]:
    ring = [[lng, lat] for lat, lng in h3.cell_to_boundary(body["cell"])]
    geometry = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    return {"type": "Feature", "id": body["cell"], "geometry": geometry, "properties": body}
