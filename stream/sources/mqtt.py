"""Follows topics of an MQTT broker: reconnects with back-off and jitter, and keeps a bounded queue of messages.

Positions are not acknowledged (QoS 0): each is replaced by the next within seconds. What arrives faster than the sink
stores it is dropped and counted, so that a stopped Kafka costs no memory.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import structlog
from aiomqtt import Client, Message, MqttCodeError, MqttError, Topic, Wildcard
from paho.mqtt.enums import MQTTErrorCode

from stream.sources.hfp import LARGEST_MESSAGE, HighFrequencyPositions, Publication
from stream.sources.polling import FetchError, Sink, backed_off
from stream.sources.snapshots import SnapshotError

if TYPE_CHECKING:
    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage

log = structlog.get_logger()

MOST_WAITING, MOST_WAITING_BYTES = 20_000, 16 << 20
"""Messages that wait to be stored, and their bytes."""
SILENT_SECONDS = 60.0
"""A broker that sends nothing for so long is reported: it may accept a subscription and let nothing through."""
_MOST_AT_ONCE = 5_000
_GATHER_SECONDS = 0.2
"""How long messages are gathered before they are decoded together."""
_REPORT_SECONDS = 60.0
_KEEPALIVE_S = 30
_QOS_BITS = 0x06
"""Bits of the quality of service in the first byte of PUBLISH."""
_REFUSED = 128
"""Lowest reason code of SUBACK that refuses a topic."""
_DENIED = frozenset({134, 135})
"""Reason codes of CONNACK: wrong user or password, not authorised."""


@dataclass(frozen=True)
class Broker:
    """Where a broker is, and how to log in. ``login``: user and password; ``pause_s``: first pause before a new
    attempt.

    Raises :class:`ValueError` for an address that is not one, and for a password that would be sent without TLS.
    """

    url: str
    filters: tuple[str, ...]
    ca_file: Path | None = None
    login: tuple[str, str] | None = field(default=None, repr=False)
    pause_s: float = 1.0

    def __post_init__(self) -> None:
        if "@" in self.url:  # first of all, because errors of the parser quote what it does not understand
            raise ValueError("store user and password in a file: others can see the command line")
        wrong = ValueError("the broker's address is not like mqtts://mqtt.agency.example:8883")
        try:
            parts = urlsplit(self.url)
            port, _ = parts.port, (parts.hostname or "").encode("idna")
        except ValueError:
            raise wrong from None
        if (
            parts.scheme not in ("mqtt", "mqtts")
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
            or port == 0
        ):
            raise wrong
        if self.login and parts.scheme == "mqtt" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("a password that is sent without TLS is public; use an address that begins with mqtts://")
        if self.ca_file is not None and parts.scheme == "mqtt":
            raise ValueError("a CA file belongs to an address that begins with mqtts://")
        if not self.filters:
            raise ValueError("name at least one topic")
        for name in self.filters:
            try:
                Wildcard(name)
            except ValueError:
                raise ValueError(
                    f"{name!r} is no topic filter; write one like '/hfp/v2/journey/ongoing/vp/#'"
                ) from None

    @property
    def host(self) -> str:
        """Name or address of its machine."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, by default that of the protocol."""
        return urlsplit(self.url).port or (8883 if self.encrypted else 1883)

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted, and the broker's certificate checked."""
        return urlsplit(self.url).scheme == "mqtts"

    def tls(self) -> ssl.SSLContext | None:
        """What checks the broker's certificate. Raises :class:`ValueError` for a file without certificates."""
        if not self.encrypted:
            return None
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"{self.ca_file}: {error}; name a file of certificates in PEM") from None


