"""Keyed 64-bit pseudonyms, the only form in which users enter Redis, and the secret key behind them.

All workers of a feed must share one key, and it must not change within a ledger period, because a user with two
pseudonyms has two budgets. Redis stores the key's fingerprint and so recognises another key.
"""

import os
import secrets
import sys
from hashlib import blake2b
from pathlib import Path

from stream.config.secret_files import OpenSecretError, drafted, read_secret

KEY_BYTES = 32
MAX_USER_BYTES = 256
_WRITABLE = "set privacy.user_key_file to a file that you may write"


class UserKeyError(ValueError):
    """A key file that must not be used; the message says how to repair it."""


def load_user_key(path: str | os.PathLike[str]) -> bytes:
    """The 32 secret bytes of ``path``; created on first use, readable by the owner only.

    Two processes that start together get the same key: the first complete file wins. Raises :class:`UserKeyError` for a
    file that others may read, that is not 32 bytes, or that can be neither read nor created.
    """
    file = Path(path)
    try:
        if not file.exists():
            _make_key(file)
    except OSError as error:
        raise UserKeyError(f"{file}: {error.strerror}; {_WRITABLE}") from None
    return _key_in(file, _WRITABLE)


def existing_user_key(path: str | os.PathLike[str]) -> bytes:
    """The same, for a process that needs the key of others: the file is never created. Raises :class:`UserKeyError`."""
    return _key_in(Path(path), "copy the workers' privacy.user_key_file there; the first worker creates it")


def _key_in(file: Path, remedy: str) -> bytes:
    try:
        key = read_secret(file, KEY_BYTES + 1)
    except OpenSecretError as error:
        raise UserKeyError(f"user key {error}") from None
    except OSError as error:
        raise UserKeyError(f"{file}: {error.strerror}; {remedy}") from None
    if len(key) != KEY_BYTES:
        raise UserKeyError(
            f"{file}: {len(key)} bytes instead of {KEY_BYTES}; restore it, or move it away so that a new one is created"
        )
    return key


def _make_key(file: Path) -> None:
    with drafted(file, secrets.token_bytes(KEY_BYTES)) as draft:
        try:
            os.link(draft, file)
        except FileExistsError:
            return
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def key_fingerprint(key: bytes) -> str:
    """Hexadecimal fingerprint of a key; it reveals nothing about the key or about pseudonyms."""
    return blake2b(key, digest_size=16, person=b"hexveil key").hexdigest()


class Pseudonyms(dict[str, int]):
    """``pseudonyms[user]`` is the keyed BLAKE2b-64 of the identifier. So many are remembered that Python has
    their identifiers in ``capacity`` bytes.

    Raises :class:`KeyError` for an identifier that is blank, longer than 256 bytes of UTF-8 or not encodable.
    """

    def __init__(self, key: bytes, capacity: int = 1 << 26) -> None:
        super().__init__()
        if len(key) != KEY_BYTES:
            raise UserKeyError(f"a user key has {KEY_BYTES} bytes, not {len(key)}; take it from load_user_key")
        self._hash = blake2b(key=key, digest_size=8)
        self._capacity = self._room = capacity

    def __missing__(self, user: str) -> int:
        try:
            raw = user.encode()
        except UnicodeEncodeError:
            raise KeyError(user) from None
        if not raw.strip() or len(raw) > MAX_USER_BYTES:
            raise KeyError(user)
        hashed = self._hash.copy()
        hashed.update(raw)
        pseudonym = int.from_bytes(hashed.digest(), "little")
        self._room -= sys.getsizeof(user)
        if self._room < 0:
            self.clear()
            self._room = self._capacity - sys.getsizeof(user)
        self[user] = pseudonym
        return pseudonym
