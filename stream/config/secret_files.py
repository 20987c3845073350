"""Reading of files that hold a secret: only their owner may read them, or an orchestrator's group."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

log = structlog.get_logger()

_OTHERS, _GROUP_READS = 0o077, 0o040


class OpenSecretError(ValueError):
    """A secret file that others can read; the message says how to repair it."""


def read_secret(path: Path, most: int = -1) -> bytes:
    """The first ``most`` bytes of a secret file; -1: all of it.

    A mode like 0440 is accepted if the file belongs to another user, who gave it to one of this process's groups:
    orchestrators mount secrets like that (``fsGroup``), and this process could not change the mode. Raises
    :class:`OpenSecretError` if anybody else may read or write it, and :class:`OSError`.
    """
    with path.open("rb") as handle:
        status = os.fstat(handle.fileno())
        opened = status.st_mode & _OTHERS
        if opened and status.st_uid == os.geteuid():
            raise OpenSecretError(
                f"{path}: mode {status.st_mode & 0o777:04o} lets others read this secret; run: chmod 600 {path}"
            )
        if opened & ~_GROUP_READS:
            raise OpenSecretError(
                f"{path}: mode {status.st_mode & 0o777:04o} lets others read this secret, and it belongs to user "
                f"{status.st_uid}; have it mounted with mode 0440 (defaultMode) and a group of this process (fsGroup), "
                "or give a copy with mode 0600"
            )
        if opened:
            log.info("the group of a secret file can read it", file=str(path), group=status.st_gid)
        return handle.read(most)


@contextmanager
def drafted(path: Path, content: bytes, mode: int = 0o600) -> Iterator[Path]:
    """A new file beside ``path`` with this content, safe from a power cut, that may take the place of ``path``; in the
    end it is gone. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def readers(path: Path) -> str:
    """Who may read a secret file that :func:`read_secret` accepts, for people. Raises :class:`OSError`."""
    status = path.stat()
    return f"its owner and group {status.st_gid}" if status.st_mode & _OTHERS else "its owner only"
