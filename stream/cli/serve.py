"""``hexveil serve``: dashboard and read API over the output topics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.options import DEFAULT_CONFIG, USAGE, ConfigFile, read_config, stop
from stream.config import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("serve")
    def serve(
        config: ConfigFile = DEFAULT_CONFIG,
        basemap: Annotated[
            Path | None, typer.Option(help="PMTiles archive (vector or raster) to draw under the hexagons.")
        ] = None,
    ) -> None:
        """Serve releases over HTTP, outside the trust boundary: a dashboard, JSON, GeoJSON, an event stream, metrics."""
        from aiohttp import web

        from stream.connection import kafka_options
        from stream.serve.api import make_app
        from stream.serve.guards import worth_a_log
        from stream.serve.static_files import BasemapError, check_basemap

        settings = read_config(config)
        public = settings.public
        try:
            tiles = None if basemap is None else check_basemap(basemap)
            kafka_options(settings.kafka)
        except (BasemapError, ConfigError) as error:
            stop(str(error), USAGE)
        logging.getLogger("aiohttp.server").addFilter(worth_a_log)
        typer.echo(f"http://{public.host}:{public.port}/", err=True)
        try:
            web.run_app(
                make_app(settings, tiles), host=public.host, port=public.port, backlog=1024, print=None, access_log=None
            )
        except OSError as error:
            where = f"{public.host}:{public.port} (public.host, public.port)"
            stop(f"{where} cannot be listened on: {error.strerror}; choose another address", USAGE)
