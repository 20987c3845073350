"""The shipped configurations, copied out of the tree: a command keeps its key beside the file that it reads."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from stream.local import REPO_ROOT

_FOLDER = Path(tempfile.mkdtemp(prefix="hexveil-shipped-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

BUS, RIDERS = (Path(shutil.copy(REPO_ROOT / "config" / name, _FOLDER)) for name in ("bus-fleet.toml", "riders.toml"))
