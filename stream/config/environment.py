"""Environment variables that set keys of the configuration. A variable that looks like a key but matches none is
refused."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, get_origin

from pydantic import BaseModel

from stream.config.problems import SHOWN, Path, is_compound, keys, wanted

PREFIX, SEPARATOR = "HEXVEIL_", "__"
OTHERS = ("HEXVEIL_CONFIG", "HEXVEIL_KAFKA_JARS")
"""Variables of Hexveil that do not set a key."""
_NEAR, _MISSPELT = 0.6, 0.8
"""Similarity (difflib's ratio) at which a known name is suggested, and at which a variable without the separator is
refused.

A less similar variable without the separator may belong to others: container platforms set HEXVEIL_SERVICE_HOST for a
service named "hexveil".
"""


@cache
def variables(config: type[BaseModel]) -> Mapping[str, Path]:
    """The path of the key that each variable sets, by the variable's name."""
    return {_name(path): path for path, _ in keys(config)}


def _name(path: Path) -> str:
    return PREFIX + SEPARATOR.join(path).upper()


def origins(config: type[BaseModel], environment: Mapping[str, str]) -> dict[Path, str]:
    """The name of the variable in ``environment`` that sets each key, by the key's path."""
    known = variables(config)
    return {known[name.upper()]: name for name in environment if name.upper() in known}


def override(data: dict[str, Any], config: type[BaseModel], environment: Mapping[str, str]) -> None:
    """Set in ``data``, tables in tables as TOML gives them, what ``environment`` says; :func:`unusable` has nothing to
    say of it.

    A section that is given as JSON comes before variables of its keys, and both leave the other keys as they are in
    ``data``.
    """
    given = {name.upper(): value for name, value in environment.items()}
    for path, field in keys(config):  # a section comes before its keys
        name = _name(path)
        if name in given:
            _put(data, path, json.loads(given[name]) if is_compound(field) else given[name])
        if get_origin(field.annotation) is dict:
            for inner in (inner for inner in given if inner.startswith(name + SEPARATOR)):
                _put(data, (*path, inner.removeprefix(name + SEPARATOR).lower()), given[inner])


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    *sections, key = path
    for section in sections:
        if not isinstance(data.get(section), dict):
            data[section] = {}
        data = data[section]
    if isinstance(value, dict) and isinstance(data.get(key), dict):
        for inner in value:
            _put(data[key], (inner,), value[inner])
    else:
        data[key] = value


def unusable(config: type[BaseModel], environment: Mapping[str, str]) -> list[str]:
    """One line for each variable that matches no key, with the most similar name, or whose value cannot be read."""
    return _misspelt(config, environment) + _not_json(config, environment)


def _not_json(config: type[BaseModel], environment: Mapping[str, str]) -> list[str]:
    """One line for each list or section whose value is not JSON."""
    compound = {_name(path): field for path, field in keys(config) if is_compound(field)}
    lines = []
    for given, value in environment.items():
        if given.upper() not in compound:
            continue
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
            lines.append(
                f"{given}: found {shown!r}, which is not JSON; write {wanted(compound[given.upper()])} as JSON, or set "
                "single "
                "keys, like HEXVEIL_PRIVACY__EPSILON=1.5"
            )
    return lines


def _misspelt(config: type[BaseModel], environment: Mapping[str, str]) -> list[str]:
    known = [*variables(config), *OTHERS]
    tables = tuple(_name(path) + SEPARATOR for path, field in keys(config) if get_origin(field.annotation) is dict)
    lines = []
    for given in environment:
        name = given.upper()
        if not name.startswith(PREFIX) or name in known or name.startswith(tables):
            continue
        looks_like_a_key = SEPARATOR in name.removeprefix(PREFIX)
        cutoff = _NEAR if looks_like_a_key else _MISSPELT
        right = [known_name.removeprefix(PREFIX) for known_name in known]
        nearest = difflib.get_close_matches(name.removeprefix(PREFIX), right, 1, cutoff)
        if nearest:
            lines.append(f"{given}: no key has this name; write {PREFIX}{nearest[0]} if that is meant, or unset it")
        elif looks_like_a_key:
            lines.append(f"{given}: no key has this name; write HEXVEIL_SECTION__KEY, or unset it")
    return lines
