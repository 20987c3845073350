"""Decoders of JSON for declared paths: one msgspec type for each format, so that no event is walked in Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, get_args

import msgspec

_MOST_INDEX = 16
_Make = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Shape:
    """The events of a format. ``decode`` returns an object or raises; ``names``: its attribute for each path, dotted.

    ``make``: the object that has given values at the paths.
    """

    decode: Callable[[bytes], Any]
    names: tuple[str, ...]
    make: _Make


@lru_cache(64)
def shape_of(paths: tuple[str, ...], kinds: tuple[Any, ...]) -> Shape | None:
    """The shape of events with values of these types at these paths; None if one path is part of another one, or
    unusual.

    Parts of a path that are numbers are indexes in a list. What is at other paths, or behind the last index, does not
    matter. A value that may be None may be missing.
    """
    tree: dict[str, Any] = {}
    for number, path in enumerate(paths):
        *parents, leaf = path.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                return None
        if leaf in node:
            return None
        node[leaf] = number
    names = [""] * len(paths)
    try:
        kind, make = _typed(tree, kinds, names)
    except ValueError:  # a name that msgspec does not accept, or a far index
        return None
    return Shape(msgspec.json.Decoder(kind).decode, tuple(names), make)


def _typed(node: Any, kinds: Sequence[Any], names: list[str], prefix: str = "") -> tuple[Any, _Make]:
    """The type of what has these parts, and what makes one of values; writes the attribute of each path."""
    if isinstance(node, int):
        names[node] = prefix
        return kinds[node], itemgetter(node)
    as_list = all(part.isdecimal() for part in node)
    if as_list and max(map(int, node)) > _MOST_INDEX:
        raise ValueError("a far index")
    may_miss = {part: isinstance(at, int) and type(None) in get_args(kinds[at]) for part, at in node.items()}
    parts = list(map(str, range(1 + max(map(int, node))))) if as_list else sorted(node, key=lambda part: may_miss[part])
    fields: list[Any] = []
    makes: list[_Make] = []
    for at, part in enumerate(parts):
        name = f"part_{at}"
        kind, make = (
            _typed(node[part], kinds, names, f"{prefix}.{name}".strip(".")) if part in node else (Any, lambda _: None)
        )
        fields.append((name, kind, None) if may_miss.get(part) and not as_list else (name, kind))
        makes.append(make)
    rename = dict(zip((field[0] for field in fields), parts, strict=True))
    struct: Any = msgspec.defstruct("Event", fields, gc=False, array_like=as_list, rename=rename)
    return struct, lambda values: struct(*(make(values) for make in makes))
