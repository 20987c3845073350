"""The pictures of the documents: ``python -m tests.stream.serve.screenshots WORK [FOLDER]`` or ``make pictures``. What
the pictures of the documents show: five days of 300 simulated buses, released twice, their streets and their timetable.

Of a running demo, ``dashboard-live.png``: its address instead of WORK.

WORK keeps what :func:`city` makes, so that a second run only takes the pictures. FOLDER:
where they are written, by default docs/images. To the page it is five minutes after the end of the newest window.
Pictures keep 256 colours, which makes them a third as large. The newest window is beside the day before it.

Everything is made by the commands that an operator uses, from the shipped ``bus-fleet.toml``.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

from stream.config import Config, load_config
from stream.sources.live_city import crossing
from stream.sources.live_city import streets as invented
from stream.sources.network import Network, site_in
from stream.sources.simulate import Simulation, simulated_fleet
from tests.stream.serve.browser import LAPTOP, PHONE, chromium, opened, place_of
from tests.stream.serve.serving import origin_of, serving_file
from tests.stream.sources.made_schedules import zipped

CONFIG = Path("config/bus-fleet.toml")
VEHICLES = 300
START, DURATION = "2026-02-25T00:00:00-06:00", "129h"
"""From a Wednesday to Monday at nine, so that the morning of that day has three others of its kind before it."""
COMPARED = {"HEXVEIL_PRIVACY__EPSILON": "6.0", "HEXVEIL_PRIVACY__BUDGET": "48.0"}
"""Under the shipped ε the noise explains every difference of so few buses."""
ALLOWANCE = 1.2
"""Scheduled time as a multiple of that on empty streets."""
EVERY_MINUTES = 15
"""Between two departures of a route."""
_DAYS = "monday,tuesday,wednesday,thursday,friday,saturday,sunday"


@dataclass(frozen=True)
class City:
    """Files of the city. ``shipped``, ``compared``: its releases under the shipped budget and under the larger one."""

    config: Config
    shipped: Path
    compared: Path


def city(folder: Path) -> City:
    """Make everything that is not in ``folder`` yet; some minutes of processor time."""
    os.environ["HEXVEIL_PRIVACY__USER_KEY_FILE"] = str(folder / "user.key")
    fleet, places, streets = folder / "fleet.ndjson", folder / "places.json", folder / "streets.geojson"
    domain = load_config(CONFIG).feed.domain
    simulation = Simulation(load_config(CONFIG).feed, VEHICLES, _microseconds(START))
    streets.write_text(json.dumps(invented(domain, simulation.seed)), encoding="utf-8")
    (folder / "gtfs.zip").write_bytes(timetable(simulation))
    _hexveil("gtfs", str(folder / "gtfs.zip"), "--out", str(places), "--force")
    if not fleet.exists():
        made = fleet.with_suffix(".part.ndjson")
        length = ["--start", START, "--duration", DURATION, "--vehicles", str(VEHICLES)]
        _hexveil("simulate", *length, "--out", str(made))
        made.rename(fleet)
    releases = [folder / "shipped.ndjson", folder / "compared.ndjson"]
    for path, environment in zip(releases, ({}, COMPARED), strict=True):
        if not path.exists():
            made = path.with_suffix(".part.ndjson")
            _hexveil("replay", str(fleet), "--offline", "--out", str(made), **environment)
            made.rename(path)
    config = load_config(CONFIG, **{"public.places": str(places), "public.streets": str(streets)})
    return City(config, *releases)


def _hexveil(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "stream", *arguments, "--config", str(CONFIG)]
    subprocess.run(command, check=True, env=os.environ | environment)


def _microseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1_000_000


def timetable(simulation: Simulation) -> bytes:
    """A GTFS archive of the simulated routes: one trip each way every quarter of an hour, with an allowance for
    traffic."""
    _, network, _ = simulated_fleet(simulation)
    site = site_in(simulation.feed.domain)
    stops, shapes = ["stop_id,stop_name,stop_lat,stop_lon"], ["shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence"]
    routes, trips = ["route_id,route_short_name,route_type"], ["route_id,service_id,trip_id,shape_id"]
    times = ["trip_id,stop_id,stop_sequence,arrival_time,departure_time"]
    frequencies = ["trip_id,start_time,end_time,headway_secs"]
    for path in range(len(network.path_start)):
        route = path // 2 + 1
        if path % 2 == 0:
            routes.append(f"{route},{route},3")
        trips.append(f"{route},daily,t{path},s{path}")
        frequencies.append(f"t{path},00:00:00,24:00:00,{EVERY_MINUTES * 60}")
        shapes += [f"s{path},{lat:.6f},{lng:.6f},{n}" for n, (lat, lng) in enumerate(_line(network, path))]
        for number, (lat, lng, seconds) in enumerate(_calls(network, path)):
            stops.append(f"{path}-{number},{crossing(site, lat, lng)},{lat:.6f},{lng:.6f}")
            time = timedelta(seconds=round(seconds))
            times.append(f"t{path},{path}-{number},{number},{time},{time}")
    zone = simulation.feed.timezone
    agency = ["agency_name,agency_url,agency_timezone", f"An invented agency,https://example.org,{zone}"]
    calendar = [f"service_id,{_DAYS},start_date,end_date", "daily,1,1,1,1,1,1,1,20260223,20260308"]
    files = {"agency": agency, "calendar": calendar, "stops": stops, "shapes": shapes, "routes": routes, "trips": trips}
    files |= {"stop_times": times, "frequencies": frequencies}
    return zipped({f"{name}.txt": "".join(f"{line}\n" for line in lines) for name, lines in files.items()})


def _line(network: Network, path: int) -> list[tuple[float, float]]:
    along = (network.vertex_at >= network.path_start[path]) & (network.vertex_at <= network.path_end[path])
    return list(zip(network.vertex_lat[along].tolist(), network.vertex_lng[along].tolist(), strict=True))


def _calls(network: Network, path: int) -> list[tuple[float, float, float]]:
    """Latitude, longitude and seconds after the departure of every stop, at a steady speed."""
    start, end = network.path_start[path], network.path_end[path]
    at = network.stop_at[(network.stop_at > start) & (network.stop_at <= end)]
    lat, lng = network.locate(at)
    seconds = (at - start) / (end - start) * network.running_time[path] * ALLOWANCE
    return list(zip(lat.tolist(), lng.tolist(), seconds.tolist(), strict=True))


SETTLED_MS = 2_000


class Picture(NamedTuple):
    """One picture: its size and theme, the address after '#', and whether the mouse is over the busiest cell."""

    name: str
    size: dict[str, int]
    theme: Literal["light", "dark"]
    place: str
    points: bool = False
    releases: Literal["shipped", "compared"] = "compared"


DAY = "colours=day&values=raw&day={day}"
PICTURES = [
    Picture("light", LAPTOP, "light", "colours=now", True, "shipped"),
    Picture("day", LAPTOP, "light", DAY, True),
    Picture("phone", PHONE, "light", "colours=now", False, "shipped"),
    Picture("phone-difference", PHONE, "light", "colours=difference"),
    Picture("phone-day", PHONE, "light", DAY),
    Picture("phone-schedule", PHONE, "dark", "colours=scheduled&values=raw"),
]


async def take(made: City, folder: Path) -> None:
    for kind, releases in (("shipped", made.shipped), ("compared", made.compared)):
        bodies = [json.loads(line)["value"] for line in releases.read_text(encoding="utf-8").splitlines()]
        newest = max(body["window"]["end"] for body in bodies)
        clock = datetime.fromisoformat(newest) + timedelta(minutes=5)
        day = (datetime.fromisoformat(newest) - timedelta(days=1)).date().isoformat()
        last = [body for body in bodies if "cell" in body and body["window"]["end"] == newest]
        busiest = max(last, key=lambda body: body["users"])["cell"]
        async with serving_file(made.config, releases) as client, chromium() as browser:
            for picture in (picture for picture in PICTURES if picture.releases == kind):
                place = "#" + picture.place.format(day=day)
                options: dict[str, Any] = {"size": picture.size, "color_scheme": picture.theme, "clock": clock}
                async with opened(browser, origin_of(client), place, **options) as page:
                    await page.wait_for_timeout(SETTLED_MS)
                    if picture.points:
                        await page.mouse.move(*await place_of(page, busiest))
                        await page.wait_for_timeout(SETTLED_MS)
                    save(await page.screenshot(), folder / f"dashboard-{picture.name}.png")


async def take_live(address: str, folder: Path) -> None:
    """The picture of a demo that is running at ``address``: its newest window."""
    async with chromium() as browser, opened(browser, address.rstrip("/"), size=LAPTOP, color_scheme="light") as page:
        await page.wait_for_timeout(2 * SETTLED_MS)
        save(await page.screenshot(), folder / "dashboard-live.png")


def save(picture: bytes, path: Path) -> None:
    """Write it as PNG with a palette."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    where, *folder = sys.argv[1:]
    pictures = Path(*folder[:1] or ["docs/images"])
    if where.startswith("http://"):
        asyncio.run(take_live(where, pictures))
    else:
        work = Path(where)
        work.mkdir(parents=True, exist_ok=True)
        asyncio.run(take(city(work), pictures))
