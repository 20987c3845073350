"""``hexveil worker``: reads events, closes windows and publishes releases."""

from stream.cli.options import (
    FAILED,
    UNREACHABLE,
    ConfigFile,
    load_to_release,
    port_is_free,
    read_service_config,
    stop_service,
)


def command(config: ConfigFile = None) -> None:
    """Run one worker until SIGTERM. To share the load, start more workers with the same configuration."""
    settings = read_service_config(config, load_to_release)
    from aiokafka.errors import KafkaError
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

    from stream.app.running import run_worker
    from stream.servers.connection import kafka_options
    from stream.storage.client import redis_client

    kafka_options(settings.kafka)
    redis_client(settings.redis)
    port_is_free("operator", settings.operator)
    try:
        run_worker(settings)
    except (AuthenticationError, NoPermissionError) as error:
        stop_service(
            f"Redis refuses this user: {error}; correct redis.username and redis.password_file, or grant the rights "
            "that docs/security.md lists",
            FAILED,
        )
    except (OSError, RedisError, KafkaError) as error:
        stop_service(f"a server does not answer: {error}; run 'hexveil doctor'", UNREACHABLE)
