"""The hourly configurations as files outside the tree: a command keeps its key beside the file that it reads.

Most tests use them, so that their expectations stay as they are when better defaults are shipped.
"""

import atexit
import shutil
import tempfile
from pathlib import Path

from bench.hourly import FILES

_FOLDER = Path(tempfile.mkdtemp(prefix="hexveil-hourly-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

BUS, RIDERS = (Path(shutil.copyfile(FILES[name], _FOLDER / f"{name}.toml")) for name in ("bus-fleet", "riders"))
