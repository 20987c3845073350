"""``hexveil serve``: the read API over the output topics."""

from __future__ import annotations

import typer

from stream.cli.options import DEFAULT_CONFIG, ConfigFile, read_config


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("serve")
    def serve(config: ConfigFile = DEFAULT_CONFIG) -> None:
        """Serve releases over HTTP, outside the trust boundary: JSON, GeoJSON, an event stream, public metrics."""
        from aiohttp import web

        from stream.serve.api import make_app

        settings = read_config(config)
        public = settings.public
        typer.echo(f"http://{public.host}:{public.port}/api/v1/windows", err=True)
        web.run_app(make_app(settings), host=public.host, port=public.port, print=None, access_log=None)
