"""Checks spatial histograms against their schema slab by slab.

The schema is checked in native code, which holds up every other thread until it returns: 70 ms for a message of 1 MB.
Between two slabs the event loop answers readers.
"""

from __future__ import annotations

from typing import Any

from stream.messages.message import SPATIAL_HISTOGRAM, validator

SLAB = 16_384
"""About so many values are checked at once: some 5 ms of work."""
MAX_ROW = 2_047
"""Most values in one row: the components of regions along a domain of 1024 cells, the longest that a configuration
allows."""

_Node = dict[str, Any]


def is_histogram(body: Any) -> bool:
    """Whether the value of a message matches the schema of spatial histograms, with no row above :data:`MAX_ROW`
    values.

    The schema says of a long array what each of its elements is, and of no two arrays that they are equally long. So a
    structure matches if and only if copies of it do that hold a slab of each long array and together all of it.
    """
    check = validator(SPATIAL_HISTOGRAM)
    structure = body.get("structure") if isinstance(body, dict) else None
    if not isinstance(structure, dict):
        return False
    nodes = [structure, *(value for value in structure.values() if isinstance(value, dict))]
    arrays = [value for node in nodes for value in node.values() if isinstance(value, list)]
    if any(isinstance(row, list) and len(row) > MAX_ROW for array in arrays for row in array):
        return False
    slabs = max(1, *(-(-_values_in(array) // SLAB) for array in arrays)) if arrays else 1
    return all(check.is_valid(body | {"structure": _slab(structure, slab, slabs)}) for slab in range(slabs))


def _values_in(array: list[Any]) -> int:
    return sum(len(row) if isinstance(row, list) else 1 for row in array)


def _slab(node: _Node, slab: int, slabs: int) -> _Node:
    """``node`` with the ``slab``-th of ``slabs`` slices of each array above :data:`SLAB` values, all equally long."""
    return {name: _of_value(value, slab, slabs) for name, value in node.items()}


def _of_value(value: Any, slab: int, slabs: int) -> Any:
    if isinstance(value, dict):
        return _slab(value, slab, slabs)
    if not isinstance(value, list) or _values_in(value) <= SLAB:
        return value
    length = -(-len(value) // slabs)
    first = min(slab * length, len(value) - length)
    return value[first : first + length]
