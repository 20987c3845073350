"""Shrinkage of noisy cell means towards their neighbours: post-processing of released values, so it costs nothing.

Model: released mean = θ + Laplace noise of known scale; θ = intercept + public covariates + a spatial field of
exponential correlation + what sampling n events leaves. The noise is read as Laplace by expectation propagation, the
few hyperparameters are averaged over a fixed grid by their evidence. Each release tests what the model says without it,
which calibrates the intervals (:mod:`dpcore.interval_calibration`). Only released values, public scales and counts come
in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from dpcore.earth import EARTH_M
from dpcore.errors import ParameterError
from dpcore.interval_calibration import Calibration, Observed, Prediction
from dpcore.laplace_posterior import laplace_posterior
from dpcore.model_averaging import EvidenceWeights

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FIELD_SHARES = (0.02, 0.06)
"""Candidate standard deviations of the spatial field, as shares of the range U."""
LENGTH_KM = 5.0
"""Correlation length of the spatial field, in km."""
EVENT_SHARES = (0.3, 0.65)
"""Candidate standard deviations e of one event around its cell's level, as shares of U; of n events, √(e²/(n +
(e/q)²))."""
QUIET_SHARE = 0.5
"""q: standard deviation of a cell with next to no events, as a share of U: streets and motorways differ by as much."""
LEVEL_SHARE = 0.5
"""Standard deviation of the area's level around U/2 without a baseline, as a share of U."""
BASELINE_SHARE = 0.1
"""The same around a baseline."""
EFFECT_SHARES = (0.04, 0.1)
"""Candidate standard deviations of the effect of one standard deviation of a covariate, as shares of U."""
UNLIKELY = 30.0
"""Candidates whose evidence is e^30 times smaller than that of the best cautious one change no digit, so they are not
predicted."""
MOST_INFORMATIVE = 600
"""Cells that inform the field; in a larger area the noisiest ones are only predicted."""
BLOCK = 1024
"""Cells predicted at a time, so that memory grows with the cells and not with their square."""


