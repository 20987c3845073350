"""Measures how useful the maps of `bus-fleet.toml` are, on recorded days and generated cities. NOT PRIVATE.

For each feed: the share of events in cells whose leading number has a 95 % interval of ±8 km/h or better, how often
that interval holds the true mean over samples, and the first by the resolution of the cell. Each seed gives one figure,
of all its draws; what is returned is the mean of the seeds, and their minimum and maximum. The settings of
:mod:`bench.hourly`, and the shipped ones with one of them changed, are measured beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.cities import KINDS, rows_of, timetable
from bench.hourly import FILES, hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from stream.config import Config, load_config
from stream.diagnosis.reading import read_recording
from stream.evaluation.leading import Leading, released
from stream.evaluation.tuning import Recording
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT

HALF_WIDTH = 8.0
"""What is called useful, in km/h."""
DAYS = ("2017-03-21", "2016-11-25", "2017-03-16", "2015-09-06", "2016-11-24", "2016-11-26", "2016-11-27")
FLEETS = {"fleet of 320": (320, 8), "fleet of 541": (541, 8), "fleet of 100": (100, 8)}
"""Vehicles and hours of the simulator's cities."""
HELD_OUT = (
    "2016-11-24",
    "2016-11-26",
    "2016-11-27",
    "one-way waves",
    "sparse and fast",
    "fleet of 100",
    "fleet of 541",
)
"""Feeds that were not looked at while the shipped settings were chosen. One setting was rejected by 2015-09-06."""
COMPARED = ("2017-03-21", "2016-11-26", "fleet of 320")
"""Feeds on which the hourly settings are measured, too."""
VARIED = ("2017-03-21", "2016-11-25", "2015-09-06")
"""Feeds on which the variants are measured."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "sum_cap 0.7": {"speed.sum_cap": 0.7, "speed.clipping": "none"},
    "not merged": {"hexagons.merge_until": None},
    "windows of 2 h": {"window.slot": "2h", "privacy.epsilon": 1.0},
    "windows of 1 h": {"window.slot": "1h", "privacy.epsilon": 0.5},
}
"""The shipped settings for buses with these in their place, all for the same budget."""
SEEDS, DRAWS = (11, 1, 2, 3, 4, 5), 4
"""Seeds of the noise, and draws of each window for each of them."""
CITY_SEED = 11
"""Seed of the generated cities."""
Case = tuple[str, str, str]
"""Configuration, map and feed."""
Figures = dict[str, float | None]


def path_of(day: str) -> str:
    """File of a recorded day."""
    return f"capmetro/{day}.csv.gz"


def config_of(file: str, map_name: str, feed: str, folder: Path) -> Config:
    """A configuration with the U of a generated city. Its user key, in ``folder``, is always the same."""
    key = folder / "key"
    if not key.exists():
        key.write_bytes(bytes(KEY_BYTES))
        key.chmod(0o600)
    settings: dict[str, Any] = {"privacy.user_key_file": str(key), **VARIANTS.get(map_name, {})}
    if feed in KINDS:
        settings["value.upper"] = KINDS[feed].upper
    if map_name == "hourly":
        return hourly_config(file, **settings)
    return load_config(REPO_ROOT / "config" / f"{file}.toml", **settings)


@cache
def recording_of(feed: str) -> Recording:
    """All rows of a feed. They do not depend on the configuration: both read the same box, and the user key is one."""
    if feed in KINDS:
        return Recording(rows_of(feed, CITY_SEED))
    if feed in FLEETS:
        return Recording(timetable(*FLEETS[feed], CITY_SEED))
    with tempfile.TemporaryDirectory() as folder:
        config = config_of("bus-fleet", "shipped", feed, Path(folder))
        file_format = "capmetro-2015" if feed < "2016" else "capmetro"
        return Recording(read_recording(config, recordings() / path_of(feed), file_format)[0])


def measured(case: Case, seed: int, draws: int) -> Figures:
    """Figures of one map of one feed under the noise of one seed."""
    file, map_name, feed = case
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(file, map_name, feed, Path(folder))
        windows = recording_of(feed).windows(config)
        every, _ = released(config, windows, draws, seed)
    return _figures(every, draws * len(windows))


def _figures(every: Leading, windows: int) -> Figures:
    released = np.isfinite(every.reach)
    reach = every.reach[released]
    figures: Figures = {
        "events_useful_percent": 100 * every.share_within(HALF_WIDTH),
        "covers_events_percent": 100 * every.covered(),
        "covers_cells_percent": 100 * float(every.covers[released].mean()) if released.any() else 0.0,
        "cells_per_window": len(every.reach) / windows,
        "median_cell_km_h": float(np.median(reach)) if len(reach) else None,
    }
    useful = every.reach <= HALF_WIDTH
    for resolution in np.unique(every.resolution).tolist():
        there = every.resolution == resolution
        shares = {"events": there, "useful_events": there & useful}
        for name, chosen in shares.items():
            figures[f"{name}_resolution_{resolution}_percent"] = 100 * every.events[chosen].sum() / every.events.sum()
        figures[f"cells_resolution_{resolution}_percent"] = 100 * float(there.mean())
    return figures


def summary(case: Case, seeds: Sequence[Figures], draws: int) -> dict[str, Any]:
    """Mean, minimum and maximum of the ``seeds``, each of so many draws."""
    file, map_name, feed = case
    entry: dict[str, Any] = {
        "configuration": file,
        "map": map_name,
        "feed": feed,
        "seen": feed not in HELD_OUT,
        "draws": draws * len(seeds),
    }
    for name in sorted({name for figures in seeds for name in figures}):
        numbers = [value for figures in seeds if (value := figures.get(name, 0.0)) is not None]
        if numbers:
            columns = {"mean": float(np.mean(numbers)), "minimum": min(numbers), "maximum": max(numbers)}
            entry[name] = {column: round(number, 1) for column, number in columns.items()}
    return entry


def cases_of(feeds: Sequence[str]) -> Iterator[Case]:
    """Every map of these feeds."""
    yield from (("bus-fleet", "shipped", feed) for feed in feeds)
    yield from ((file, "hourly", feed) for file in FILES for feed in feeds if feed in COMPARED)
    yield from (("bus-fleet", variant, feed) for variant in VARIANTS for feed in feeds if feed in VARIED)


def run(quick: bool) -> dict[str, Any]:
    """Usefulness, coverage and resolutions of each map on each feed."""
    days = () if quick else DAYS
    if missing := absent(*(path_of(day) for day in days)):
        return {"skipped": missing}
    cases = list(cases_of(["dense and slow"] if quick else [*days, *KINDS, *FLEETS]))
    seeds, draws = (SEEDS[:1], 1) if quick else (SEEDS, DRAWS)
    maps = [summary(case, [measured(case, seed, draws) for seed in seeds], draws) for case in shown(cases, "defaults")]
    return {"half_width_km_h": HALF_WIDTH, "seeds": list(seeds), "draws_per_seed": draws, "maps": maps}
