"""``hexveil …``: data on stdout, progress and logs on stderr; exit 0 ok, 1 failed check, 2 usage, 3 unreachable."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpcore import __version__
from stream.cli.options import FAILED, USAGE, stop
from stream.logs import configure_logs, tell_of_clients

SUBJECTS = (
    "init",
    "check",
    "doctor",
    "worker",
    "serve",
    "replay",
    "simulate",
    "gtfs-rt",
    "evaluate",
    "query",
    "topics",
    "ledger",
    "schema",
    "bench",
    "demo",
)


class Commands(TyperGroup):
    """Imports a subject when one of its commands is asked for: the others' dependencies take a second to load."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every subject, in the order of use."""
        return list(SUBJECTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command or group of that name; an unknown one imports all, among which the likeliest are suggested."""
        for subject in (cmd_name,) if cmd_name in SUBJECTS else SUBJECTS:
            if subject not in self.commands:
                alone = typer.Typer()
                import_module(f"stream.cli.{subject.replace('-', '_')}").register(alone)
                self.commands.update(typer.main.get_group(alone).commands)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a configuration that turns out not to be usable, as late as it may, is wrong usage."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            from stream.config import ConfigError  # not for the commands that read none

            if not isinstance(error, ConfigError):
                raise
            stop(str(error), USAGE)


app = typer.Typer(
    name="hexveil",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hexveil {__version__} (Python {platform.python_version()}, {platform.platform()})")
        raise typer.Exit


@app.callback()
def hexveil(
    tell_version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Live vehicle feeds in, differentially private traffic statistics out."""
    _refuse_mixed_mathematics()


def _refuse_mixed_mathematics() -> None:
    """Stop beside a ``hexveil-dpcore`` of another version: it owns the same files, and one has overwritten the other's."""
    try:
        service, alone = version("hexveil"), version("hexveil-dpcore")
    except PackageNotFoundError:
        return
    if service != alone:
        stop(
            f"hexveil {service} and hexveil-dpcore {alone} are both installed, and both own the package dpcore: "
            "pip uninstall hexveil hexveil-dpcore, then install hexveil alone",
            FAILED,
        )


def main() -> None:
    """Entry point of the ``hexveil`` command."""
    configure_logs()
    tell_of_clients(False)
    app()
