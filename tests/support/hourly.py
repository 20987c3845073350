"""The hourly configurations as files outside the tree: a command keeps its key beside the file that it reads.

Most tests use them, so that their expectations stay as they are when better defaults are shipped.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from bench.hourly import hourly_text

_FOLDER = Path(tempfile.mkdtemp(prefix="hexveil-hourly-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def write_hourly(name: str, file: Path) -> Path:
    """Write the hourly configuration ``name`` to ``file`` and return it."""
    file.write_text(hourly_text(name), encoding="utf-8")
    return file


BUS, RIDERS = (write_hourly(name, _FOLDER / f"{name}.toml") for name in ("bus-fleet", "riders"))
