"""One window beside the past, and its posterior under each member of the grid of :class:`dpcore.smoothing.Dynamics`.

The parameters of the model are not known, so the posterior is computed under every candidate of a small public grid and
averaged; each weighs as much as its evidence. Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999),
equations 1 to 4.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from dpcore._smoothing_model import Dynamics, Releases, SmoothingState
from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.earth import local_kilometres
from dpcore.interval_calibration import Prediction
from dpcore.laplace_posterior import laplace_posterior, normal_posterior


@dataclass(frozen=True)
class EvidenceWeights:
    """Weights of M candidates, each set adding up to 1. ``shares``: (M,), of all candidates, for means; ``cautious``:
    (M,), of the cautious candidates alone, for variances.
    """

    shares: FloatArray
    cautious: FloatArray

    @classmethod
    def of(cls, log_evidence: Sequence[float], cautious: Sequence[bool]) -> Self:
        """Weights from the natural logarithms of the evidence, (M,). Only the ``cautious`` candidates, (M,), enter
        variances: busy cells say more about the spread of events than quiet ones do, and would make the intervals of
        the quiet ones too short.
        """
        return cls(evidence_shares(np.array(log_evidence)), evidence_shares(np.where(cautious, log_evidence, -np.inf)))

    def mixture(self, candidates: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
        """(Mean, variance) of C quantities, (C,) each, from those of every candidate. The variance includes how far the
        candidates' means lie from the average.
        """
        means, variances = zip(*candidates, strict=True)
        value = average(self.shares, means)
        spread = [variance + np.square(mean - value) for mean, variance in zip(means, variances, strict=True)]
        return value, average(self.cautious, spread)


def evidence_shares(log_evidence: FloatArray) -> FloatArray:
    """Weights in proportion to the evidence, shape (M,), from its natural logarithms; -inf leaves a candidate out."""
    share = np.exp(log_evidence - log_evidence.max())
    return np.asarray(share / share.sum())


def average(shares: FloatArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Average of M arrays of one shape by their ``shares`` (M,)."""
    return np.asarray(np.tensordot(shares, np.array(columns), axes=1))


MOST_INFORMATIVE = 400
"""Most cells of the window, and most of the past, that inform the others; the noisier ones are only predicted."""


@dataclass(frozen=True)
class Window:
    """The releases of one window beside the past: what all members of the grid share.

    T remembered cells and S released ones inform the others. ``past_mean``, ``past_variance``: (T,), the lasting
    deviation of each by its own history; ``passing``, ``passing_variance``: (C,), the passing one of the window's
    cells, ``precision``: (C,), how much their own history says of the lasting one; ``seen``: (S,), positions of the
    released ones among them; ``distance``: (T + C, T + S) in km, and whether two of them are the ``same`` cell.
    ``design``: (C, 1 + k), how level and effects enter each mean; ``trend`` (1 + k,) and its covariance: level and
    effects before the window.
    """

    releases: Releases
    past_mean: FloatArray
    past_variance: FloatArray
    passing: FloatArray
    passing_variance: FloatArray
    precision: FloatArray
    seen: IntArray
    distance: FloatArray
    same: BoolArray
    design: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    upper: float

    @classmethod
    def of(cls, past: SmoothingState, releases: Releases, hour_of_day: int | None, upper: float, d: Dynamics) -> Self:
        """Choose the cells that inform the others, and read the level's profile at ``hour_of_day``; None: do not."""
        remembered = np.sort(np.argsort(-past.precision, kind="stable")[:MOST_INFORMATIVE])
        seen = np.sort(np.argsort(releases.scales, kind="stable")[:MOST_INFORMATIVE])
        seen = seen[releases.known[seen]]
        weight = releases.events / releases.events.sum()
        return cls(
            releases,
            past.shift[remembered] / past.precision[remembered],
            1 / past.precision[remembered],
            *_own_past(past, releases, upper, d),
            seen,
            *_relations(past, remembered, releases, seen),
            np.column_stack([np.ones(len(weight)), releases.covariates - weight @ releases.covariates]),
            *_returned_to_profile(past, hour_of_day, upper, d),
            upper,
        )


