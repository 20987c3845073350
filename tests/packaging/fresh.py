"""Archives of both distributions, and fresh environments that hold one of them and nothing of this tree."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

from stream.local import REPO_ROOT

SOURCES = {"hexveil": REPO_ROOT, "hexveil_dpcore": REPO_ROOT / "dpcore"}
"""Where each distribution is built."""
DIST_ENV = "HEXVEIL_DIST"
"""Names a folder of archives to try instead of building them: what `make release` is about to publish."""


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``, made by whichever process of the test run asks first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_suffix(".part")
            make(making)
            making.rename(folder)
    return folder


def run(*command: str | Path, cwd: Path = Path("/")) -> str:
    """Standard output of a command that must succeed; where it runs, nothing of this tree can be imported."""
    done = subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def clean() -> dict[str, str]:
    """This environment without what would lead back to this tree or configure Hexveil."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEXVEIL", "VIRTUAL"))}


def build(folder: Path) -> None:
    """Source and binary archive of both distributions."""
    folder.mkdir(parents=True)
    for root in SOURCES.values():
        run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=root)


def archive(folder: Path, name: str, suffix: str) -> Path:
    """The one archive of distribution ``name`` that ends with ``suffix``."""
    (found,) = folder.glob(f"{name}-*{suffix}")
    return found


def environment(archive: Path) -> Callable[[Path], None]:
    """Make a virtual environment with ``archive`` and what it requires, in the versions of this environment."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder)
        constraints = folder / "constraints.txt"
        pinned = {f"{found.name}=={found.version}" for found in distributions() if "hexveil" not in found.name.lower()}
        constraints.write_text("\n".join(sorted(pinned)))
        run(folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", constraints, archive)

    return make
