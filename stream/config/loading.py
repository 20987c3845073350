"""Reads TOML and environment into one validated :class:`Config`; every error names the key and the remedy.

Environment variables that set keys of the configuration. A variable that looks like a key but matches none is refused.

Errors that pydantic finds in a configuration, as sentences: the key, the value found, and what to write instead.
"""

import difflib
import json
import os
import tomllib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream.config.deployment import Config, ConfigError
from stream.config.search import Chosen
from stream.config.servers import redacted

KeyPath = tuple[str, ...]
"""Names of the sections that contain a key, and the key's own name."""
SHOWN = 60
"""Number of characters of a wrong value that an error repeats."""


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type holds, also if the section is optional; None for a single value."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def fields_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields of a section, by their names in the file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


@cache
def keys(section: type[BaseModel]) -> tuple[tuple[KeyPath, FieldInfo], ...]:
    """Path and field of every key that a configuration may have, including sections."""
    return tuple(_keys(section, ()))


def _keys(section: type[BaseModel], prefix: KeyPath) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in fields_of(section).items():
        path = (*prefix, name)
        yield path, field
        inner = section_of(field.annotation)
        if inner is not None and get_origin(field.annotation) is not tuple:  # no path leads into a list of sections
            yield from _keys(inner, path)


def is_compound(field: FieldInfo) -> bool:
    """Whether the value is a list, a table or a section, and not a single number or text."""
    return section_of(field.annotation) is not None or get_origin(field.annotation) in (tuple, dict)


def wanted(field: FieldInfo) -> str:
    """The values that a key accepts, in words that can follow "write"."""
    return _wanted((field.annotation, field.metadata, field.description))


def problems(
    error: ValidationError, config: type[BaseModel], origin: Mapping[KeyPath, str], within: KeyPath = ()
) -> list[str]:
    """One line for each problem. ``origin`` names the environment variable from which a key's value came; ``within``
    the section that was checked, if it was not all of ``config``.
    """
    lines = []
    for item in error.errors():
        path = (*within, *(str(part) for part in item["loc"] if part != "[key]"))
        key = ".".join(path) or "(whole file)"
        variable = next((origin[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origin), None)
        source = "" if variable is None else f" (from {variable})"
        lines.append(f"{key}{source}: {_sentence(item, path, config)}")
    return lines


def _sentence(item: ErrorDetails, path: KeyPath, config: type[BaseModel]) -> str:
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"there is no such key; {_nearest_key(path, config)}"
    right = _wanted(_field(path, config))
    if item["type"] == "missing":
        return f"it is missing; add {right}"
    return f"found {_shown(item['input'], path)}; write {right}"


def _shown(value: Any, path: KeyPath) -> str:
    if isinstance(value, str):
        text = repr(redacted(value) if path == ("redis", "url") else value)
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int) and abs(value) >= 10**SHOWN:
        return "a number that is too large"
    else:
        try:
            text = repr(value)
        except ValueError:  # Python refuses to format very long integers, here inside a list or table
            return "a list or table with a number that is too large"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _nearest_key(path: KeyPath, config: type[BaseModel]) -> str:
    section: type[BaseModel] | None = config
    for part in path[:-1]:
        field = fields_of(section).get(part) if section is not None else None
        if section is not None and part.isdecimal():  # a place in a list of sections
            continue
        section = None if field is None else section_of(field.annotation)
    siblings = list(fields_of(section)) if section is not None else []
    near = [".".join((*path[:-1], name)) for name in difflib.get_close_matches(path[-1], siblings, 1)]
    elsewhere = [".".join(known) for known, _ in keys(config) if known[-1] == path[-1]]
    meant = near or elsewhere
    if meant:
        return f"write {' or '.join(meant)} if that is meant, or remove it"
    return f"remove it, or choose from {', '.join(siblings)}"