@dataclass(frozen=True)
class Prior:
    """A member of the grid before the window's releases, sampling left out: mean and variance of each cell, (C,), the
    covariance of each with those that inform the others, (C, S), and mean and variance of what is typical, (C,).
    """

    mean: FloatArray
    variance: FloatArray
    covariance: FloatArray
    typical: FloatArray
    typical_variance: FloatArray


@dataclass(frozen=True)
class Informing:
    """The releases that inform the cells under one member of the grid: those of S cells and, if there is one, that of
    the area.

    ``covariance``: of the mean of each cell with what they observe, (C, S'); ``among``: of what they observe, (S', S');
    ``trend``: of level and effects with it, (1 + k, S'); ``off``: by how much they differ from what was expected,
    (S',); ``scales``: of their noise, (S',).
    """

    covariance: FloatArray
    among: FloatArray
    trend: FloatArray
    off: FloatArray
    scales: FloatArray

    @classmethod
    def of(cls, window: Window, prior: Prior, covariance: FloatArray, field: float) -> Self:
        """``covariance`` (C, S) with sampling; ``field``: the deviation of lasting deviations, a share of U."""
        releases, seen = window.releases, window.seen
        trend = window.trend_covariance @ window.design.T
        off = (releases.means - prior.mean)[seen]
        cells = cls(covariance, covariance[seen], trend[:, seen], off, releases.scales[seen])
        if releases.area is None:
            return cells
        # The area's mean is the weighted sum of all cells' means. Deviations of cells that do not inform count as
        # unknown.
        weights = releases.area.weights
        inside, outside = weights[seen], np.delete(weights, seen)
        rest = outside @ np.delete(window.design, seen, axis=0)
        column = covariance @ inside + trend.T @ rest
        of_trend = cells.trend @ inside + window.trend_covariance @ rest
        unknown = (outside.sum() * field * window.upper) ** 2
        own = float(inside @ column[seen] + rest @ of_trend) + unknown
        return cls(
            np.column_stack([covariance, column]),
            np.block([[cells.among, column[seen, None]], [column[None, seen], np.array([[own]])]]),
            np.column_stack([cells.trend, of_trend]),
            np.append(off, releases.area.mean - weights @ prior.mean),
            np.append(cells.scales, releases.area.scale),
        )


@dataclass(frozen=True)
class Posterior:
    """Mean ``value`` and variance of each cell, (C,); trend and its covariance; what each release says alone, as a
    Gaussian of ``site_precision`` and mean ``site_shift``/``site_precision``, (C,); variance that ``sampling`` its
    events leaves, (C,).
    """

    value: FloatArray
    variance: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    site_precision: FloatArray
    site_shift: FloatArray
    sampling: FloatArray
    passing: FloatArray
    passing_variance: FloatArray


@dataclass(frozen=True)
class Fit:
    """One member of the grid, its standard deviation of one ``event`` as a share of U, how well it explains the window,
    and what it says about each cell without the cell's own release.
    """

    event: float
    log_evidence: float
    posterior: Posterior
    prediction: Prediction


def _returned_to_profile(
    past: SmoothingState, hour_of_day: int | None, upper: float, d: Dynamics
) -> tuple[FloatArray, FloatArray]:
    """(Trend, covariance) after the same hour of earlier days is read as an observation of the level."""
    if hour_of_day is None:
        return past.trend, past.trend_covariance
    usual = float(past.profile_variance[hour_of_day]) + (d.profile_drift * upper) ** 2
    gain = past.trend_covariance[:, 0] / (past.trend_covariance[0, 0] + usual)
    if not np.isfinite(usual):
        return past.trend, past.trend_covariance
    trend = past.trend + gain * (past.profile[hour_of_day] - past.trend[0])
    return trend, past.trend_covariance - np.outer(gain, past.trend_covariance[0])


