"""Judges each new window, tells of its alerts, and answers ``/api/v1/alerts``.

Posts alerts to the operator's address: signed, one after the other, retried for a while, and never waited for.

Signatures are those of Standard Webhooks 1.0: ``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over
``ID.TIMESTAMP.BODY`` with the secret as key.
"""

import asyncio
import base64
import hashlib
import hmac
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import aiohttp
import msgspec
import structlog
from aiohttp import web

from stream.config import Config, ConfigError
from stream.config.alerts import AlertRule, WebhookConfig
from stream.config.secret_files import OpenSecretError, read_secret
from stream.serve.alerts.rules import Alert, Judged, Usual, alerts, chain, judged_cells
from stream.serve.broadcast import Broadcast
from stream.serve.hexagons import known_window
from stream.serve.metrics import PublicMetrics
from stream.serve.operations import get
from stream.serve.responses import JSON, MOST_WAITING, Answers, Turns, key_of
from stream.serve.window_store import View, WindowView, stated_by

log = structlog.get_logger()

WAITING = 64
"""Most deliveries, and most windows to be judged, that wait; for one more, the oldest is dropped."""
ATTEMPTS = 6
TIMEOUT_SECONDS = 10.0
"""Limit of one attempt in seconds, from the connection to the status."""
FIRST_PAUSE_SECONDS = 1.0
"""Before the second attempt; it doubles with each, and is multiplied by a random number between ½ and 1½."""
LEAST_SECRET = 16
"""Bytes."""
_AGAIN = (408, 429)
"""Statuses below 500 after which the same bytes may be accepted later."""


def signing_secret(webhook: WebhookConfig) -> bytes:
    """The key of signatures: the file's content without white space around it. Raises :class:`ConfigError`."""
    remedy = "write one with: openssl rand -hex 32"
    try:
        secret = read_secret(webhook.secret_file).strip()
    except OpenSecretError as error:
        raise ConfigError(f"public.webhook.secret_file {error}") from None
    except OSError as error:
        raise ConfigError(f"public.webhook.secret_file {webhook.secret_file}: {error.strerror}; {remedy}") from None
    if len(secret) < LEAST_SECRET:
        raise ConfigError(
            f"public.webhook.secret_file {webhook.secret_file} has {len(secret)} bytes, fewer than {LEAST_SECRET}; "
            f"{remedy}"
        )
    return secret


def signature(secret: bytes, identifier: str, timestamp: int, body: bytes) -> str:
    """What ``webhook-signature`` says of these bytes."""
    signed = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


class Webhook:
    """The deliveries that wait, and the task that makes them. Everything is counted in the public metrics."""

    def __init__(self, webhook: WebhookConfig, metrics: PublicMetrics) -> None:
        """Raises :class:`ConfigError` for a secret that cannot be used."""
        self._url, self._secret = webhook.url, signing_secret(webhook)
        self._metrics = metrics
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(WAITING)

    def offer(self, identifier: str, body: bytes) -> None:
        """Deliver it later. Returns at once.

        ``identifier`` depends on what is told only, so that a receiver can recognise a repetition.
        """
        if self._waiting.full():
            dropped, _ = self._waiting.get_nowait()
            self._metrics.deliveries.labels("dropped").inc()
            log.warning("alerts dropped: the webhook's receiver is too slow", delivery=dropped)
        self._waiting.put_nowait((identifier, body))

    async def run(self) -> None:
        """Deliver until cancelled; what goes wrong with one delivery is logged and counted, and the next is made."""
        # No cookies, no proxies of the environment, and no redirects: alerts go where the configuration says.
        options = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=options, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                identifier, body = await self._waiting.get()
                try:
                    await self._deliver(session, identifier, body)
                except Exception:
                    self._metrics.deliveries.labels("failed").inc()
                    log.exception("alerts not delivered", delivery=identifier)

    async def _deliver(self, session: aiohttp.ClientSession, identifier: str, body: bytes) -> None:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            reason, final = await self._attempt(session, identifier, body)
            if not reason:
                self._metrics.deliveries.labels("delivered").inc()
                return
            self._metrics.attempts_failed.inc()
            if final:
                break
        self._metrics.deliveries.labels("failed").inc()
        log.warning("alerts not delivered", delivery=identifier, reason=reason)

    async def _attempt(self, session: aiohttp.ClientSession, identifier: str, body: bytes) -> tuple[str, bool]:
        """(Why it failed, empty if it did not; whether another attempt is useless)."""
        now = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "hexveil",
            "webhook-id": identifier,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, identifier, now, body),
        }
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return type(error).__name__, False
        if 200 <= status < 300:
            return "", True
        return f"status {status}", status < 500 and status not in _AGAIN


MOST_TOLD = 100
"""Most alerts that one event or delivery lists; ``count`` says how many there are."""
_REMEMBERED = 8
"""Judged windows of which it is remembered what their rules named."""
_CHAINS = 1000
"""Most windows of which it is remembered what they are judged with."""

Named = dict[str, list[Alert]]
"""Alerts by rule."""


class _Chain(NamedTuple):
    """What a window is judged with, and a key that identifies it."""

    windows: list[Judged]
    key: str