@dataclass(frozen=True)
class Shrunken:
    """Post-processed means: ``value``, ``low`` and ``high`` (95 %, calibrated by releases), shape (C,), in the unit of
    U; and the ``calibration`` after these releases, which the next window may begin with.

    Never a substitute for the released value: the interval rests on the model, not on the mechanism alone.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    calibration: Calibration


def local_kilometres(latitude: FloatArray, longitude: FloatArray) -> FloatArray:
    """Degrees (C,) to plane coordinates in km, shape (C, 2), around the middle of the area (equirectangular)."""
    middle = np.cos(np.radians(np.mean(latitude)))
    return np.asarray(EARTH_M / 1000 * np.radians(np.column_stack([longitude * middle, latitude])))


def shrink(
    means: FloatArray,
    scales: FloatArray,
    events: IntArray,
    *,
    upper: float,
    positions_km: FloatArray | None = None,
    covariates: FloatArray | None = None,
    baseline: FloatArray | None = None,
    calibration: Calibration | None = None,
) -> Shrunken:
    """Posterior means of C cells from released ``means`` with Laplace ``scales`` (C,), in the unit of ``upper`` (U).

    ``events``: public counts n (C,). ``positions_km``: (C, 2), without it the field has no neighbours. ``covariates``:
    (C, k) public columns, each standardised here. ``baseline``: (C,) public first guess, in the unit of U. Infinite
    scales are allowed: nothing was released there, predict. Time and memory grow in step with C: at most
    :data:`MOST_INFORMATIVE` cells inform the others. ``calibration``: what earlier windows said about the intervals.
    Raises :class:`ParameterError`.
    """
    _validate(means, scales, events, upper)
    if not len(means):
        empty = np.zeros(0)
        return Shrunken(empty, empty, empty, calibration or Calibration())
    informative = np.sort(np.argsort(scales, kind="stable")[:MOST_INFORMATIVE])
    informative = informative[np.isfinite(scales[informative])]
    guess = np.full(len(means), upper / 2) if baseline is None else baseline
    level = LEVEL_SHARE if baseline is None else BASELINE_SHARE
    prior = _Prior(upper, level, events, _standardised(covariates, events), positions_km)
    candidates = _candidates(EFFECT_SHARES if covariates is not None else (0.0,))
    posteriors = _posteriors(prior, candidates, informative, (means - guess)[informative], scales[informative])
    value, prediction = _mixtures(prior, *_likely(candidates, posteriors), informative)
    prediction = Prediction(guess + prediction.mean, prediction.variance)
    observed = Observed(means, scales, events.astype(np.float64))
    after = (calibration or Calibration()).after(prediction, observed)
    return Shrunken(*after.estimate(guess + value, prediction, observed, upper), after)


class _Candidate(NamedTuple):
    """One member of the grid: standard deviations of an effect, of the field and of one event, as shares of U."""

    slope: float
    field: float
    event: float

    @property
    def cautious(self) -> bool:
        """Whether its single events vary most."""
        return self.event == max(EVENT_SHARES)


def _candidates(slopes: tuple[float, ...]) -> list[_Candidate]:
    """The whole grid, for these standard deviations of an effect."""
    return [_Candidate(*shares) for shares in itertools.product(slopes, FIELD_SHARES, EVENT_SHARES)]


def _likely(candidates: list[_Candidate], posteriors: list[_Posterior]) -> tuple[list[_Candidate], list[_Posterior]]:
    """The candidates that can change a digit, with their posteriors."""
    both = list(zip(candidates, posteriors, strict=True))
    best = max(posterior.log_evidence for candidate, posterior in both if candidate.cautious)
    kept = [(candidate, posterior) for candidate, posterior in both if posterior.log_evidence > best - UNLIKELY]
    return [candidate for candidate, _ in kept], [posterior for _, posterior in kept]


def _mixtures(
    prior: _Prior, candidates: list[_Candidate], posteriors: list[_Posterior], informative: IntArray
) -> tuple[FloatArray, Prediction]:
    """Averages over the candidates, relative to the first guess, (C,): the posterior mean, and the prediction without
    the cell's own release. Its variance rests on the candidates with the widest standard deviation of one event.
    """
    moments = list(zip(*_predictions(prior, candidates, informative, posteriors), strict=True))
    weights = EvidenceWeights.of(
        [posterior.log_evidence for posterior in posteriors], [candidate.cautious for candidate in candidates]
    )
    value, _ = weights.mixture(moments)
    predictions = [
        _without_own(posterior, informative, *own) for posterior, own in zip(posteriors, moments, strict=True)
    ]
    return value, Prediction(*weights.mixture(predictions))


@dataclass(frozen=True)
class _Prior:
    """What the covariance of the C cells is made of. ``effects``: (C, k) standardised covariates; ``positions``: (C, 2)
    in km, or None for a field without neighbours.
    """

    upper: float
    level: float
    events: IntArray
    effects: FloatArray
    positions: FloatArray | None

    def relations(self, rows: IntArray, columns: IntArray) -> _Relations:
        """What two cells share under every candidate, shape (rows, columns) each."""
        same = rows[:, None] == columns[None, :]
        near = same.astype(np.float64)
        if self.positions is not None:
            near = np.exp(-_distances(self.positions[rows], self.positions[columns]) / LENGTH_KM)
        return _Relations(self.effects[rows] @ self.effects[columns].T, near, same)

    def covariance(self, relations: _Relations, columns: IntArray, candidate: _Candidate) -> FloatArray:
        """Prior covariance of the cells of ``relations`` under one candidate, in U²; its columns are ``columns``."""
        slope, field, _ = candidate
        shared = self.level**2 + slope**2 * relations.effect + field**2 * relations.near
        return np.asarray(self.upper**2 * (shared + relations.same * self._alone(columns, candidate)))

    def variance(self, cells: IntArray, candidate: _Candidate) -> FloatArray:
        """The diagonal of :meth:`covariance`, shape (cells,)."""
        slope, field, _ = candidate
        effect = np.square(self.effects[cells]).sum(axis=1)
        shared = self.level**2 + slope**2 * effect + field**2 + self._alone(cells, candidate)
        return np.asarray(self.upper**2 * shared)

    def _alone(self, cells: IntArray, candidate: _Candidate) -> FloatArray:
        """Variance of a cell that no other shares: what sampling n events leaves."""
        event = candidate.event
        return np.asarray(event**2 / (self.events[cells] + (event / QUIET_SHARE) ** 2) + 1e-9)


class _Relations(NamedTuple):
    """Of pairs of cells: product of their covariates, correlation of the field, whether they are one cell."""

    effect: FloatArray
    near: FloatArray
    same: npt.NDArray[np.bool_]


class _Posterior(NamedTuple):
    """Of one candidate: mean and variance of the informative cells, and what predicts any other: √ of the sites'
    precisions, the sites' shifts, a Cholesky factor, the weighed shifts.
    """

    log_evidence: float
    mean: FloatArray
    variance: FloatArray
    root: FloatArray
    shift: FloatArray
    factor: FloatArray
    weighed: FloatArray


def _posteriors(
    prior: _Prior, candidates: list[_Candidate], informative: IntArray, residual: FloatArray, scale: FloatArray
) -> list[_Posterior]:
    """The posterior of the informative cells under every candidate."""
    relations, posteriors = prior.relations(informative, informative), []
    for candidate in candidates:
        kernel = prior.covariance(relations, informative, candidate)
        sites = laplace_posterior(kernel, residual, scale)
        root = np.sqrt(sites.site_precision)
        weighed = scipy.linalg.solve_triangular(sites.factor, sites.site_shift / root, lower=True)
        posteriors.append(
            _Posterior(sites.log_evidence, sites.mean, sites.variance, root, sites.site_shift, sites.factor, weighed)
        )
    return posteriors


def _predictions(
    prior: _Prior, candidates: list[_Candidate], informative: IntArray, posteriors: list[_Posterior]
) -> tuple[FloatArray, FloatArray]:
    """(Mean beside the first guess, variance) of every cell under every candidate, shape (candidates, C) each."""
    shape = len(candidates), len(prior.events)
    values, variances = np.zeros(shape), np.zeros(shape)
    values[:, informative] = [posterior.mean for posterior in posteriors]
    variances[:, informative] = [posterior.variance for posterior in posteriors]
    others = np.setdiff1d(np.arange(shape[1]), informative)
    for start in range(0, len(others), BLOCK):
        cells = others[start : start + BLOCK]
        relations = prior.relations(informative, cells)
        for i, (candidate, posterior) in enumerate(zip(candidates, posteriors, strict=True)):
            known = prior.covariance(relations, cells, candidate)
            gain = scipy.linalg.solve_triangular(posterior.factor, posterior.root[:, None] * known, lower=True)
            values[i, cells] = gain.T @ posterior.weighed
            variances[i, cells] = prior.variance(cells, candidate) - np.einsum("ij,ij->j", gain, gain)
    return values, variances


def _without_own(posterior: _Posterior, informative: IntArray, value: FloatArray, variance: FloatArray) -> Prediction:
    """What one candidate says of each cell, (C,), without the cell's own release, beside the first guess."""
    precision, shift = np.zeros_like(value), np.zeros_like(value)
    precision[informative], shift[informative] = np.square(posterior.root), posterior.shift
    return Prediction.without_own(value, variance, precision, shift)


