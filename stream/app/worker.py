"""One worker: configuration, connections, metrics and the Faust application that its services run in.

One plain page for the operator, inside the trust boundary: what the metrics of this worker say now, in words.

It holds true counts, as ``/metrics`` does, and no label that could name somebody. Pure.
"""

import asyncio
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Any

import faust
import structlog
from faust.auth import SASLCredentials, SSLCredentials
from faust.sensors.prometheus import setup_prometheus_sensors
from faust.web import Request, Response, View
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from dpcore import __version__
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.http_server import BoundedRunner
from stream.metrics import OperatorMetrics
from stream.protocol.close_process import CloseReport
from stream.protocol.due_windows import DueWindows
from stream.servers.connection import kafka_password, tls_context
from stream.storage.client import ask_every_primary, redis_client
from stream.storage.keys import FeedKeys
from stream.storage.lease import Lease
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import utc_text

REFRESH_SECONDS = 15
_ROWS = (
    ("Messages not yet read", "hexveil_consumer_lag_messages"),
    ("Windows open", "hexveil_open_windows"),
    ("Windows due and not yet confirmed", "hexveil_outbox_windows"),
    ("Windows set aside for their content", "hexveil_windows_set_aside"),
    ("Closing blocked (1: yes)", "hexveil_closing_blocked"),
    ("Windows released since the start", "hexveil_windows_closed_total"),
    ("Events stored since the start", "hexveil_events_ingested_total"),
    ("Events too late", "hexveil_events_late_total"),
    ("Releases that the ledger refused", "hexveil_ledger_errors_total"),
    ("Redis calls that failed", "hexveil_redis_errors_total"),
)
_TIMES = (
    ("No more events for windows that end before", "hexveil_watermark_seconds"),
    ("Ledger periods retired that began before", "hexveil_ledger_retired_seconds"),
)
_HEAD = (
    f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    "<title>Hexveil worker</title><style>body{font:15px/1.5 sans-serif;margin:2em;max-width:50em}"
    "td,th{padding:2px 14px 2px 0;text-align:left}td{font-variant-numeric:tabular-nums}</style>"
)


def page(registry: CollectorRegistry, feed: str) -> str:
    """The page as HTML. Of reasons and alarms it lists those that are above 0."""
    numbers = [(name, f"{registry.get_sample_value(metric) or 0:.0f}") for name, metric in _ROWS]
    moments = [(name, _moment(registry.get_sample_value(metric))) for name, metric in _TIMES]
    rejected = _labelled(registry, "hexveil_events_rejected", "_total", "reason")
    misread = _labelled(registry, "hexveil_feed_misread", "", "kind")
    return "".join(
        (
            _HEAD,
            f"<h1>Feed {escape(feed)}</h1><p>Inside the trust boundary: these are true counts of this worker.</p>",
            _table("Now", numbers + moments),
            _table("Events refused, by reason", rejected),
            _table("The feed seems to be misread", misread),
            '<p><a href="/metrics">All metrics</a> <a href="/readyz">Readiness</a></p></html>',
        )
    )


