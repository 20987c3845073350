"""The event stream: each complete window is encoded once and sent to every open connection."""

import asyncio
import random
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from stream.serve.metrics import PublicMetrics
from stream.serve.operations import get
from stream.serve.responses import Problem
from stream.serve.window_store import View, WindowView

log = structlog.get_logger()

PING_SECONDS = 15.0
_RETRY_MS = (1_000, 5_000)
"""Seconds after which clients reconnect; each gets another time, so that they do not all come back at once."""
_PAST_AT_ONCE = 16
MAX_STREAMS = 2_000
"""Most event streams at a time; each holds a connection."""
_WINDOWS_BEHIND = 64


def frame_of(window: WindowView) -> bytes:
    """One server-sent event as bytes. Its id is the position of the window's close marker."""
    return b"id: %d\nevent: window\ndata: %b\n\n" % (window.number, window.described().summary)


@dataclass(eq=False)
class _Stream:
    feed: str
    frames: asyncio.Queue[tuple[int | None, bytes] | None]
    """Events, with a number where they have an id; None ends the stream."""
    transport: asyncio.Transport | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the service ends the stream."""


class Broadcast:
    """The open streams. A stream that is ``queue`` events behind is ended; its client can resume by Last-Event-ID.

    A window has an event of its own and at most one for each rule on alerts, so the queue grows by the number of
    ``rules``.
    """

    def __init__(self, view: View, metrics: PublicMetrics, ready: asyncio.Event, rules: int = 0) -> None:
        self._view, self._metrics, self._ready = view, metrics, ready
        self.queue = _WINDOWS_BEHIND + rules
        self._streams: set[_Stream] = set()

    def announce(self, window: WindowView) -> None:
        """Send a complete window to every stream of its feed."""
        self.tell(window.feed, frame_of(window), window.number)

    def tell(self, feed: str, frame: bytes, number: int | None = None) -> None:
        """Send an event to every stream of the feed; one without an id is not repeated to clients that reconnect."""
        for stream in list(self._streams):
            if stream.feed != feed:
                continue
            try:
                stream.frames.put_nowait((number, frame))
            except asyncio.QueueFull:
                self._metrics.sse_dropped.inc()
                self._streams.discard(stream)
                if stream.transport is not None:
                    # Its handler may be waiting for a client that does not read; closing wakes it with an error.
                    stream.transport.abort()

    def end_all(self) -> None:
        """End every stream."""
        for stream in self._streams:
            while not stream.frames.empty():
                stream.frames.get_nowait()
            stream.frames.put_nowait(None)
            stream.ended.set()

    @get(
        "/stream", "streamWindows", {"text/event-stream": "EventStream"}, "feed", "after", "last_event_id",
        tag="Stream", conditional=False,
    )  # fmt: skip
    async def stream(
        self, request: web.Request, feed: str, after: int | None, last_event_id: int | None
    ) -> web.StreamResponse:
        """Server-sent events: one per finished window, and one per rule and window with alerts to tell."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        if len(self._streams) >= MAX_STREAMS:
            raise Problem(503, f"all {MAX_STREAMS} event streams are taken", "try again later", {"Retry-After": "30"})
        stream = _Stream(feed, asyncio.Queue(self.queue), request.transport)
        self._streams.add(stream)
        self._metrics.sse_clients.inc()
        try:
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % random.randrange(*_RETRY_MS))
            if not await self._is_ready_before_the_end(stream):
                return response
            past = self._past(feed, last_event_id if last_event_id is not None else after)
            for first in range(0, len(past), _PAST_AT_ONCE):
                await response.write(b"".join(map(frame_of, past[first : first + _PAST_AT_ONCE])))
            await self._forward(stream, response, sent=past[-1].number if past else 0)
        except ConnectionError:
            pass
        finally:
            self._streams.discard(stream)
            self._metrics.sse_clients.dec()
        return response

    async def _is_ready_before_the_end(self, stream: _Stream) -> bool:
        """Wait until the store is ready. False if the stream is ended before: then the service does not wait for it."""
        waits = asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(stream.ended.wait())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not stream.ended.is_set()

    def _past(self, feed: str, since: int | None) -> list[WindowView]:
        """Windows after the id ``since``. If ``since`` is above every id, the topic is new, and all are returned."""
        if since is None:
            return []
        complete = self._view.completed(feed)
        return [w for w in complete if w.number > since or since > complete[-1].number]

    async def _forward(self, stream: _Stream, response: web.StreamResponse, sent: int) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    event = await stream.frames.get()
            except TimeoutError:
                await response.write(b": ping\n\n")
                continue
            if event is None:
                return
            number, frame = event
            if number is None or number > sent:
                await response.write(frame)
