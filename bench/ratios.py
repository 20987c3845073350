"""Processor time of what the service does most, as a multiple of plain work on the same data in the same run.

Seconds differ between machines, and on one machine from hour to hour; their ratios differ much less.
``bench/ratios.json`` holds those of this version. A ratio above :data:`BOUND` times the one that is committed is a
regression, and the command fails.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h3
import msgspec
import numpy as np

from bench.closing import close, hourly, window_rows
from bench.ingest import config_of, synthetic_event
from bench.mechanisms import ALLOWANCE, MOST_CELLS, synthetic_counts
from bench.progress import shown
from bench.spatial import synthetic_points
from dpcore.allocation import allocate
from dpcore.mean import Mean
from dpcore.noise import Noise
from dpcore.spatial import HTF, Auto, Domain, UniformGrid
from dpcore.suppression import suppress, unsuppressed_noise
from stream.ingestion.decoding import Decoder
from stream.messages.message import HEXAGON_SPEED
from stream.messages.topics import document
from stream.serve.received import received

BOUND = 1.3
AGAIN = 2
"""How often a ratio above its bound is measured again, and the least counts: other work on the machine slows one side
more than the other. On busy cores one version's window under "participation" took 3.6 to 4.6 times its plain work,
quietly 3.2."""
COMMITTED = Path(__file__).with_suffix(".json")

Work = Callable[[], Any]


def run(quick: bool) -> dict[str, Any]:
    """Ratios, beside those that are committed; ``regressions`` names each that is above :data:`BOUND` times its own."""
    committed: dict[str, float] = json.loads(COMMITTED.read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        pairs = works(Path(folder), 20 if quick else 1)
        ratios = {name: ratio(*pair, repeats=2 if quick else 7) for name, pair in shown(pairs.items(), "ratios")}
        for _ in range(0 if quick else AGAIN):
            for name in above(ratios, committed):
                ratios[name] = min(ratios[name], ratio(*pairs[name], repeats=7))
    return {
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "committed": committed,
        "regressions": [] if quick else regressions(ratios, committed),
    }


def regressions(ratios: dict[str, float], committed: dict[str, float]) -> list[str]:
    """A sentence for each ratio above its bound, and for each name that one side lacks."""
    said = [f"{name} is in one of benchmark and {COMMITTED.name} only" for name in ratios.keys() ^ committed.keys()]
    for name in above(ratios, committed):
        said.append(f"{name} took {ratios[name]:.3g} times its plain work, above {BOUND} times {committed[name]:.3g}")
    return sorted(said)


def above(ratios: dict[str, float], committed: dict[str, float]) -> list[str]:
    """The names whose ratio is above :data:`BOUND` times the one that is committed."""
    return [name for name in sorted(ratios.keys() & committed.keys()) if ratios[name] > BOUND * committed[name]]


def ratio(ours: Work, plain: Work, repeats: int) -> float:
    """Least processor seconds of ``ours`` by those of ``plain``. The runs alternate, so that both meet the same
    machine."""
    least = [np.inf, np.inf]
    for _ in range(repeats):
        for side, work in enumerate((ours, plain)):
            start = time.process_time()
            work()
            least[side] = min(least[side], time.process_time() - start)
    return float(least[0] / least[1])


def works(folder: Path, part: int) -> dict[str, tuple[Work, Work]]:
    """For each name our work and the plain work; sizes are divided by ``part``."""
    noise = Noise()
    samples = 400_000 // part
    generator = np.random.default_rng(1)
    points = synthetic_points(400_000 // part)
    grid = Domain(0, 0, 1, 1, 256, 256)

    def binned() -> Any:
        return np.histogram2d(points[:, 0], points[:, 1], bins=256, range=[[0, 1], [0, 1]])

    def fitted(mechanism: Any) -> tuple[Work, Work]:
        return lambda: mechanism.fit(points, grid, 1_000_000, noise), binned

    return {
        "decoding an event, by msgspec and H3 alone": _decoding(20_000 // part),
        "exact discrete Laplace, by NumPy's continuous one": (
            lambda: noise.discrete_laplace(123_456_789, 1000, size=samples),
            lambda: generator.laplace(0, 123_456, samples),
        ),
        **_on_pairs(60_000 // part),
        **_windows(folder, 2_000 // part),
        "uniform grid, by NumPy's histogram": fitted(UniformGrid()),
        "HTF, by NumPy's histogram": fitted(HTF()),
        "auto, by NumPy's histogram": fitted(Auto()),
        "a reader's check of a message, by decoding it": _checking(5_000 // part),
    }


def _decoding(events: int) -> tuple[Work, Work]:
    rng = random.Random(1)
    values = [synthetic_event(rng, 8 * 3600 + number * 3600 // events) for number in range(events)]
    decoder, plain = Decoder(config_of("127.0.0.1:1", "redis://127.0.0.1:1"), bytes(32)), msgspec.json.Decoder()

    def by_libraries() -> None:
        for value in values:
            lng, lat = plain.decode(value)["location"]["coordinates"]
            h3.latlng_to_cell(lat, lng, 7)

    return lambda: decoder.decode(values, time.time_ns() // 1000), by_libraries


def _on_pairs(users: int) -> dict[str, tuple[Work, Work]]:
    counts, grant = synthetic_counts(users), ALLOWANCE / MOST_CELLS
    rows, allowances = Mean(100).rows(counts, counts.samples), np.full(counts.n_users, ALLOWANCE)
    threshold = unsuppressed_noise(counts, grant, ("mean",))

    def sort() -> Any:
        return np.lexsort((counts.pair_user, counts.pair_cell))

    return {
        "CHOP-USER, by sorting its pairs": (
            lambda: suppress(counts, grant, statistics=("mean",), stop_at=17, threshold=threshold),
            sort,
        ),
        "exact-loss allocation, by sorting its pairs": (lambda: allocate(rows, allowances), sort),
    }


def _windows(folder: Path, users: int) -> dict[str, tuple[Work, Work]]:
    windows: dict[str, tuple[Work, Work]] = {}
    for relation, feed in (("values", "bus-fleet"), ("participation", "riders")):
        config = hourly(feed, folder)
        rows = window_rows(users, 300, 20, 10, config.hexagons.resolution)

        def closed(config: Any = config, rows: np.ndarray = rows) -> Any:
            return close(config, rows)

        def sort(rows: np.ndarray = rows) -> Any:
            return np.lexsort((rows["user"], rows["cell"]))

        windows[f"a window under {relation}, by sorting its rows"] = closed, sort
    return windows


def _checking(messages: int) -> tuple[Work, Work]:
    (message,) = document()["channels"]["hexagonSpeed"]["messages"].values()
    value = msgspec.json.encode(message["examples"][0]["payload"])

    def checked() -> None:
        for _ in range(messages):
            if received(HEXAGON_SPEED, "id", value) is None:
                raise RuntimeError("the example of the schema was refused")

    def decoded() -> None:
        for _ in range(messages):
            msgspec.json.decode(value)

    return checked, decoded
