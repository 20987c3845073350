"""Environment of the processes that tests start: the source tree on the path, and settings of their own. A worker as
such a process. Writes files as operators keep secrets: readable by their owner only. Requests to a service that is just
starting."""

import asyncio
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from stream.local.kafka import REPO_ROOT


def write_secret(file: Path, content: str | bytes) -> Path:
    """Write ``content`` to ``file`` with mode 0600; returns ``file``."""
    file.touch(0o600)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def fetched(address: str) -> bytes:
    """The body at ``address``, asked for until the service is up and has a window to show."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return bytes(answer.read())
        except OSError:  # refused, or 404 as yet
            time.sleep(0.2)
    raise AssertionError(f"{address} never answered")


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the source tree on the path; ``settings``: dotted keys of the configuration."""
    ours = {f"HEXVEIL_{key.upper().replace('.', '__')}": value for key, value in settings.items()}
    return os.environ | {"PYTHONPATH": str(REPO_ROOT)} | ours


def worker_environment(
    folder: Path, kafka: str, redis_url: str, port: int, feed: str | None = None, **settings: str
) -> dict[str, str]:
    """Of a worker with its operator port and its key in ``folder``. ``feed``: name of its feed, topic and group
    alike."""
    named = {} if feed is None else {"feed.name": feed, "feed.topic": feed, "kafka.group": feed}
    servers = {"kafka.bootstrap": kafka, "redis.url": redis_url, "operator.port": str(port)}
    return environment(named | servers | {"privacy.user_key_file": str(folder / "user.key")} | settings)


def make_ready(command: Sequence[str], env: Mapping[str, str], folder: Path, config: Path, since: str = "") -> None:
    """Create the topics of a feed and adopt its periods, as an operator does before the first start of a worker."""
    adopt = ["ledger", "adopt", "--no-other-ledger", *(["--since", since] if since else [])]
    for words in (["topics", "create"], adopt):
        subprocess.run([*command, *words, "--config", str(config)], env=env, cwd=folder, check=True)


@asynccontextmanager
async def working(
    command: Sequence[str], env: Mapping[str, str], folder: Path, config: Path, ending: int = signal.SIGTERM
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker until the block ends, with a signal. SIGTERM must end it well; its log is shown if it does not, or if
    time is over."""
    log = folder / "worker.log"
    with log.open("a") as stderr:
        worker = subprocess.Popen([*command, "worker", "--config", str(config)], env=env, cwd=folder, stderr=stderr)
        try:
            yield worker
        except TimeoutError:
            raise AssertionError(log.read_text()[-6000:]) from None
        finally:
            worker.send_signal(ending)
            ends = 0 if ending == signal.SIGTERM else -ending
            assert await asyncio.to_thread(worker.wait, 60) == ends, log.read_text()[-3000:]