def _validate(means: FloatArray, scales: FloatArray, events: IntArray, upper: float) -> None:
    if not len(scales) == len(events) == len(means) or np.any(scales < 0) or np.any(events < 1) or not upper > 0:
        raise ParameterError("need one mean, one scale >= 0 and one count >= 1 per cell, and upper > 0")
    unusable = np.flatnonzero(np.isfinite(scales) & ~np.isfinite(means))
    if len(unusable):
        raise ParameterError(
            f"the released mean of cell {unusable[0]} is {means[unusable[0]]}; give unreleased cells an infinite scale"
        )


def _standardised(covariates: FloatArray | None, events: IntArray) -> FloatArray:
    """Columns of mean 0 and standard deviation 1 with the events as weights; constant ones are left out."""
    cells = len(events)
    if covariates is None:
        return np.zeros((cells, 0))
    if covariates.ndim != 2 or len(covariates) != cells or not np.all(np.isfinite(covariates)):
        raise ParameterError(f"covariates must be finite columns of {cells} cells")
    centred = covariates - np.average(covariates, axis=0, weights=events)
    spread = np.sqrt(np.average(np.square(centred), axis=0, weights=events))
    return np.asarray(centred[:, spread > 0] / spread[spread > 0])


def _distances(here: FloatArray, there: FloatArray) -> FloatArray:
    """Euclidean distances in km (the exponential correlation needs no square), shape (here, there)."""
    return np.asarray(np.sqrt(np.square(here[:, None, :] - there[None, :, :]).sum(axis=2)))
