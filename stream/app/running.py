"""Puts the services of a worker together and runs them until a signal ends them.

The service that reads the feed into Redis.
"""

from __future__ import annotations

import asyncio

import faust
import structlog
from aiokafka import AIOKafkaProducer
from mode import Service

from dpcore.relation import NeighbouringRelation
from stream.app.awaiting import servers_answer
from stream.app.services import Closing, Publishing, Retiring
from stream.app.worker import Worker
from stream.config import Config
from stream.config.servers import redacted
from stream.diagnosis.live import KINDS, MAY_BE_RIGHT, FeedDoubts
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.ingestion.reader import Ingestor
from stream.messages.message import Message
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.publishing import make_producer
from stream.servers.connection import connect, require_supported
from stream.storage.client import misconfigured
from stream.storage.keys import FeedKeys
from stream.storage.ledger import LedgerError
from stream.storage.partitions import server_info
from stream.storage.row_store import StateError

_DOUBT_SECONDS = 10.0
"""How often it is judged whether the feed is misread."""


class Ingesting(Service):
    """Reads the feed into Redis."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self.producer: AIOKafkaProducer | None = None
        """Sends reports on bad input; None before the start."""
        self._ingestor: Ingestor | None = None
        self._doubts = FeedDoubts(worker.config)

    async def on_start(self) -> None:
        """Connect and start reading. Raises if the ledger is lost or the server is too old."""
        worker = self._worker
        info = await server_info(worker.redis, FeedKeys.of(worker.config).generation, "server")
        server = require_supported(info, redacted(worker.config.redis.url))
        if (problem := misconfigured(info, worker.config.redis)) is not None:
            raise StateError(problem)
        log.info("state and ledger", server=str(server))
        try:
            generation = await verify_ledger(worker.config, worker.redis)
        except LedgerError as error:
            worker.metrics.ledger_errors.inc()
            log.error("ledger refused", reason=str(error))
            raise
        log.info("ledger verified", generation=generation)
        self.producer = await connect(lambda: make_producer(worker.config.kafka), lambda: self.should_stop)
        decoder = Decoder(worker.config, load_user_key(worker.config.privacy.user_key_file))
        self._ingestor = ingestor = Ingestor(
            worker.config, worker.redis, decoder, worker.metrics, self.report, self._doubts.observe
        )
        worker.topic_exists = lambda: ingestor.topic_exists

    async def report(self, message: Message) -> None:
        """Send a report on bad input, except under "participation"."""
        assert self.producer is not None
        if self._worker.config.relation == NeighbouringRelation.PARTICIPATION:
            return  # under "participation" it is private how much arrived, and when
        await self.producer.send(message.topic, message.value, key=message.key, headers=list(message.headers))

    @Service.task
    async def _read(self) -> None:
        assert self._ingestor is not None
        await self._ingestor.run()

    @Service.task
    async def _await_partitions(self) -> None:
        # Before the first assignment, the watermark does not include the partitions that wait to be read.
        assert self._ingestor is not None
        await self._ingestor.assigned.wait()
        self._worker.ready.set()

    @Service.task
    async def _doubt(self) -> None:
        """Say what seems to be wrong with the feed, once, until it is right again."""
        said: dict[str, str] = {}
        while not self.should_stop:
            await self.sleep(_DOUBT_SECONDS)
            reasons = self._doubts.found()
            for kind in KINDS:
                self._worker.metrics.feed_misread.labels(kind).set(kind in reasons)
                if kind in reasons and kind not in said:
                    say = log.warning if kind in MAY_BE_RIGHT else log.error
                    say("the feed seems to be misread", kind=kind, reason=reasons[kind])
            said = reasons

    async def on_stop(self) -> None:
        """Stop reading, and send the reports that are still queued."""
        if self._ingestor is not None:
            await self._ingestor.stop()
        if self.producer is not None:
            await self.producer.stop()


log = structlog.get_logger()


def run_worker(config: Config) -> None:
    """Run a worker until SIGTERM or SIGINT. Returns after a clean shutdown; else raises the error that ended it."""
    log.info("worker starting", feed=config.feed.name, relation=config.relation)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if not loop.run_until_complete(servers_answer(config)):
        log.info("worker stopped")
        return
    worker = Worker(config)
    faust_worker = faust.Worker(
        worker.app,
        Ingesting(worker),
        Closing(worker),
        Publishing(worker),
        Retiring(worker),
        loglevel="warning",
        redirect_stdouts=False,
        quiet=True,
        override_logging=False,
        loop=loop,
    )
    faust_worker.spinner = None  # it writes escape sequences into the log, also where that is no terminal
    try:
        faust_worker.execute_from_commandline()
    except SystemExit as ended:
        log.info("worker stopped")
        if ended.code:
            raise (ended.__context__ or ended) from None  # Faust turns the error that ended it into an exit code
