"""Closes one window in a process of its own, which kills itself with SIGKILL after a named protocol step.

The processes are forked from a server that has imported all that they need: starting Python takes longer than closing.
"""

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from stream.config import load_config
from stream.protocol.publishing import KafkaPublisher, make_producer
from tests.support.closing import protocol_of

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload([__name__, "pytest"])


def exit_code(config_path: Path, feed: str, key: Path, bootstrap: str, url: str, slot: int, last_step: str) -> int:
    """Exit code of a process that closed ``slot`` or was killed (−9) after ``last_step``."""
    child = _FORKED.Process(target=_run, args=(config_path, feed, str(key), bootstrap, url, slot, last_step))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def _run(*what: Any) -> None:
    asyncio.run(_close(*what))


async def _close(config_path: Path, feed: str, key: str, bootstrap: str, url: str, slot: int, last_step: str) -> None:
    overrides = {"feed.name": feed, "privacy.user_key_file": key, "kafka.bootstrap": bootstrap}
    config = load_config(config_path, **overrides)

    def kill_after(step: str) -> None:
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    async with make_producer(config.kafka) as producer, Redis.from_url(url) as redis:
        publisher = KafkaPublisher(producer, config.kafka)
        await protocol_of(redis, config, publisher, after_step=kill_after).close(slot)
