"""Plant one bug in a copy of the tree, run its test there, and take the bug out again."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from stream.local.kafka import REPO_ROOT
from tests.planted_bugs.bugs import Bug

PASSED = "passed"
PARTS = ("dpcore", "stream", "config", "examples", "tests", "bench", "research", "docs", "pyproject.toml", "README.md")
_SECONDS = 3600
"""Longest run of pytest: minutes on a free machine, and many times that beside other work."""
_PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def copy_tree(to: Path) -> Path:
    """A copy of what the tests import and read, compiled modules included, by hard links where the file system has
    them."""
    skipped = shutil.ignore_patterns("node_modules", ".*_cache")
    to.mkdir(parents=True)
    for name in PARTS:
        part = REPO_ROOT / name
        if part.is_dir():
            shutil.copytree(part, to / name, ignore=skipped, copy_function=_link)
        else:
            _link(part, to / name)
    local = REPO_ROOT / ".local"
    if local.exists():
        (to / ".local").symlink_to(local)
    return to


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def noticed(bug: Bug, copy: Path) -> str:
    """ "noticed" if the bug's test fails with it; else what went wrong instead."""
    file = copy / bug.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(bug.before) != 1:
        return "misplaced"
    # Replace the file, because the copy is a hard link to the file of the tree.
    file.unlink()
    file.write_text(whole.replace(bug.before, bug.after), encoding="utf-8")
    try:
        verdict = _verdict(_answer(copy, "-x", bug.test, *(["-k", bug.select] if bug.select else [])))
    except subprocess.TimeoutExpired:
        return "unfinished"
    finally:
        file.unlink()
        _link(REPO_ROOT / bug.file, file)
    return {PASSED: "MISSED", "failed": "noticed"}.get(verdict, verdict)


def failing_without_a_bug(bugs: Iterable[Bug], copy: Path, jobs: int) -> str:
    """What pytest prints about the selected tests if not all of them pass; otherwise an empty string."""
    named = list(bugs)
    files = sorted({bug.test for bug in named})
    words = sorted({f"({bug.select})" for bug in named})
    answer = _answer(copy, "-n", str(jobs), "--dist", "worksteal", *files, "-k", " or ".join(words))
    return "" if _verdict(answer) == PASSED else answer.stdout


def _answer(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    return subprocess.run(
        [*_PYTEST, *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def _verdict(answer: subprocess.CompletedProcess[str]) -> str:
    """ "passed", "failed", or "broken" where pytest could not run the test at all."""
    return {0: PASSED, 1: "failed"}.get(answer.returncode, "broken")
