"""Bounds and errors of the files that describe the city: whoever writes one cannot fill the memory or slip in a control
character."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from stream.config import ConfigError

LONGEST_NAME = 256
"""Characters of a name of a stop, route or area."""


def read_bytes(path: Path, key: str, largest: int) -> bytes:
    """The bytes of the file that the key ``public.<key>`` names. Raises :class:`ConfigError`."""
    try:
        size = path.stat().st_size
        if size > largest:
            raise ConfigError(
                f"public.{key} {path} has {size} bytes, more than {largest}; leave out what the map need not show"
            )
        body = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"public.{key} {path}: {error.strerror or error}; name a readable file") from None
    if len(body) > largest:
        raise ConfigError(f"public.{key} {path} grew above {largest} bytes while it was read; start again")
    return body


_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
"""Controls that embed, override or isolate directions of text: they would reach beyond the name."""


def check_name(name: str, where: str) -> str:
    """``name`` without spaces at its ends and without controls of direction.

    Raises :class:`ValueError` for one that is empty, too long, has control characters or breaks of lines, or shows
    nothing.
    """
    name = name.translate(_DIRECTIONS).strip()
    if not name:
        raise ValueError(f"{where} is empty; give it a name")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{where} has {len(name)} characters, more than {LONGEST_NAME}; shorten it")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise ValueError(f"{where}, {name[:40]!r}, has control characters; remove them")
    if all(unicodedata.category(letter)[0] in "CZ" for letter in name):
        raise ValueError(f"{where}, {name[:40]!r}, has no visible character; give it a name")
    return name
