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


def forks(hexveil: Sequence[str]) -> int:
    """How many processes are the one that forks, or forks of it, whoever is their parent by now."""
    address, count = hexveil[-2], 0
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):  # or a zombie
            words = process.cmdline()
            count += "tests.support.forking" in words and address in words
    return count


def only_the_forking_process(hexveil: Sequence[str]) -> None:
    """Wait until it alone is left; what was killed ends a moment later."""
    deadline = time.monotonic() + 60
    while forks(hexveil) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    only_the_forking_process(hexveil)
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(NOWHERE), stderr=subprocess.PIPE) as asked:
        assert asked.stderr is not None
        assert any(b"redis does not answer" in line for line in asked.stderr)
        assert forks(hexveil) > 1
        asked.send_signal(number)
        asked.stderr.read()
    assert asked.returncode == code
    only_the_forking_process(hexveil)


def test_nothing_is_left_of_commands_that_are_killed_while_they_begin(hexveil: Sequence[str], tmp_path: Path) -> None:
    """Within 80 ms from its start a command is asked for, forked, and told to whoever asked."""
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    for milliseconds in range(0, 80, 4):
        with subprocess.Popen(command, cwd=tmp_path, env=environment(NOWHERE), stderr=subprocess.DEVNULL) as asked:
            time.sleep(milliseconds / 1000)
            asked.kill()
    only_the_forking_process(hexveil)
