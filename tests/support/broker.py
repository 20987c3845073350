"""One Kafka broker shared by all xdist workers: ``python -m tests.support.broker FILE OWNER_PID`` holds it for them.

It writes the address of the broker to FILE, and stops it when the owner (the pytest process that started the workers)
has ended.
"""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

from stream.local.kafka import KafkaServer
from tests.support.forking import started_once

START_SECONDS = 240.0  # includes the first fetch of the jars


def shared_bootstrap(folder: Path, owner: int) -> str:
    """Bootstrap address of the broker kept in ``folder``, started by whichever worker asks first."""
    started_once(__name__, folder / "bootstrap", owner, START_SECONDS)
    return (folder / "bootstrap").read_text()


def keep(bootstrap: Path, owner: int) -> None:
    """Run the broker until process ``owner`` is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(ProcessLookupError), KafkaServer(bootstrap.with_name("kafka")) as server:
        watched = os.pidfd_open(owner)
        written = bootstrap.with_suffix(".part")
        written.write_text(server.bootstrap)
        written.rename(bootstrap)
        select.select([watched], [], [])


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
