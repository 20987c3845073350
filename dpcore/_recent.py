"""Results that were asked for last, so that the same question is not answered twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """At most ``count`` results of at most ``size`` bytes together; those asked for longest ago go first.

    Threads may share it: two that ask for the same at once both compute it.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size
        self._kept: dict[bytes, tuple[_T, int]] = {}

    def get(self, key: bytes, compute: Callable[[], tuple[_T, int]]) -> _T:
        """The result of ``key``: ``compute`` gives it, and its bytes, unless it is kept."""
        entry = self._kept.pop(key, None) or compute()
        self._kept[key] = entry
        self._forget()
        return entry[0]

    def _forget(self) -> None:
        kept = list(self._kept.items())
        total = sum(size for _, (_, size) in kept)
        for position, (key, (_, size)) in enumerate(kept):
            if total <= self._size and len(kept) - position <= self._count:
                return
            self._kept.pop(key, None)
            total -= size


def key_of(*columns: npt.NDArray[Any], **numbers: float) -> bytes:
    """A digest of columns, with their types and lengths, and of numbers: equal only for equal ones."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr([(column.dtype.str, column.shape) for column in columns] + sorted(numbers.items())).encode())
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()
