"""Shrinkage of noisy cell means towards their neighbours: post-processing of released values, so it costs nothing.

Model: released mean = θ + Laplace noise of known scale; θ = intercept + public covariates + a spatial field of
exponential correlation + what sampling n events leaves. The noise is read as Laplace by expectation propagation, the few
hyperparameters are averaged over a fixed grid by their evidence. Only released values, public scales and counts come in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior
from dpcore.model_averaging import ModelAverage

FloatArray = npt.NDArray[np.float64]

EARTH_KM = 6371.0
"""Mean radius of the Earth in km."""
FIELD_SHARES = (0.02, 0.06)
"""Candidate standard deviations of the spatial field, as shares of the range U."""
LENGTH_KM = 5.0
"""Correlation length of the spatial field, in km."""
EVENT_SHARES = (0.3, 0.65)
"""Candidate standard deviations e of one event around its cell's level, as shares of U; of n events, √(e²/(n + (e/q)²))."""
QUIET_SHARE = 0.5
"""q: standard deviation of a cell with next to no events, as a share of U: streets and motorways differ by as much."""
LEVEL_SHARE = 0.5
"""Standard deviation of the area's level around U/2 without a baseline, as a share of U."""
BASELINE_SHARE = 0.1
"""The same around a baseline."""
EFFECT_SHARES = (0.04, 0.1)
"""Candidate standard deviations of the effect of one standard deviation of a covariate, as shares of U."""
MOST_INFORMATIVE = 600
"""Cells that inform the field; in a larger area the noisiest ones are only predicted."""


@dataclass(frozen=True)
class Shrunken:
    """Post-processed means: ``value``, ``low`` and ``high`` (95 % under the model) of shape (C,), in the unit of U.

    Never a substitute for the released value: the interval rests on the model, not on the mechanism.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    standard_error: FloatArray


def local_kilometres(latitude: FloatArray, longitude: FloatArray) -> FloatArray:
    """Degrees (C,) to plane coordinates in km, shape (C, 2), around the middle of the area (equirectangular)."""
    middle = np.cos(np.radians(np.mean(latitude)))
    return np.asarray(EARTH_KM * np.radians(np.column_stack([longitude * middle, latitude])))


def shrink(
    means: FloatArray,
    scales: FloatArray,
    events: npt.NDArray[np.int64],
    *,
    upper: float,
    positions_km: FloatArray | None = None,
    covariates: FloatArray | None = None,
    baseline: FloatArray | None = None,
) -> Shrunken:
    """Posterior means of C cells from released ``means`` with Laplace ``scales`` (C,), in the unit of ``upper`` (U).

    ``events``: public counts n (C,). ``positions_km``: (C, 2), without it the field has no neighbours. ``covariates``:
    (C, k) public columns, each standardised here. ``baseline``: (C,) public first guess, in the unit of U. Infinite
    scales are allowed: nothing was released there, predict. Raises :class:`ParameterError`.
    """
    C = len(means)
    if not len(scales) == len(events) == C or np.any(scales < 0) or np.any(events < 1) or not upper > 0:
        raise ParameterError("need one mean, one scale >= 0 and one count >= 1 per cell, and upper > 0")
    if np.any(np.isfinite(scales) & ~np.isfinite(means)):
        first = int(np.flatnonzero(np.isfinite(scales) & ~np.isfinite(means))[0])
        raise ParameterError(
            f"the released mean of cell {first} is {means[first]}; give unreleased cells an infinite scale"
        )
    if not C:
        empty = np.zeros(0)
        return Shrunken(empty, empty, empty, empty)
    informative = np.sort(np.argsort(scales, kind="stable")[:MOST_INFORMATIVE])
    informative = informative[np.isfinite(scales[informative])]
    level = LEVEL_SHARE if baseline is None else BASELINE_SHARE
    guess = np.full(C, upper / 2) if baseline is None else baseline
    effect = _effect_kernel(covariates, events, C)
    near = np.eye(C) if positions_km is None else np.exp(-_distances(positions_km) / LENGTH_KM)
    residual, scale = (means - guess)[informative], scales[informative]
    logs, estimates, spreads, widest = [], [], [], []
    for slope, field, event in itertools.product(
        EFFECT_SHARES if covariates is not None else (0.0,), FIELD_SHARES, EVENT_SHARES
    ):
        kernel = upper**2 * (level**2 + slope**2 * effect + field**2 * near)
        kernel[np.diag_indices(C)] += upper**2 * (event**2 / (events + (event / QUIET_SHARE) ** 2) + 1e-9)
        found = laplace_posterior(kernel[np.ix_(informative, informative)], residual, scale)
        known, root = kernel[informative], np.sqrt(found.site_precision)
        factor = linalg.cholesky(np.eye(len(root)) + root[:, None] * known[:, informative] * root, lower=True)
        gain = linalg.solve_triangular(factor, root[:, None] * known, lower=True)
        logs.append(found.log_evidence)
        estimates.append(guess + gain.T @ linalg.solve_triangular(factor, found.site_shift / root, lower=True))
        spreads.append(np.diag(kernel) - np.einsum("ij,ij->j", gain, gain))
        widest.append(event == max(EVENT_SHARES))
    averaged = ModelAverage.of(logs, estimates, spreads, widest)
    value, low, high = averaged.interval(upper)
    return Shrunken(value, low, high, averaged.standard_error)


def _effect_kernel(covariates: FloatArray | None, events: npt.NDArray[np.int64], cells: int) -> FloatArray:
    """Covariance (C, C) of linear effects of sd 1 on the columns, standardised with the events as weights."""
    if covariates is None:
        return np.zeros((cells, cells))
    if covariates.ndim != 2 or len(covariates) != cells or not np.all(np.isfinite(covariates)):
        raise ParameterError(f"covariates must be finite columns of {cells} cells")
    centred = covariates - np.average(covariates, axis=0, weights=events)
    spread = np.sqrt(np.average(np.square(centred), axis=0, weights=events))
    unit = centred[:, spread > 0] / spread[spread > 0]
    return np.asarray(unit @ unit.T)


def _distances(positions: FloatArray) -> FloatArray:
    """Euclidean distances in km (the exponential correlation needs no square), shape (C, C)."""
    return np.asarray(np.sqrt(np.square(positions[:, None, :] - positions[None, :, :]).sum(axis=2)))
