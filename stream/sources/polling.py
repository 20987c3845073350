"""Polls the document at a URL, with conditional requests, back-off with jitter and bounded answers.

Secrets are in headers and values of the query that the caller gives. They are sent to the first host only, not after a
redirect to another host, and no error or log shows them. The events of each answer reach Kafka or a file before the
next request is sent.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from stream.config import Config
from stream.config.servers import redacted
from stream.sources.delivery import DeliveryError, KafkaSender
from stream.sources.messages import Messages
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import SnapshotError

log = structlog.get_logger()

_MOST_REDIRECTS = 5
_LONGEST_PAUSE_S = 300.0
_MOST_DOUBLINGS = 20
"""More would exceed the longest pause in any case, and after a thousand a float."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 1 << 16


class FetchError(RuntimeError):
    """There is no usable answer. ``retry_after_s``: the wait that the server asked for. ``final``: do not try again."""

    def __init__(self, reason: str, *, retry_after_s: float = 0.0, final: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s, self.final = retry_after_s, final


@dataclass(frozen=True)
class PollSettings:
    """Settings of requests: seconds between two, seconds for one, bytes of an unpacked answer, headers, query."""

    interval_s: float = 15.0
    timeout_s: float = 20.0
    largest: int = 32 << 20
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.interval_s <= 3600:
            raise ValueError(f"an interval of {self.interval_s} s is outside 1 s to 1 h")
        if not 0 < self.timeout_s <= 300:
            raise ValueError(f"a time-out of {self.timeout_s} s is outside 0 to 300 s")


class Poller:
    """Polls one URL. :meth:`fetch` returns its bytes, or None if the server says that nothing changed."""

    def __init__(self, url: str, settings: PollSettings) -> None:
        try:
            self._url, self._settings = URL(url), settings
        except ValueError:  # its text quotes user and password
            raise ValueError(f"{redacted(url)!r} is not an http or https address") from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ValueError(f"{redacted(url)!r} is not an http or https address")
        self._session: aiohttp.ClientSession | None = None
        self._validators: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def fetch(self) -> bytes | None:
        """The document, or None if it has not changed. Raises :class:`FetchError`."""
        assert self._session is not None, "used outside its context"
        url, has_secrets = self._url, self._settings.headers or self._settings.query or self._url.user
        for _ in range(_MOST_REDIRECTS + 1):
            own = url.origin() == self._url.origin()
            headers = {
                "Accept-Encoding": "gzip, deflate",
                **self._validators,
                **(self._settings.headers if own else {}),
            }
            try:
                asked = url.update_query(self._settings.query) if own and self._settings.query else url
                async with self._session.get(asked, headers=headers, allow_redirects=False) as answer:
                    if answer.status in _REDIRECTS and "Location" in answer.headers:
                        url = url.join(URL(answer.headers["Location"]))
                        if url.scheme not in ("http", "https"):
                            raise FetchError(f"redirected to a {url.scheme} address", final=True)
                        continue
                    return await self._read(answer, own or not has_secrets)
            except TimeoutError:
                raise FetchError(f"no complete answer within {self._settings.timeout_s:.0f} s") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise FetchError(f"{type(error).__name__}: {self._without_secrets(str(error))[:160]}") from None
        raise FetchError(f"more than {_MOST_REDIRECTS} redirects")

    def _without_secrets(self, text: str) -> str:
        for secret in self._settings.query.values():
            text = text.replace(quote(secret, safe=""), "***").replace(secret, "***")
        return redacted(text)

    async def _read(self, answer: aiohttp.ClientResponse, had_secrets: bool) -> bytes | None:
        """The document. ``had_secrets``: whether the host was sent all that there are."""
        if answer.status == 304:
            return None
        if answer.status != 200:
            final = answer.status in (400, 401, 403, 404, 405, 410)
            remedy = "; check the address and the key" if final else ""
            if answer.status in (401, 403) and not had_secrets:
                remedy = (
                    f" after a redirect to {answer.url.origin()}, which was not sent the key: if you trust it, name "
                    "its address"
                )
            raise FetchError(f"status {answer.status}{remedy}", retry_after_s=_retry_after(answer), final=final)
        body = bytearray()
        async for chunk in answer.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._settings.largest:
                raise FetchError(
                    f"more than {self._settings.largest} bytes, which is too much for a snapshot of a city"
                )
        known = {"If-None-Match": answer.headers.get("ETag"), "If-Modified-Since": answer.headers.get("Last-Modified")}
        self._validators = {name: value for name, value in known.items() if value}
        return bytes(body)


def backed_off(first_s: float, failures: int) -> float:
    """Seconds until the next attempt: ``first_s``, doubled by each failure, at most five minutes."""
    return min(first_s * 2.0 ** min(failures, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)


async def documents(
    poller: Poller, settings: PollSettings, stopping: asyncio.Event
) -> AsyncIterator[tuple[bytes | None, int]]:
    """Every answer with its time of arrival (µs UTC), until ``stopping`` is set; None for a document that did not
    change.

    After each failure the pause doubles, up to five minutes, and is shortened by up to a half at random, so that many
    clients do not come back at once. Raises :class:`FetchError` if the first answer says that trying again is
    pointless.
    """
    failures, answered = 0, False
    while not stopping.is_set():
        pause = settings.interval_s
        try:
            body = await poller.fetch()
        except FetchError as error:
            if error.final and not answered:
                raise
            failures += 1
            pause = max(backed_off(settings.interval_s, failures), error.retry_after_s)
            pause *= random.uniform(0.5, 1.0) if not error.retry_after_s else random.uniform(1.0, 1.1)
            if failures == 1:
                log.warning("the feed does not answer, trying again", reason=str(error), seconds=round(pause, 1))
        else:
            answered = True
            if failures:
                log.info("the feed answers again", failures=failures)
            failures = 0
            yield body, time.time_ns() // 1000
        try:
            await asyncio.wait_for(stopping.wait(), pause)
        except TimeoutError:
            continue


def _retry_after(answer: aiohttp.ClientResponse) -> float:
    text = answer.headers.get("Retry-After", "")
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), 3600.0)


