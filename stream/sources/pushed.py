"""Takes events that vehicles push by HTTP, and answers once the broker has them. For small fleets without a message
broker.

Who may send has the token. What a sender may cost is bounded: bytes and events of a request, events a second, requests
at a time, and seconds until a body has arrived.
"""

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
from aiohttp import web

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.http_server import BoundedRunner, serve_until
from stream.ingestion.decoding import REASONS, Decoder
from stream.ingestion.formats import feed_format
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.server import LOOPBACK
from stream.sources.delivery import DeliveryError, KafkaSender
from stream.sources.messages import Messages

log = structlog.get_logger()

PATH = "/v1/events"
MOST_BYTES = 1 << 20
MOST_EVENTS = 5_000
"""Largest body of a request: bytes and events."""
_EVENT_BYTES = MOST_BYTES // MOST_EVENTS
_MOST_REQUESTS = 16
"""Requests whose bodies are read at a time; others are asked to come back."""
MOST_WAITING_BYTES = 16 << 20
"""Bytes of events that wait for the broker. Further requests, and those that waited too long, are sent back."""
_CONNECTIONS, _IDLE_SECONDS = 512, 15.0
"""Connections at a time, half of them from one address, and seconds until one that asks for nothing is closed."""
_BODY_SECONDS, _BROKER_SECONDS, _CLOSE_SECONDS = 10.0, 20.0, 5.0
_SHOWN = 20


class PushError(Exception):
    """A request that is refused: status, the sentence that answers it, and seconds after which to try again."""

    def __init__(
        self, status: int, reason: str, *, retry_after_s: int = 0, details: list[dict[str, Any]] | None = None
    ):
        super().__init__(reason)
        self.status, self.retry_after_s, self.details = status, retry_after_s, details or []


@dataclass
class PushAllowance:
    """A bucket of events that fills by ``rate`` a second, up to ten seconds' worth. ``clock``: seconds, never back."""

    rate: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._most = max(10.0 * self.rate, MOST_EVENTS)
        self._left, self._seen = self._most, self.clock()

    def take(self, events: int) -> int:
        """Take ``events`` and return 0, or take none and return the seconds after which there are enough."""
        now = self.clock()
        self._left = min(self._most, self._left + (now - self._seen) * self.rate)
        self._seen = now
        if events > self._left:
            return int((events - self._left) / self.rate) + 1
        self._left -= events
        return 0

    def owe(self, events: int) -> None:
        """Take ``events`` for a request that was refused after it was read, even if there are fewer; at most a bucket
        is owed."""
        self._left = max(self._left - events, -self._most)


