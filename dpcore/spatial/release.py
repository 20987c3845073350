"""The release format of spatial histograms: rounding to one public granularity, and the way back from JSON."""

from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError
from dpcore.packing import unpacked
from dpcore.spatial.domain import Domain
from dpcore.spatial.euler import EulerHistogram
from dpcore.spatial.histogram import (
    GridHistogram,
    GridNoise,
    HistogramError,
    PartitionHistogram,
    SparseReading,
)
from dpcore.spatial.range_noise import PartNoise, TreeNoise

Released = GridHistogram | PartitionHistogram | EulerHistogram

DECIMALS = 2
"""Released counts are multiples of 10^-DECIMALS, so that no low bit of floating point leaves."""
_DIGITS = 6
"""Significant digits of variances, rounded up."""


def rounded(histogram: Released) -> Released:
    """Counts on the public granularity, variances to six digits, rounded up, and no more blocks of a grid than its
    packed counts have room for: post-processing.

    Raises :class:`HistogramError` for a kind without a release format.
    """
    # Adding 0 turns -0.0 into 0.0.
    if isinstance(histogram, EulerHistogram):
        return replace(histogram, variance=float(_up(histogram.variance)))
    if isinstance(histogram, PartitionHistogram):
        sparse = histogram.sparse
        if sparse is not None:
            sparse = SparseReading(
                np.round(sparse.counts, DECIMALS) + 0.0,
                np.round(sparse.expected, DECIMALS) + 0.0,
                float(np.round(sparse.below, DECIMALS)),
            )
        counts, noise = np.round(histogram.counts, DECIMALS) + 0.0, histogram.noise
        if isinstance(noise, TreeNoise):
            noise = replace(noise, drawn=_up(noise.drawn))
        return replace(histogram, counts=counts, variances=_up(histogram.variances), sparse=sparse, noise=noise)
    if isinstance(histogram, GridHistogram):
        variances = _up(histogram.variances)
        return replace(
            histogram,
            counts=np.round(histogram.counts, DECIMALS) + 0.0,
            variances=variances if variances.ndim else float(variances),
        ).fitting()
    raise HistogramError(f"{type(histogram).__name__} has no release format; release a grid, a partition or euler")


def histogram_from_release(document: dict[str, Any]) -> Released:
    """The histogram of a release document (``domain`` and ``structure``); raises :class:`HistogramError` otherwise."""
    try:
        domain = Domain.from_release(document["domain"])
        structure = document["structure"]
        kind = structure["kind"]
        if kind in ("grid", "packed-grid"):
            variances = structure["variances"]
            x_edges, y_edges = (np.asarray(structure[name], dtype=np.int64) for name in ("x_edges", "y_edges"))
            return GridHistogram(
                domain,
                x_edges,
                y_edges,
                _counts(structure["counts"], domain, (len(x_edges) - 1, len(y_edges) - 1)),
                np.asarray(variances, dtype=np.float64) if isinstance(variances, list) else float(variances),
                _grid_noise(structure.get("noise")),
                int(structure.get("draws", 1)),
            )
        if kind == "partition":
            return PartitionHistogram(
                domain,
                np.asarray(structure["boxes"], dtype=np.int64),
                np.asarray(structure["counts"], dtype=np.float64),
                np.asarray(structure["variances"], dtype=np.float64),
                SparseReading.from_release(structure["sparse"]) if "sparse" in structure else None,
                _part_noise(structure.get("noise")),
            )
        if kind == "euler":
            return EulerHistogram.from_release(document)
    except KeyError as missing:
        raise HistogramError(f"release without {missing}; give domain and structure of a spatial histogram") from None
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ParameterError):
            raise
        raise HistogramError(f"release with an unusable value ({error}); give a spatial histogram's release") from None
    raise HistogramError(f"structure of kind {kind!r}; this version reads grid, packed-grid, partition and euler")


def _counts(given: Any, domain: Domain, shape: tuple[int, int]) -> FloatArray:
    if not isinstance(given, dict):
        return np.asarray(given, dtype=np.float64)
    if not 0 < shape[0] * shape[1] <= domain.cells:
        raise HistogramError(f"{shape[0]} x {shape[1]} packed blocks of {domain.cells} cells; give the edges of a grid")
    return unpacked(given, shape)


def _grid_noise(noise: str | None) -> GridNoise | None:
    if noise is None or noise in get_args(GridNoise):
        return cast("GridNoise | None", noise)
    raise HistogramError(f"noise {noise!r}; this version reads {' and '.join(get_args(GridNoise))}")


def _part_noise(noise: str | dict[str, Any] | None) -> PartNoise:
    if noise is None or noise == "independent":
        return cast(PartNoise, noise)
    if isinstance(noise, dict):
        return TreeNoise.from_release(noise)
    raise HistogramError(f"noise {noise!r}; this version reads independent and a tree of draws")


def _up(values: FloatArray | float) -> FloatArray:
    """``values`` ≥ 0 rounded up to :data:`_DIGITS` significant digits, of the same shape."""
    given = np.asarray(values, dtype=np.float64)
    digits = _DIGITS - 1 - np.floor(np.log10(np.where(given > 0, given, 1.0)))
    up = np.ceil(given * 10.0**digits) / 10.0**digits
    return np.array([float(f"{value:.{_DIGITS}g}") for value in up.ravel()]).reshape(given.shape)
