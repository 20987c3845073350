"""Archives of both distributions, and fresh environments that hold one of them and nothing of this tree."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stream.local.kafka import REPO_ROOT

SOURCES = {"hexveil": REPO_ROOT, "hexveil_dpcore": REPO_ROOT / "dpcore"}
"""Where each distribution is built."""
DIST_ENV = "HEXVEIL_DIST"
"""Names a folder of archives to try instead of building them: what `make release` is about to publish."""


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``; the first process of the test run that needs it makes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(folder)
            made.touch()
    return folder


def run(*command: str | Path, cwd: Path = Path("/")) -> str:
    """Standard output of a command that must succeed; where it runs, nothing of this tree can be imported."""
    done = subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def clean() -> dict[str, str]:
    """The present environment without variables that lead to this tree or configure Hexveil."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEXVEIL", "VIRTUAL"))}
    return kept | {"UV_SYSTEM_CERTS": "1"}  # uv reads the machine's certificates only if it is told to


def build(folder: Path) -> None:
    """Source and binary archive of both distributions."""
    folder.mkdir(parents=True)
    for root in SOURCES.values():
        run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=root)


def archive(folder: Path, name: str, suffix: str) -> Path:
    """The one archive of distribution ``name`` that ends with ``suffix``."""
    (path,) = folder.glob(f"{name}-*{suffix}")
    return path


def install(archive: Path, folder: Path) -> None:
    """A virtual environment with ``archive`` and what it requires, in the versions that a user gets today. By uv, in
    seconds: pip took more than five minutes on a busy machine."""
    run(sys.executable, "-m", "venv", folder)
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--python", folder / "bin" / "python", archive)


def install_linked(archive: Path, folder: Path) -> None:
    """The same without a download: what ``archive`` requires is linked from the environment of the tests."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "-q", "--no-deps", archive)
    (site,) = folder.glob("lib/python*/site-packages")
    (installed,) = [package for package in distributions(path=[str(site)]) if "hexveil" in package.name]
    for name in required(installed):
        for file in distribution(name).files or ():
            source, target = Path(str(file.locate())), site / file
            if file.suffix != ".pyc":
                _link(source, target)
            # Bytecode compiled there is valid here, because a link has the time stamp of its source.
            if file.suffix == ".py" and (compiled := Path(cache_from_source(source))).exists():
                _link(compiled, Path(cache_from_source(target)))
    run(*pip, "check")


def _link(source: Path, target: Path) -> None:
    """Link or copy a file; scripts that name the interpreter of the environment of the tests are left out."""
    if ".." in target.parts and source.read_bytes()[:2] == b"#!":
        return
    target = Path(os.path.normpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source.resolve())
    except OSError:  # another file system
        shutil.copy2(source, target)


def required(root: Distribution) -> set[str]:
    """Names of all distributions that ``root`` requires here, directly or not, without its own extras."""
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(root, "")]
    while waiting:
        holder, extra = waiting.pop()
        for requirement in map(Requirement, holder.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            names.add(name)
            wanted = {(name, of) for of in ("", *requirement.extras)} - seen
            seen |= wanted
            waiting += [(distribution(name), of) for name, of in wanted]
    return names
