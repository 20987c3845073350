"""What published messages say about the mean of each cell: releases for the models that smooth and shrink. Pure.

Under "participation" a message gives the ratio of two noisy numbers. With a weak signal that ratio leans to the middle
of its range, so it is not used: the numerator is computed back from ratio and count, and divided by the expected number
of users, of which earlier counts of the cell know more than one (:mod:`dpcore.occupancy`).

Where none are drawn, p15, p50 and p85 of each cell are what a model reads from its published mean and variance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h3
import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.modelled_percentiles import percentiles, shrunken_variances
from dpcore.occupancy import NoisyCounts, Occupancy, Users, users_in
from dpcore.relation import NeighbouringRelation
from dpcore.smoothing import AreaMean, Dynamics, Releases
from stream.statistics.columns import PERCENTS, Derived
from stream.terms import CLIPPED_NORMAL

_UNSURE = 0.1
"""How far the mean of a cell lies from the level, as a share of U: it weighs only what is unknown of the users."""
_FEWEST = 1e-3
"""Where fewer users are expected in a cell, its release says nothing about their mean."""
_LEAST_VARIANCE = 1e-12
"""Variance of a count's noise below which the count is taken as exact."""
_CROWDING = 0.4
"""Weight of the logarithm of a cell's users as a covariate: quiet cells are faster, by a part that releases show."""
_OF_USERS = Dynamics(usual=0.0, quiet=0.0)
"""Under "participation" a cell's class is by its users, not by its events, and the model is as sure as it should be."""
_BESIDE_AREA = replace(_OF_USERS, event=(0.1, 0.3))
"""Where the mean of the area is released, every user counts once, with the mean of many samples: it scatters less than
one sample. Without the area, the usual grid stays, by which intervals of the shipped maps were measured."""


@dataclass(frozen=True)
class ObservedMeans:
    """``releases`` sorted by cell; ``places``: the position of each among the bodies, (C,). ``occupancy``: under
    "participation" what is known of the users of these cells after the window, None under "values". ``dynamics``: by
    which they are smoothed, None: the usual.
    """

    releases: Releases
    places: IntArray
    occupancy: Occupancy | None = None
    dynamics: Dynamics | None = None


def observed_means(
    bodies: Sequence[dict[str, Any]],
    known: tuple[IdArray, Occupancy] | None,
    level: float,
    upper: float,
    area: dict[str, Any] | None = None,
) -> ObservedMeans:
    """The observations in the ``bodies`` of a window, as published.

    ``known``: cells, (K,), and what earlier windows said about their users, at the time of the window; not used if the
    window has other cells. ``level``: the mean of all cells as earlier windows know it, in the unit of ``upper``, U.
    ``area``: users and mean of all cells together, as the close marker publishes them; only under "participation".
    """
    cells = np.array([int(body["cell"], 16) for body in bodies], dtype=np.uint64)
    order = np.argsort(cells, kind="stable")
    order = order[np.array(["mean" in bodies[g] for g in order], dtype=bool)]
    bodies, cells = [bodies[g] for g in order], cells[order]
    places = np.array([h3.cell_to_latlng(body["cell"]) for body in bodies], dtype=np.float64).reshape(-1, 2)
    if bodies and bodies[0]["relation"] == NeighbouringRelation.PARTICIPATION:
        past = known[1] if known is not None and np.array_equal(known[0], cells) else None
        before = past or Occupancy(np.zeros(len(cells)), 0.0, 0.0, 0.0)
        now = _counted(bodies, _numbers(bodies))
        releases = _of_expected_users(bodies, (cells, places), now, past, level, upper, area)
        dynamics = _OF_USERS if area is None else _BESIDE_AREA
        return ObservedMeans(releases, order, before.after(now), dynamics)
    means = np.array([body["mean"]["raw"] for body in bodies], dtype=np.float64)
    scales = np.array([body["mean"]["scale"] for body in bodies], dtype=np.float64)
    events = np.array([body["events"] for body in bodies], dtype=np.float64)
    users = np.array([body["users"] for body in bodies], dtype=np.float64)
    # Vehicles report at regular intervals, so those with more fixes in a cell drive more slowly through it.
    covariates = np.log(events / users)[:, None]
    if normal := bool(bodies) and bodies[0].get("accounting") == "zcdp":
        scales = scales / np.sqrt(2)
    return ObservedMeans(Releases(cells, places, means, scales, events, users, covariates, normal=normal), order)


def _of_expected_users(
    bodies: Sequence[dict[str, Any]],
    at: tuple[IdArray, FloatArray],
    now: NoisyCounts,
    past: Occupancy | None,
    level: float,
    upper: float,
    area: dict[str, Any] | None,
) -> Releases:
    """The releases of bodies of cells ``at`` (ids, places) under "participation"."""
    together = None
    users = users_in(past, now)
    if area is not None:
        users = users.adding_up_to(area["users"]["raw"], _noise_variance(area["users"], bodies[0]))
        together = _area_mean(area, users, bodies[0], level, upper)
    means, scales = _over_expected_users(bodies, now, users, level, upper)
    covariates = crowding(users.mean)[:, None]
    events = np.maximum(users.mean, 1.0)
    return Releases(*at, means, scales, events, events, covariates, normal=True, area=together)


