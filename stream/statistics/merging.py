"""Adaptive resolution: merges sparse hexagons into their H3 parents until the mean's interval is narrow enough.

Relation "values" only, because merging depends on public counts and on the ledger's public charges. A merged cell is
the rest of an H3 parent, without those of its hexagons that have messages of their own. Every event is in exactly one
cell, so a user's loss is the sum over the cells they visit, as without merging.
"""

from collections.abc import Callable, Sequence

import h3
import numpy as np

from dpcore.arrays import FloatArray, IdArray
from dpcore.contributions import Contributions, Counts
from dpcore.resolution import choose_resolution
from stream.messages.message import cell_text
from stream.statistics.plan import Plan, PlanError
from stream.terms import HexagonTerms
from stream.windows import utc_text


def merge_hexagons(counts: Counts, hexagons: HexagonTerms, predict: Callable[[Counts], FloatArray]) -> IdArray | None:
    """The H3 cell into which each hexagon is merged, shape (C,); None if the resolution is fixed.

    ``predict``: counts by cell -> half width of the mean's interval in km/h.
    """
    if hexagons.merge_until is None:
        return None
    finest, coarsest = hexagons.resolution, hexagons.coarsest_resolution
    parents = [_parents(counts.cells, resolution) for resolution in range(finest - 1, coarsest - 1, -1)]
    return choose_resolution(counts, parents, predict, target=hexagons.merge_until).region


def _parents(cells: IdArray, resolution: int) -> IdArray:
    parents = (h3.str_to_int(h3.cell_to_parent(cell_text(cell), resolution)) for cell in cells.tolist())
    return np.fromiter(parents, np.uint64, len(cells))


def widths(cells: IdArray, resolution: int) -> FloatArray:
    """Width of each cell, shape (C,), in widths of a hexagon of ``resolution``: a parent has seven children's area."""
    return np.asarray(np.sqrt(7.0 ** (resolution - resolutions(cells).astype(np.int64))))


def resolutions(cells: IdArray) -> IdArray:
    """H3 resolution of each cell, shape (C,)."""
    return np.asarray(cells >> np.uint64(52) & np.uint64(15))


def by_planned_cells(plan: Plan, contributions: Contributions) -> Contributions:
    """The contributions grouped by the cells of ``plan``; unchanged if the resolution is fixed.

    Raises :class:`PlanError` if the rows are in other hexagons than planned.
    """
    planned = plan.merged
    if planned is None:
        return contributions
    if len(planned) != contributions.counts.n_cells:
        raise PlanError(
            f"window {utc_text(plan.window.start)} was planned for {len(planned)} hexagons, but its rows are in "
            f"{contributions.counts.n_cells}; nothing was drawn. Restore Redis from its append-only file"
        )
    return contributions.regroup(planned)


def excluded(cells: Sequence[str]) -> dict[str, list[str]]:
    """For each merged cell the largest cells inside it that have messages of their own."""
    known = set(cells)
    inside: dict[str, list[str]] = {}
    for cell in sorted(cells):
        for resolution in range(h3.get_resolution(cell) - 1, -1, -1):
            parent = h3.cell_to_parent(cell, resolution)
            if parent in known:
                inside.setdefault(parent, []).append(cell)
                break
    return inside
