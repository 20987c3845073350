"""Sets a Redis back to an earlier state, as an operator would who restores a backup."""

import shutil
from pathlib import Path

from stream.local import RedisServer

_LOG = "appendonlydir"


def back_up(server: RedisServer, kept: Path) -> None:
    """Copy the append-only file of ``server`` to ``kept``, in place of what was there."""
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(server.folder / _LOG, kept)


def set_back(server: RedisServer, kept: Path) -> None:
    """Stop ``server``, put the file of ``kept`` in the place of its own, and start it."""
    server.stop()
    shutil.rmtree(server.folder / _LOG)
    shutil.copytree(kept, server.folder / _LOG)
    server.start()
