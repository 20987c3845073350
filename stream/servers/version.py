"""Name and version of the server that holds state and ledger, and whether it is supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST = {"Redis": (7, 0), "Valkey": (8, 0)}
"""Oldest supported version of each server. Before 7.0, Redis keeps the append-only file as a single file, and CONFIG
GET accepts only one name."""


class ServerVersionError(RuntimeError):
    """The server is too old; the message names the version found, the one needed and the remedy."""


@dataclass(frozen=True)
class ServerVersion:
    """Name and version of a server, as it reports them."""

    name: str
    text: str

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> ServerVersion:
        """Name and version by section "server" of INFO, where Valkey also reports Redis 7.2.4, for compatibility."""
        if info.get("server_name") == "valkey":
            return cls("Valkey", str(info["valkey_version"]))
        return cls("Redis", str(info["redis_version"]))

    @property
    def supported(self) -> bool:
        """Whether the version is at least that of :data:`LEAST`; False if it cannot be read."""
        numbers = self.text.split(".")[:2]
        return all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= LEAST[self.name]

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


NEEDED = " or ".join(f"{name} {major}.{minor}" for name, (major, minor) in LEAST.items()) + " or newer"
REMEDY = f"upgrade it to {NEEDED}; it will use the existing data"


def require_supported(info: Mapping[str, Any], where: str) -> ServerVersion:
    """The server's version. Raises :class:`ServerVersionError` if it is too old. ``where``: its address."""
    running = ServerVersion.from_info(info)
    if not running.supported:
        raise ServerVersionError(f"{where} is {running}, and {NEEDED} is needed: {REMEDY}")
    return running
