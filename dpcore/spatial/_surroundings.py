"""How dense the ring around each box of a grid is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.spatial.domain import FloatArray, IndexGrid
from dpcore.spatial.partition import IntArray
from dpcore.spatial.queries import integral_image


@dataclass(frozen=True)
class Surroundings:
    """The rings around some of the boxes that tile a grid: one box height and width on every side, within the grid.

    ``owner`` (rows, columns): index of the box of each cell; ``corners`` (4, P): entries of an integral image that
    bound each ring and its box; ``area``, ``ring`` (P,): cells of the box, and of the ring alone.
    """

    owner: IndexGrid
    corners: IndexGrid
    area: IndexGrid
    ring: IndexGrid

    @classmethod
    def of(cls, owner: IndexGrid, boxes: IntArray) -> Surroundings:
        """The rings of ``boxes`` (P, 4) in a grid whose cells belong to the boxes that ``owner`` (rows, columns)
        says."""
        shape = owner.shape
        x0, x1, y0, y1 = boxes.T.astype(np.int32)
        height, width = x1 - x0, y1 - y0
        area = height * width
        x0, x1 = np.maximum(x0 - height, 0), np.minimum(x1 + height, shape[0])
        y0, y1 = np.maximum(y0 - width, 0), np.minimum(y1 + width, shape[1])
        low, high = x0 * (shape[1] + 1), x1 * (shape[1] + 1)
        ring = np.maximum((x1 - x0) * (y1 - y0) - area, 1)
        return cls(owner, np.stack([high + y1, low + y1, high + y0, low + y0]), area, ring)

    def at_density(self, density: FloatArray, own: FloatArray) -> FloatArray:
        """Count of each box at the density of the ring around it, (P,). ``density``: (N,), of the tiles; ``own``: (P,),
        what the box itself adds to the points of ring and box together.
        """
        image = integral_image(np.take(density, self.owner)).ravel()
        last, above, before, first = (image[corner] for corner in self.corners)
        return np.asarray(np.maximum(last - above - before + first - own, 0.0) / self.ring * self.area)
