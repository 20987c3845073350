"""Regions that users declare themselves, as polygons: validated, made convex and bounded, instead of computed from
fixes.

To be proved: :meth:`Euler.fit <dpcore.spatial.euler.Euler.fit>` with ``regions_per_user`` = r is ε-DP on the result of
:func:`declared_regions`, for neighbours that differ by all polygons of one user, however many there are and whatever
their corners (relation "participation"). Proof: whether a polygon is accepted, and the region that it becomes, follow
from this polygon alone; which r of a user's regions count follows from that user's polygons and their order. So
neighbours differ by at most r regions. Each is convex and of diameter at most B, so its interior meets at most (2k+1)²
components, k = ⌈B/d⌉, and it adds 1 to each. The array changes by at most r·(2k+1)² in L1, and the noise has that scale
over ε. Tested: by enumeration and by a black-box audit in tests/dpcore/spatial/test_regions.py. Source: [B], sections
3 and 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from dpcore.spatial.regions import RegionError, Regions, outermost

MAX_DECLARED_CORNERS = 4096
"""Corners of one declared polygon; of more than :data:`~dpcore.spatial.regions.MAX_CORNERS` the outermost are kept."""
MAX_COORDINATE = 1e9
"""Largest coordinate of a corner in either direction, in the unit of length: arithmetic beyond it could overflow."""


@dataclass(frozen=True)
class Declared:
    """``regions`` that count, and the ``refused`` polygons: index → what is wrong, for the user who declared it.

    Neither is private: do not publish them.
    """

    regions: Regions
    refused: dict[int, str]


def declared_regions(
    polygons: Sequence[npt.ArrayLike], user: npt.ArrayLike, *, diameter: float, per_user: int = 1
) -> Declared:
    """The first ``per_user`` (r) acceptable polygons of each user, as convex regions of diameter at most ``diameter``
    (B).

    ``polygons``: (corners, 2) coordinates each, in the unit of length of the domain, in any order; a hull has no holes.
    ``user``: integers, shape (len(polygons),). A region is the convex hull of a polygon's corners, of many corners the
    outermost (at most 2.5 % of the diameter inside), shrunk about the mean of its corners where it is wider than B. So
    a polygon that is not convex also counts in cells that only its hull meets, and who declares one twice counts twice
    if r allows it.

    A polygon that cannot be used is refused by itself: no number, no corner, more than :data:`MAX_DECLARED_CORNERS`,
    NaN, coordinates beyond :data:`MAX_COORDINATE`. Raises :class:`RegionError` for columns or parameters that do not
    fit.
    """
    owners = np.asarray(user)
    if owners.shape != (len(polygons),) or not (len(polygons) == 0 or np.issubdtype(owners.dtype, np.integer)):
        raise RegionError(f"{len(polygons)} polygons and users of shape {owners.shape}; give one integer per polygon")
    if per_user < 1:
        raise RegionError(f"{per_user} regions per user; give at least 1")
    accepted, refused = {}, {}
    for index, polygon in enumerate(polygons):
        try:
            accepted[index] = _corners(polygon)
        except RegionError as error:
            refused[index] = str(error)
    points = np.concatenate([np.zeros((0, 2)), *accepted.values()])
    region = np.repeat(np.arange(len(accepted)), [len(corners) for corners in accepted.values()])
    kept = outermost(points, region)
    start = np.append(0, np.cumsum(np.bincount(region[kept], minlength=len(accepted)))).astype(np.int64)
    by_region = owners[list(accepted)].astype(np.int64) if accepted else np.zeros(0, dtype=np.int64)
    regions = Regions(start, points[kept, 0], points[kept, 1], by_region)
    return Declared(regions.at_most(per_user).shrunk(diameter), refused)


def _corners(polygon: npt.ArrayLike) -> FloatArray:
    """The corners (n, 2) of one declared polygon; raises :class:`RegionError` with value, bound and remedy."""
    try:
        given = np.asarray(polygon)
    except Exception:  # whatever an object does when it is asked for its numbers, it alone is refused
        given = np.zeros((), dtype=object)
    if given.dtype.kind not in "iuf":
        raise RegionError("corners that are no pairs of real numbers; give x and y of each")
    with np.errstate(over="ignore"):  # what is no float64 becomes infinite, which is refused below
        corners = given.astype(np.float64)
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise RegionError(f"corners of shape {corners.shape}; give x and y of each, shape (corners, 2)")
    if not 1 <= len(corners) <= MAX_DECLARED_CORNERS:
        raise RegionError(f"{len(corners)} corners; give 1 to {MAX_DECLARED_CORNERS}")
    largest = float(np.abs(corners).max())
    if not largest <= MAX_COORDINATE:
        raise RegionError(f"a coordinate of {largest:g}; give finite ones of at most {MAX_COORDINATE:g} in size")
    return corners
