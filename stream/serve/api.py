"""The HTTP application: read API under ``/api/v1``, event stream of complete windows, health and public metrics."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import generate_latest

from stream.config import Config
from stream.serve import guards, openapi
from stream.serve.alerts.watching import Alerts
from stream.serve.broadcast import Broadcast
from stream.serve.city.city import City
from stream.serve.hexagons import Hexagons
from stream.serve.histograms import Histograms
from stream.serve.means import Means
from stream.serve.metrics import PublicMetrics
from stream.serve.ogc.features import ROOT, Features
from stream.serve.operations import bound, operations
from stream.serve.parameters import read_all
from stream.serve.reading.intake import Intake, Source, TopicSource
from stream.serve.responses import JSON, Answers, packed
from stream.serve.sending import bound_every_answer, prefix_of
from stream.serve.static_files import add_pages
from stream.serve.window_store import View, WindowView

log = structlog.get_logger()

_NOW = {"Cache-Control": "no-store"}
SELECTED_BYTES = 32 << 20
"""Bytes kept of answers of which readers may ask for any number: a share of their own, so they push out no others."""


class Service:
    """State shared by the handlers: the store of windows, the source that fills it, and the open event streams."""

    def __init__(self, config: Config, source: Source) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """What runs as long as the service, by what it does."""
        self.metrics = PublicMetrics()
        self.view = View(config.public.max_windows)
        self.answers = Answers()
        selections = Answers(SELECTED_BYTES, self.answers.sending)
        self._source = source
        self.intake = Intake(self.view, self.metrics, config.feed.name, self._announce)
        ready, rules = self.intake.caught_up, len(config.public.alerts)
        self.broadcast = Broadcast(self.view, self.metrics, ready, rules)
        self.alerts = Alerts(config, self.view, self.answers, self.metrics, self.broadcast, ready)
        self.city = City(config, self.view, self.answers)
        self.operations = operations(
            config.feed.name,
            Hexagons(config, self.view, self.answers, selections),
            Means(self.view, self.answers, self.city.by_name),
            Histograms(self.view, self.answers, selections),
            self.broadcast,
            self.alerts,
            self.city,
            self.city.ways,
            Features(config.feed.name, config.feed.domain, self.view, selections, openapi.DESCRIBED),
        )
        self._described = openapi.document(self.operations)
        self._document = packed(msgspec.json.encode(self._described), JSON)
        self._page = packed(openapi.page(self._described), "text/html")

    def _announce(self, window: WindowView) -> None:
        self.broadcast.announce(window)
        self.alerts.announce(window)

    async def openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document. Behind a proxy that serves it below a path, it names that path."""
        read_all(request, ())
        if prefix := prefix_of(request):
            servers = [self._described["servers"][0] | {"url": prefix}]
            here = msgspec.json.encode(self._described | {"servers": servers})
            return self.answers.sent(request, packed(here, JSON), JSON)
        return self.answers.sent(request, self._document, JSON)

    async def openapi_page(self, request: web.Request) -> web.Response:
        """The OpenAPI document as a page to read."""
        read_all(request, ())
        return self.answers.sent(request, self._page, "text/html", {"Content-Security-Policy": openapi.POLICY})

    async def health(self, request: web.Request) -> web.Response:
        """200 while the process answers, reads, and judges windows for alerts. If it stopped, only a restart helps."""
        ended = [name for name, task in self._tasks.items() if task.done()]
        status = f"no longer {' and '.join(ended)}; the operator finds the reason in the log" if ended else "ok"
        return web.json_response({"status": status}, status=503 if ended else 200, headers=_NOW)

    async def ready(self, request: web.Request) -> web.Response:
        """200 once everything that existed at the start was read."""
        ready = self.intake.caught_up.is_set()
        return web.json_response({"ready": ready}, status=200 if ready else 503, headers=_NOW)

    async def public_metrics(self, request: web.Request) -> web.Response:
        """Metrics in Prometheus' text format."""
        body = generate_latest(self.metrics.registry)
        return web.Response(body=body, content_type="text/plain", charset="utf-8", headers=_NOW)

    async def lifetime(self, app: web.Application) -> AsyncIterator[None]:
        """Read releases while the service runs."""
        running = {"reading": self._source.run(self.intake), "judging windows for alerts": self.alerts.run()}
        self._tasks = {name: asyncio.create_task(run) for name, run in running.items()}
        for task in self._tasks.values():
            task.add_done_callback(_tell_failure)
        yield
        for task in self._tasks.values():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # logged when it ended
                await task
        self.intake.close()

    async def end_streams(self, app: web.Application) -> None:
        """End all open event streams."""
        self.broadcast.end_all()


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of the service ended", exc_info=error)


async def _without_slash(request: web.Request) -> web.Response:
    """The landing page, for clients to which it was named with a slash at its end."""
    raise web.HTTPPermanentRedirect(prefix_of(request) + ROOT)


SERVICE: web.AppKey[Service] = web.AppKey("service", Service)


def make_app(config: Config, basemap: Path | None = None, source: Source | None = None) -> web.Application:
    """The aiohttp application over ``source``, by default the topics of the configured cluster.

    ``basemap`` is a PMTiles archive to draw under the hexagons. Raises :class:`stream.config.ConfigError` for a webhook
    whose secret cannot be read, and for files of places or areas that cannot be served.
    """
    service = Service(config, source or TopicSource(config.kafka))
    origins = config.public.cors_origins
    app = web.Application(middlewares=[guards.measured(service.metrics), guards.problems, guards.preflight(origins)])
    app[SERVICE] = service
    for operation in service.operations:
        app.router.add_get(operation.path, bound(operation))
    app.router.add_get(openapi.PATH, service.openapi)
    app.router.add_get(openapi.PAGE_PATH, service.openapi_page)
    app.router.add_get(f"{ROOT}/", _without_slash)
    app.router.add_get("/healthz", service.health)
    app.router.add_get("/readyz", service.ready)
    app.router.add_get("/metrics", service.public_metrics)
    add_pages(app, config, service.view, service.answers, service.city, basemap)
    app.on_response_prepare.append(guards.headers(origins))
    app.on_response_prepare.append(bound_every_answer)
    app.cleanup_ctx.append(service.lifetime)
    app.on_shutdown.append(service.end_streams)
    return app
