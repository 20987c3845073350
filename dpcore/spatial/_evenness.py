"""How evenly thin space holds its points, measured from the draws of a tree at each of its scales.

A leaf says how many points it holds, not where inside. How evenly they lie there is judged by how evenly the leaves of
its level share what their parents hold: streets are as uneven at one scale as at the next, and so is a plain even. One
leaf's noise hides that; all leaves of a level together show it. Dense nodes are divided, so they do not count as leaves
here, and a dense middle does not make the space around it uneven.
"""

from __future__ import annotations

import math

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.spatial.partition import Tree

UNEVEN_BOX = 3.0
"""The box as a whole is even where its parts' counts have a mean square of at most this multiple of their squared mean,
as if all points lay on a third of it. Nothing is dropped there."""
MEASURED = 11.0
"""Squared count of the box's parts together, in variances of its noise, that is needed to measure that (to about ±0.5
for 16 of them)."""
EVEN = 1.5
"""Unevenness up to which nothing of a level is dropped."""
KEPT, DROPPED = 2.5, 4.0
"""Unevenness up to which thin leaves keep their whole count, and from which they keep nothing; between these, a share.
The share is no step, because noise moves the unevenness by some tenths."""
SIBLINGS = 4
"""Fewest leaves of one parent that show how uneven they are."""
DENSE = 3.0
"""Mean of siblings, in standard deviations of one, above which the last level's are dense: it divides none."""
SIGMAS = 3.0
"""Standard deviations of noise that the squared counts must exceed to be measured."""


def unevenness(tree: Tree, z: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean square of leaf siblings' counts over their squared mean, of all siblings of a level together, shape
    (levels,).

    ``z``, ``variance``: unbiased counts of the nodes and of their noise. A level where noise hides it, or leaves have
    too few siblings, is as even as the one above or below if that is even; else its ratio is infinite. On the last
    level, where dense nodes are leaves too, dense siblings are left out.
    """
    ratio, leaf = np.full(len(tree.levels), np.inf), ~tree.parents
    for depth, level in enumerate(tree.levels[1:], start=1):
        thin = level[leaf[level]]
        number, total, noise, square = (
            np.bincount(tree.parent[thin], weights=each)
            for each in (np.ones(len(thin)), z[thin], variance[thin], z[thin] ** 2)
        )
        several = number >= SIBLINGS
        if len(thin) == len(level):
            several &= total <= DENSE * np.sqrt(number * noise)
        squared = float((total**2 - noise)[several].sum())
        if squared > SIGMAS * math.sqrt(2 * float((noise[several] ** 2).sum())):
            ratio[depth] = float((number * (square - noise))[several].sum()) / squared
    return _of_nearest_level(ratio)


def _of_nearest_level(ratio: FloatArray) -> FloatArray:
    """``ratio`` with those that are not known, which are infinite, taken from the next known one above, else below,
    where that is even.
    """
    known = np.isfinite(ratio)
    above = np.maximum.accumulate(np.where(known, np.arange(len(ratio)), -1))
    nearest = ratio[np.where(above < 0, int(np.argmax(known)), above)]
    return np.where(known | (nearest <= EVEN), nearest, np.inf)


def even_box(tree: Tree, z: FloatArray, variance: FloatArray) -> bool:
    """Whether the root's children are known to differ by little."""
    children = np.flatnonzero(tree.parent == 0)
    noise = float(variance[children].sum())
    total, square = float(z[children].sum()) ** 2, float((z[children] ** 2).sum())
    if len(children) < SIBLINGS or total <= MEASURED * noise:
        return False
    return len(children) * (square - noise) <= UNEVEN_BOX * (total - noise)


def kept_share(uneven: float) -> float:
    """Share of its count that a thin leaf keeps on a level as ``uneven``, from 0 to 1."""
    return float(np.interp(uneven, (KEPT, DROPPED), (1.0, 0.0)))
