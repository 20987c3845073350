"""One Kafka broker shared by all xdist workers: ``python -m tests.support.broker FOLDER OWNER_PID`` holds it for them.

A worker may end before the others, so none of them can be the broker's parent. This process is its parent, and stops
the broker when the owner (the pytest process that started the workers) has ended.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from stream.local.kafka import REPO_ROOT, KafkaServer

START_SECONDS = 240.0  # includes the first fetch of the jars


def shared_bootstrap(folder: Path, owner: int) -> str:
    """Bootstrap address of the broker kept in ``folder``, started by whichever worker asks first."""
    folder.mkdir(parents=True, exist_ok=True)
    bootstrap_file = folder / "bootstrap"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not bootstrap_file.exists():
            _start_keeper(folder, bootstrap_file, owner)
    return bootstrap_file.read_text()


def _start_keeper(folder: Path, bootstrap_file: Path, owner: int) -> None:
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.broker", str(folder), str(owner)],
            cwd=REPO_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not bootstrap_file.exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            keeper.kill()
            raise RuntimeError(f"the shared broker did not start:\n{(folder / 'keeper.log').read_text()}")
        time.sleep(0.05)


def keep(folder: Path, owner: int) -> None:
    """Run the broker until process ``owner`` is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(ProcessLookupError), KafkaServer(folder / "kafka") as server:
        watched = os.pidfd_open(owner)
        written = folder / "bootstrap.part"
        written.write_text(server.bootstrap)
        written.rename(folder / "bootstrap")
        select.select([watched], [], [])


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
