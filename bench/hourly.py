"""The shipped configurations with windows of an hour and ε = 2, by which most figures of the documents were measured.

They are files beside this module, so what depends on them stays as it is when better defaults are shipped.
``python -m bench.hourly`` copies them as hourly-bus-fleet.toml and hourly-riders.toml into the working folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream.config import Config, load_config

FILES: Mapping[str, Path] = {name: Path(__file__).with_name(f"hourly-{name}.toml") for name in ("bus-fleet", "riders")}


def hourly_config(name: str, **settings: Any) -> Config:
    """The hourly configuration ``name``, "bus-fleet" or "riders", with further ``settings``, by dotted keys."""
    return load_config(FILES[name], **settings)


if __name__ == "__main__":
    for file in FILES.values():
        shutil.copy(file, ".")
