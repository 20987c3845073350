"""The processes of one feed: its workers, started as an operator starts them, their children, and the public
service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, end_process, free_port, spawn, tail

_SHIFTED_CLOCK = """\
import datetime, os, time
_by = float(os.environ["CLOCK_IS_OFF_BY"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _by
time.time_ns = lambda: _time_ns() + int(_by * 1e9)
"""
"""Python reads its module sitecustomize at every start, also in child processes."""


class Worker:
    """One worker process of a feed."""

    def __init__(self, config: Path, *, clock_off: float = 0.0) -> None:
        """``clock_off``: seconds by which time.time() of the process and its children is ahead."""
        self.port, self.log = free_port(), config.parent / "worker.log"
        env = os.environ | {"PYTHONPATH": str(REPO_ROOT), "HEXVEIL_OPERATOR__PORT": str(self.port)}
        if clock_off:
            folder = config.parent / "shifted-clock"
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(_SHIFTED_CLOCK)
            env |= {"PYTHONPATH": f"{folder}:{REPO_ROOT}", "CLOCK_IS_OFF_BY": str(clock_off)}
        command = [sys.executable, "-m", "stream", "worker", "--config", str(config)]
        self.process = spawn(command, self.log, cwd=config.parent, env=env)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        """Whether it has partitions and a ledger that it trusts."""
        return _answers(self.port)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker process alone."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """SIGTERM, and SIGKILL if it has not ended after 15 s."""
        end_process(self.process, 15.0)

    def children(self) -> list[int]:
        """Process ids of its closing process and, if it has one, its publishing process, in the order of their
        start."""
        pids = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += [int(pid) for pid in task.read_text().split()]
        return sorted(pid for pid in pids if b"spawn_main" in _command_line(pid))


class PublicService:
    """``hexveil serve`` over the output topics."""

    def __init__(self, config: Path, port: int) -> None:
        self.port, self.log = port, config.parent / "serve.log"
        command = [sys.executable, "-m", "stream", "serve", "--config", str(config)]
        env = os.environ | {"PYTHONPATH": str(REPO_ROOT)}
        self.process: subprocess.Popen[bytes] = spawn(command, self.log, cwd=config.parent, env=env)

    def is_ready(self) -> bool:
        return _answers(self.port)

    def end(self) -> None:
        end_process(self.process, 10.0)


def wait_until_ready(processes: list[Worker] | list[PublicService], seconds: float = 600.0) -> None:
    """Wait until all of ``processes`` are ready. Raises :class:`RuntimeError` with the end of the log otherwise."""
    deadline = time.monotonic() + seconds
    for process in processes:
        while not process.is_ready():
            if process.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.process.args!r} is not ready:\n{tail(process.log)}")
            time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
