"""Finds the configuration that a command reads if its command line names none."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CONFIG_ENV = "HEXVEIL_CONFIG"
LOCAL = Path("hexveil.toml")
"""The file that ``hexveil init`` writes."""
TEMPLATES = {"values": "bus-fleet.toml", "participation": "riders-live.toml"}
"""File name of the shipped configuration of each relation, in ``config/`` of a clone and in the installed package."""


class Chosen(NamedTuple):
    """A chosen configuration: its file, the folder of its relative paths, and why it was chosen."""

    file: Path
    base: Path
    why: str


def template(relation: str) -> Path:
    """The shipped configuration of ``relation``: in ``config/`` of a clone, beside this file if installed."""
    installed = Path(__file__).with_name("templates")
    folder = installed if installed.is_dir() else Path(__file__).parents[2] / "config"
    return folder / TEMPLATES[relation]


def find_config(named: Path | None, relation: str, environment: Mapping[str, str] = os.environ) -> Chosen:
    """The first of: the file ``named``, the file of HEXVEIL_CONFIG, ``hexveil.toml`` in the working folder, the file of
    the relation in ``config/``, the shipped template. Relative paths in the template are relative to the working
    folder.

    A named file is chosen even if it does not exist, because another one would not be what the operator asked for.
    """
    if named is not None:
        return Chosen(named, named.parent, "--config")
    if environment.get(CONFIG_ENV):
        file = Path(environment[CONFIG_ENV])
        return Chosen(file, file.parent, CONFIG_ENV)
    for file in (LOCAL, Path("config") / TEMPLATES[relation]):
        if file.is_file():
            return Chosen(file, file.parent, "found here")
    why = f"the template of relation '{relation}': there is no {LOCAL} here, 'hexveil init' writes one"
    return Chosen(template(relation), Path.cwd(), why)