def _moment(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else "–"


def _labelled(registry: CollectorRegistry, metric: str, suffix: str, label: str) -> list[tuple[str, str]]:
    """The values above 0 of a metric by its label, the largest first."""
    samples = [sample for family in registry.collect() if family.name == metric for sample in family.samples]
    above = [(one.labels[label], one.value) for one in samples if one.name == metric + suffix and one.value > 0]
    return [(name, f"{value:.0f}") for name, value in sorted(above, key=lambda item: -item[1])]


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<h2>{title}</h2>" + (f"<table>{body}</table>" if rows else "<p>None.</p>")


log = structlog.get_logger()

_STOP_SECONDS = 8.0
"""How long a stopping worker waits for everything to end."""
_CONNECTIONS, _IDLE_SECONDS = 256, 75.0
"""Most connections of the operator port at a time, and seconds until one without a request is closed."""
_BEHIND_SECONDS = 1.0
"""A window that is published more than this after its instant of publication counts as late."""


class Worker:
    """One worker process: configuration, connections and metrics shared by its services."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = OperatorMetrics()
        self.metrics.build_info.labels(__version__).set(1)
        self.redis = redis_client(config.redis)
        self.rows = RowStore.of(self.redis, config)
        self.ledger = Ledger.of(self.redis, config)
        self.store = ReleaseStore.of(self.redis, config)
        keys = FeedKeys.of(config)
        self.lease = Lease(self.redis, keys.lease)
        self.publication_lease = Lease(self.redis, keys.publication_lease)
        self.due = DueWindows(config, self.rows, self.store, self.ledger)
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
            # Faust creates this folder even without tables, by default in the working folder
            datadir=self._scratch.name,
            autodiscover=False,
            topic_disable_leader=True,
            web_host=config.operator.host,
            web_port=config.operator.port,
            web_bind=config.operator.host,
        )
        app.producer_only = True
        web: Any = app.web
        web._runner = BoundedRunner(web.web_app, _CONNECTIONS, _IDLE_SECONDS)  # Faust's own has no bounds
        setup_prometheus_sensors(app, pattern="/metrics", registry=self.metrics.registry, name_prefix="faust")

        @app.page("/healthz")
        async def healthz(view: View, request: Request) -> Response:
            return view.json({"status": "ok"})

        @app.page("/operator")
        async def operator(view: View, request: Request) -> Response:
            return view.html(page(self.metrics.registry, config.feed.name))

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
            await ask_every_primary(self.redis)
        except RedisError:
            problems.append("Redis does not answer" + (" on every primary" if self.config.redis.cluster else ""))
        if not self.topic_exists():
            problems.append(
                f"Kafka shows no topic {self.config.feed.topic}: it was deleted, or this user may not describe it"
            )
        return problems

    async def due_slots(self) -> list[int]:
        """Slots of windows that take no more events and are to be released, oldest first. Updates the gauges."""
        due = await self.due.ask()
        await self.due.tidy(due)
        self.metrics.windows_set_aside.set(len(due.aside))
        self.metrics.open_windows.set(len(due.open))
        if due.watermark_us is not None:
            self.metrics.watermark_seconds.set(due.watermark_us / 1e6)
        return due.slots

    async def to_close(self) -> list[int]:
        """Due windows that are not committed, or not published if that follows at once. Updates the gauges."""
        due, times = await self.due_slots(), self.config.publication
        committed = set() if times is None else set(await self.store.committed(due))
        now_us = await self.rows.now_us() if committed else 0
        waiting = [slot for slot in committed if times is not None and times.first_us(self._end(slot)) > now_us]
        self.metrics.outbox_windows.set(len(due) - len(waiting))
        return [slot for slot in due if slot not in committed]

    async def to_publish(self, within_seconds: float) -> list[int]:
        """Committed windows whose next instant of publication is less than ``within_seconds`` away."""
        times = self.config.publication
        if times is None:
            return []
        committed = await self.store.committed((await self.due.ask()).slots)
        now_us = await self.rows.now_us()
        limit_us = now_us + round(within_seconds * 1e6)
        return [slot for slot in committed if times.next_us(self._end(slot), now_us) <= limit_us]

    def _end(self, slot: int) -> int:
        return self.config.slotting.window(slot).end

    def end_soon(self) -> None:
        """End the process in a few seconds even if no server answers; any worker can repeat an interrupted step."""

        def end() -> None:
            log.warning("stopping takes too long, ending", seconds=_STOP_SECONDS)
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(0)

        backstop = threading.Timer(_STOP_SECONDS, end)
        backstop.daemon = True
        backstop.start()

    def record(self, report: CloseReport) -> None:
        """Count and log one attempt to close or publish a window; the log contains nothing about users."""
        metrics, window = self.metrics, utc_text(report.slot)
        metrics.noise_redraw.inc(report.redraws)
        metrics.events_beyond_limits.inc(report.beyond_limits)
        for reason, events in report.refused.items():
            metrics.events_rejected.labels(reason).inc(events)
        if report.failure is not None:
            self._count_failure(report.failure)
            log.error("window not closed", window=window, failure=report.failure, reason=report.reason)
            return
        if report.behind is None:
            metrics.window_close_seconds.observe(report.seconds)
        released = report.released
        if released is None:
            log.info("window committed", window=window)
            return
        metrics.windows_closed.inc()
        metrics.windows_withheld.inc(released.withheld)
        metrics.messages_published.inc(released.messages)
        metrics.cells_suppressed.inc(released.suppressed)
        if released.retained:
            metrics.plans.labels(released.retained).inc()
        metrics.cells_published.inc(released.messages - 1 - released.suppressed)  # without the close marker
        log.info("window closed", window=window, messages=released.messages)
        if report.behind is not None:
            metrics.publication_behind_seconds.observe(report.behind)
            if report.behind > _BEHIND_SECONDS:
                log.warning("window published behind its instant", window=window, remedy="window.publication_margin")

    def _count_failure(self, failure: str) -> None:
        counters = {
            "ledger": self.metrics.ledger_errors,
            "redis": self.metrics.redis_errors,
            "publish": self.metrics.publish_failures,
            "unexpected": self.metrics.unexpected_failures,
            "unsealed": self.metrics.unsealed,
        }
        if failure in counters:
            counters[failure].inc()


def _faust_credentials(kafka: KafkaConfig) -> SASLCredentials | SSLCredentials | None:
    context = tls_context(kafka, "kafka") if kafka.encrypted else None
    if kafka.authenticated:
        return SASLCredentials(
            username=kafka.username, password=kafka_password(kafka), mechanism=kafka.sasl_mechanism, ssl_context=context
        )
    return None if context is None else SSLCredentials(context)