def crowding(users: FloatArray) -> FloatArray:
    """The covariate of cells with so many expected ``users``, (C,)."""
    return np.asarray(_CROWDING * np.log1p(users))


def _over_expected_users(
    bodies: Sequence[dict[str, Any]], now: NoisyCounts, users: Users, level: float, upper: float
) -> tuple[FloatArray, FloatArray]:
    """(Means, scales of Laplace noise of the same variance), (C,) each."""
    lower, width, left = _ranges(bodies, upper)
    # The numerator, taken around the middle of the range, where its noise and that of the count are not correlated.
    off_middle = (np.array([body["mean"]["raw"] for body in bodies]) - lower) / width - 0.5
    numerator = off_middle * np.maximum(now.counts, 1.0)
    expected = np.maximum(users.mean, _FEWEST)
    # Of users' values within the range none is further from its middle than half of it.
    square = np.minimum(np.square((level - lower) / width - 0.5) + np.square(_UNSURE * upper / width), 0.25)
    # Of polynomials of degree 1 and 2 with noise of variance v each, the half difference of the outer two has v/2.
    variance = now.variance / _numbers(bodies) / 2 + users.variance * square
    noise = np.hypot(width * np.sqrt(variance) / expected, left) / np.sqrt(2)
    scales = np.where(users.mean < _FEWEST, np.inf, noise)
    return lower + width * (0.5 + numerator / expected), scales


def _area_mean(area: dict[str, Any], users: Users, body: dict[str, Any], level: float, upper: float) -> AreaMean | None:
    """What the release of all cells together says about the mean of their expected ``users``; None if none are
    expected.

    The numerator is taken around the ``level``, so that little depends on how many users the cells have together.
    """
    total = float(users.mean.sum())
    if total < 1:
        return None
    count, middle = area["users"]["raw"], level / upper
    numerator = (area["mean"]["raw"] / upper - 0.5) * max(count, 1.0) + (0.5 - middle) * count
    each = _noise_variance(area["users"], body) / 2
    variance = each * ((1 - middle) ** 2 + middle**2) + float(users.variance.sum()) * _UNSURE**2
    mean, scale = upper * (middle + numerator / total), upper * float(np.sqrt(variance / 2)) / total
    return AreaMean(mean, scale, users.mean / total)


def _numbers(bodies: Sequence[dict[str, Any]]) -> int:
    """How many noisy numbers each count is the sum of."""
    return 3 if "variance" in bodies[0] else 2


def _counted(bodies: Sequence[dict[str, Any]], numbers: int) -> NoisyCounts:
    """The noisy counts in the bodies, each a sum of so many noisy numbers."""
    counted = [body.get("events", body["users"]) for body in bodies]
    counts = np.array([count["raw"] for count in counted], dtype=np.float64)
    normal = bodies[0].get("accounting") == "zcdp"
    return NoisyCounts(counts, _noise_variance(counted[0], bodies[0]), np.inf if normal else numbers)


def noise_variance(estimate: dict[str, Any], body: dict[str, Any]) -> float:
    """Variance of the noise of a released ``estimate`` in the window of this ``body``."""
    normal = body.get("accounting") == "zcdp"
    return float(estimate["scale"]) ** 2 * (1 if normal else 2)


def _noise_variance(count: dict[str, Any], body: dict[str, Any]) -> float:
    """The same of a ``count``, above 0."""
    return max(noise_variance(count, body), _LEAST_VARIANCE)


def _ranges(bodies: Sequence[dict[str, Any]], upper: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Lower ends, widths) of the ranges of which means are shares, and what clipping leaves open, (C,) each."""
    whole = {"stretched": {"lower": 0.0, "upper": upper, "open": 0.0}}
    ranges = [body.get("clipping", whole)["stretched"] for body in bodies]
    lower, end, left = np.array([[each[name] for name in ("lower", "upper", "open")] for each in ranges]).T
    return lower, end - lower, left


def modelled_percentiles(
    bodies: Sequence[dict[str, Any]], means: Mapping[str, Derived], upper: float
) -> dict[str, Derived]:
    """The modelled percentiles of the ``bodies`` of a window, (C,) each, by name; 0 for bodies without a release.

    They depend on variances and means as published, and on what ``means``, which earlier bodies may have a part in,
    made of the latter: the modelled mean counts, else the released one. ``upper``: U in km/h. They have no interval,
    because no release says how far speeds are from the model's law.
    """
    places = np.array([g for g, body in enumerate(bodies) if "variance" in body], dtype=np.int64)
    released = [bodies[g] for g in places]
    leading = means.get("mean")
    mean = np.array([body["mean"]["value"] for body in released]) if leading is None else leading.value[places]
    variances = np.array([body["variance"]["raw"] for body in released], dtype=np.float64)
    deviations = np.sqrt(np.array([noise_variance(body["variance"], body) for body in released], dtype=np.float64))
    table = np.zeros((len(PERCENTS), len(bodies)))
    table[:, places] = percentiles(
        mean, shrunken_variances(variances, deviations), upper=upper, percents=tuple(PERCENTS.values())
    )
    return {name: Derived(CLIPPED_NORMAL, column) for name, column in zip(PERCENTS, table, strict=True)}
