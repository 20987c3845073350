"""Shrinkage of noisy cell means towards their neighbours: post-processing of released values, so it costs nothing.

Model: released mean = θ + noise of known variance 2b²; θ = intercept + public covariates + a spatial field of
exponential correlation + what sampling n events leaves. The few hyperparameters are averaged over a fixed grid by their
marginal likelihood under the noisy data themselves. Only released values, public scales and counts come in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from dpcore.errors import ParameterError

FloatArray = npt.NDArray[np.float64]

EARTH_KM = 6371.0
"""Mean radius of the Earth in km."""
FIELD_SHARES = (0.02, 0.05, 0.1, 0.2)
"""Candidate standard deviations of the spatial field, as shares of the range U."""
LENGTHS_KM = (1.5, 4.0, 10.0)
"""Candidate correlation lengths of the spatial field, in km."""
EVENT_SHARES = (0.1, 0.2, 0.35)
"""Candidate standard deviations of one event around its cell's level, as shares of the range U."""
LEVEL_SHARES = (0.5,)
"""Candidate standard deviations of the area's level around U/2 without a baseline, as shares of U."""
BASELINE_SHARES = (0.03, 0.1)
"""The same around a baseline."""
EFFECT_SHARES = (0.02, 0.08)
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
        raise ParameterError("a released mean is not finite; give unreleased cells an infinite scale")
    if not C:
        empty = np.zeros(0)
        return Shrunken(empty, empty, empty, empty)
    variance = 2 * np.square(scales, dtype=np.float64)
    informative = np.sort(np.argsort(variance, kind="stable")[:MOST_INFORMATIVE])
    informative = informative[np.isfinite(variance[informative])]
    guess = np.full(C, upper / 2) if baseline is None else baseline
    effect = _effect_kernel(covariates, events, C)
    distance = None if positions_km is None else _distances(positions_km)
    residual = (means - guess)[informative]
    logs, estimates, spreads = [], [], []
    for share, slope, field, length, event in itertools.product(
        LEVEL_SHARES if baseline is None else BASELINE_SHARES,
        EFFECT_SHARES if covariates is not None else (0.0,),
        FIELD_SHARES,
        LENGTHS_KM if distance is not None else (1.0,),
        EVENT_SHARES,
    ):
        kernel = (share * upper) ** 2 + (slope * upper) ** 2 * effect
        if distance is None:
            kernel[np.diag_indices(C)] += (field * upper) ** 2
        else:
            kernel += (field * upper) ** 2 * np.exp(-distance / length)
        kernel[np.diag_indices(C)] += (event * upper) ** 2 / events
        prior = kernel[np.ix_(informative, informative)]
        prior[np.diag_indices(len(informative))] += variance[informative] + 1e-9 * upper**2
        factor = linalg.cholesky(prior, lower=True)
        white = linalg.solve_triangular(factor, residual, lower=True)
        gain = linalg.solve_triangular(factor, kernel[informative], lower=True)
        logs.append(-0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum()))
        estimates.append(guess + gain.T @ white)
        spreads.append(np.diag(kernel) - np.einsum("ij,ij->j", gain, gain))
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    table = np.array(estimates)
    value = weight @ table
    spread = np.maximum(weight @ (np.array(spreads) + np.square(table - value)), 0)
    error = np.sqrt(spread)
    bounded = np.clip([value, value - 1.96 * error, value + 1.96 * error], 0.0, upper)
    return Shrunken(bounded[0], bounded[1], bounded[2], error)


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
