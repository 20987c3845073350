"""Options and exits that several commands share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import structlog
import typer

from dpcore.relation import NeighbouringRelation
from stream.logs import log_clients

if TYPE_CHECKING:
    from stream.config import Chosen, Config
    from stream.config.servers import SurfaceConfig

FAILED, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes besides 0: a check failed; the usage or the configuration is wrong; a server does not answer."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration file (TOML). Environment variables HEXVEIL_SECTION__KEY override its keys. Default: the "
        "first that "
        "exists of HEXVEIL_CONFIG, ./hexveil.toml, ./config/, and the shipped template.",
        show_default=False,
    ),
]
UsersAreEvents = Annotated[
    bool,
    typer.Option("--yes-users-are-events", help="Accept a user's field in which nearly every value occurs once."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
ExpectedRelation = Annotated[
    NeighbouringRelation | None,
    typer.Option(help="The relation that you expect; refused if the configuration has the other one."),
]
FileFormat = Annotated[str | None, typer.Option("--format", help="Format of the file; default: that of the feed.")]
Recordings = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE|FOLDER...",
        help="Parquet, CSV or NDJSON (also .gz), or stored snapshots, together one recording; '-' is standard input.",
    ),
]


def stop(message: str, code: int) -> NoReturn:
    """End the command with a sentence on stderr."""
    typer.secho(message, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


def stop_service(message: str, code: int) -> NoReturn:
    """End a command whose stderr is a log, with ``message`` as its last line."""
    structlog.get_logger().error("cannot go on", reason=message, exit_code=code)
    raise typer.Exit(code)


def port_is_free(section: str, surface: SurfaceConfig) -> None:
    """Exit 2 if another process listens on the address of ``surface``, or if this machine does not have that
    address."""
    family = socket.AF_INET6 if ":" in surface.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((surface.host, surface.port))
        except OSError as error:
            where = f"{surface.host}:{surface.port} ({section}.host, {section}.port)"
            remedy = "choose another address, or stop the process that listens there"
            stop_service(f"cannot listen on {where}: {error.strerror}; {remedy}", USAGE)


def choose_config(named: Path | None, relation: str | None = None, *, silent: bool = False) -> Chosen:
    """The configuration to read. Prints its path to stderr unless the command line names it, or ``silent``.

    ``relation``: the relation of the file to look for in config/ and among the templates; default: HEXVEIL_RELATION,
    else "values".
    """
    from stream.config import find_config  # slow to import; some commands read no configuration

    chosen = find_config(named, _wanted_relation(relation))
    if named is None and not silent:
        typer.echo(f"Configuration: {chosen.file} ({chosen.why})", err=True)
    return chosen


def _wanted_relation(relation: str | None) -> NeighbouringRelation:
    wanted = relation or os.environ.get("HEXVEIL_RELATION")
    participation = wanted == NeighbouringRelation.PARTICIPATION
    return NeighbouringRelation.PARTICIPATION if participation else NeighbouringRelation.VALUES


def load_to_release(chosen: Chosen, **overrides: Any) -> Config:
    """The configuration of a command that releases windows; its public cells are checked before anything starts.

    Raises :class:`stream.config.ConfigError`.
    """
    from stream.config import load_config

    config = load_config(chosen, **overrides)
    if config.participation is not None:
        from stream.config.public_cells import public_cells

        public_cells(config)
    return config


def read_service_config(named: Path | None, load: Callable[[Chosen], Config]) -> Config:
    """Like :func:`read_config`, for a service: errors go to its log, and so do messages of the Kafka and Redis
    clients."""
    from stream.config import ConfigError, find_config

    log_clients(True)
    try:
        chosen = find_config(named, _wanted_relation(None))
        structlog.get_logger().info("configuration", file=str(chosen.file), why=chosen.why)
        return load(chosen)
    except ConfigError as error:
        stop_service(str(error), USAGE)


def read_config(chosen: Chosen, **overrides: Any) -> Config:
    """The configuration as :func:`load_to_release` returns it; exit 2 with the reason if it is wrong."""
    from stream.config import ConfigError

    try:
        return load_to_release(chosen, **overrides)
    except ConfigError as error:
        stop(str(error), USAGE)
