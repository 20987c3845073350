"""Which configuration a command reads where none is named on its command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CONFIG_ENV = "HEXVEIL_CONFIG"
LOCAL = Path("hexveil.toml")
"""What ``hexveil init`` writes."""
TEMPLATES = {"values": "bus-fleet.toml", "participation": "riders.toml"}
"""Shipped configuration of each relation: under ``config/`` in a clone, and in the installed package."""


class Chosen(NamedTuple):
    """A configuration: its file, what relative paths in it are relative to, and why it was taken, in words."""

    file: Path
    base: Path
    why: str


def template(relation: str) -> Path:
    """The shipped configuration of ``relation``, wherever the package is installed."""
    return Path(__file__).with_name("templates") / TEMPLATES[relation]


def find_config(named: Path | None, relation: str, environment: Mapping[str, str] = os.environ) -> Chosen:
    """The file that is ``named``; else that of HEXVEIL_CONFIG, ``hexveil.toml`` in this folder, that of the relation
    in ``config/``, and last the shipped template, whose relative paths are those of the working folder.

    A file that was named is taken whether it exists or not: falling back would run something else than was asked for.
    """
    if named is not None:
        return Chosen(named, named.parent, "--config")
    if environment.get(CONFIG_ENV):
        file = Path(environment[CONFIG_ENV])
        return Chosen(file, file.parent, CONFIG_ENV)
    for file in (LOCAL, Path("config") / TEMPLATES[relation]):
        if file.is_file():
            return Chosen(file, file.parent, "found here")
    why = f"the template of relation {relation!r}: no {LOCAL} here, 'hexveil init' writes one"
    return Chosen(template(relation), Path.cwd(), why)
