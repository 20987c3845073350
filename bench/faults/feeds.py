"""The feeds of a campaign: their configurations, with short slots and periods, and budgets that some users spend."""

from __future__ import annotations

from pathlib import Path

from stream.config import Config, load_config
from stream.local.server import free_port

BOX = (30.1, -97.9, 30.5, -97.5)
"""South, west, north, east."""
KINDS = ("maps", "riders", "plain")
"""maps: "values" with histograms and the shipped settings. riders: "participation" with histograms. plain: "values"
with means alone, every charge of which follows from public counts and published scales."""

_COMMON = """
[feed]
name = "{name}"
topic = "{name}.positions"
timezone = "UTC"
domain = {{ south = {south}, west = {west}, north = {north}, east = {east} }}

[window]
slot = "{slot}s"
allowed_delay = "1s"
{margin}

[privacy]
epsilon = {epsilon}
budget = {budget}
period = "10m"
user_key_file = "user.key"

[kafka]
bootstrap = "{bootstrap}"
group = "{name}"

[redis]
url = "{redis}"

[operator]
port = {operator}

[public]
port = {public}
"""
_HISTOGRAM = """
[histogram]
mechanisms = ["{mechanism}"]
epsilon = 0.5
rows = 8
columns = 8
"""
_SPEED = {
    "maps": '[value]\nupper = 65.0\n[speed]\nsum_cap = 0.7\npost_processing = ["kalman"]\n',
    "plain": '[value]\nupper = 65.0\n[speed]\nstatistics = ["mean"]\nsuppression = "none"\nclipping = "none"\n'
    'post_processing = ["kalman"]\n',
    "riders": '[feed.quality]\nteleport_km_h = 0\n[value]\nupper = 65.0\n[speed]\nstatistics = ["mean"]\n'
    'suppression = "none"\nallocation = "uniform"\nclipping = "none"\npost_processing = ["kalman"]\n'
    '[participation]\nweight = "share"\ncells_per_user = 8\n',
}


def write_config(folder: Path, kind: str, name: str, *, bootstrap: str, redis: str, slot: int) -> Path:
    """The configuration of one feed of ``kind`` as a file in ``folder``, which also gets its user key.

    ``slot``: length of a timeslot in seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    south, west, north, east = BOX
    text = 'relation = "participation"\n' if kind == "riders" else 'relation = "values"\n'
    text += _COMMON.format(
        name=name,
        south=south,
        west=west,
        north=north,
        east=east,
        slot=slot,
        margin='publication_margin = "1s"' if kind == "riders" else "",
        epsilon=1.0,
        budget=100_000.0 if kind == "plain" else 15.0,
        bootstrap=bootstrap,
        redis=redis,
        operator=free_port(),
        public=free_port(),
    )
    text += f"[hexagons]\nresolution = {6 if kind == 'riders' else 7}\n{_SPEED[kind]}"
    if kind != "plain":
        text += _HISTOGRAM.format(mechanism="ug" if kind == "riders" else "sparse")
    file = folder / "hexveil.toml"
    file.write_text(text, encoding="utf-8")
    return file


def read_config(file: Path) -> Config:
    """The configuration in ``file``."""
    return load_config(file)
