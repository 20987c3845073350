"""Configurations and rows that several tests build."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import h3
import numpy as np

from dpcore.accounting import NANO, epsilon_of_rho
from stream.config import Config, load_config
from stream.ingestion.formats import read_instant, time_us
from stream.storage.row_store import ROW
from tests.support import hourly

SLOT = 1_490_097_600
"""2017-03-21 12:00 UTC, the start of an hour."""


def bus_config(tmp_path: Path, **overrides: Any) -> Config:
    """The hourly bus-fleet.toml with its key file in ``tmp_path``; overrides are dotted keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | overrides
    return load_config(hourly.BUS, **settings)


PLAINLY_PLANNED = {"speed.clipping": "none", "speed.suppression": "none", "speed.post_processing": []}
"""Overrides for tests of what becomes of a plan: without the search for what to leave out and the smoothing of what was
drawn, it is made and composed in a tenth of the time. Charges still are exact losses, which differ from user to
user."""


def bus_fleet_file(folder: Path, domain: Mapping[str, float]) -> Path:
    """The hourly bus-fleet.toml with another ``domain``, by its sides, as ``hexveil.toml`` in ``folder``."""
    lines = hourly.BUS.read_text(encoding="utf-8").splitlines()
    box = f"domain = {{ {', '.join(f'{side} = {degrees}' for side, degrees in domain.items())} }}"
    path = folder / "hexveil.toml"
    path.write_text("\n".join(box if line.startswith("domain =") else line for line in lines), encoding="utf-8")
    return path


def riders_config(tmp_path: Path, **overrides: Any) -> Config:
    """The hourly riders.toml with its key file in ``tmp_path``; overrides are dotted keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | overrides
    return load_config(hourly.RIDERS, **settings)


SMALL = {"feed.domain": {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}, "hexagons.resolution": 7}
"""Settings of a small public list of cells."""


def riders(tmp_path: Path, **overrides: Any) -> Config:
    """As :func:`riders_config`, over a small box at resolution 7."""
    return riders_config(tmp_path, **SMALL | overrides)


EVERY_MECHANISM = ["ag", "auto", "e2epriv", "euler", "htf", "kdtree"]
EVERY_MECHANISM += ["privlet", "quadtree", "singular", "sparse", "ug", "uniform"]


def with_histograms(relation: str, tmp_path: Path, mechanisms: list[str] | None = None, **overrides: Any) -> Config:
    """The hourly configuration of ``relation`` ("zcdp": riders counting ρ) with spatial histograms of a 16 × 16 box
    around :func:`located_rows`."""
    names = mechanisms or EVERY_MECHANISM
    box = {"south": 30.1, "west": -97.9, "north": 30.6, "east": -97.5}
    settings: dict[str, Any] = {
        "privacy.user_key_file": str(tmp_path / "user.key"),
        "privacy.budget": 96.0,
        "speed.post_processing": [],
        "histogram.mechanisms": names,
        "histogram.epsilon": 1.1,
        "histogram.rows": 16,
        "histogram.columns": 16,
        "histogram.domain": box,
    }
    if "euler" in names:
        settings["histogram.euler"] = {"rows": 8, "columns": 8, "diameter_m": 4000.0}
    if relation != "values":
        settings |= {"hexagons.resolution": 7, "feed.domain": box}
    settings |= overrides
    if relation == "zcdp":
        del settings["privacy.budget"]
        return zcdp_config(tmp_path, 0.5, 12.0, **settings)
    file = {"values": hourly.BUS, "participation": hourly.RIDERS}[relation]
    return load_config(file, **settings)


def located_rows(seed: int, n: int, users: int = 12, slot: int = SLOT) -> np.ndarray:
    """:func:`random_rows`, :func:`located`."""
    return located(random_rows(seed, n, users, slot=slot), seed)


def located(rows: np.ndarray, seed: int) -> np.ndarray:
    """The same rows with positions near each one's cell: most inside the box of histograms, some outside."""
    rng = np.random.default_rng(seed + 1)
    centre = np.array([h3.cell_to_latlng(f"{cell:x}") for cell in rows["cell"].tolist()]).reshape(-1, 2)
    rows["lat"] = np.round((centre[:, 0] + rng.normal(0, 0.06, len(rows))) * 1e7)
    rows["lng"] = np.round((centre[:, 1] + rng.normal(0, 0.12, len(rows))) * 1e7)
    return rows


def random_rows(seed: int, n: int, users: int = 12, places: int = 6, slot: int = SLOT, hours: int = 1) -> np.ndarray:
    """``n`` rows of a random small city; distinct (user, time)."""
    return _rows(seed, n, users, _row_of(places), slot, lambda rng: rng.choice(hours * 3_600_000, n, replace=False))


def uneven_rows(seed: int, n: int = 1200, users: int = 40, slot: int = SLOT) -> np.ndarray:
    """Rows of a city with a dense middle and a sparse rim: 40 hexagons, half of the rows in two of them."""
    cells, share = sorted(h3.grid_disk(h3.latlng_to_cell(30.3, -97.7, 7), 4))[:40], np.full(40, 0.5 / 38)
    share[:2] = 0.25
    return _rows(seed, n, users, cells, slot, lambda rng: rng.choice(3_600_000, n, replace=False), 6500, share)