def _own_past(
    past: SmoothingState, releases: Releases, upper: float, d: Dynamics
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Mean, variance) of the passing deviation of each of the window's cells, and the precision of the lasting one,
    (C,), by its past."""
    count = len(releases.cells)
    mean, variance, precision = np.zeros(count), np.full(count, (d.passing * upper) ** 2), np.zeros(count)
    now, before = np.intersect1d(releases.cells, past.cells, assume_unique=True, return_indices=True)[1:]
    mean[now], variance[now] = past.passing[before], past.passing_variance[before]
    precision[now] = past.precision[before]
    return mean, variance, precision


def priors_of(window: Window, d: Dynamics) -> list[Prior]:
    """What the past says of the window under every member of the grid."""
    return [prior_of(window, field, length, d) for field, length in itertools.product(d.field, d.length_km)]


def fits_of(window: Window, priors: list[Prior], d: Dynamics) -> list[Fit]:
    """The window's posterior under every member of the grid."""
    return [fit_of(window, prior, event, d) for prior in priors for event in d.event]


def typical_of(priors: list[Prior]) -> tuple[FloatArray, FloatArray]:
    """(Mean, variance) of what is typical of each cell at this hour, (C,): without what passes, but as far from the
    truth as what passes may be. All members of the grid count alike, so that nothing of the window itself enters.
    """
    value = np.mean([prior.typical for prior in priors], axis=0)
    spread = [prior.typical_variance + np.square(prior.typical - value) for prior in priors]
    return value, np.mean(spread, axis=0)


def prior_of(window: Window, field: float, length: float, d: Dynamics) -> Prior:
    """What the past and the trend say, for one standard deviation ``field`` (a share of U) and correlation ``length``
    (km): kriging of the lasting deviations, to which trend and passing deviations add their uncertainty.
    """
    T, upper = len(window.past_mean), window.upper
    near = np.exp(-window.distance / length)
    lasting = (field * upper) ** 2 * near + (d.own * upper) ** 2 * window.same
    factor = scipy.linalg.cho_factor(lasting[:T, :T] + np.diag(window.past_variance), lower=True)
    gain = scipy.linalg.cho_solve(factor, lasting[T:, :T].T)
    from_trend = window.trend_covariance @ window.design.T
    covariance = lasting[T:, T:] - gain.T @ lasting[T:, :T].T[:, window.seen]
    covariance = covariance + window.design @ from_trend[:, window.seen] + (d.shared * upper) ** 2 * near[T:, T:]
    covariance[window.seen, np.arange(len(window.seen))] += window.passing_variance[window.seen]
    variance = (field**2 + d.own**2) * upper**2 - np.einsum("ji,ij->i", gain, lasting[T:, :T])
    variance = variance + np.einsum("ij,ji->i", window.design, from_trend)
    typical = window.design @ window.trend + gain.T @ window.past_mean
    passing = (d.shared * upper) ** 2 + window.passing_variance
    own_hour = (d.shared**2 + d.passing**2) * upper**2  # how far a cell's hour is from the area's: not learned
    return Prior(typical + window.passing, variance + passing, covariance, typical, variance + own_hour)


