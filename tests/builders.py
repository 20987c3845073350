"""Configurations and rows that several tests build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h3
import numpy as np

from stream.config import Config, load_config
from stream.events import ROW
from stream.local import REPO_ROOT

SLOT = 1_490_097_600
"""2017-03-21 12:00 UTC, the start of an hour."""


def bus_config(tmp_path: Path, **overrides: Any) -> Config:
    """config/bus-fleet.toml with its key file in ``tmp_path``; overrides are dotted keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | overrides
    return load_config(REPO_ROOT / "config" / "bus-fleet.toml", **settings)


def random_rows(seed: int, n: int, users: int = 12, places: int = 6, slot: int = SLOT, hours: int = 1) -> np.ndarray:
    """``n`` rows of a random small city; distinct (user, time)."""
    rng = np.random.default_rng(seed)
    cells = [h3.str_to_int(h3.latlng_to_cell(30.2 + 0.05 * k, -97.7, 7)) for k in range(places)]
    rows = np.zeros(n, dtype=ROW)
    rows["cell"] = rng.choice(np.array(cells, dtype=np.uint64), n)
    rows["user"] = rng.integers(1, users + 1, n)
    rows["time"] = slot * 1_000_000 + rng.permutation(hours * 3_600_000)[:n].astype(np.int64) * 1000
    rows["value"] = rng.integers(0, 9000, n)
    return rows
