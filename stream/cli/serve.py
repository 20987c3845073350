"""``hexveil serve``: dashboard and read API for the releases in Kafka or in files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from stream.cli.options import USAGE, ConfigFile, read_service_config, stop_service, stopped_by_signals
from stream.config import Config, load_config

if TYPE_CHECKING:
    from aiohttp import web

_OTHER_CONNECTIONS = 1024
"""Connections besides those of event streams."""
_IDLE_SECONDS = 75.0
"""Longer than proxies keep a connection that they may use again (nginx: 60 s)."""


def command(
    releases: Annotated[
        Path | None,
        typer.Argument(
            help="File of releases (from replay --offline --out), or a folder of such *.ndjson files; serve follows "
            "them as they grow. Default: Kafka."
        ),
    ] = None,
    config: ConfigFile = None,
    basemap: Annotated[
        Path | None,
        typer.Option(
            help="PMTiles archive (vector or raster) to show under the hexagons. Default: public.basemap.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve releases over HTTP, outside the trust boundary: dashboard, JSON, GeoJSON, event stream and metrics."""
    from stream.serve.api import make_app
    from stream.serve.guards import worth_a_log
    from stream.serve.reading.files import FileSource, feed_in
    from stream.serve.reading.intake import TopicSource
    from stream.serve.static_files import check_basemap
    from stream.servers.connection import kafka_options

    settings = read_service_config(config, load_config)  # the file of the public area may be absent on a public host
    public = settings.public
    basemap = basemap or public.basemap
    tiles = None if basemap is None else check_basemap(basemap)
    if releases is None:
        kafka_options(settings.kafka)
    else:
        settings = _of_feed(settings, feed_in(releases))
    source = TopicSource(settings.kafka) if releases is None else FileSource(releases)
    served = make_app(settings, tiles, source)
    logging.getLogger("aiohttp.server").addFilter(worth_a_log)
    structlog.get_logger().info("serving", url=public.url)
    try:
        asyncio.run(_serve(served, settings, source.open_files))
    except OSError as error:
        keys = "public.socket" if public.socket else "public.host, public.port"
        remedy = "choose another address, or stop the process that listens there"
        stop_service(f"cannot listen on {public.url} ({keys}): {error.strerror or error}; {remedy}", USAGE)


async def _serve(served: web.Application, settings: Config, open_files: int) -> None:
    """Serve until SIGTERM or Ctrl-C. A proxy before this process has one address, and may hold every event stream."""
    from stream.http_server import OTHER_FILES, BoundedRunner, serve_until
    from stream.serve.broadcast import MAX_STREAMS

    public, stopping = settings.public, stopped_by_signals()
    most = 2 * MAX_STREAMS + _OTHER_CONNECTIONS
    runner = BoundedRunner(served, most, _IDLE_SECONDS, OTHER_FILES + open_files)
    await serve_until(stopping, runner, public.socket or (public.host, public.port), backlog=1024)


def _of_feed(settings: Config, feed: str | None) -> Config:
    if feed in (None, settings.feed.name):
        return settings
    structlog.get_logger().warning(
        "the releases belong to another feed than the configured one; that feed is shown", feed=feed
    )
    shown = settings.feed.model_copy(
        update={"name": feed, "speeds": "reported"}
    )  # where its speeds come from is not known
    return settings.model_copy(update={"feed": shown})
