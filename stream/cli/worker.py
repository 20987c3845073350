"""``hexveil worker``: ingest, close windows, publish."""

from __future__ import annotations

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.options import FAILED, UNREACHABLE, USAGE, ConfigFile, port_is_free, read_service_config, stop_service


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("worker")
    def worker(config: ConfigFile = None) -> None:
        """Run one worker until SIGTERM; start more of them with the same configuration to share the load."""
        settings = read_service_config(config)
        from aiokafka.errors import KafkaError
        from redis.exceptions import RedisError

        from stream.app import run_worker
        from stream.awaiting import TopicMissingError
        from stream.config import ConfigError
        from stream.connection import kafka_options
        from stream.ingestion.pseudonyms import UserKeyError
        from stream.server_version import ServerVersionError
        from stream.statistics.participation.public_cells import public_cells
        from stream.storage.ledger import LedgerError
        from stream.storage.row_store import StateError

        try:
            if settings.relation == NeighbouringRelation.PARTICIPATION:
                public_cells(settings)  # known to be sound before the first window closes
            kafka_options(settings.kafka)
        except ConfigError as error:
            stop_service(str(error), USAGE)
        port_is_free("operator", settings.operator)
        try:
            run_worker(settings)
        except UserKeyError as error:
            stop_service(str(error), USAGE)
        except (LedgerError, ServerVersionError, StateError, TopicMissingError) as error:
            stop_service(str(error), FAILED)
        except (OSError, RedisError, KafkaError) as error:
            stop_service(f"a server does not answer: {error}; run 'hexveil doctor'", UNREACHABLE)
