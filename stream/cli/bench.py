"""``hexveil bench``: measure this machine. The benchmarks live in the source tree, not in the installed package."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated

import typer

from stream.cli.options import USAGE, AsJson, stop

NAMES = ("dashboard", "ingest", "mechanisms", "scaling", "spatial", "sse")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("bench")
    def bench(
        name: Annotated[str, typer.Argument(help=f"One of: {', '.join(NAMES)}.")], as_json: AsJson = False
    ) -> None:
        """Run one benchmark and print its figures."""
        if name not in NAMES:
            stop(f"no benchmark {name!r}; choose one of {', '.join(NAMES)}", USAGE)
        try:
            module = import_module(f"bench.{name}")
        except ModuleNotFoundError as error:
            if error.name not in ("bench", f"bench.{name}"):
                raise
            stop("the benchmarks come with the source tree: run this from a clone with 'pip install -e .'", USAGE)
        result = module.run()
        typer.echo(json.dumps(result, indent=None if as_json else 2))
