"""Options and exits that several commands share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import structlog
import typer

from stream.logs import tell_of_clients

if TYPE_CHECKING:
    from stream.config import Chosen, Config
    from stream.config.servers import SurfaceConfig

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


def stop_service(message: str, code: int) -> NoReturn:
    """End a command whose stderr is a log: its last sentence is a line of it, like all others."""
    structlog.get_logger().error("cannot go on", reason=message, exit_code=code)
    raise typer.Exit(code)


def port_is_free(section: str, surface: SurfaceConfig) -> None:
    """Exit 2 where another process listens on a service's address already, or it is none of this machine."""
    family = socket.AF_INET6 if ":" in surface.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((surface.host, surface.port))
        except OSError as error:
            where = f"{surface.host}:{surface.port} ({section}.host, {section}.port)"
            remedy = "choose another address, or stop what listens there"
            stop_service(f"{where} cannot be listened on: {error.strerror}; {remedy}", USAGE)


def choose_config(named: Path | None, relation: str | None = None) -> Chosen:
    """The configuration to read, said on stderr where the command line does not name it.

    ``relation``: whose file is looked for in config/ and among the templates; default: that of HEXVEIL_RELATION, "values".
    """
    from stream.config import find_config  # not for the commands that read none

    chosen = find_config(named, _wanted_relation(relation))
    if named is None:
        typer.echo(f"Configuration: {chosen.file} ({chosen.why})", err=True)
    return chosen


def _wanted_relation(relation: str | None) -> Literal["values", "participation"]:
    wanted = relation or os.environ.get("HEXVEIL_RELATION")
    return "participation" if wanted == "participation" else "values"


def load_to_release(chosen: Chosen, **overrides: Any) -> Config:
    """The configuration of a command that releases windows: its public cells are known to be sound before anything starts.

    Raises :class:`stream.config.ConfigError`.
    """
    from stream.config import load_config

    config = load_config(chosen, **overrides)
    if config.participation is not None:
        from stream.statistics.participation.public_cells import public_cells

        public_cells(config)
    return config


def read_service_config(named: Path | None, load: Callable[[Chosen], Config]) -> Config:
    """As :func:`read_config` for a service, whose log begins here: what clients of servers have to say is in it."""
    from stream.config import ConfigError, find_config

    tell_of_clients(True)
    try:
        chosen = find_config(named, _wanted_relation(None))
        structlog.get_logger().info("configuration", file=str(chosen.file), why=chosen.why)
        return load(chosen)
    except ConfigError as error:
        stop_service(str(error), USAGE)


def read_config(chosen: Chosen, **overrides: Any) -> Config:
    """The configuration as :func:`load_to_release` gives it, or exit 2 with what is wrong in it."""
    from stream.config import ConfigError

    try:
        return load_to_release(chosen, **overrides)
    except ConfigError as error:
        stop(str(error), USAGE)