_REPORT_SECONDS = 60.0
_RETRY_SECONDS = 5.0
_AT_ONCE = 10_000
"""Messages that are queued before the event loop may turn."""


class Sink(Protocol):
    """Receives events."""

    async def __aenter__(self) -> Self:
        """Open it."""

    async def __aexit__(self, *_: object) -> None:
        """Close it. All events that it took have been stored."""

    async def take(self, messages: Messages) -> None:
        """Store the events; returns once they are stored."""


async def poll(
    reader: SnapshotEvents,
    poller: Poller,
    settings: PollSettings,
    sink: Sink,
    stopping: asyncio.Event,
    *,
    once: bool,
) -> None:
    """Feed ``sink`` until ``stopping`` is set, or with ``once`` until the first answer.

    Bad answers are logged and skipped.
    """
    loop = asyncio.get_running_loop()
    async with poller, sink:
        reported = loop.time()
        async for body, received_us in documents(poller, settings, stopping):
            messages = await _events(reader, body, received_us)
            if messages is not None and messages.values:
                await sink.take(messages)
            if loop.time() - reported >= _REPORT_SECONDS:
                reported = loop.time()
                log.info("fed", events=reader.tally.events, derived=reader.tally.derived)
            if once:
                return


async def _events(reader: SnapshotEvents, body: bytes | None, received_us: int) -> Messages | None:
    """The new events of an answer; None if the document did not change, or is no snapshot, which is logged.

    A large answer takes seconds to decode. A thread waits for it, one answer at a time, so that the event loop goes on
    with Kafka's requests and the clock of windows.
    """
    if body is None:
        reader.unchanged(received_us)
        return None
    try:
        return await asyncio.to_thread(reader.events, body, received_us)
    except SnapshotError as error:
        log.warning("an answer is not a snapshot and is skipped", reason=str(error))
        return None


class FileSink:
    """Writes canonical events as lines to a file; ``-`` is standard output."""

    def __init__(self, out: Path) -> None:
        self._file = sys.stdout.buffer if str(out) == "-" else out.open("ab")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.flush()

    async def take(self, messages: Messages) -> None:
        """Append the events; returns once they are stored."""
        await asyncio.to_thread(self._write, messages.values)

    def _write(self, values: list[bytes]) -> None:
        self._file.writelines(value + b"\n" for value in values)
        self._file.flush()


class KafkaSink:
    """Writes events to the feed's topic. While Kafka is down it sends them again; the service counts each once."""

    def __init__(self, config: Config, stopping: asyncio.Event) -> None:
        self._config, self._stopping = config, stopping
        self._sender: KafkaSender | None = None

    async def __aenter__(self) -> Self:
        self._sender = await KafkaSender(self._config.kafka, self._config.feed.topic).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sender is not None:
            await self._sender.__aexit__()

    async def take(self, messages: Messages) -> None:
        """Send and wait for the acknowledgements."""
        while True:
            try:
                if self._sender is None:
                    await self.__aenter__()
                assert self._sender is not None
                for begin in range(0, len(messages.values), _AT_ONCE):
                    await self._sender.send(messages.part(begin, begin + _AT_ONCE))
                    await asyncio.sleep(0)
                await self._sender.confirm()
                return
            except DeliveryError as error:
                log.warning(
                    "kafka does not accept events, sending them again", reason=str(error), seconds=_RETRY_SECONDS
                )
                sender, self._sender = self._sender, None
                if sender is not None:
                    await sender.__aexit__()
                try:
                    await asyncio.wait_for(self._stopping.wait(), _RETRY_SECONDS)
                except TimeoutError:
                    continue
                raise
