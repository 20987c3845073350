"""A command that is a fork of an importing process is, to its caller, like one that Python was started for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support import hourly
from tests.support.environment import environment

NOWHERE = {"kafka.bootstrap": "127.0.0.1:9", "redis.url": "redis://127.0.0.1:9/0"}


@pytest.mark.parametrize("words", [["--version"], ["check", "--config", "none.toml"], ["check", "--wrong", "a\nb"]])
def test_it_says_the_same_in_its_folder_and_ends_with_the_same_code(
    hexveil: Sequence[str], words: list[str], tmp_path: Path
) -> None:
    def done(*command: str) -> tuple[int, str, str]:
        ended = subprocess.run([*command, *words], cwd=tmp_path, env=environment({}), capture_output=True, text=True)
        return ended.returncode, ended.stdout, ended.stderr

    assert done(*hexveil) == done(sys.executable, "-m", "stream")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_a_signal_reaches_it_and_nothing_of_it_is_left(
    hexveil: Sequence[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    def forks() -> int:
        count = 0
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # or a zombie
                count += "tests.support.forking" in child.cmdline()
        return count

    before, earlier = forks(), -1
    while before != earlier:  # those that a test before killed end a moment later
        time.sleep(0.5)
        before, earlier = forks(), before
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(NOWHERE), stderr=subprocess.PIPE) as asked:
        assert asked.stderr is not None
        assert any(b"redis does not answer" in line for line in asked.stderr)
        assert forks() > before
        asked.send_signal(number)
        asked.stderr.read()
    assert asked.returncode == code
    deadline = time.monotonic() + 60
    while forks() > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
