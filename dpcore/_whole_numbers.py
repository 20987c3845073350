"""Arguments of exact samplers and charges are integers: a fraction cut off would draw or charge less than was asked."""

from typing import Any

import numpy as np

from dpcore.arrays import IntArray
from dpcore.errors import ParameterError


def whole_numbers(name: str, values: Any) -> IntArray:
    """``values`` as an array of 64 bits; :class:`ParameterError`, which calls them ``name``, unless its type is of
    integers or it is empty.

    The type is what is looked at, not each value, so that it costs nothing beside a draw.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ParameterError(
            f"{name} {array.flat[0]} is not an integer of 64 bits, and noise would be drawn for another number; give "
            "integers"
        )
    return array.astype(np.int64, copy=False)


def is_whole_number(value: Any) -> bool:
    """Whether it is one integer, of Python or NumPy, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole_number(name: str, value: Any) -> int:
    """``value``; :class:`ParameterError`, which calls it ``name``, unless it is one integer, and no truth value."""
    if not is_whole_number(value):
        raise ParameterError(
            f"{name} {value!r} is not an integer, and noise would be drawn for another one; give an integer"
        )
    return int(value)
