"""Measures how useful the maps of the shipped configurations are, on recorded days and generated cities. NOT PRIVATE.

For each feed: the share of events in cells whose leading number has a 95 % interval of ±8 km/h or better, how often that
interval holds the true mean, and the budget. The settings of :mod:`bench.hourly` are measured beside them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cities import KINDS, rows_of, timetable
from bench.hourly import SETTINGS, hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from stream.config import Config, load_config
from stream.evaluation.leading import released
from stream.evaluation.tuning import Recording
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local import REPO_ROOT
from stream.offline import read_recording

Rows = npt.NDArray[np.void]

HALF_WIDTH = 8.0
"""What is called useful, in km/h."""
DAYS = ("2017-03-21", "2016-11-25", "2015-09-06", "2016-11-24", "2016-11-26", "2016-11-27", "2017-03-16")
FLEETS = {"fleet of 320": (320, 8), "fleet of 541": (541, 8), "fleet of 100": (100, 8)}
"""Vehicles and hours of the simulator's cities."""
HELD_OUT = (
    "2015-09-06",
    "2016-11-24",
    "2016-11-26",
    "2016-11-27",
    "one-way waves",
    "sparse and fast",
    "fleet of 100",
    "fleet of 541",
)
"""Feeds that were not looked at while the shipped settings were chosen."""
COMPARED = ("2017-03-21", "2016-11-26", "fleet of 320")
"""Feeds on which the hourly settings are measured, too."""
DRAWS, SEED = 4, 11


def path_of(day: str) -> str:
    """File of a recorded day."""
    return f"capmetro/{day}.csv.gz"


def config_of(file: str, map_name: str, feed: str, folder: Path) -> Config:
    """A configuration with the U of a generated city. Its user key, in ``folder``, is always the same."""
    key = folder / "key"
    key.write_bytes(bytes(KEY_BYTES))
    key.chmod(0o600)
    settings: dict[str, Any] = {"privacy.user_key_file": str(key)}
    if feed in KINDS:
        settings["speed.upper_bound"] = KINDS[feed].upper
    if map_name == "hourly":
        return hourly_config(file, **settings)
    return load_config(REPO_ROOT / "config" / f"{file}.toml", **settings)


def events_of(feed: str, config: Config) -> Rows:
    """All rows of a feed."""
    if feed in KINDS:
        return rows_of(feed, SEED)
    if feed in FLEETS:
        return timetable(*FLEETS[feed], SEED)
    return read_recording(config, recordings() / path_of(feed), "capmetro-2015" if feed < "2016" else "capmetro")[0]


def measured(file: str, map_name: str, feed: str, draws: int) -> dict[str, Any]:
    """Figures of one map of one feed."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(file, map_name, feed, Path(folder))
        windows = Recording(events_of(feed, config)).windows(config)
        every, _ = released(config, windows, draws, SEED)
    reach = every.reach[np.isfinite(every.reach)]
    return {
        "configuration": file,
        "map": map_name,
        "feed": feed,
        "seen": feed not in HELD_OUT,
        "budget": config.privacy.budget,
        "events_useful_percent": round(100 * every.share_within(HALF_WIDTH), 1),
        "covers_events_percent": round(100 * every.covered(), 1),
        "covers_cells_percent": round(100 * every.cells_covered(), 1),
        "cells_per_window": round(len(every.reach) / draws / len(windows), 1),
        "median_cell_km_h": round(float(np.median(reach)), 1) if len(reach) else None,
    }


def run(quick: bool) -> dict[str, Any]:
    """Usefulness, coverage and budget of each map on each feed."""
    days = () if quick else DAYS
    if missing := absent(*(path_of(day) for day in days)):
        return {"skipped": missing}
    feeds = ["dense and slow"] if quick else [*days, *KINDS, *FLEETS]
    cases = [(file, "shipped", feed) for file in SETTINGS for feed in feeds]
    cases += [(file, "hourly", feed) for file in SETTINGS for feed in feeds if feed in COMPARED]
    draws = 1 if quick else DRAWS
    return {"half_width_km_h": HALF_WIDTH, "maps": [measured(*case, draws) for case in shown(cases, "defaults")]}