def pinned_rows(seed: int, n: int, users: int = 12, slot: int = SLOT) -> np.ndarray:
    """Rows of such a city whose releases a file holds: they stay as they were drawn when it was written."""
    return _pinned(seed, n, users, slot).copy()


@cache
def _pinned(seed: int, n: int, users: int, slot: int) -> np.ndarray:
    """The rows, whose moments take a fifth of a second to draw."""
    return _rows(seed, n, users, _row_of(6), slot, lambda rng: rng.permutation(3_600_000)[:n])


def _row_of(places: int) -> list[str]:
    return [h3.latlng_to_cell(30.2 + 0.05 * k, -97.7, 7) for k in range(places)]


def _rows(
    seed: int, n: int, users: int, cells: list[str], slot: int, moments: Any, fastest: int = 9000, share: Any = None
) -> np.ndarray:
    """``moments`` draws n distinct milliseconds after the slot's start; a cell has its ``share``, by default equal."""
    rng, rows = np.random.default_rng(seed), np.zeros(n, dtype=ROW)
    rows["cell"] = rng.choice(np.array([h3.str_to_int(cell) for cell in cells], dtype=np.uint64), n, p=share)
    rows["user"] = rng.integers(1, users + 1, n)
    rows["time"] = slot * 1_000_000 + moments(rng).astype(np.int64) * 1000
    rows["value"] = rng.integers(0, fastest, n)
    return rows


def counting_rho(shipped: Path, file: Path, **terms: float) -> Path:
    """``file``, with the configuration counting zCDP by these ``terms`` in place of pure ε."""
    wanted = "\n".join(['accounting = "zcdp"', *(f"{name} = {value}" for name, value in terms.items())])
    text, n = re.subn(r"(?m)^epsilon = \S+\nbudget = \S+$", wanted, shipped.read_text(encoding="utf-8"))
    assert n == 1, f"{shipped} gives epsilon and budget on two lines"
    file.write_text(text, encoding="utf-8")
    return file


def zcdp_config(
    tmp_path: Path, rho: float = 0.05, rho_budget: float = 0.4, delta: float = 1e-6, **overrides: Any
) -> Config:
    """The hourly riders.toml counting zCDP in place of pure ε; overrides are dotted keys.

    A window and a period have exactly ``rho`` and ``rho_budget``, so that tests can count. No budget converts to just
    that:
    the file has the nearest ones.
    """
    budget, windows = epsilon_of_rho(round(rho_budget * NANO), delta), max(round(rho_budget / rho), 1)
    file = counting_rho(hourly.RIDERS, tmp_path / "zcdp.toml", budget=budget, windows=windows, delta=delta)
    config = load_config(file, **({"privacy.user_key_file": str(tmp_path / "user.key")} | overrides))
    privacy = config.privacy.model_copy()
    vars(privacy).update(ledger_grant=round(rho * NANO), ledger_budget=round(rho_budget * NANO))
    for name in ("epsilon", "budget"):  # derived from them, and perhaps known already
        vars(privacy).pop(name, None)
    return config.model_copy(update={"privacy": privacy})


LIVE = {
    "privacy.admission": "rolling",
    "speed.statistics": ["mean"],
    "speed.suppression": "none",
    "speed.clipping": "residual",
    "speed.sum_cap": 0.0,
    "speed.post_processing": ["kalman"],
    "value.typical": 20.0,
    "hexagons.merge_until": None,
}
"""Overrides of a live map under relation "values"."""


def live_config(tmp_path: Path, budget: float = 12.0, delta: float = 1e-6, **overrides: Any) -> Config:
    """The hourly bus-fleet.toml with Gaussian accounting, rolling grants and residual clipping; overrides are dotted
    keys."""
    file = counting_rho(hourly.BUS, tmp_path / "live.toml", budget=budget, delta=delta)
    return load_config(file, **({"privacy.user_key_file": str(tmp_path / "user.key")} | LIVE | overrides))


def uncommented(file: Path, *, euler: bool = False) -> str:
    """The shipped file with its example of [histogram] in force, with or without mechanism "euler" and its table."""
    text = file.read_text(encoding="utf-8")
    start, end = text.index("# [histogram]\n"), text.index("\n[kafka]")
    example, table = re.split(r"(?m)^(?=# \[histogram\.euler\])", text[start:end])
    example = re.sub(r"(?m)^# ?", "", example + (table if euler else ""))
    example = example.replace('preset = { htf = "paper" }', "preset = {}")
    mechanisms = ["sparse", "euler"] if euler else ["sparse"]
    return text[:start] + example.replace('["sparse"]', json.dumps(mechanisms)) + text[end:]


def in_order(rows: np.ndarray) -> np.ndarray:
    """The rows in order of time, as a fleet sends them."""
    return rows[np.argsort(rows["time"], kind="stable")]


def parse_time(text: str) -> int:
    """Epoch microseconds of ISO 8601 text with an offset."""
    return time_us(read_instant(text, None))
