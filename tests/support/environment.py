"""Environment of the processes that tests start: the source tree on the path, and settings of their own."""

import os
from collections.abc import Mapping
from pathlib import Path

from stream.local import REPO_ROOT


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
