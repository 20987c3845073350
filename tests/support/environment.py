"""Environment of the processes that tests start: the source tree on the path, and settings of their own. Writes files
as operators keep secrets: readable by their owner only. Requests to a service that is just starting."""

import os
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from stream.local import REPO_ROOT


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
