"""What a broker sends over MQTT: packets with mutated bytes, and with a quality of service that nobody asked for."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from datetime import UTC, datetime

from bench.fuzzing.hunting import Hunt, LoopTarget
from bench.fuzzing.messages import NOW_US, feed_config
from bench.fuzzing.mutation import Mutator
from stream.local.server import LOOPBACK
from stream.sources.hfp import HighFrequencyPositions
from stream.sources.messages import Messages
from stream.sources.mqtt import Broker, Following
from stream.sources.polling import FetchError

_TOPIC = b"/hfp/v2/journey/ongoing/vp/bus/0018/00001/1/2/Centre/7:00/1/3/60;24/1/2/3"
_ACCEPTED, _GRANTED = b"\x20\x02\x00\x00", b"\x00"
_READ_SECONDS = 0.25
"""How long a client may take for what it was sent: longer than it gathers messages."""
_WAIT_SECONDS = 60.0


class _Kept:
    """A sink that keeps what it takes."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def __aenter__(self) -> _Kept:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def take(self, messages: Messages) -> None:
        self.values += messages.values


class MqttBroker(LoopTarget):
    """One connection an input: a broker that accepts everything, sends packets and leaves."""

    name = "mqtt"
    contract = (
        "events of sound messages, or another attempt; nothing is taken of a connection after a QoS that was not "
        "granted"
    )

    def __init__(self) -> None:
        self._config = feed_config("canonical")

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Six connections with sound packets of any QoS, and six with mutated bytes."""
        mutator = Mutator(rng)
        for _ in range(6):
            qualities = [rng.choice((0, 0, 0, 1, 2, 3)) for _ in range(rng.randrange(1, 6))]
            sound = b"".join(_publish(number, qos) for number, qos in enumerate(qualities))
            hunt.attempt(sound, lambda data, known=qualities: self._run(data, known))  # type: ignore[misc]
            hunt.attempt(mutator.octets(sound), lambda data: self._run(data, None))

    def _run(self, data: bytes, qualities: list[int] | None) -> None:
        self._loop.run_until_complete(self._check(data, qualities))

    async def _check(self, data: bytes, qualities: list[int] | None) -> None:
        stopping, sink = asyncio.Event(), _Kept()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4096)
            writer.write(_ACCEPTED)
            asked = await reader.read(4096)
            writer.write(b"\x90\x03" + asked[2:4] + _GRANTED + data)
            with suppress(TimeoutError, OSError):
                await asyncio.wait_for(reader.read(), _READ_SECONDS)
            writer.close()
            stopping.set()

        server = await asyncio.start_server(answer, LOOPBACK, 0)
        source = HighFrequencyPositions(self._config.feed, self._config.slotting)
        address = f"mqtt://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        following = Following(source, Broker(address, ("/hfp/#",)), sink, stopping)
        with suppress(FetchError):
            async with asyncio.timeout(_WAIT_SECONDS):
                await following.run()
        server.close()
        if qualities is not None and any(qualities):
            granted = next(at for at, qos in enumerate(qualities) if qos)
            assert following.refused["qos-not-granted"] == 1, "a QoS that was not granted is taken"
            assert len(sink.values) <= granted, "a connection is read on after a QoS that was not granted"


def _publish(number: int, qos: int) -> bytes:
    """A PUBLISH packet of 128 to 16 383 bytes after its header."""
    moment = datetime.fromtimestamp(NOW_US // 1_000_000 + number, UTC).isoformat()
    fix = {"VP": {"tst": moment, "lat": 30.2, "long": -97.7, "spd": 7.5, "oper": 18, "veh": 1, "desi": "7"}}
    body = len(_TOPIC).to_bytes(2, "big") + _TOPIC + (b"\0\1" if qos else b"") + json.dumps(fix).encode()
    return bytes((0x30 | qos << 1, len(body) & 0x7F | 0x80, len(body) >> 7)) + body
