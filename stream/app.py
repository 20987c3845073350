"""The worker: a Faust application whose services ingest the feed, watch the watermark and close windows."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import PackageNotFoundError, version

import faust
import structlog
from aiokafka import AIOKafkaProducer
from faust.auth import SASLCredentials, SSLCredentials
from faust.sensors.prometheus import setup_prometheus_sensors
from faust.web import Request, Response, View
from mode import Service
from redis.exceptions import RedisError

from dpcore.relation import NeighbouringRelation
from stream.awaiting import servers_answer
from stream.config import Config
from stream.config.addresses import redacted
from stream.config.servers import KafkaConfig
from stream.connection import kafka_password, tls_context
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.ingestion.reader import Ingestor
from stream.messages.message import Message
from stream.metrics import OperatorMetrics
from stream.protocol.close_process import CloseReport, begin_closing, close_in_process
from stream.protocol.due_windows import ClosingOrder, DueWindows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.publishing import make_producer
from stream.server_version import require_supported
from stream.storage.client import redis_client
from stream.storage.keys import FeedKeys
from stream.storage.lease import Lease
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import utc_text

log = structlog.get_logger()

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_STEP_SECONDS, _STOP_SECONDS = 4.0, 8.0
"""How long a stopping worker waits for the closing process to finish its step, and for everything to end."""
_MOST_DEATHS = 3


class Ingesting(Service):
    """Reads the feed into Redis."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._producer: AIOKafkaProducer | None = None
        self._ingestor: Ingestor | None = None

    async def on_start(self) -> None:
        """Connect and start reading. Raises if the ledger is lost or the server is too old."""
        worker = self._worker
        server = require_supported(await worker.redis.info("server"), redacted(worker.config.redis.url))
        log.info("state and ledger", server=str(server))
        try:
            generation = await verify_ledger(worker.config, worker.redis)
        except LedgerError as error:
            worker.metrics.ledger_errors.inc()
            log.error("ledger refused", reason=str(error))
            raise
        log.info("ledger verified", generation=generation)
        self._producer = make_producer(worker.config.kafka)
        await self._producer.start()
        decoder = Decoder(worker.config, load_user_key(worker.config.privacy.user_key_file))
        self._ingestor = ingestor = Ingestor(worker.config, worker.redis, decoder, worker.metrics, self._report)
        worker.topic_exists = lambda: ingestor.topic_exists

    async def _report(self, message: Message) -> None:
        assert self._producer is not None
        if self._worker.config.relation == NeighbouringRelation.PARTICIPATION:
            return  # under "participation" it is private how much arrived, and when
        await self._producer.send(message.topic, message.value, key=message.key, headers=list(message.headers))

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

    async def on_stop(self) -> None:
        """Stop reading, and send the reports that are still queued."""
        if self._ingestor is not None:
            await self._ingestor.stop()
        if self._producer is not None:
            await self._producer.stop()


