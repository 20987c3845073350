"""One site of a campaign: brokers, a Redis, and feeds with their workers; everything real and on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import redis
from redis.asyncio import Redis

from bench.faults.checker import Withholding
from bench.faults.feeding import Feeder, Stream
from bench.faults.feeds import read_config, write_config
from bench.faults.observing import Observer
from bench.faults.processes import PublicService, Worker, wait_until_ready
from stream.config import Config
from stream.local.kafka import KafkaServer, random_uuid, write_identity
from stream.local.server import RedisServer
from stream.messages.topics import create_topics
from stream.storage.ledger import Ledger

_START_SECONDS = 600.0
"""Seconds to wait until a server has started, on a machine that runs other programs too."""
_INTERNAL = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


@dataclass(frozen=True)
class SiteSizes:
    """Parameters of a site. ``rate``: events per second of each feed. ``slot``, ``ahead``: seconds, as in its
    configuration.
    """

    kinds: tuple[str, ...]
    workers: int
    brokers: int
    rate: int
    slot: int
    ahead: int


@dataclass
class Feed:
    """One feed: its configuration, workers and stream of events, and the times at which its ledger was lost."""

    kind: str
    file: Path
    config: Config
    stream: Stream
    workers: list[Worker] = field(default_factory=list)
    withholdings: list[Withholding] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.config.feed.name

    def start_worker(self, *, clock_off: float = 0.0) -> Worker:
        """One more worker."""
        self.workers.append(Worker(self.file, clock_off=clock_off))
        return self.workers[-1]


class Site:
    """Everything of one site; the thread that starts it must outlive it."""

    def __init__(self, folder: Path, sizes: SiteSizes, seed: int) -> None:
        self.sizes, self.rng = sizes, np.random.default_rng(seed)
        self.brokers = brokers(folder, sizes.brokers)
        self.redis = RedisServer(folder / "redis", start_seconds=_START_SECONDS)
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        self.feeds: list[Feed] = []
        for number, kind in enumerate(sizes.kinds):
            name = f"{kind}-{number}"
            file = write_config(
                folder / name,
                kind,
                name,
                bootstrap=self.bootstrap,
                redis=self.redis.url,
                slot=sizes.slot,
            )
            config = read_config(file)
            stream = Stream(
                config.feed.topic, sizes.rate, sizes.slot, sizes.ahead, np.random.default_rng((seed, number))
            )
            self.feeds.append(Feed(kind, file, config, stream))
        self.observer = Observer(self.bootstrap)
        self.feeder = Feeder(self.bootstrap, [feed.stream for feed in self.feeds])
        self.public: PublicService | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything runs during the block, and has ended after it."""
        try:
            for broker in self.brokers:
                broker.start()
            self.redis.start()
            for feed in self.feeds:
                asyncio.run(prepare(feed.config))
                for _ in range(self.sizes.workers):
                    feed.start_worker()
            config = self.feeds[0].config
            self.public = PublicService(self.feeds[0].file, config.public.port)
            self.observer.start()
            wait_until_ready([worker for feed in self.feeds for worker in feed.workers])
            self.feeder.begin()
            yield
        finally:
            self.feeder.stop()
            self.end_workers()
            self.observer.stop()
            if self.public is not None:
                self.public.end()
            # The controller last: a broker that cannot tell it waits for it.
            for server in (self.redis, *reversed(self.brokers)):
                server.stop()

    def revive(self) -> None:
        """Start every worker anew that ended by itself, as a service manager does: one that starts without its ledger
        ends."""
        for feed in self.feeds:
            for worker in [worker for worker in feed.workers if not worker.runs]:
                feed.workers.remove(worker)
                feed.start_worker()

    def end_workers(self) -> None:
        """End every worker; what is not released stays in Redis."""
        for feed in self.feeds:
            for worker in feed.workers:
                worker.end()

    def choose(self, things: Sequence[object]) -> int:
        """A random index of ``things``."""
        return int(self.rng.integers(len(things)))

    def client(self) -> redis.Redis:
        """A client of this site's Redis."""
        client: redis.Redis = redis.Redis.from_url(self.redis.url)
        return client


async def prepare(config: Config) -> None:
    """Create the topics, and a ledger that may release the running period: no other ledger ever did."""
    await create_topics(config)
    async with Redis.from_url(config.redis.url) as client:
        await Ledger(client, config.feed.name).start_generation(birth=0)


def brokers(folder: Path, count: int) -> list[KafkaServer]:
    """Brokers of one cluster, not started. With several, the first is the controller, too."""
    if count == 1:
        return [KafkaServer(folder / "kafka", start_seconds=_START_SECONDS)]
    cluster = random_uuid()
    internal = "\n".join(f"{topic}.replication.factor={count}" for topic in _INTERNAL)
    first = KafkaServer(folder / "kafka-1", start_seconds=_START_SECONDS, settings=internal)
    servers = [first]
    for node in range(2, count + 1):
        own = f"process.roles=broker\nnode.id={node}\nlisteners=PLAINTEXT://{{host}}:{{port}}\n"
        own += f"controller.quorum.voters=1@{{host}}:{first.controller_port}\n{internal}"
        servers.append(KafkaServer(folder / f"kafka-{node}", start_seconds=_START_SECONDS, settings=own))
    for node, server in enumerate(servers, 1):
        write_identity(server.folder / "data", node, cluster)
    return servers