class Alerts:
    """The rules of the configured feed. Windows that were there before the start are not told of.

    What is told of a window are its alerts that this process did not find in the window before. So after a restart the
    first window tells every alert, those that began while nobody watched among them.
    """

    def __init__(
        self,
        config: Config,
        view: View,
        answers: Answers,
        metrics: PublicMetrics,
        broadcast: Broadcast,
        caught_up: asyncio.Event,
    ) -> None:
        """``caught_up``: set once all windows that were there before the start were read.

        Raises :class:`stream.config.ConfigError` for a webhook whose secret cannot be read.
        """
        self._feed, self._rules = config.feed.name, config.public.alerts
        self._view, self._answers, self._metrics, self._broadcast = view, answers, metrics, broadcast
        webhook = config.public.webhook
        self._webhook = None if webhook is None else Webhook(webhook, metrics)
        self._usual, self._caught_up = Usual(), caught_up
        self._turns = Turns("alerts", MOST_WAITING)
        self._waiting: asyncio.Queue[WindowView] = asyncio.Queue(WAITING)
        self._newest = ""
        """Start of the newest window that was judged."""
        self._named: dict[str, dict[str, set[str]]] = {}
        """Cells by rule, by the end of the window that was told of, in the order of judging."""
        self._chains: dict[tuple[str, str], _Chain] = {}
        self._generation = view.generation
        for rule in self._rules:
            metrics.alerts.labels(rule.name)
            metrics.alerts_active.labels(rule.name)

    def announce(self, window: WindowView) -> None:
        """Judge a window that became complete, later. Returns at once."""
        if not self._rules or window.feed != self._feed:
            return
        if self._waiting.full():
            dropped = self._waiting.get_nowait()
            self._metrics.unjudged.inc()
            log.warning("a window's alerts are not told: too many windows wait to be judged", window=dropped.start)
        self._waiting.put_nowait(window)

    async def run(self) -> None:
        """Judge announced windows until cancelled; what goes wrong with one is logged, and the next one is judged."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="alerts")
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._webhook is not None:
                    tasks.create_task(self._webhook.run())
                await self._caught_up.wait()
                newest = self._view.find(None, self._feed)
                if newest is not None and self._rules:
                    await self._judge(thread, newest)
                while True:
                    window = await self._waiting.get()
                    if (named := await self._judge(thread, window)) is not None:
                        self._tell(window, named)
        finally:
            # Without waiting: the event loop would stand still until the thread is done.
            thread.shutdown(wait=False, cancel_futures=True)

    async def _judge(self, thread: ThreadPoolExecutor, window: WindowView) -> Named | None:
        """What the rules name; shown by the metrics if no newer window was judged. None if it cannot be judged."""
        loop = asyncio.get_running_loop()
        try:
            windows = self._chain(window).windows
            named = {
                rule.name: await loop.run_in_executor(thread, alerts, rule, windows, self._usual)
                for rule in self._rules
            }
        except Exception:
            log.exception("a window could not be judged for alerts", window=window.start)
            return None
        if window.start >= self._newest:
            self._newest = window.start
            for name, active in named.items():
                self._metrics.alerts_active.labels(name).set(len(active))
        return named

    def _chain(self, window: WindowView) -> _Chain:
        """What a complete window of the feed is judged with: put together once as long as the complete windows stay."""
        if self._generation != self._view.generation or len(self._chains) >= _CHAINS:
            self._chains.clear()
            self._generation = self._view.generation
        known = self._chains.get((window.feed, window.start))
        if known is None:
            windows = chain(self._view, window, self._usual, self._rules)
            key = key_of("alerts", [(one.window.tag, [other.tag for other in one.earlier]) for one in windows])
            known = self._chains[window.feed, window.start] = _Chain(windows, key)
        return known

    def _tell(self, window: WindowView, named: Named) -> None:
        before = self._named.get(window.start, {})
        self._named[window.end] = {name: {alert.cell for alert in active} for name, active in named.items()}
        while len(self._named) > _REMEMBERED:
            del self._named[next(iter(self._named))]
        for name, active in named.items():
            news = [alert for alert in active if alert.cell not in before.get(name, ())]
            if not news:
                continue
            self._metrics.alerts.labels(name).inc(len(news))
            identifier = f"{window.feed}/{name}/{window.start}"
            bodies = [alert.body(window) for alert in news[:MOST_TOLD]]
            said = {"id": identifier, "rule": name, "count": len(news), "alerts": bodies}
            body = msgspec.json.encode(window.named | said)
            self._broadcast.tell(window.feed, b"event: alert\ndata: %b\n\n" % body)
            if self._webhook is not None:
                self._webhook.offer(identifier, body)

    @get("/alerts", "listAlerts", {JSON: "AlertList"}, "feed", "window", tag="Alerts")
    async def answer(self, request: web.Request, feed: str, window: str | None) -> web.Response:
        """The operator's rules, and the cells that they name in one window."""
        known = known_window(self._view, window, feed)
        if known.complete and feed == self._feed and self._rules:
            rules, (windows, key) = self._rules, self._chain(known)
        else:
            rules, windows, key = (), [], key_of("alerts", known.feed, known.start, known.end)
        make = partial(_answer, known, rules, windows, self._usual)
        # Windows before it may still become complete, or be forgotten, so the answer may change.
        return await self._turns.answer(self._answers, request, key, make, JSON)


def _answer(window: WindowView, rules: Sequence[AlertRule], windows: Sequence[Judged], usual: Usual) -> bytes:
    active = [alert.body(window) for rule in rules for alert in alerts(rule, windows, usual)]
    unit = stated_by(window).clipping.unit
    described = [
        rule.model_dump(exclude={"area", "cells"}) | {"unit": unit, "cells": len(judged_cells(rule, window))}
        for rule in rules
    ]
    return msgspec.json.encode(window.named | {"rules": described, "alerts": active})