class _Arrivals(asyncio.Queue[Publication]):
    """What arrived and was not decoded yet, within bounds of number and bytes. The rest is dropped and counted."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: Counter[str] = Counter()
        self._bytes = 0

    def put_nowait(self, item: Publication) -> None:
        """Add a message, or drop it."""
        size = _size(item)
        if size > LARGEST_MESSAGE:
            self.refused["too-large"] += 1
        elif self.qsize() >= MOST_WAITING or self._bytes + size > MOST_WAITING_BYTES:
            self.refused["queue-full"] += 1
        else:
            self._bytes += size
            super().put_nowait(item)

    def get_nowait(self) -> Publication:
        """The oldest message. Raises :class:`asyncio.QueueEmpty`."""
        item = super().get_nowait()
        self._bytes -= _size(item)
        return item


def _size(message: Publication) -> int:
    return len(message.payload) + len(message.topic)


class _Client(Client):
    """A client that puts what it receives into ``arrivals``, with the time.

    It leaves out and counts messages whose topic is not text, or has wildcards. With aiomqtt's own callback such a
    message ends the reading and leaves the connection open. A message with a quality of service that was not granted
    ends the connection: of QoS 2, paho keeps each message until the broker releases it, so a broker that never does
    fills the memory.
    """

    def __init__(self, broker: Broker, tls: ssl.SSLContext | None, arrivals: _Arrivals) -> None:
        user, password = broker.login or (None, None)
        self._arrivals = arrivals
        super().__init__(
            broker.host,
            broker.port,
            username=user,
            password=password,
            tls_context=tls,
            keepalive=_KEEPALIVE_S,
            queue_type=cast("type[asyncio.Queue[Message]]", lambda maxsize: arrivals),
        )
        self.was_sent_ungranted = False
        self._taken = self._client._handle_publish
        self._client._handle_publish = self._at_most_once  # type: ignore[method-assign]  # paho asks nobody before it keeps one

    def _at_most_once(self) -> MQTTErrorCode:
        if not self._client._in_packet["command"] & _QOS_BITS:
            return self._taken()
        self.was_sent_ungranted = True
        self._arrivals.refused["qos-not-granted"] += 1
        return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _on_message(self, client: PahoClient, userdata: Any, message: MQTTMessage) -> None:
        try:
            topic = Topic(message.topic).value
        except ValueError:
            self._arrivals.refused["topic-unreadable"] += 1
        else:
            self._arrivals.put_nowait(Publication(topic, bytes(message.payload), time.time_ns() // 1000))

    async def next(self) -> Publication:
        """The next message. Raises :class:`MqttError` if the connection breaks."""
        return cast(Publication, await anext(self.messages))


class Following:
    """Feeds a sink with what a broker publishes."""

    def __init__(self, reader: HighFrequencyPositions, broker: Broker, sink: Sink, stopping: asyncio.Event) -> None:
        self._reader, self._broker, self._sink, self._stopping = reader, broker, sink, stopping
        self._tls = broker.tls()
        self._arrivals = _Arrivals()
        self._subscribed, self._failures, self._events = False, 0, 0
        self._reported = time.monotonic()

    @property
    def refused(self) -> Counter[str]:
        """Messages that were dropped before they were decoded, by reason."""
        return self._arrivals.refused

    async def run(self, *, once: bool = False) -> None:
        """Follow the topics until stopped, or with ``once`` until the first events were stored.

        After each failure the pause doubles, up to five minutes, and is shortened by up to a half at random. Raises
        :class:`FetchError` if trying again is pointless before anything was subscribed, and errors of the sink.
        """
        async with self._sink:
            while not self._stopping.is_set():
                try:
                    if await self._connection(once):
                        return
                except (FetchError, MqttError) as error:
                    failure = error if isinstance(error, FetchError) else _explained(error)
                    if failure.final and not self._subscribed:
                        raise failure from None
                    await self._pause(str(failure))

    async def _pause(self, reason: str) -> None:
        pause = backed_off(self._broker.pause_s, self._failures) * random.uniform(0.5, 1)
        self._failures += 1
        if self._failures == 1:
            log.warning("the broker is away, trying again", reason=reason[:160], seconds=round(pause, 1))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause)

    async def _connection(self, once: bool) -> bool:
        """Store what one connection brings until it breaks. Returns whether to end.

        Raises :class:`MqttError`, and :class:`FetchError` if the broker does not keep to the protocol.
        """
        client = _Client(self._broker, self._tls, self._arrivals)
        try:
            return await self._follow(client, once)
        except MqttError:
            if client.was_sent_ungranted:
                raise FetchError("the broker sends messages with QoS 1 or 2, which were not asked for") from None
            raise

    async def _follow(self, client: _Client, once: bool) -> bool:
        async with client:
            codes = await client.subscribe([(name, 0) for name in self._broker.filters])
            if any((code if isinstance(code, int) else code.value) >= _REFUSED for code in codes):
                raise FetchError("the broker refuses a topic; check the topics and the user's rights", final=True)
            self._subscribed = True
            while (first := await self._next(client)) is not None:
                if self._failures:
                    log.info("the broker is back", failures=self._failures)
                    self._failures = 0
                await asyncio.sleep(_GATHER_SECONDS)
                waiting = range(min(self._arrivals.qsize(), _MOST_AT_ONCE - 1))
                if await self._store([first, *(self._arrivals.get_nowait() for _ in waiting)]) and once:
                    return True
        return True

    async def _next(self, client: _Client) -> Publication | None:
        message = asyncio.ensure_future(client.next())
        stopped = asyncio.ensure_future(self._stopping.wait())
        awaited = (message, stopped)
        try:
            done, _ = await asyncio.wait(awaited, timeout=SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning(
                    "the broker sends no message; check the topics and the user's rights",
                    seconds=SILENT_SECONDS,
                    dropped=self.refused.total(),
                )
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else None
        finally:
            message.cancel()
            stopped.cancel()

    async def _store(self, publications: list[Publication]) -> bool:
        try:
            messages = await asyncio.to_thread(self._reader.of, publications, time.time_ns() // 1000)
        except SnapshotError as error:
            log.warning("messages are skipped", reason=str(error), messages=len(publications))
            return False
        if not messages.values:
            return False
        await self._sink.take(messages)
        self._events += len(messages.values)
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            log.info("fed", events=self._events, dropped=self.refused.total())
        return True


def _explained(error: MqttError) -> FetchError:
    if isinstance(error, MqttCodeError) and getattr(error.rc, "value", error.rc) in _DENIED:
        return FetchError("the broker does not accept this user and password; check --login", final=True)
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return FetchError(f"{text}; name the agency's CA with --ca, or correct the address", final=True)
    return FetchError(text, final=False)
