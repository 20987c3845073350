"""Java's options for the brokers of the tests, which live for seconds or minutes.

The optimising compiler would cost them more than it saves. With its classes in an archive, a broker starts in half the
processor time; ``python -m tests.support.broker_classes`` writes the archive. Java says so and does without it where
its own version or the jars are others.
"""

from __future__ import annotations

import os
import select
import signal

from stream.local import REPO_ROOT, KafkaServer

ARCHIVE = REPO_ROOT / ".local" / "kafka" / "classes.jsa"
STOP_SECONDS = 60.0
"""Java writes the archive while it ends."""
_COMPILER = "-XX:TieredStopAtLevel=1"


def java_options() -> str:
    """For the environment variable JAVA_TOOL_OPTIONS."""
    return f"{_COMPILER} -XX:SharedArchiveFile='{ARCHIVE}'" if ARCHIVE.is_file() else _COMPILER


def archive() -> None:
    """Start a broker and end it, which writes its classes; an archive that was cut short would end later brokers."""
    written = ARCHIVE.with_suffix(".part")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{_COMPILER} -XX:ArchiveClassesAtExit='{written}'"
    with KafkaServer() as broker:
        watched = os.pidfd_open(broker.pid)
        os.kill(broker.pid, signal.SIGTERM)
        ended, _, _ = select.select([watched], [], [], STOP_SECONDS)
        os.close(watched)
    if ended and written.is_file():
        written.replace(ARCHIVE)


if __name__ == "__main__" and not ARCHIVE.is_file():
    archive()
