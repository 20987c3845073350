"""Java's options for the brokers of the tests, which live for seconds or minutes.

The optimising compiler would cost them more than it saves. With its classes in an archive, a broker starts in half the
processor time; ``python -m tests.support.broker_classes`` writes the archive. Java says so and does without it where
its own version or the jars are others.
"""

import os
import select
import signal
from pathlib import Path

from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import StartError

ARCHIVE = REPO_ROOT / ".local" / "kafka" / "classes.jsa"
STOP_SECONDS = 60.0
"""Java writes the archive while it ends."""
START_SECONDS = 60.0
"""How long a broker may take to start with it."""
_COMPILER = "-XX:TieredStopAtLevel=1"


def java_options() -> str:
    """For the environment variable JAVA_TOOL_OPTIONS."""
    return _with(ARCHIVE) if ARCHIVE.is_file() else _COMPILER


def archive() -> None:
    """Start a broker and end it, which writes its classes, and another one with them. Without an archive, brokers start
    as before."""
    if not ARCHIVE.parent.is_dir() or "'" in str(ARCHIVE):
        return
    written = ARCHIVE.with_suffix(".part")
    written.unlink(missing_ok=True)
    try:
        ended = _write(written)
        os.environ["JAVA_TOOL_OPTIONS"] = _with(written)
        with KafkaServer(start_seconds=START_SECONDS):
            pass  # One that was cut short would end brokers, or let them spin.
    except (StartError, OSError) as error:
        print(f"brokers of the tests start without an archive of their classes: {error}")
        return
    if ended and written.is_file():
        written.replace(ARCHIVE)


def _with(archive: Path) -> str:
    return f"{_COMPILER} -XX:SharedArchiveFile='{archive}'"


def _write(archive: Path) -> bool:
    """Whether Java ended, so that the archive is whole."""
    os.environ["JAVA_TOOL_OPTIONS"] = f"{_COMPILER} -XX:ArchiveClassesAtExit='{archive}'"
    with KafkaServer() as broker:
        watched = os.pidfd_open(broker.pid)
        os.kill(broker.pid, signal.SIGTERM)
        ended, _, _ = select.select([watched], [], [], STOP_SECONDS)
        os.close(watched)
    return bool(ended)


if __name__ == "__main__" and not ARCHIVE.is_file():
    archive()
