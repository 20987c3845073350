"""The shipped configurations with windows of an hour and ε = 2, by which most figures of the documents were measured.

What depends on these settings stays as it is when better defaults are shipped. ``python -m bench.hourly`` writes them
as hourly-bus-fleet.toml and hourly-riders.toml into the working folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream.config import Config, load_config
from stream.config.rewriting import rewritten
from stream.local import REPO_ROOT

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "bus-fleet": {
        "window.slot": "1h",
        "privacy.epsilon": 2.0,
        "privacy.budget": 48.0,
        "hexagons.resolution": 7,
        "speed.statistics": ["mean", "variance"],
        "speed.sum_cap": 0.7,
        "speed.clipping": "none",
        "speed.suppression": "chop-user",
    },
    "riders": {
        "window.slot": "1h",
        "window.allowed_delay": "5m",
        "window.publication_margin": "1m",
        "privacy.accounting": None,
        "privacy.delta": None,
        "privacy.windows": None,
        "privacy.epsilon": 2.0,
        "privacy.budget": 16.0,
        "hexagons.resolution": 6,
        "feed.quality.frozen": "0s",
        "feed.quality.teleport_km_h": 0,
        "speed.statistics": ["mean", "variance"],
        "speed.clipping": "none",
    },
}
"""What replaces the shipped values, by configuration and dotted keys; besides, sparse hexagons are not merged. Made-up
riders may be anywhere at any time, so no rule refuses their fixes."""

UNMERGED: Mapping[str, Any] = {"merge_until": None, "coarsest_resolution": 0}
"""Keys of [hexagons] that are left out, and what that means."""
FILES = {"bus-fleet": "bus-fleet.toml", "riders": "riders-live.toml"}
"""The shipped file of each."""
_MERGING = re.compile(rf"(?m)^({'|'.join(UNMERGED)}) = .*\n")


def hourly_text(name: str) -> str:
    """The TOML of the hourly configuration ``name``, "bus-fleet" or "riders"."""
    return rewritten(_MERGING.sub("", _shipped(name)), SETTINGS[name], "hourly").replace("  # hourly\n", "\n")


def hourly_config(name: str, **settings: Any) -> Config:
    """The hourly configuration ``name`` with further ``settings``, by dotted keys."""
    unmerged = {f"hexagons.{key}": UNMERGED[key] for key in _MERGING.findall(_shipped(name))}
    given = unmerged | dict(SETTINGS[name]) | {"privacy.accounting": "pure"}
    return load_config(REPO_ROOT / "config" / FILES[name], **(given | settings))


def _shipped(name: str) -> str:
    return (REPO_ROOT / "config" / FILES[name]).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in SETTINGS:
        Path(f"hourly-{name}.toml").write_text(hourly_text(name), encoding="utf-8")
