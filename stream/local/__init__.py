"""Runs Apache Kafka and Redis on this machine for the demo and the tests: on loopback only, ended with their parent."""

from stream.local.kafka import REPO_ROOT, JavaMissingError, KafkaServer, MavenMissingError, find_java, kafka_jars
from stream.local.server import (
    LOOPBACK,
    LocalServerError,
    RedisMissingError,
    RedisServer,
    StartError,
    die_with_parent,
    end_process,
    find_redis,
    free_port,
    spawn,
    tail,
)

__all__ = [
    "LOOPBACK",
    "REPO_ROOT",
    "JavaMissingError",
    "KafkaServer",
    "LocalServerError",
    "MavenMissingError",
    "RedisMissingError",
    "RedisServer",
    "StartError",
    "die_with_parent",
    "end_process",
    "find_java",
    "find_redis",
    "free_port",
    "kafka_jars",
    "spawn",
    "tail",
]
