"""``hexveil worker``: ingest, close windows, publish."""

from __future__ import annotations

import typer

from stream.cli.options import FAILED, UNREACHABLE, USAGE, ConfigFile, choose_config, read_config, stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("worker")
    def worker(config: ConfigFile = None) -> None:
        """Run one worker until SIGTERM; start more of them with the same configuration to share the load."""
        settings = read_config(choose_config(config))
        from aiokafka.errors import KafkaError
        from redis.exceptions import RedisError

        from stream.app import run_worker
        from stream.ingestion.pseudonyms import UserKeyError
        from stream.server_version import ServerVersionError
        from stream.statistics.participation.public_cells import public_cells
        from stream.storage.ledger import LedgerError
        from stream.storage.row_store import StateError

        if settings.relation == "participation":
            public_cells(settings)  # known to be sound before the first window closes
        try:
            run_worker(settings)
        except UserKeyError as error:
            stop(str(error), USAGE)
        except (LedgerError, ServerVersionError, StateError) as error:
            stop(str(error), FAILED)
        except (OSError, RedisError, KafkaError) as error:
            stop(f"a server does not answer: {error}; run 'hexveil doctor'", UNREACHABLE)
