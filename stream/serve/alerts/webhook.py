"""Posts alerts to the operator's address: signed, one after the other, retried for a while, and never waited for.

Signatures are those of Standard Webhooks 1.0: ``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over
``ID.TIMESTAMP.BODY`` with the secret as key.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import random
import time
from collections import deque
from typing import NamedTuple

import aiohttp
import structlog

from stream.config import ConfigError
from stream.config.alerts import WebhookConfig
from stream.config.secret_files import OpenSecretError, read_secret
from stream.serve.metrics import PublicMetrics

log = structlog.get_logger()

WAITING = 64
"""Most deliveries that wait; the oldest is dropped for a newer one."""
ATTEMPTS = 6
TIMEOUT_SECONDS = 10.0
"""Limit of one attempt in seconds, from the connection to the status."""
FIRST_PAUSE_SECONDS = 1.0
"""Before the second attempt; it doubles with each, and is multiplied by a random number between ½ and 1½."""
LEAST_SECRET = 16
"""Bytes."""
_AGAIN = (408, 429)
"""Statuses below 500 after which the same bytes may be accepted later."""


class Delivery(NamedTuple):
    """``identifier`` depends on what is told only, so that a receiver can recognise a repetition."""

    identifier: str
    body: bytes


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
        self._waiting: deque[Delivery] = deque()
        self._wake = asyncio.Event()

    def offer(self, delivery: Delivery) -> None:
        """Deliver it later. Returns at once."""
        if len(self._waiting) >= WAITING:
            dropped = self._waiting.popleft()
            self._metrics.deliveries.labels("dropped").inc()
            log.warning("alerts dropped: the webhook's receiver is too slow", delivery=dropped.identifier)
        self._waiting.append(delivery)
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; what goes wrong with one delivery is logged and counted, and the next one is
        made."""
        # No cookies, no proxies of the environment, and no redirects: alerts go where the configuration says.
        options = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=options, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    delivery = self._waiting.popleft()
                    try:
                        await self._deliver(session, delivery)
                    except Exception:
                        self._metrics.deliveries.labels("failed").inc()
                        log.exception("alerts not delivered", delivery=delivery.identifier)

    async def _deliver(self, session: aiohttp.ClientSession, delivery: Delivery) -> None:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            reason, final = await self._attempt(session, delivery)
            if not reason:
                self._metrics.deliveries.labels("delivered").inc()
                return
            self._metrics.attempts_failed.inc()
            if final:
                break
        self._metrics.deliveries.labels("failed").inc()
        log.warning("alerts not delivered", delivery=delivery.identifier, reason=reason)

    async def _attempt(self, session: aiohttp.ClientSession, delivery: Delivery) -> tuple[str, bool]:
        """(Why it failed, empty if it did not; whether another attempt is useless)."""
        now = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "hexveil",
            "webhook-id": delivery.identifier,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, delivery.identifier, now, delivery.body),
        }
        try:
            async with session.post(self._url, data=delivery.body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return type(error).__name__, False
        if 200 <= status < 300:
            return "", True
        return f"status {status}", status < 500 and status not in _AGAIN
