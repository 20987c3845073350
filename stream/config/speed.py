"""Sections ``[hexagons]``, ``[speed]`` and ``[participation]``: the cells, the statistics of speed, and how they are
made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dpcore.level_tree import Sharing, TreeShape
from stream.config.section import Section

SPEED_QUANTUM_KMH = 0.01
"""Public grid of speeds: values are integers of this many km/h before anything is summed."""

MOVING_KM_H = 5.0
"""A report moves if it is at least as fast: walking pace, above what positions of a standing vehicle drift. A constant,
so that it is public, and the same in all feeds."""
Statistic = Literal["mean", "moving_mean", "variance", "p15", "p50", "p85", "cdf"]

_USE = {
    "mean_capacity": ("array-averaging", "levy", "fixed-quantile", "epsilon-quantile", "auto"),
    "mean_quantile_percent": ("fixed-quantile", "auto"),
}
"""Mechanisms of the mean that use a key."""
CLIPPED_NORMAL = "clipped-normal"
"""Post-processing that models percentiles by means and variances."""
MOMENTS = ("mean", "variance")
"""Statistics that it needs."""
FROM_BINS = ("p15", "p50", "p85", "cdf")
"""Statistics that are read from the distribution's tree."""
MAX_TREE_NODES = 5_500
"""Most nodes of a tree that the configuration sets, over at most 4 096 bins. The constants of its intervals took at
most 3 s of one core and 0.5 GB for each of at most four kinds of scales (:data:`dpcore.cdf.MAX_KINDS`); of the tree of
least error 1.5 s.
"""


class HexagonConfig(Section):
    """H3 resolution. Under "values", sparse hexagons may be merged by public counts until the mean's interval is
    narrow."""

    resolution: int = Field(ge=0, le=15)
    merge_until_km_h: float | None = Field(default=None, gt=0, le=1000)
    coarsest_resolution: int = Field(default=0, ge=0, le=15)

    @model_validator(mode="after")
    def _coarser_than_the_finest(self) -> Self:
        if self.merge_until_km_h is not None and self.coarsest_resolution >= self.resolution:
            raise ValueError(
                f"coarsest_resolution {self.coarsest_resolution} is not below resolution {self.resolution}, so nothing "
                "could be merged; lower it or remove merge_until_km_h"
            )
        return self


