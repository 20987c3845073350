"""Options and exits that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from stream.config import Chosen, Config

FAILED, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes besides 0: a check failed, wrong usage or configuration, a server that does not answer."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration (TOML); HEXVEIL_SECTION__KEY overrides. Default: HEXVEIL_CONFIG, ./hexveil.toml, ./config/, "
        "the shipped template.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


def stop(message: str, code: int) -> NoReturn:
    """End the command with a sentence on stderr."""
    typer.secho(message, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def choose_config(named: Path | None, relation: str | None = None) -> Chosen:
    """The configuration to read, said on stderr where the command line does not name it.

    ``relation``: whose file is looked for in config/ and among the templates; default: that of HEXVEIL_RELATION, "values".
    """
    from stream.config import find_config  # not for the commands that read none

    wanted = relation or os.environ.get("HEXVEIL_RELATION")
    chosen = find_config(named, "participation" if wanted == "participation" else "values")
    if named is None:
        typer.echo(f"Configuration: {chosen.file} ({chosen.why})", err=True)
    return chosen


def read_config(chosen: Chosen, **overrides: Any) -> Config:
    """The configuration, or exit 2 with what is wrong in it."""
    from stream.config import ConfigError, load_config

    try:
        return load_config(chosen, **overrides)
    except ConfigError as error:
        stop(str(error), USAGE)
