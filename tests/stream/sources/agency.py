"""An agency whose GTFS-realtime feed answers what a test says, and a fleet of three buses. GTFS-realtime feeds that
tests make: a vehicle is (id, seconds, lat, lng, speed m/s or None). The same of SIRI-VM."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.transit import gtfs_realtime_pb2

from stream.config.feed import FeedConfig, SpeedSource
from stream.local.server import LOOPBACK
from stream.sources.messages import Messages
from stream.sources.polling import Poller, PollSettings
from stream.sources.vehicle_positions import GtfsRealtime
from stream.windows import Slotting, utc_text

DELHI = {"south": 28.0, "west": 76.5, "north": 29.0, "east": 78.0}
FEED = FeedConfig(name="bus", topic="bus", timezone="Asia/Kolkata", domain=DELHI)  # type: ignore[arg-type]
HOURS = Slotting(timedelta(hours=1), timedelta(days=1), FEED.timezone)


def fleet(step: int, speed: float | None = None, names: str = "abc") -> bytes:
    """Three buses 30 s apart, about 220 m northwards in each step: 26.7 km/h."""
    clock = START + 30 * step
    buses = [(name, clock - 2, 28.6 + 0.002 * step, 77.2 + 0.01 * k, speed) for k, name in enumerate(names)]
    return snapshot_bytes(buses, clock)


def reader(speeds: SpeedSource = "missing", feed: FeedConfig = FEED) -> GtfsRealtime:
    return GtfsRealtime(feed, HOURS, speeds)


class Agency:
    """A local server that answers each request with the next entry of a script, and repeats the last one."""

    def __init__(self, script: list[Callable[[BaseHTTPRequestHandler], None]]) -> None:
        self.requests: list[dict[str, str]] = []
        agency = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                agency.requests.append(dict(self.headers) | {"path": self.path})
                script[min(len(agency.requests), len(script)) - 1](self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Agency:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


def fetch(url: str, times: int = 1, **settings: object) -> list[bytes | None]:
    async def run() -> list[bytes | None]:
        async with Poller(url, PollSettings(**settings)) as poller:  # type: ignore[arg-type]
            return [await poller.fetch() for _ in range(times)]

    return asyncio.run(run())


class Kept(AsyncExitStack):
    """A sink and a sender that keep what they take; ``gate`` lets them store. ``ages``: seconds from an event's time
    until it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes] = []
        self.ages: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(self, messages: Messages) -> None:
        await self.gate.wait()
        self.values += messages.values
        self.ages += [time.time() - json.loads(value)["time"] / 1000 for value in messages.values]

    send = take

    async def flush(self) -> None:
        pass

    confirm = flush


START = 1_757_583_600
Vehicle = tuple[str, int | None, float, float, float | None]


def feed_message(vehicles: Iterable[Vehicle], header_s: int | None = START) -> gtfs_realtime_pb2.FeedMessage:
    message = gtfs_realtime_pb2.FeedMessage()
    message.header.gtfs_realtime_version = "2.0"
    if header_s is not None:
        message.header.timestamp = header_s
    for number, (name, seconds, lat, lng, speed) in enumerate(vehicles):
        entity = message.entity.add(id=str(number))
        entity.vehicle.vehicle.id = name
        entity.vehicle.position.latitude, entity.vehicle.position.longitude = lat, lng
        if speed is not None:
            entity.vehicle.position.speed = speed
        if seconds is not None:
            entity.vehicle.timestamp = seconds
    return message


def snapshot_bytes(vehicles: Iterable[Vehicle], header_s: int | None = START) -> bytes:
    data: bytes = feed_message(vehicles, header_s).SerializeToString()
    return data


NOON = "2026-03-02T12:00:00+00:00"


def activity(vehicle: str = "4112", operator: str = "FLON", time: str = NOON, **fields: str) -> str:
    """One VehicleActivity; ``fields``: elements of its journey in place of the usual ones, "" for none."""
    location = fields.get("location", place(51.5, -0.12))
    named = [("OperatorRef", operator), ("VehicleRef", vehicle), ("Velocity", fields.get("velocity", "36"))]
    journey = "".join(f"<{name}>{text}</{name}>" for name, text in named if text)
    when = f"<RecordedAtTime>{time}</RecordedAtTime>" if time else ""
    framed = "<FramedVehicleJourneyRef><VehicleRef>no</VehicleRef></FramedVehicleJourneyRef>"
    return (
        f"<VehicleActivity>{when}<MonitoredVehicleJourney><LineRef>1</LineRef>{framed}{journey}{location}"
        "<Bearing>7</Bearing></MonitoredVehicleJourney></VehicleActivity>"
    )


def place(lat: object, lng: object) -> str:
    return f"<VehicleLocation><Longitude>{lng}</Longitude><Latitude>{lat}</Latitude></VehicleLocation>"


def document(*activities: str, head: str = "<?xml version='1.0' encoding='UTF-8'?>", response: str = NOON) -> bytes:
    return (
        f"{head}<Siri xmlns='http://www.siri.org.uk/siri' version='2.0'><ServiceDelivery>"
        f"<ResponseTimestamp>{response}</ResponseTimestamp>"
        f"<VehicleMonitoringDelivery>{''.join(activities)}</VehicleMonitoringDelivery></ServiceDelivery></Siri>"
    ).encode()


def siri_bytes(fixes: Iterable[tuple[str, int, float, float, object]], response_s: int = START) -> bytes:
    """A SIRI-VM document; a fix is (operator:vehicle, seconds, lat, lng, what stands as its velocity or None)."""
    activities = []
    for name, seconds, lat, lng, velocity in fixes:
        operator, _, vehicle = name.rpartition(":")
        said = "" if velocity is None else str(velocity)
        activities.append(activity(vehicle, operator, utc_text(seconds), location=place(lat, lng), velocity=said))
    return document(*activities, head='<?xml version="1.0"?>', response=utc_text(response_s))