def _field(path: KeyPath, config: type[BaseModel]) -> tuple[Any, list[Any], str | None]:
    """Type, constraints and description of the value at ``path``, which may be inside a list or table."""
    section: type[BaseModel] | None = config
    described: tuple[Any, list[Any], str | None] = (config, [], None)
    for part in path:
        field = fields_of(section).get(part) if section is not None else None
        if section is not None and part.isdecimal():  # a place in a list of sections
            continue
        if field is None:
            inner = [kind for kind in get_args(described[0]) if kind is not Ellipsis]
            return (inner[0] if part.isdecimal() else inner[-1], [], None) if inner else described
        described = (field.annotation, field.metadata, field.description)
        section = section_of(field.annotation)
    return described


def _wanted(field: tuple[Any, list[Any], str | None]) -> str:
    """The values that a field of this type accepts, in words that can follow "write"."""
    annotation, constraints, description = field
    if description is not None:
        return description
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    inner = section_of(annotation) if isinstance(annotation, type) else None
    if inner is not None:
        return f"a section with {', '.join(fields_of(inner))}"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        return f"a list in brackets of {_wanted((arguments[0], [], None))}"
    if origin is dict:
        return f"a table that gives {_wanted((arguments[0], [], None))} {_wanted((arguments[1], [], None))}"
    if annotation in (int, float):
        return ("a whole number" if annotation is int else "a number") + _bounds(constraints)
    return "a file name in quotes" if annotation is Path else "text in quotes"


def _bounds(constraints: list[Any]) -> str:
    words = {"gt": "above", "ge": "of at least", "le": "of at most", "lt": "below"}
    said = [
        f"{word} {getattr(constraint, name):g}"
        for name, word in words.items()
        for constraint in constraints
        if getattr(constraint, name, None) is not None
    ]
    return f" {' and '.join(said)}" if said else ""


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
def variables(config: type[BaseModel]) -> Mapping[str, KeyPath]:
    """The path of the key that each variable sets, by the variable's name."""
    return {_name(path): path for path, _ in keys(config)}


def _name(path: KeyPath) -> str:
    return PREFIX + SEPARATOR.join(path).upper()


def origins(config: type[BaseModel], environment: Mapping[str, str]) -> dict[KeyPath, str]:
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


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
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
                "single keys, like HEXVEIL_PRIVACY__EPSILON=1.5"
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


def load_config(path: str | os.PathLike[str] | Chosen, **overrides: Any) -> Config:
    """Read ``path`` with environment overrides; ``overrides`` are dotted keys (``feed.format="capmetro"``).

    The environment has precedence over overrides, and overrides over the file. Relative paths in the file are relative
    to its folder (or to ``base`` of the chosen configuration), those in the environment and in overrides to the working
    folder.

    Raises :class:`ConfigError`, which names every wrong key, the value found and what to write instead.
    """
    path, base = (path.file, path.base) if isinstance(path, Chosen) else (Path(path), Path(path).parent)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; 'hexveil init {path}' creates one") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, an endless number, or nested too deeply
        raise ConfigError(
            f"{path}: not valid TOML: {error}; correct it there, or create a file with 'hexveil init'"
        ) from None
    _anchor(data, base)
    for key, value in overrides.items():
        section = data
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    wrong = unusable(Config, os.environ)
    if wrong:
        raise ConfigError(f"environment: {len(wrong)} problem(s)\n" + "\n".join(f"  {line}" for line in wrong))
    override(data, Config, os.environ)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [f"  {line}" for line in problems(error, Config, origins(Config, os.environ))]
        raise ConfigError(f"{path}: {len(lines)} problem(s)\n" + "\n".join(lines)) from None


def with_section(config: Config, name: str, given: Mapping[str, Any]) -> Config:
    """``config`` with the keys ``given`` as its section ``name``. Raises :class:`ConfigError`, as :func:`load_config`
    does."""
    try:
        section = type(getattr(config, name)).model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(problems(error, Config, {}, (name,)))) from None
    return config.model_copy(update={name: section})


def _anchor(data: dict[str, Any], base: Path) -> None:
    """Put ``base`` before every relative path in the file's ``data``, and before relative paths that are defaults."""
    for (*sections, key), field in keys(Config):
        if Path not in (field.annotation, *get_args(field.annotation)):
            continue
        table: Any = data
        for section in sections:
            table = table.get(section) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value := table.get(key, field.default), str | Path):
            table[key] = str(base / value)
