"""Errors that pydantic finds in a configuration, as sentences: the key, the value found, and what to write instead."""

from __future__ import annotations

import difflib
import pathlib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream.config.addresses import redacted

Path = tuple[str, ...]
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
def keys(section: type[BaseModel]) -> tuple[tuple[Path, FieldInfo], ...]:
    """Path and field of every key that a configuration may have, including sections."""
    return tuple(_keys(section, ()))


def _keys(section: type[BaseModel], prefix: Path) -> Iterator[tuple[Path, FieldInfo]]:
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
    error: ValidationError, config: type[BaseModel], origin: Mapping[Path, str], within: Path = ()
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


def _sentence(item: ErrorDetails, path: Path, config: type[BaseModel]) -> str:
    if item["type"] == "value_error":
        return item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"there is no such key; {_nearest_key(path, config)}"
    right = _wanted(_field(path, config))
    if item["type"] == "missing":
        return f"it is missing; add {right}"
    return f"found {_shown(item['input'], path)}; write {right}"


def _shown(value: Any, path: Path) -> str:
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


def _nearest_key(path: Path, config: type[BaseModel]) -> str:
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


def _field(path: Path, config: type[BaseModel]) -> tuple[Any, list[Any], str | None]:
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
    return "a file name in quotes" if annotation is pathlib.Path else "text in quotes"


def _bounds(constraints: list[Any]) -> str:
    words = {"gt": "above", "ge": "of at least", "le": "of at most", "lt": "below"}
    said = [
        f"{word} {getattr(constraint, name):g}"
        for name, word in words.items()
        for constraint in constraints
        if getattr(constraint, name, None) is not None
    ]
    return f" {' and '.join(said)}" if said else ""
