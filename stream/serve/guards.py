"""Middleware for every request: metrics, errors as problem+json, CORS and security headers."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from stream.messages.tables import ParquetMissingError
from stream.serve.metrics import PublicMetrics
from stream.serve.responses import Problem, problem_of

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PREFLIGHT_SECONDS = 86_400


def measured(metrics: PublicMetrics) -> Any:
    """Counts requests by route and status; event streams are not timed."""

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
        finally:
            metrics.requests.labels(route, str(code)).inc()
            if not route.endswith("/stream"):
                metrics.request_seconds.observe(time.monotonic() - started)

    return middleware


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Returns every error as problem+json. Internal errors are logged and not shown to the client."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return problem_of(error).response()
    except ParquetMissingError:
        remedy = "install it beside the service: pip install 'hexveil[parquet]'; or download .csv or .geojson"
        return Problem(501, "Parquet needs pyarrow, which this service does not have", remedy).response()
    except ConnectionError:
        raise
    except Exception:
        log.exception("request failed", route=str(request.match_info.route.resource))
        return Problem(
            500, "The service failed to answer", "try again; the operator finds the reason in the log"
        ).response()


def preflight(origins: Sequence[str]) -> Any:
    """Answers CORS preflight requests."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or asked is None or not _allowed(request, origins):
            return await handler(request)
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, HEAD",
                "Access-Control-Allow-Headers": "If-None-Match, Last-Event-ID, Cache-Control",
                "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
            },
        )

    return middleware


def headers(origins: Sequence[str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Headers of every answer, including event streams and errors."""

    async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Content-Type-Options"] = "nosniff"
        if not origins:
            return
        # Without it, a cache could answer a page of another origin with an answer to a request without origin, which
        # lacks the permission.
        vary = ["Origin", response.headers["Vary"]] if "Vary" in response.headers else ["Origin"]
        response.headers["Vary"] = ", ".join(vary)
        if _allowed(request, origins):
            any_origin = "*" in origins
            response.headers["Access-Control-Allow-Origin"] = "*" if any_origin else request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = "ETag, Content-Disposition, Retry-After"

    return on_prepare


def _allowed(request: web.Request, origins: Sequence[str]) -> bool:
    origin = request.headers.get("Origin")
    return origin is not None and ("*" in origins or origin in origins)


def worth_a_log(record: logging.LogRecord) -> bool:
    """Log filter for ``aiohttp.server``: bytes that are not HTTP are the sender's fault and cause no traceback."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
