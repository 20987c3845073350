"""Puts the services of a worker together and runs them until a signal ends them.

Before it starts, it waits until Redis and Kafka answer, logs this, and checks that the topics exist. The service that
reads the feed into Redis stands here, too.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine

import faust
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from mode import Service
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from dpcore.relation import NeighbouringRelation
from stream.app.services import Closing, Publishing, Retiring
from stream.app.worker import Worker
from stream.config import Config
from stream.config.servers import redacted
from stream.diagnosis.live import KINDS, MAY_BE_RIGHT, FeedDoubts
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.ingestion.reader import Ingestor
from stream.messages.message import WINDOW, Message
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.publishing import make_producer
from stream.servers.connection import administering, connect, require_supported
from stream.storage.client import misconfigured, redis_client, server_info
from stream.storage.keys import FeedKeys
from stream.storage.ledger import LedgerError
from stream.storage.row_store import StateError

_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 20.0
_TOPIC_SECONDS = 10.0
"""Seconds to wait for topics, because brokers list a new topic only after a moment."""


class TopicMissingError(RuntimeError):
    """A topic that the worker needs does not exist; the message says how to create it."""


async def servers_answer(config: Config) -> bool:
    """Returns True once Redis and Kafka answer and the worker's topics exist; False if SIGTERM or SIGINT came first.

    Raises :class:`TopicMissingError`, and the error of Redis if Redis refuses this user.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        return await _until_it_answers(
            "redis", redacted(config.redis.url), lambda: _ask_redis(config), stopping
        ) and await _until_it_answers("kafka", config.kafka.bootstrap, lambda: _ask_kafka(config), stopping)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _until_it_answers(
    name: str, address: str, ask: Callable[[], Coroutine[None, None, None]], stopping: asyncio.Event
) -> bool:
    waiting = False
    while not stopping.is_set():
        asking = asyncio.ensure_future(ask())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({asking, stopped}, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            if not asking.done():
                asking.cancel()
                raise TimeoutError(f"no answer within {_ANSWER_SECONDS:.0f} s")
            asking.result()
        except (AuthenticationError, ResponseError):
            raise  # the server answered, so waiting does not help
        except (KafkaError, RedisError, OSError) as error:
            if not stopping.is_set():
                waiting = True
                log.warning(f"{name} does not answer, waiting for it", address=address, reason=str(error))
        else:
            if waiting:
                log.info(f"{name} answers", address=address)
            return True
        try:
            await asyncio.wait_for(stopping.wait(), _PAUSE_SECONDS)
        except TimeoutError:
            continue
    return False


async def _ask_redis(config: Config) -> None:
    async with redis_client(config.redis) as redis:
        await redis.ping()


async def _ask_kafka(config: Config) -> None:
    deadline = time.monotonic() + _TOPIC_SECONDS
    async with administering(config.kafka) as client:
        while missing := {config.feed.topic, WINDOW} - set(await client.list_topics()):
            if time.monotonic() > deadline:
                raise TopicMissingError(
                    f"Kafka at {config.kafka.bootstrap} has no topic {', '.join(sorted(missing))}, or does not show "
                    "it; run 'hexveil topics create', correct feed.topic, or let this user describe and read it"
                )
            await asyncio.sleep(_PAUSE_SECONDS)


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