class SpeedConfig(Section):
    """Statistics of speed per hexagon and timeslot.

    ``mean_capacity``: m_UB, the most samples in an array of the mechanisms that pack samples into arrays, within what
    users of a cell have; without it each mechanism's own rule decides. ``mean_quantile_percent``: where
    "fixed-quantile" sets the ends of its range. ``cdf_factors``: branching of the tree over the bins from the root
    down, without it that of least error. ``cdf_sharing``: how its levels share ε. ``typical_km_h``: the mean speed that
    is expected before any release; smoothed means lie near it while the noise of releases hides more; without it, near
    U/2. All are public, and charges hold for every value.
    """

    upper_bound: float = Field(gt=0, le=1000)
    statistics: tuple[Statistic, ...] = Field(default=("mean", "variance"), min_length=1)
    mean_mechanism: Literal[
        "allocated",
        "baseline",
        "array-averaging",
        "pooled-minimax",
        "levy",
        "fixed-quantile",
        "epsilon-quantile",
        "auto",
    ] = "allocated"
    suppression: Literal["chop-user", "none"] = "none"
    keep: Literal["epsilon", "error"] = "epsilon"
    allocation: Literal["exact-loss", "uniform"] = "exact-loss"
    clipping: Literal["joint", "carried", "residual", "none"] = "joint"
    typical_km_h: float | None = Field(default=None, gt=0, le=1000)
    sum_cap: float = Field(default=0.0, ge=0, le=1000)
    post_processing: tuple[Literal["kalman", "clipped-normal"], ...] = ("kalman",)
    min_users: int = Field(default=1, ge=1)
    mean_capacity: int | None = Field(default=None, ge=1, le=100_000)
    mean_quantile_percent: int = Field(default=10, ge=1, le=49)
    cdf_bins: int = Field(default=32, ge=2, le=4096)
    cdf_factors: tuple[Annotated[int, Field(ge=2, le=4096)], ...] = ()
    cdf_sharing: Sharing = "optimal"

    @model_validator(mode="after")
    def _on_the_grid(self) -> Self:
        if len(set(self.statistics)) != len(self.statistics):
            raise ValueError(f"statistics {list(self.statistics)} names a statistic twice; name each once")
        if abs(self.upper_bound / SPEED_QUANTUM_KMH - self.upper_quanta) > 1e-6:
            raise ValueError(f"upper_bound {self.upper_bound} is not a multiple of {SPEED_QUANTUM_KMH} km/h; round it")
        if "moving_mean" in self.statistics and self.upper_bound <= MOVING_KM_H:
            raise ValueError(
                f"upper_bound {self.upper_bound} is not above {MOVING_KM_H:g} km/h, from which on a report moves; "
                "raise it, or leave 'moving_mean' out of statistics"
            )
        return self

    @model_validator(mode="after")
    def _what_is_given_is_used(self) -> Self:
        for key, mechanisms in _USE.items():
            default = type(self).model_fields[key].default
            if getattr(self, key) != default and self.mean_mechanism not in mechanisms:
                raise ValueError(
                    f"{key} is for mean_mechanism {', '.join(mechanisms)}, but that is {self.mean_mechanism!r}; leave "
                    f"{key} out"
                )
        for key in ("cdf_factors", "cdf_sharing"):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not set(self.statistics) & set(FROM_BINS):
                raise ValueError(
                    f"{key} {value!r} is for statistics {', '.join(FROM_BINS)}, but those are "
                    f"{list(self.statistics)}; leave {key} out"
                )
        return self

    @model_validator(mode="after")
    def _moments_are_there_to_model(self) -> Self:
        if CLIPPED_NORMAL in self.post_processing and (missing := set(MOMENTS) - set(self.statistics)):
            raise ValueError(
                f"post_processing {CLIPPED_NORMAL!r} models percentiles by mean and variance, but statistics "
                f"{list(self.statistics)} "
                f"are without {' and '.join(sorted(missing))}; add what is missing, or leave {CLIPPED_NORMAL!r} out"
            )
        return self

    @model_validator(mode="after")
    def _tree_fits_its_bins(self) -> Self:
        if not self.cdf_factors:
            return self
        from dpcore.cdf import bin_edges  # scipy comes with it, which other configurations save

        bins, leaves = len(bin_edges(self.upper_quanta, self.cdf_bins)) - 1, math.prod(self.cdf_factors)
        if not bins <= leaves < 2 * bins:
            raise ValueError(
                f"cdf_factors {list(self.cdf_factors)} make {leaves} leaves, but cdf_bins {self.cdf_bins} and "
                "upper_bound "
                f"{self.upper_bound} make {bins} bins; their product must be at least {bins} and below {2 * bins}"
            )
        nodes = sum(math.prod(self.cdf_factors[: i + 1]) for i in range(len(self.cdf_factors)))
        if nodes > MAX_TREE_NODES:
            raise ValueError(
                f"cdf_factors {list(self.cdf_factors)} make {nodes} nodes, above {MAX_TREE_NODES}, so a draw would "
                "take too long; "
                "lower cdf_bins, or give fewer and larger factors"
            )
        return self

    @property
    def cdf_shape(self) -> TreeShape:
        """The shape of the tree over the bins."""
        return TreeShape(self.cdf_factors, self.cdf_sharing)

    @property
    def upper_quanta(self) -> int:
        """U in quanta of :data:`SPEED_QUANTUM_KMH`."""
        return round(self.upper_bound / SPEED_QUANTUM_KMH)


class ParticipationShares(Section):
    """Relative weights by which epsilon, or rho, is divided among the releases; shares are rounded to the ledger's
    unit.

    ``area``: of the mean of all cells together, to which smoothing ties the cells' means; 0: it is not released.
    """

    moments: int = Field(default=4, ge=1, le=1_000_000)
    percentiles: int = Field(default=4, ge=1, le=1_000_000)
    users: int = Field(default=1, ge=1, le=1_000_000)
    area: int = Field(default=0, ge=0, le=1_000_000)


class ParticipationConfig(Section):
    """Public limits of relation "participation": the list of cells, and limits per user."""

    geojson: Path | None = None
    max_cells: int = Field(default=5_000, ge=1, le=100_000)
    weight: Literal["share", "user", "sample"] = "sample"
    cells_per_user: int = Field(ge=1, le=1_000)
    samples_per_cell: int = Field(default=5, ge=1, le=100_000)
    shares: ParticipationShares = ParticipationShares()
