"""The readers of ``bench.sse`` in their own process: ``python -m bench.sse_readers PORT``, controlled by lines on
stdin."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from stream.local.server import LOOPBACK

_EVENT = re.compile(rb"id: (\d+)\nevent: window\ndata: [^\n]*\n\n")


class Reader(asyncio.Protocol):
    """One connection that notes when which event came."""

    def __init__(self, readers: Readers, last: int | None = None) -> None:
        self.readers, self.ids, self.last = readers, [] if last is None else [last], last
        self._rest = b""
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        resume = "" if self.last is None else f"Last-Event-ID: {self.last}\r\n"
        transport.write(f"GET /api/v1/stream HTTP/1.1\r\nHost: bench\r\n{resume}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._rest += data
        end = 0
        for event in _EVENT.finditer(self._rest):
            self.ids.append(int(event[1]))
            self.readers.note(self, int(event[1]), now)
            end = event.end()
        self._rest = self._rest[end:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Readers:
    """The readers of one process, controlled by lines on stdin; they report by lines on stdout."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._quick: set[Reader] = set()
        self._stalled: list[Reader] = []
        self._arrivals: dict[int, list[float]] = {}

    def note(self, reader: Reader, number: int, now: float) -> None:
        if reader not in self._quick:
            return
        came = self._arrivals.setdefault(number, [])
        came.append(now)
        if len(came) == len(self._quick):
            tell({"event": number, "median": median(came), "last": came[-1]})

    async def connect(self, count: int, receive_buffer: int | None = None, last: int | None = None) -> list[Reader]:
        loop = asyncio.get_running_loop()
        made = []
        for _ in range(count):
            link = socket.socket()
            if receive_buffer is not None:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            link.setblocking(False)
            await loop.sock_connect(link, (LOOPBACK, self._port))
            _, reader = await loop.create_connection(lambda: Reader(self, last), sock=link)
            made.append(reader)
        return made

    async def open(self, count: int) -> None:
        self._quick |= set(await self.connect(count))

    async def stall(self, count: int) -> None:
        """Connections that read their first event and then nothing."""
        self._stalled = await self.connect(count, receive_buffer=4096)
        while any(not reader.ids for reader in self._stalled):
            await asyncio.sleep(0.05)
        for reader in self._stalled:
            assert reader.transport is not None
            reader.transport.pause_reading()

    async def resume(self, newest: int) -> dict[str, int]:
        """Read what is left, connect again until everything up to ``newest`` came; every event once and in order."""
        whole = 0
        for reader in self._stalled:
            assert reader.transport is not None
            reader.transport.resume_reading()
            await asyncio.wait_for(reader.closed, 30)
            ids = list(reader.ids)
            (again,) = await self.connect(1, last=ids[-1])
            async with asyncio.timeout(30):
                while again.ids[-1] < newest:
                    await asyncio.sleep(0.01)
            ids += again.ids[1:]
            assert again.transport is not None
            again.transport.abort()
            whole += ids == list(range(ids[0], newest + 1))
        return {"whole": whole}

    async def obey(self) -> None:
        commands: dict[str, Callable[[int], Any]] = {"open": self.open, "stall": self.stall, "resume": self.resume}
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, argument = line.split()
            report = await commands[name](int(argument))
            tell({"done": name} | (report or {}))


def tell(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(Readers(int(sys.argv[1])).obey())
