"""Sections ``[hexagons]``, ``[speed]`` and ``[participation]``: cells, statistics of speed, and how they are made."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from stream.config.section import Section

MOVING_KM_H = 5.0
"""A report moves if it is at least as fast: walking pace, above what positions of a standing vehicle drift. A constant,
so that it is public, and the same in all feeds."""
Statistic = Literal["mean", "moving_mean", "variance", "p15", "p50", "p85", "cdf"]

CLIPPED_NORMAL = "clipped-normal"
"""Post-processing that models percentiles by means and variances."""
MOMENTS = ("mean", "variance")
"""Statistics that it needs."""
FROM_BINS = ("p15", "p50", "p85", "cdf")
"""Statistics that are read from the distribution's tree."""


class HexagonConfig(Section):
    """H3 resolution. Under "values", sparse hexagons may be merged until the mean's interval is narrow."""

    resolution: int = Field(ge=0, le=15)
    merge_until: float | None = Field(default=None, gt=0, le=1000)
    coarsest_resolution: int = Field(default=0, ge=0, le=15)

    def _problems(self) -> Iterator[str]:
        if self.merge_until is not None and self.coarsest_resolution >= self.resolution:
            yield (
                f"coarsest_resolution {self.coarsest_resolution} is not below resolution {self.resolution}, so nothing "
                "could be merged; lower it or remove merge_until"
            )


class SpeedConfig(Section):
    """Statistics of speed per hexagon and timeslot."""

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
    allocation: Literal["exact-loss", "uniform"] = "exact-loss"
    clipping: Literal["residual", "none"] = "none"
    sum_cap: float = Field(default=0.0, ge=0, le=1000)
    post_processing: tuple[Literal["kalman", "clipped-normal"], ...] = ("kalman",)
    min_users: int = Field(default=1, ge=1)
    cdf_bins: int = Field(default=32, ge=2, le=4096)

    def _problems(self) -> Iterator[str]:
        if len(set(self.statistics)) != len(self.statistics):
            yield f"statistics {list(self.statistics)} names a statistic twice; name each once"
        if CLIPPED_NORMAL in self.post_processing and (missing := set(MOMENTS) - set(self.statistics)):
            yield (
                f"post_processing {CLIPPED_NORMAL!r} models percentiles by mean and variance, but statistics "
                f"{list(self.statistics)} "
                f"are without {' and '.join(sorted(missing))}; add what is missing, or leave {CLIPPED_NORMAL!r} out"
            )


class ParticipationConfig(Section):
    """The area whose cells are public under relation "participation", limits per user, and what counts equally.

    ``area_share``: what of epsilon the mean of all cells together gets, to which smoothing ties the cells' means,
    beside 4 for moments; 0: it is not released.
    """

    geojson: Path | None = None
    weight: Literal["share", "user", "sample"] = "sample"
    cells_per_user: int = Field(ge=1, le=1_000)
    samples_per_cell: int = Field(default=5, ge=1, le=100_000)
    area_share: int = Field(default=0, ge=0, le=1_000_000)