class Watching(Service):
    """Watches how far the feed was read, and lets a separate process close the windows that are due."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._pool: ProcessPoolExecutor | None = None
        self._deaths = 0
        self._order = ClosingOrder()

    @Service.task
    async def _watch(self) -> None:
        await self._worker.ready.wait()
        while not self.should_stop:
            pause = _LOOK_SECONDS
            try:
                due = await self._worker.due_slots()
                if due:
                    pause = await self._close_alone(due)
            except RedisError as error:
                self._worker.metrics.redis_errors.inc()
                log.warning("redis unreachable", reason=str(error))
                pause = _RETRY_SECONDS
            await self.sleep(pause)

    async def _close_alone(self, due: list[int]) -> float:
        """Close what is due unless another worker holds the lease, because the work of one of the two would be wasted."""
        async with self._worker.lease.hold() as mine:
            if not mine:
                return _LOOK_SECONDS
            # A recording is released in its own order: smoothing goes forward in time, and early windows spend budgets first.
            recorded = self._worker.config.window.lateness == "event-time"
            return await self._close(due if recorded else [self._order.following(due)])

    async def _close(self, due: list[int]) -> float:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            parent = multiprocessing.current_process().pid or 0
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=begin_closing, initargs=(parent,))
        loop = asyncio.get_running_loop()
        if self._deaths:
            due = due[:1]  # one at a time, to find the window over which the process dies
        try:
            reports = await loop.run_in_executor(self._pool, close_in_process, self._worker.config, due)
        except BrokenProcessPool:
            self._pool = None
            await self._count_death(due[0])
            return _RETRY_SECONDS
        self._deaths = 0
        for report in reports:
            self._worker.record(report)
        return _RETRY_SECONDS if any(report.failure for report in reports) else 0.0

    async def _count_death(self, slot: int) -> None:
        """Set a window aside if the process dies repeatedly over it, for example for lack of memory, so that others can close."""
        self._deaths += 1
        log.error("closing process died", window=utc_text(slot), deaths=self._deaths)
        if self._deaths >= _MOST_DEATHS:
            await self._worker.store.set_aside(slot, f"the closing process died {self._deaths} times over this window")
            self._deaths = 0

    async def on_stop(self) -> None:
        """Give the closing process some time to finish its step. What it leaves is finished after the next start."""
        self._worker.end_soon()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            children = multiprocessing.active_children()
            deadline = asyncio.get_running_loop().time() + _STEP_SECONDS
            while any(child.is_alive() for child in children) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.05)
            for child in children:
                child.kill()


class Worker:
    """One worker process: configuration, connections and metrics shared by its services."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = OperatorMetrics()
        self.metrics.build_info.labels(_version()).set(1)
        self.redis = redis_client(config.redis)
        self.rows = RowStore(self.redis, config.feed.name)
        self.ledger = Ledger(self.redis, config.feed.name)
        self.store = ReleaseStore(self.redis, config.feed.name)
        self.lease = Lease(self.redis, FeedKeys(config.feed.name).lease)
        self._due_windows = DueWindows(config, self.rows, self.ledger, self.store, self.metrics)
        self.ready = asyncio.Event()
        self.topic_exists: Callable[[], bool] = lambda: True
        self._scratch = tempfile.TemporaryDirectory(prefix="hexveil-worker-")
        self.app = self._make_app()

    def _make_app(self) -> faust.App:
        config = self.config
        app = faust.App(
            config.kafka.group,
            broker=f"kafka://{config.kafka.bootstrap}",
            broker_credentials=_faust_credentials(config.kafka),
            store="memory://",
            datadir=self._scratch.name,  # Faust creates this folder even without tables, by default in the working folder
            autodiscover=False,
            topic_disable_leader=True,
            web_host=config.operator.host,
            web_port=config.operator.port,
            web_bind=config.operator.host,
        )
        app.producer_only = True
        setup_prometheus_sensors(app, pattern="/metrics", registry=self.metrics.registry, name_prefix="faust")

        @app.page("/healthz")
        async def healthz(view: View, request: Request) -> Response:
            return view.json({"status": "ok"})

        @app.page("/readyz")
        async def readyz(view: View, request: Request) -> Response:
            problems = await self.problems()
            return view.json({"ready": not problems, "problems": problems}, status=503 if problems else 200)

        return app

    async def problems(self) -> list[str]:
        """Why this worker is not ready; empty if it is ready."""
        problems = (
            [] if self.ready.is_set() else ["starting, without partitions yet, or the ledger was refused: see the log"]
        )
        try:
            await self.redis.ping()
        except RedisError:
            problems.append("Redis does not answer")
        if not self.topic_exists():
            problems.append(
                f"Kafka shows no topic {self.config.feed.topic}: it was deleted, or this user may not describe it"
            )
        return problems

    async def due_slots(self) -> list[int]:
        """Starts of the windows that are to be released now; see :class:`stream.protocol.due_windows.DueWindows`."""
        return await self._due_windows.starts()

    def end_soon(self) -> None:
        """End the process within a few seconds even if a server does not answer; any worker can repeat an interrupted step."""

        def end() -> None:
            log.warning("stopping takes too long, ending", seconds=_STOP_SECONDS)
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(0)

        backstop = threading.Timer(_STOP_SECONDS, end)
        backstop.daemon = True
        backstop.start()

    def record(self, report: CloseReport) -> None:
        """Count and log one attempt to close a window; the log contains nothing about users."""
        metrics = self.metrics
        metrics.noise_redraw.inc(report.redraws)
        if report.failure is None:
            metrics.windows_closed.inc()
            metrics.windows_withheld.inc(report.withheld)
            metrics.events_beyond_limits.inc(report.beyond_limits)
            metrics.window_close_seconds.observe(report.seconds)
            metrics.messages_published.inc(report.messages)
            metrics.cells_suppressed.inc(report.suppressed)
            metrics.cells_published.inc(report.messages - 1 - report.suppressed)  # without the close marker
            log.info("window closed", window=utc_text(report.slot), messages=report.messages)
            return
        if report.failure != "content":
            {
                "ledger": metrics.ledger_errors,
                "redis": metrics.redis_errors,
                "publish": metrics.publish_failures,
            }[report.failure].inc()
        log.error("window not closed", window=utc_text(report.slot), failure=report.failure, reason=report.reason)


def _faust_credentials(kafka: KafkaConfig) -> SASLCredentials | SSLCredentials | None:
    context = tls_context(kafka) if kafka.encrypted else None
    if kafka.authenticated:
        return SASLCredentials(
            username=kafka.username, password=kafka_password(kafka), mechanism=kafka.sasl_mechanism, ssl_context=context
        )
    return None if context is None else SSLCredentials(context)


def run_worker(config: Config) -> None:
    """Run a worker until SIGTERM or SIGINT. Returns after a clean shutdown; otherwise raises the error that ended it."""
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
        Watching(worker),
        loglevel="warning",
        redirect_stdouts=False,
        quiet=True,
        override_logging=False,
        loop=loop,
    )
    try:
        faust_worker.execute_from_commandline()
    except SystemExit as ended:
        log.info("worker stopped")
        if ended.code:
            raise (ended.__context__ or ended) from None  # Faust turns the error that ended it into an exit code


def _version() -> str:
    try:
        return version("hexveil")
    except PackageNotFoundError:
        return "source"