def fit_of(window: Window, prior: Prior, event: float, d: Dynamics) -> Fit:
    """The posterior of one member, whose single events have the standard deviation ``event`` (a share of U)."""
    releases, seen, S = window.releases, window.seen, len(window.seen)
    sampling = window.upper**2 * (event**2 / releases.events + d.user**2 / releases.users)
    covariance = prior.covariance.copy()
    covariance[seen, np.arange(S)] += sampling[seen]
    by = Informing.of(window, prior, covariance, max(d.field))
    read = normal_posterior if releases.normal else laplace_posterior
    sites = read(by.among, by.off, by.scales)
    factor = scipy.linalg.cho_factor(by.among + np.diag(1 / sites.site_precision), lower=True)
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(by.off)))
    weights = inverse @ (sites.site_shift / sites.site_precision)
    passing, passing_variance = window.passing.copy(), window.passing_variance.copy()
    passing[seen] += window.passing_variance[seen] * weights[:S]
    passing_variance[seen] -= np.square(window.passing_variance[seen]) * np.diag(inverse)[:S]
    precision, shift = unseen_sites(releases, window.upper)
    precision[seen] = sites.site_precision[:S]
    shift[seen] = sites.site_shift[:S] + sites.site_precision[:S] * prior.mean[seen]
    posterior = Posterior(
        prior.mean + by.covariance @ weights,
        prior.variance + sampling - np.einsum("ij,ij->i", by.covariance @ inverse, by.covariance),
        window.trend + by.trend @ weights,
        window.trend_covariance - by.trend @ scipy.linalg.cho_solve(factor, by.trend.T),
        precision,
        shift,
        sampling,
        passing,
        passing_variance,
    )
    own_precision, own_shift = np.zeros_like(precision), np.zeros_like(shift)
    own_precision[seen], own_shift[seen] = precision[seen], shift[seen]
    prediction = Prediction.without_own(posterior.value, posterior.variance, own_precision, own_shift)
    return Fit(event, sites.log_evidence, posterior, prediction)


def averaged(fits: list[Fit], d: Dynamics) -> tuple[Posterior, Prediction]:
    """All members of the grid as one, each weighing as much as its evidence: posterior, and prediction without the
    cells' own releases. Variances rest on the members with the widest standard deviation of one event.
    """
    weights = EvidenceWeights.of([fit.log_evidence for fit in fits], [fit.event == max(d.event) for fit in fits])
    prediction = Prediction(*weights.mixture(fit.prediction for fit in fits))
    return _averaged_posterior(weights, [fit.posterior for fit in fits]), prediction


def _averaged_posterior(weights: EvidenceWeights, posteriors: list[Posterior]) -> Posterior:
    shares = weights.shares
    value, variance = weights.mixture((each.value, each.variance) for each in posteriors)
    trend = average(shares, [each.trend for each in posteriors])
    covariance = average(
        shares, [each.trend_covariance + np.outer(each.trend - trend, each.trend - trend) for each in posteriors]
    )
    names = ("site_precision", "site_shift", "sampling", "passing", "passing_variance")
    rest = (average(shares, [getattr(each, name) for each in posteriors]) for name in names)
    return Posterior(value, variance, trend, covariance, *rest)


def _relations(
    past: SmoothingState, remembered: IntArray, releases: Releases, seen: IntArray
) -> tuple[FloatArray, BoolArray]:
    """(Distance in km, same cell): cells of the past and of the window, (T + C), against those that inform, (T + S)."""
    places = np.concatenate([past.places[remembered], releases.places])
    cells = np.concatenate([past.cells[remembered], releases.cells])
    inform = np.concatenate([np.arange(len(remembered)), len(remembered) + seen])
    at = local_kilometres(places[:, 0], places[:, 1])
    distance = np.sqrt(np.square(at[:, None, :] - at[None, inform, :]).sum(axis=2))
    return distance, cells[:, None] == cells[None, inform]


def unseen_sites(releases: Releases, upper: float) -> tuple[FloatArray, FloatArray]:
    """(Precision, shift) of every release read as Gaussian noise of the same variance: for those that only remember."""
    precision = np.zeros(len(releases.cells))
    known = releases.known
    precision[known] = 1 / np.maximum(2 * np.square(releases.scales[known]), 1e-9 * upper**2)
    shift = np.zeros(len(precision))
    shift[known] = precision[known] * releases.means[known]
    return precision, shift
