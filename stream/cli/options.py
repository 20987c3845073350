"""Options and exits that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from stream.config import Config

FAILED, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes besides 0: a check failed, wrong usage or configuration, a server that does not answer."""

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="Configuration (TOML); HEXVEIL_SECTION__KEY overrides.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]

DEFAULT_CONFIG = Path("config/bus-fleet.toml")


def stop(message: str, code: int) -> NoReturn:
    """End the command with a sentence on stderr."""
    typer.secho(message, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def read_config(path: Path, **overrides: Any) -> Config:
    """The configuration, or exit 2 with what is wrong in it."""
    from stream.config import ConfigError, load_config  # not for the commands that read none

    try:
        return load_config(path, **overrides)
    except ConfigError as error:
        stop(str(error), USAGE)
