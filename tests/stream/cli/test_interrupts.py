"""Signals that end a command, at the worst moments."""

from __future__ import annotations

import subprocess
import sys

from stream.local import REPO_ROOT

WHILE_A_PROCESS_STARTS = """
import os, signal
from stream.cli.options import Interrupts
interrupts = Interrupts()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))
if os.fork() == 0:
    os._exit(0)
print("went on, asked:", interrupts.asked)
signal.raise_signal(signal.SIGINT)
"""


def test_an_interrupt_that_python_loses_while_a_process_starts_is_remembered() -> None:
    """Found with `hexveil demo`, which once ran on after a SIGTERM between the starts of its processes."""
    command = [sys.executable, "-c", WHILE_A_PROCESS_STARTS]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on, asked: True\n"
    assert "Exception ignored" in done.stderr, "Python lost the first interrupt"
    assert done.stderr.endswith("KeyboardInterrupt\n"), "the second one ended the program"
    assert done.returncode != 0
