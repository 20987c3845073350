"""What tests of relation "participation" share: a small configuration."""

from pathlib import Path

from stream.config import Config, load_config
from tests.support import hourly

SMALL = {"feed.domain": {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}, "hexagons.resolution": 7}
"""Settings of a small public list of cells."""


def riders(tmp_path: Path, **overrides: object) -> Config:
    """The hourly riders.toml over a small box at resolution 7, its key file in ``tmp_path``; overrides are dotted
    keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | SMALL
    return load_config(hourly.RIDERS, **(settings | overrides))
