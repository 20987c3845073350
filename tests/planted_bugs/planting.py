"""Plant one bug in a copy of the tree, run its test there, and take the bug out again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stream.local import REPO_ROOT
from tests.planted_bugs.bugs import Bug

PASSED = "passed"
_PARTS = ("dpcore", "stream", "config", "tests", "bench", "docs", "pyproject.toml", "README.md")
_SECONDS = 600


def copy_tree(to: Path) -> Path:
    """A copy of what the tests import and read."""
    skipped = shutil.ignore_patterns("__pycache__", "node_modules", ".*_cache")
    to.mkdir(parents=True)
    for name in _PARTS:
        part = REPO_ROOT / name
        if part.is_dir():
            shutil.copytree(part, to / name, ignore=skipped)
        else:
            shutil.copy2(part, to / name)
    local = REPO_ROOT / ".local"
    if local.exists():
        (to / ".local").symlink_to(local)
    return to


def noticed(bug: Bug, copy: Path) -> str:
    """ "noticed" if the bug's test fails with it; else what went wrong instead."""
    file = copy / bug.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(bug.before) != 1:
        return "misplaced"
    file.write_text(whole.replace(bug.before, bug.after), encoding="utf-8")
    try:
        verdict = run(copy, bug.test, bug.select)
    finally:
        file.write_text(whole, encoding="utf-8")
    return {PASSED: "MISSED", "failed": "noticed"}.get(verdict, verdict)


def run(copy: Path, test: str, select: str) -> str:
    """ "passed", "failed", or "broken" where pytest could not run ``test`` at all."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    if select:
        command += ["-k", select]
    answer = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=_SECONDS, check=False)
    return {0: PASSED, 1: "failed"}.get(answer.returncode, "broken")
