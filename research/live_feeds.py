"""Feeds on which live maps are measured, and the configurations of such maps: 15 minutes, H3 resolution 7, budget 12.

``DAY``: one of CapMetro's recorded days; ``DAY:10``: as ten clones, their times shifted by up to six minutes;
``DAY+DAY``: several days; ``taxis``: T-Drive's 591 taxis in Beijing, speeds derived from positions; ``city:N``: two
days of N simulated vehicles; ``city:N/H``: H hours from midnight in Austin on; ``cars:N``: five hours of
the demo's city with N cars. Constants of the product were chosen on
CapMetro's 2015-09-06, 2016-11-25 and 2017-03-16 alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from bench.recordings import path_of_day, recordings
from dpcore.relation import NeighbouringRelation
from stream.config import Config, load_config
from stream.diagnosis.reading import read_recording
from stream.evaluation.living import Exact, exact_windows
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT
from stream.offline import split_by_slot
from stream.sources.live_city import Cars, traffic_in
from stream.sources.network import Fleet, build_network
from stream.sources.simulate import Simulation, simulated_fleet
from stream.storage.row_store import ROW

Rows = npt.NDArray[np.void]

BEIJING: dict[str, Any] = {
    "feed.timezone": "Asia/Shanghai",
    "feed.domain": {"south": 39.7, "west": 116.1, "north": 40.1, "east": 116.7},
    "feed.speeds": "missing",
    "feed.fields": {
        "user": "taxi",
        "time": "time",
        "lat": "latitude",
        "lng": "longitude",
        "time_format": "%Y-%m-%d %H:%M:%S",
        "timezone": "Asia/Shanghai",
    },
}
LIVE: dict[str, Any] = {
    "window.slot": "15m",
    "window.allowed_delay": "30s",
    "hexagons.resolution": 7,
    "speed.statistics": ["mean"],
    "value.typical": 20.0,
    "speed.post_processing": ["kalman"],
}
GAUSSIAN: dict[str, Any] = {"privacy.accounting": "zcdp", "privacy.delta": 1e-6, "privacy.epsilon": None}
ROLLING: dict[str, Any] = GAUSSIAN | {"privacy.admission": "rolling"}
VALUES: dict[str, dict[str, Any]] = {
    "Laplace": {"privacy.epsilon": 12 / 96},
    "Gaussian": GAUSSIAN | {"privacy.windows": 96},
    "and rolling": ROLLING,
    "and residual": ROLLING | {"speed.clipping": "residual"},
}
"""Mechanisms under "values", each beside the one before (S14, S15, S17, S16)."""
PURE: dict[str, Any] = {"privacy.accounting": "pure", "privacy.delta": None, "privacy.windows": None}
PARTICIPATION: dict[str, dict[str, Any]] = {
    "Laplace": PURE | {"privacy.epsilon": 12 / 96, "speed.clipping": "none"},
    "and residual": PURE | {"privacy.epsilon": 12 / 96, "speed.clipping": "residual"},
    "Gaussian": GAUSSIAN | {"privacy.windows": 96, "speed.clipping": "none"},
    "Gaussian, residual": GAUSSIAN | {"privacy.windows": 96, "speed.clipping": "residual"},
}


def told(row: str, figures: dict[str, Any]) -> dict[str, Any]:
    """The ``figures`` of a row, after they were printed to stderr with the processor seconds since the start."""
    print(json.dumps({"row": row, "processor_s": round(time.process_time())} | figures), file=sys.stderr, flush=True)
    return figures


def config_of(feed: str, relation: NeighbouringRelation, mechanism: dict[str, Any]) -> Config:
    """The configuration of a live map of ``feed``."""
    values = relation == NeighbouringRelation.VALUES
    plain: dict[str, Any] = {"speed.clipping": "none", "privacy.budget": 12.0}
    if values:
        plain |= {"speed.suppression": "none", "speed.sum_cap": 0.0, "hexagons.coarsest_resolution": 0}
        plain |= {"hexagons.merge_until": None}
    else:
        plain |= {"window.publication_margin": "30s", "feed.quality.teleport_km_h": 0, "feed.quality.frozen": "0s"}
    made = feed.startswith(("city", "cars"))
    place = BEIJING if feed == "taxis" else {"feed.format": "canonical" if made else "capmetro"}
    file = REPO_ROOT / "config" / ("bus-fleet.toml" if values else "riders-live.toml")
    return load_config(file, **(LIVE | plain | place | {"privacy.user_key_file": str(_user_key())} | mechanism))


@cache
def _user_key() -> Path:
    """Always the same key, because clones are shifted in the order of their pseudonyms."""
    key = Path(tempfile.mkdtemp(prefix="hexveil-research-")) / "user.key"
    key.write_bytes(bytes(KEY_BYTES))
    key.chmod(0o600)
    return key


def windows_of(feed: str, config: Config) -> list[Exact]:
    """The windows of ``feed``, in order."""
    return exact_windows(config, split_by_slot(rows_of(feed, config), config))


def rows_of(feed: str, config: Config) -> Rows:
    """The rows of ``feed``."""
    name, _, times = feed.partition(":")
    if name == "city":
        vehicles, _, hours = times.partition("/")
        return _simulated(config, int(vehicles), int(hours or 48))
    if name == "cars":
        return _driven(config, int(times))
    if name == "taxis":
        return read_recording(config, recordings() / "tdrive/tdrive-600.csv.gz", config.feed.recorded_format)[0]
    days = [read_recording(config, recordings() / path_of_day(day), config.feed.format)[0] for day in name.split("+")]
    return cloned(np.concatenate(days), float(times or 1), ZoneInfo(config.feed.timezone))


def cloned(rows: Rows, times: float, zone: ZoneInfo, seed: int = 5) -> Rows:
    """``times`` copies of every vehicle, of the last a share, each shifted by up to six minutes within its local
    day."""
    rng, parts = np.random.default_rng(seed), []
    users, vehicle = np.unique(rows["user"], return_inverse=True)
    midnight = datetime.fromtimestamp(int(rows["time"][0]) // 1_000_000, zone).replace(hour=0, minute=0, second=0)
    since, day = round(midnight.timestamp()) * 1_000_000, 86_400_000_000
    for copy in range(int(np.ceil(times))):
        shift = rng.integers(-360, 361, len(users)) * 1_000_000 if copy else np.zeros(len(users), dtype=np.int64)
        chosen = rng.random(len(users)) < times - copy
        part = rows.copy()
        part["time"] += shift[vehicle]
        part["user"] += np.uint64(copy * 0x9E3779B97F4A7C15 % 2**64)
        same_day = (part["time"] - since) // day == (rows["time"] - since) // day
        parts.append(part[chosen[vehicle] & same_day])
    return np.concatenate(parts)


def _simulated(config: Config, vehicles: int, hours: int, start: str = "2026-03-03T06:00:00+00:00") -> Rows:
    """Fixes of a simulated fleet, one in two minutes, without faults."""
    begin = round(datetime.fromisoformat(start).timestamp() * 1e6)
    simulation = Simulation(config.feed, vehicles, begin, interval=timedelta(minutes=2))
    return _rows_until(config, simulated_fleet(simulation)[0], begin + hours * 3_600_000_000)


def _driven(config: Config, vehicles: int) -> Rows:
    """Five hours of the cars of the demo's city, without its haste: a fix in two minutes, a drive of 3:45 at most."""
    begin, rng = round(datetime.fromisoformat("2026-03-03T12:30:00+00:00").timestamp() * 1e6), np.random.default_rng(1)
    domain, zone = config.feed.domain, ZoneInfo(config.feed.timezone)
    network, traffic = build_network(domain, 120, rng), traffic_in(domain, 1, begin, zone)
    cars = Cars(network, traffic, domain, vehicles, rng, interval=120.0)
    return _rows_until(config, cars, begin + 5 * 3_600_000_000)


def _rows_until(config: Config, fleet: Fleet | Cars, end_us: int) -> Rows:
    parts = []
    while fleet.now_us < end_us:
        fixes = fleet.step()
        rows = np.zeros(len(fixes.vehicle), dtype=ROW)
        rows["user"], rows["time"] = fixes.vehicle + 1, fixes.time
        rows["lat"], rows["lng"] = np.round(fixes.lat * 1e7), np.round(fixes.lng * 1e7)
        rows["value"] = np.round(fixes.speed * 360)
        places = zip(fixes.lat.tolist(), fixes.lng.tolist(), strict=True)
        rows["cell"] = [h3.latlng_to_cell(lat, lng, config.hexagons.resolution) for lat, lng in places]
        parts.append(rows)
    return np.concatenate(parts)
