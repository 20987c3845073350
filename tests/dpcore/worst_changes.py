"""Sensitivities by brute force: the largest change of one number over all values of a small cell."""

import itertools
from collections.abc import Callable

import numpy as np

from dpcore.contributions import Contributions


def group(rows: list[tuple[int, int, int, int]], upper: int) -> Contributions:
    cell, user, time, value = (np.array(column) for column in zip(*rows, strict=True))
    return Contributions.group(cell.astype(np.uint64), user.astype(np.uint64), time, value, upper=upper)


def worst_changes(
    rows: list[tuple[int, int, int, int]], integers: Callable[[Contributions], np.ndarray], upper: int
) -> np.ndarray:
    """Largest change of one cell's integer by each user's values, over all values in {0, U/2, U} of everybody."""
    owner = np.array([user for _, user, _, _ in rows])
    integer = {}
    for values in itertools.product((0, upper // 2, upper), repeat=len(rows)):
        contributions = group([(c, u, k, v) for (c, u, k, _), v in zip(rows, values, strict=True)], upper)
        integer[values] = int(integers(contributions)[0])
    worst = np.zeros(owner.max() + 1, dtype=np.int64)
    for user in range(len(worst)):
        beside: dict[tuple[int, ...], list[int]] = {}
        for values, exact in integer.items():
            beside.setdefault(tuple(np.array(values)[owner != user]), []).append(exact)
        worst[user] = max(max(group) - min(group) for group in beside.values())
    return worst
