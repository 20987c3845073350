"""Options and exits that several commands share."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import structlog
import typer

from dpcore.relation import NeighbouringRelation
from stream.logs import log_clients

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from rich.progress import Progress
    from rich.table import Table

    from stream.config import Chosen, Config
    from stream.config.servers import SurfaceConfig
T = TypeVar("T")

FAILED, USAGE, UNREACHABLE = 1, 2, 3
"""Exit codes besides 0: a check failed; the usage or the configuration is wrong; a server does not answer."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration file (TOML). Environment variables HEXVEIL_SECTION__KEY override its keys. Default: the "
        "first that exists of HEXVEIL_CONFIG, ./hexveil.toml, ./config/, and the shipped template.",
        show_default=False,
    ),
]
UsersAreEvents = Annotated[
    bool, typer.Option("--yes-users-are-events", help="Accept a user's field in which nearly every value occurs once.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the files that the command writes.")]
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


def stop(message: object, code: int = USAGE) -> NoReturn:
    """End the command with a sentence on stderr, which names this program."""
    typer.secho(f"hexveil: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


NOT_PRIVATE = "NOT PRIVATE: computed from true values. Keep it inside the trust boundary; it is not a release."


def warn_of_true_values() -> None:
    """Say on stderr that what follows is not for the public."""
    typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)


def stop_service(message: object, code: int) -> NoReturn:
    """End a command whose stderr is a log, with ``message`` as its last line."""
    structlog.get_logger().error("cannot go on", reason=str(message), exit_code=code)
    raise typer.Exit(code)


def asked(settings: Config, ask: Callable[[Redis], Awaitable[T]]) -> T:
    """What Redis answers; exit 1 with what the ledger refuses, 3 if Redis or Kafka does not answer."""
    from aiokafka.errors import KafkaError
    from redis.exceptions import RedisError

    from stream.config.servers import redacted
    from stream.storage.client import redis_client

    async def answer() -> T:
        async with redis_client(settings.redis) as redis:
            return await ask(redis)

    try:
        return asyncio.run(answer())
    except KafkaError as error:
        stop(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}", UNREACHABLE)
    except (RedisError, OSError) as error:
        stop(f"Redis at {redacted(settings.redis.url)} does not answer: {error}", UNREACHABLE)


def secret_text(option: str, path: Path) -> str:
    """What a file of secrets holds, without white space around it. Raises :class:`ValueError`, which never shows it."""
    from stream.config.secret_files import OpenSecretError, read_secret

    try:
        return read_secret(path).decode().strip()
    except OpenSecretError as error:
        raise ValueError(f"{option} {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {path}: {error}; name a readable text file") from None


def progress_bars() -> Progress:
    """Bars on stderr, on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def reading_bar() -> Iterator[Callable[[int], None]]:
    """A bar that is told how many events were read."""
    with progress_bars() as bars:
        task = bars.add_task("reading", total=None)
        yield lambda events: bars.update(task, description=f"{events:,} events read")


Row = TypeVar("Row")


def table_of(
    rows: Iterable[Row],
    left: Mapping[str, Callable[[Row], str]],
    right: Mapping[str, Callable[[Row], str]],
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table of ``rows``: by their heads, columns of words, aligned to the left, then of numbers, to the right."""
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for head in left:
        table.add_column(head)
    for head in right:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(cell(row) for cell in (*left.values(), *right.values())))
    return table


def require_new(path: Path, *, force: bool) -> None:
    """Exit 2 if there is such a file already, unless ``force``."""
    if path.exists() and not force:
        stop(f"{path} exists; choose another name or pass --force")


def write_text(path: Path, text: str) -> None:
    """Write a file; exit 2 if it cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        stop(f"{path}: {error.strerror or error}; name a file in a folder that you may write to")


def check_plot(path: Path) -> None:
    """Exit 2 if no figure can be drawn into ``path``, before anything is computed for it."""
    if find_spec("matplotlib") is None:
        stop("plots need matplotlib: pip install 'hexveil[plot]'")
    if path.suffix.lower() not in {".png", ".svg", ".pdf"} or path.is_dir() or not path.parent.is_dir():
        stop(f"cannot write {path}; name a .png, .svg or .pdf in a folder that exists")


def show(*tables: Table, width: int = 160) -> None:
    """Print tables, ``width`` characters wide where stdout is no terminal."""
    from rich.console import Console

    console = Console(width=None if Console().is_terminal else width)
    for table in tables:
        console.print(table)


def port_is_free(section: str, surface: SurfaceConfig) -> None:
    """Exit 2 if another process listens on the address of ``surface``, or if this machine has no such address."""
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


def load_to_release(chosen: Chosen) -> Config:
    """The configuration of a command that releases windows; its public cells are checked before anything starts.

    Raises :class:`stream.config.ConfigError`.
    """
    from stream.config import load_config

    config = load_config(chosen)
    if config.participation is not None:
        from stream.config.public_cells import public_cells

        public_cells(config)
    return config


def read_service_config(named: Path | None, load: Callable[[Chosen], Config]) -> Config:
    """Load a configuration for a service, whose log also has the messages of the clients."""
    from stream.config import find_config

    log_clients(True)
    chosen = find_config(named, _wanted_relation(None))
    structlog.get_logger().info("configuration", file=str(chosen.file), why=chosen.why)
    return load(chosen)


HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """From its creation on, SIGINT and SIGTERM raise KeyboardInterrupt in whatever the main thread runs.

    Python ignores exceptions in what it calls around a fork, so an interrupt that arrives while a process is started
    can be lost: ``asked`` says that there was one.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in HANDLED:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt


def stopped_by_signals() -> asyncio.Event:
    """An event of the running loop that SIGINT and SIGTERM set from now on, instead of ending the process."""
    stopping = asyncio.Event()
    for number in HANDLED:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping
