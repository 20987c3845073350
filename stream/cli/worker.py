"""``hexveil worker``: ingest, close windows, publish."""

from __future__ import annotations

import typer

from stream.cli.options import DEFAULT_CONFIG, UNREACHABLE, USAGE, ConfigFile, read_config, stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("worker")
    def worker(config: ConfigFile = DEFAULT_CONFIG) -> None:
        """Run one worker until SIGTERM; start more of them with the same configuration to share the load."""
        settings = read_config(config)
        from stream.app import run_worker
        from stream.ledger import LedgerError
        from stream.pseudonyms import UserKeyError

        try:
            run_worker(settings)
        except UserKeyError as error:
            stop(str(error), USAGE)
        except LedgerError as error:
            stop(str(error), 1)
        except OSError as error:
            stop(f"a server does not answer: {error}; run 'hexveil doctor'", UNREACHABLE)
