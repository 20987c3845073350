"""Starts commands of the service without the second that their imports take: each is a fork of one process that has
them, which all processes of a run share.

A command has arguments, a folder, an environment, streams and a process of its own, as if Python had been started for
it, except that variables of Python's own have no effect, that a signal gives a shell's exit code, and that after
SIGKILL it ends a moment after the process that stands for it. What this cannot show is that a command imports all it
needs; ``tests/packaging/test_wheel.py`` runs every command.
"""

import fcntl
import gc
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from stream.local.kafka import REPO_ROOT
from stream.local.server import die_with_parent, tail

CLIENT = Path(__file__).with_name("forked.py")
START_SECONDS = 120.0
IMPORTED = ("stream.app", "stream.cli", "stream.evaluation", "stream.serve", "stream.sources")
"""Packages that are imported with all their modules, and so with all that these import."""
KILLED = 128
"""A shell adds the signal's number to it for the exit code of a command that a signal ended."""


def started_once(module: str, file: Path, owner: int, seconds: float) -> None:
    """Let ``python -m MODULE FILE OWNER`` run beside all processes of a run: whoever asks first starts it, and waits
    until it has made ``file``. It has to end with the process ``owner``, because none of the others can be its parent:
    any may end before the rest."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log = file.with_name("log")
    with file.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            command = [sys.executable, "-m", module, str(file), str(owner)]
            with log.open("wb") as out:
                started = subprocess.Popen(command, cwd=REPO_ROOT, stdout=out, stderr=out, start_new_session=True)
            deadline = time.monotonic() + seconds
            while not file.exists():
                if started.poll() is not None or time.monotonic() > deadline:
                    started.kill()
                    raise RuntimeError(f"{module} did not start:\n{tail(log)}")
                time.sleep(0.02)


def forking(folder: Path, owner: int) -> tuple[str, ...]:
    """The words before MODULE and its arguments that make a command a fork. Whoever asks first starts the process that
    forks, in ``folder``; it ends with the process ``owner``.
    """
    started_once(__name__, folder / "socket", owner, START_SECONDS)
    return (sys.executable, "-I", "-S", str(CLIENT), str(folder / "socket"))


def serve(address: Path, owner: int) -> None:
    """Fork for every connection, until the process ``owner`` has ended."""
    for package in IMPORTED:
        for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    gc.freeze()  # so that no collection in a fork copies what all share
    watched = os.pidfd_open(owner)
    with socket.socket(socket.AF_UNIX) as listening:
        starting = address.with_suffix(".part")
        listening.bind(str(starting))
        listening.listen(64)
        starting.rename(address)
        while watched not in select.select([listening, watched], [], [])[0]:
            link, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                attend(link)
                return
            link.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # those whose command has ended
                    pass


def attend(link: socket.socket) -> None:
    """Run the command that ``link`` asks for in a fork, and answer its process id, then its exit code."""
    _, streams, _, _ = socket.recv_fds(link, 1, 3)
    with link.makefile("rb") as asked:
        folder, count, *rest = asked.read().decode(errors="surrogateescape").split("\0")
    words, settings = rest[: int(count)], rest[int(count) :]
    here = os.getpid()
    command = os.fork()
    if command == 0:
        die_with_parent(here)
        link.close()
        become(words, folder, dict(setting.split("=", 1) for setting in settings), streams)
        return
    for stream in streams:
        os.close(stream)
    with suppress(BrokenPipeError):  # the asking process is gone already
        link.sendall(b"%d\n" % command)
    watched = os.pidfd_open(command)
    # The link is at its end for reading, so that only an error shows that the asking process is gone.
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(link, 0)
    if watched not in dict(poll.poll()):
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError):
        link.sendall(b"%d\n" % (code if code >= 0 else KILLED - code))


def become(words: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """Turn this process into the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv[1:] = words[1:]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
