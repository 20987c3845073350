"""``hexveil …``: data on stdout, progress and logs on stderr; exit 0 ok, 1 failed check, 2 usage, 3 unreachable."""

from __future__ import annotations

import sys
from importlib import import_module

import structlog
import typer

SUBJECTS = (
    "init",
    "check",
    "doctor",
    "worker",
    "serve",
    "replay",
    "simulate",
    "evaluate",
    "query",
    "topics",
    "ledger",
    "schema",
    "bench",
    "demo",
)

app = typer.Typer(
    name="hexveil",
    help="Live vehicle feeds in, differentially private traffic statistics out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for subject in SUBJECTS:
    import_module(f"stream.cli.{subject}").register(app)


def main() -> None:
    """Entry point of the ``hexveil`` command."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer() if not sys.stderr.isatty() else structlog.dev.ConsoleRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    app()
