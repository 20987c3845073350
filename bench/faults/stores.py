"""Faults of Redis's stored state: torn, cut, full, emptied and set back. Each returns when it ended, in epoch seconds.

While the ledger is lost the service must release nothing, so emptied and older stores are replaced by the right one in
the end. What the service may publish meanwhile is noted as a :class:`Withholding` of every feed.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bench.faults.checker import Withholding
from bench.faults.observing import committed
from bench.faults.site import Site
from stream.local.server import RedisServer

_PAUSE_MS = 60_000
_UNFINISHED = b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$100\r\nof this tra"
_MOST_CUT = 4_000
_TRIES = 40


def _log_folder(server: RedisServer) -> Path:
    return server.folder / "appendonlydir"


def _last_log(folder: Path) -> Path:
    """The part of the append-only file that Redis was writing to."""
    return max(folder.glob("*.incr.aof"), key=lambda file: int(file.name.split(".")[-3]))


def _pause(site: Site) -> dict[str, int]:
    """Hold up all writes, and say how many windows of each feed are committed. A restart of Redis ends the pause."""
    with site.client() as client:
        client.client_pause(_PAUSE_MS, all=False)
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.1)
    return {feed.name: committed(site.redis.url, feed.name) for feed in site.feeds}


def store_torn(site: Site, seconds: float) -> float:
    """Redis is killed, and its log ends with half a transaction, which was not acknowledged to anybody."""
    site.redis.kill()
    with _last_log(_log_folder(site.redis)).open("ab") as log:
        log.write(_UNFINISHED)
    site.redis.start()
    return time.time()


def store_cut(site: Site, seconds: float) -> float:
    """Redis is killed and loses the last bytes of its log, but no committed window. Workers repeat the lost steps."""
    before = _pause_without_outbox(site)
    site.redis.kill()
    if before is not None:
        log = _last_log(_log_folder(site.redis))
        whole, cut = log.read_bytes(), int(site.rng.integers(1, _MOST_CUT))
        while cut:
            log.write_bytes(whole[: max(0, len(whole) - cut)])
            if _remembered(site) == before:
                break
            cut //= 2
        else:
            log.write_bytes(whole)
    site.redis.start()
    return time.time()


def _pause_without_outbox(site: Site) -> dict[str, int] | None:
    """:func:`_pause` at a moment when no committed window waits for its publication; None if there was none.

    A window that was published in part must not be drawn again; docs/known-limits.md says so.
    """
    for _ in range(_TRIES):
        before = _pause(site)
        with site.client() as client:
            waiting = client.keys("hv:*:outbox:*")
            if not waiting:
                return before
            client.client_unpause()
        time.sleep(0.1)
    return None


def _remembered(site: Site) -> dict[str, int]:
    """Numbers of committed windows in the stopped Redis's folder, by a server of its own over a copy."""
    copy = site.redis.folder.with_name("redis-copy")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(0o700)
    shutil.copytree(_log_folder(site.redis), copy / "appendonlydir")
    with RedisServer(copy) as server:
        return {feed.name: committed(server.url, feed.name) for feed in site.feeds}


def store_full(site: Site, seconds: float) -> float:
    """Redis refuses every write for ``seconds``, because its memory limit is reached."""
    with site.client() as client:
        client.config_set("maxmemory", 1)
        time.sleep(seconds)
        client.config_set("maxmemory", 0)
    return time.time()


def store_emptied(site: Site, seconds: float) -> float:
    """Redis starts without anything, and with everything again after ``seconds``."""
    if not all(site.observer.seen[feed.name] for feed in site.feeds):
        return time.time()  # no close marker shows yet that there was a ledger
    return _replaced(site, None, seconds)


def store_set_back(site: Site, seconds: float) -> float:
    """Redis starts with an older copy of itself, and with the newest state again after ``seconds``."""
    older = site.redis.folder.with_name("redis-older")
    shutil.rmtree(older, ignore_errors=True)
    before = _pause(site)
    shutil.copytree(_log_folder(site.redis), older)
    with site.client() as client:
        client.client_unpause()
    deadline = time.time() + 60
    while any(len(site.observer.seen[name]) <= number for name, number in before.items()):
        if time.time() > deadline:
            return time.time()  # nothing was published since: the copy is as good as the original
        time.sleep(0.2)
    return _replaced(site, older, seconds)


def _replaced(site: Site, other: Path | None, seconds: float) -> float:
    """Run Redis on ``other`` (None: on nothing) for ``seconds``; nothing new may be released meanwhile."""
    before, begin = _pause(site), time.time()
    site.redis.kill()
    folder = _log_folder(site.redis)
    newest = folder.with_name("newest")
    folder.rename(newest)
    if other is not None:
        other.rename(folder)
    site.redis.start()
    time.sleep(seconds)
    end = time.time()
    site.redis.kill()
    shutil.rmtree(folder)
    newest.rename(folder)
    site.redis.start()
    for feed in site.feeds:
        feed.withholdings.append(Withholding(begin, end, before[feed.name]))
    return time.time()
