"""The command ``hexveil``. Data goes to stdout, progress and logs to stderr.

Exit codes: 0 success, 1 a check failed, 2 wrong usage or configuration, 3 a server does not answer.
"""

import atexit
import gc
import io
import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpcore import __version__
from stream.cli.options import FAILED, UNREACHABLE, USAGE, stop, stop_service
from stream.logs import configure_logs, log_clients

SUBJECTS = (
    "init", "check", "doctor", "worker", "serve", "replay", "simulate", "gtfs-rt", "siri-vm", "hfp", "gtfs", "push",
    "inspect", "evaluate", "tune", "query", "verify", "topics", "ledger", "key", "schema", "demo",
)  # fmt: skip
_ELSEWHERE = {
    "gtfs-rt": ("positions", "gtfs_rt"), "siri-vm": ("positions", "siri_vm"), "hfp": ("positions", "hfp"),
    "schema": ("topics", "schemas"),
}  # fmt: skip
"""Module and name of the commands that are not ``command`` in a module of their own name."""


_SERVICES = ("worker", "serve")
"""Commands whose stderr is a log."""

_CODES = dict.fromkeys(
    (
        "BasemapError", "ConfigError", "InspectionError", "LineError", "ParameterError", "RecordingError",
        "ReleaseFileError", "ReleaseSourceError", "ScheduleError", "SigningKeyError", "SpanError", "TooLateError",
        "UserKeyError",
    ), USAGE,
) | dict.fromkeys(
    (
        "EmbeddedError", "LedgerError", "LocalServerError", "PlanError", "ServerVersionError", "StateError",
        "TopicMissingError",
    ), FAILED,
) | dict.fromkeys(("DeliveryError", "FetchError", "TopicUnreachableError"), UNREACHABLE)  # fmt: skip
"""The exit code of each error, by its name: to import them takes a second, and most commands know few of them."""


class Commands(TyperGroup):
    """Imports the module of a subject only if one of its commands is used, because all take a second to import."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every subject, in the order of use."""
        return list(SUBJECTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command or group of that name. For an unknown name all are imported, to suggest similar ones."""
        for subject in (cmd_name,) if cmd_name in SUBJECTS else SUBJECTS:
            if subject not in self.commands:
                self.commands[subject] = _command_of(subject)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error whose text says what to do ends it with the code of :data:`_CODES`."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            for kind in type(error).__mro__:
                if kind.__name__ in _CODES:
                    say = stop_service if ctx.invoked_subcommand in _SERVICES else stop
                    say(error, _CODES[kind.__name__])
            raise


def _command_of(subject: str) -> Any:
    place, name = _ELSEWHERE.get(subject, (subject, "command"))
    command, alone = getattr(import_module(f"stream.cli.{place}"), name), typer.Typer()
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=subject)
    else:
        alone.command(subject)(command)
    return typer.main.get_group(alone).commands[subject]


app = typer.Typer(name="hexveil", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


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
    """Stop if a ``hexveil-dpcore`` of another version is installed: both own the same files."""
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


_COLLECT_AFTER = 20_000
"""New objects after which Python looks for garbage. Its own 700 cost a tenth of a start: imports make 200 000."""


def main() -> None:
    """Entry point of the ``hexveil`` command."""
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(gc.freeze)  # or Python would look through all of them three times more before it ends
    configure_logs()
    log_clients(False)
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on stderr: what cannot be shown is written as its number
    app()