def read_body(body: bytes) -> list[bytes]:
    """The events of a body as JSON: one object, an array of objects, or one object a line. Raises
    :class:`PushError`."""
    try:
        text = body.decode()
        if text.lstrip()[:1] == "[":
            tree = json.loads(text)
            _require_at_most(len(tree))  # before each of them is written anew
            values = [json.dumps(entry, ensure_ascii=False).encode() for entry in tree]
        else:
            values = [line.encode() for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        raise PushError(
            400, "the body is no JSON: send one object, an array of objects, or one object a line"
        ) from None
    if not values:
        raise PushError(400, "the body contains no event")
    _require_at_most(len(values))
    return values


def _require_at_most(events: int) -> None:
    if events > MOST_EVENTS:
        raise PushError(413, f"{events} events are more than the {MOST_EVENTS} of one request; divide them")


class PushIntake:
    """Judges the events of a request by the rules of the service, and passes them on.

    Under "values" all of a request are passed on or none. Under "participation" each is judged alone, because a request
    may hold events of several users, and what one of them sent must not decide whether those of another one arrive.
    """

    def __init__(self, config: Config) -> None:
        self._kafka, self._topic = config.kafka, config.feed.topic
        self._decoder = Decoder(config, secrets.token_bytes(KEY_BYTES), arrays=False)  # these pseudonyms are discarded
        self._format, self._sending = feed_format(config.feed), asyncio.Lock()
        self._each_alone = config.relation == NeighbouringRelation.PARTICIPATION
        self._sender: KafkaSender | None = None
        self._waiting = 0
        self.accepted = 0

    async def open(self) -> None:
        """Connect to Kafka unless connected. Raises :class:`stream.sources.delivery.DeliveryError`."""
        if self._sender is None:
            self._sender = await KafkaSender(self._kafka, self._topic).__aenter__()

    async def close(self) -> None:
        """Disconnect."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with suppress(TimeoutError, DeliveryError):
                await asyncio.wait_for(sender.__aexit__(), _CLOSE_SECONDS)

    async def take(self, values: list[bytes]) -> dict[str, Any]:
        """Returns what answers the request, once the broker has the events: how many, and which ones were refused.

        Raises :class:`PushError` if none is taken because events are refused, or if the broker does not answer.
        """
        size = sum(map(len, values))
        if self._waiting + size > MOST_WAITING_BYTES:
            raise PushError(503, "too many events wait for the broker", retry_after_s=5)
        messages, refused = self._judged(values)
        self._waiting += size
        try:
            await asyncio.wait_for(self._sending.acquire(), _BROKER_SECONDS)
            try:
                await self._delivered(messages)
            finally:
                self._sending.release()
        except TimeoutError:
            raise PushError(503, "other events wait for the broker", retry_after_s=5) from None
        finally:
            self._waiting -= size
        self.accepted += len(messages.values)
        return {"accepted": len(messages.values)} | ({"refused": refused} if refused else {})

    async def _delivered(self, messages: Messages) -> None:
        try:
            await asyncio.wait_for(self._deliver(messages), _BROKER_SECONDS)
        except (DeliveryError, TimeoutError) as error:
            log.warning("pushed events did not reach kafka", reason=str(error) or "it took too long")
            await self.close()
            raise PushError(
                503, "the broker does not answer; send the same events again, each counts once", retry_after_s=5
            ) from None

    async def _deliver(self, messages: Messages) -> None:
        await self.open()
        assert self._sender is not None
        await self._sender.send(messages)
        await self._sender.confirm()

    def _judged(self, values: list[bytes]) -> tuple[Messages, list[dict[str, Any]]]:
        batch = self._decoder.decode(values, time.time_ns() // 1000)
        refused = [
            {"event": at, "reason": REASONS[code].value}
            for at, code in zip(batch.refused[:_SHOWN].tolist(), batch.reason[:_SHOWN].tolist(), strict=True)
        ]
        count = len(batch.refused)
        if count == len(values) or (count and not self._each_alone):
            raise PushError(422, f"{count} of {len(values)} events are refused, so none was taken", details=refused)
        user, sound = self._format.getters[0], [values[at] for at in batch.index.tolist()]
        keys: list[bytes | None] = [str(user(self._format.read(value))).encode() for value in sound]
        return Messages(batch.rows["time"].astype(np.int64), keys, sound), refused


def application(intake: PushIntake, token: str, allowance: PushAllowance) -> web.Application:
    """Answers ``POST /v1/events``. A request without the token costs neither a body nor allowance.

    One that is refused after it was read costs what as many bytes of events cost. While more is owed than there is, no
    body is read.
    """
    expected, reading = f"Bearer {token}".encode(), asyncio.Semaphore(_MOST_REQUESTS)

    def spend(events: int) -> None:
        if wait := allowance.take(events):
            raise PushError(429, f"more than {allowance.rate:g} events a second", retry_after_s=wait)

    async def post(request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(errors="replace"), expected):
            raise PushError(401, "send the header 'Authorization: Bearer TOKEN'")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise PushError(415, "send the body without compression")
        if reading.locked():
            raise PushError(503, "too many requests at a time", retry_after_s=1)
        spend(0)
        async with reading:
            body = await _body(request)
            try:
                values = read_body(body)
                spend(len(values))
            except PushError:
                allowance.owe(1 + len(body) // _EVENT_BYTES)
                raise
        return web.json_response(await intake.take(values), status=202)

    app = web.Application(middlewares=[_answer_refusals], client_max_size=MOST_BYTES)
    app.router.add_post(PATH, post)
    return app


async def _body(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_SECONDS)
    except TimeoutError:
        raise PushError(408, f"the body did not arrive within {_BODY_SECONDS:.0f} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise PushError(413, f"the body is larger than {MOST_BYTES} bytes; divide it") from None


@web.middleware
async def _answer_refusals(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except PushError as error:
        body = {"error": str(error)} | ({"refused": error.details} if error.details else {})
        response = web.json_response(body, status=error.status)
        if error.retry_after_s:
            response.headers["Retry-After"] = str(error.retry_after_s)
        if error.status in (401, 408, 413, 415, 429, 503):
            response.force_close()  # what may still come of the body is not read
    return response


def runner_of(app: web.Application) -> BoundedRunner:
    """What runs the application, with its bounds of connections."""
    return BoundedRunner(app, _CONNECTIONS, _IDLE_SECONDS)


async def serve_push(app: web.Application, port: int, stopping: asyncio.Event) -> None:
    """Listen on 127.0.0.1 until ``stopping`` is set. Raises :class:`OSError` if it cannot."""
    await serve_until(stopping, runner_of(app), (LOOPBACK, port))
