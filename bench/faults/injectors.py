"""The faults of a campaign. Each function does one to a running site and returns once it is over.

It returns when the fault ended (epoch seconds) and which feeds it concerned: each of them must publish a window
afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from bench.faults.feeding import hostile_messages
from bench.faults.processes import Worker, wait_until_ready
from bench.faults.readers import dead_readers, readers_that_never_read
from bench.faults.site import Feed, Site
from bench.faults.stores import store_cut, store_emptied, store_full, store_set_back, store_torn

_HOUR = 3_600.0
_FLOOD, _INVENTED = 20_000, 10_000


class Ended(NamedTuple):
    """When a fault ended, and the names of the feeds that it concerned."""

    at: float
    feeds: list[str]


Injector = Callable[[Site, float], Ended]
"""The second argument: for how many seconds a fault that lasts is to last."""


def _any_feed(site: Site) -> Feed:
    return site.feeds[site.choose(site.feeds)]


def _a_worker(site: Site, feed: Feed) -> Worker:
    return feed.workers[site.choose(feed.workers)]


def _started_instead(feed: Feed, worker: Worker, *, clock_off: float = 0.0) -> Ended:
    feed.workers.remove(worker)
    feed.start_worker(clock_off=clock_off)
    return Ended(time.time(), [feed.name])


def _now(site: Site) -> Ended:
    return Ended(time.time(), [feed.name for feed in site.feeds])


def worker_killed(site: Site, seconds: float) -> Ended:
    """SIGKILL to a worker, and a new one at once."""
    feed = _any_feed(site)
    worker = _a_worker(site, feed)
    worker.kill()
    return _started_instead(feed, worker)


def worker_restarted(site: Site, seconds: float) -> Ended:
    """SIGTERM to a worker, and a new one once it has ended."""
    feed = _any_feed(site)
    worker = _a_worker(site, feed)
    worker.end()
    return _started_instead(feed, worker)


def worker_clock_off(site: Site, seconds: float) -> Ended:
    """A worker is replaced by one whose clock is an hour ahead or behind."""
    feed = _any_feed(site)
    worker = _a_worker(site, feed)
    worker.end()
    return _started_instead(feed, worker, clock_off=_HOUR if site.rng.random() < 0.5 else -_HOUR)


def workers_away(site: Site, seconds: float) -> Ended:
    """SIGKILL to all workers of a feed, and new ones after ``seconds``."""
    feed = _any_feed(site)
    for worker in feed.workers:
        worker.kill()
    count = len(feed.workers)
    feed.workers.clear()
    time.sleep(seconds)
    for _ in range(count):
        feed.start_worker()
    return Ended(time.time(), [feed.name])


def worker_stopped(site: Site, seconds: float) -> Ended:
    """SIGSTOP to a worker, SIGCONT after ``seconds``."""
    feed = _any_feed(site)
    worker = _a_worker(site, feed)
    worker.send(signal.SIGSTOP)
    time.sleep(seconds)
    worker.send(signal.SIGCONT)
    return Ended(time.time(), [feed.name])


def _children(site: Site, feed: Feed) -> list[int]:
    return [pid for worker in feed.workers for pid in worker.children()]


def child_killed(site: Site, seconds: float) -> Ended:
    """SIGKILL to a process that closes or publishes windows."""
    feed = _any_feed(site)
    if pids := _children(site, feed):
        with suppress(ProcessLookupError):
            os.kill(pids[site.choose(pids)], signal.SIGKILL)
    return Ended(time.time(), [feed.name])


def child_stopped(site: Site, seconds: float) -> Ended:
    """SIGSTOP to a process that closes or publishes windows, SIGCONT after ``seconds``."""
    feed = _any_feed(site)
    pids = _children(site, feed)
    if pids:
        pid = pids[site.choose(pids)]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
    return Ended(time.time(), [feed.name])


def worker_joins_and_leaves(site: Site, seconds: float) -> Ended:
    """One more worker joins the group; another one leaves it once the new one has partitions."""
    feed = _any_feed(site)
    leaving = _a_worker(site, feed)
    with suppress(RuntimeError):  # it ended by itself, and is started again later
        wait_until_ready([feed.start_worker()])
    leaving.end()
    feed.workers.remove(leaving)
    return Ended(time.time(), [feed.name])


def redis_killed(site: Site, seconds: float) -> Ended:
    """SIGKILL to Redis, and a start at once."""
    site.redis.kill()
    site.redis.start()
    return _now(site)


def redis_restarted(site: Site, seconds: float) -> Ended:
    """SIGTERM to Redis, and a start at once."""
    site.redis.stop()
    site.redis.start()
    return _now(site)


def redis_stopped(site: Site, seconds: float) -> Ended:
    """SIGSTOP to Redis, SIGCONT after ``seconds``."""
    os.kill(site.redis.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(site.redis.pid, signal.SIGCONT)
    return _now(site)


def redis_away(site: Site, seconds: float) -> Ended:
    """SIGKILL to Redis, and a start after ``seconds``."""
    site.redis.kill()
    time.sleep(seconds)
    site.redis.start()
    return _now(site)


def _stored(store: Callable[[Site, float], float]) -> Injector:
    def inject(site: Site, seconds: float) -> Ended:
        ended = store(site, seconds)
        return Ended(ended, [feed.name for feed in site.feeds])

    return inject


def broker_killed(site: Site, seconds: float) -> Ended:
    """SIGKILL to a broker, and a start at once."""
    broker = site.brokers[site.choose(site.brokers)]
    broker.kill()
    broker.start()
    return _now(site)


def broker_restarted(site: Site, seconds: float) -> Ended:
    """SIGTERM to a broker, and a start at once."""
    broker = site.brokers[site.choose(site.brokers)]
    broker.stop()
    broker.start()
    return _now(site)


def broker_stopped(site: Site, seconds: float) -> Ended:
    """SIGSTOP to a broker, SIGCONT after ``seconds``."""
    broker = site.brokers[site.choose(site.brokers)]
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)
    return _now(site)


def broker_away(site: Site, seconds: float) -> Ended:
    """SIGKILL to a broker, and a start after ``seconds``."""
    broker = site.brokers[site.choose(site.brokers)]
    broker.kill()
    time.sleep(seconds)
    broker.start()
    return _now(site)


def hostile(site: Site, seconds: float) -> Ended:
    """Messages that no vehicle sends."""
    feed = _any_feed(site)
    site.feeder.send(feed.stream.topic, hostile_messages(time.time()))
    return Ended(time.time(), [feed.name])


def bomb(site: Site, seconds: float) -> Ended:
    """A batch that is small on disk and large in memory."""
    feed = _any_feed(site)
    site.feeder.bomb(feed.stream.topic, ("gzip", "zstd", "lz4")[int(site.rng.integers(3))])
    return Ended(time.time(), [feed.name])


def flood_of_one(site: Site, seconds: float) -> Ended:
    """One user sends far more than counts."""
    feed = _any_feed(site)
    site.feeder.send(feed.stream.topic, feed.stream.flood_of_one(_FLOOD, time.time()))
    return Ended(time.time(), [feed.name])


def invented_users(site: Site, seconds: float) -> Ended:
    """Events of ten thousand users that never appeared before."""
    feed = _any_feed(site)
    site.feeder.send(feed.stream.topic, feed.stream.invented_users(_INVENTED, time.time()))
    return Ended(time.time(), [feed.name])


def old_hours(site: Site, seconds: float) -> Ended:
    """Events of many past hours."""
    feed = _any_feed(site)
    site.feeder.send(feed.stream.topic, feed.stream.old_hours(time.time()))
    return Ended(time.time(), [feed.name])


def producers_clock_off(site: Site, seconds: float) -> Ended:
    """The clocks of a third of the users are off for ``seconds``: by a second, or by an hour."""
    feed = _any_feed(site)
    feed.stream.clock_off_ms = int(site.rng.choice([1_000, -1_000, 3_600_000, -3_600_000]))
    time.sleep(seconds)
    feed.stream.clock_off_ms = 0
    return Ended(time.time(), [feed.name])


def never_reading(site: Site, seconds: float) -> Ended:
    """Clients of the public service ask for everything and read nothing."""
    readers_that_never_read(site, seconds)
    return _now(site)


def dead(site: Site, seconds: float) -> Ended:
    """Clients of the public service ask for everything and reset the connection."""
    dead_readers(site)
    return _now(site)


FAULTS: dict[str, Injector] = {
    "worker killed": worker_killed,
    "worker restarted": worker_restarted,
    "worker stopped": worker_stopped,
    "worker's clock an hour off": worker_clock_off,
    "all workers away": workers_away,
    "closing or publishing process killed": child_killed,
    "closing or publishing process stopped": child_stopped,
    "worker joins, another leaves": worker_joins_and_leaves,
    "redis killed": redis_killed,
    "redis restarted": redis_restarted,
    "redis stopped": redis_stopped,
    "redis away": redis_away,
    "store torn": _stored(store_torn),
    "store cut": _stored(store_cut),
    "store full": _stored(store_full),
    "store emptied": _stored(store_emptied),
    "store set back": _stored(store_set_back),
    "broker killed": broker_killed,
    "broker restarted": broker_restarted,
    "broker stopped": broker_stopped,
    "broker away": broker_away,
    "hostile messages": hostile,
    "compressed bomb": bomb,
    "flood of one user": flood_of_one,
    "10 000 invented users": invented_users,
    "events of past hours": old_hours,
    "producers' clocks off": producers_clock_off,
    "readers that never read": never_reading,
    "dead readers": dead,
}
"""Every fault by its name."""
