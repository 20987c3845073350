"""Spatial histograms of a window: plan, draw, message body. Each protects participation, under either relation.

A user who pays contributes at most ``fixes_per_user`` fixes to every histogram, and one region to "euler", or the last
``regions_per_user`` that they declared, chosen from their own rows; "euler" has the noise of so many. All histograms
use the same users, so their shares of ε add up. A user pays for all of them or takes no part.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.budget import from_micro
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    E2EPriv,
    KdTree,
    Privlet,
    QuadTree,
    Rectangles,
    Singular,
    SparseHierarchy,
    SpatialMechanism,
    Uniform,
    UniformGrid,
)
from dpcore.spatial.domain import IntGrid
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.regions import Regions, extract_regions
from dpcore.spatial.release import Released, rounded
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.plan import Plan, PlanError
from stream.terms import HistogramTerms, RegionTerms
from stream.windows import utc_text

_TUNING_SEED = 7
"""Public seed of the tuning queries, which contain no data."""


@dataclass(frozen=True)
class DrawnHistogram:
    """One released histogram, its budget in µε, and how many fixes of a user it counts: 1 with ``regions``."""

    mechanism: str
    epsilon_micro: int
    fixes_per_user: int
    histogram: Released
    regions: RegionTerms | None = None


class Asked(NamedTuple):
    """What a window's histograms ask of each user, in the ledger's unit, (L,), and the digest of all fixes."""

    charges: IntArray
    fixes_digest: str


def asked_by(terms: HistogramTerms | None, fixes: Fixes | None, users: IdArray) -> Asked:
    """The charge of each of ``users``: the whole cost if they have a fix in the box, else 0. Raises
    :class:`PlanError`."""
    if terms is None:
        return Asked(np.zeros(len(users), dtype=np.int64), "")
    if fixes is None:
        raise PlanError("histograms are due, but the fixes of the window are missing; nothing was planned")
    return Asked(np.where(np.isin(users, fixes.users), terms.cost, 0), fixes.digest)


def contributing(plan: Plan, fixes: Fixes | None) -> Fixes:
    """The fixes of users whose charge covers the histograms. Raises :class:`PlanError` if the fixes are others."""
    terms = plan.terms.histogram
    if terms is None or fixes is None or fixes.digest != plan.fixes_digest:
        raise PlanError(
            f"the fixes of window {utc_text(plan.window.start)} changed after they were planned; nothing was drawn. "
            "Restore Redis from its append-only file"
        )
    users, charges = plan.charged_users()
    return fixes.of(users[charges >= terms.cost])


def draw_histograms(plan: Plan, fixes: Fixes | None, noise: Noise) -> list[DrawnHistogram]:
    """Draw every histogram of the plan, ordered by name. Raises :class:`PlanError` if the fixes are others."""
    settings = plan.terms.histogram
    if settings is None:
        return []
    mine = contributing(plan, fixes)
    drawn: list[DrawnHistogram] = []
    released: Released
    for name, epsilon in zip(settings.mechanisms, settings.epsilons, strict=True):
        if name == "euler":
            assert settings.regions is not None
            released = _draw_regions(settings, mine, epsilon, noise)
            drawn.append(DrawnHistogram(name, epsilon, 1, rounded(released), settings.regions))
        else:
            s, mechanism = settings.fixes_per_user, mechanism_of(name, settings)
            released = mechanism.fit(exact_counts(settings, mine), domain_of(settings), epsilon, noise, s)
            drawn.append(DrawnHistogram(name, epsilon, s, rounded(released)))
    return drawn


def domain_of(terms: HistogramTerms) -> Domain:
    """The public box and its grid, in degrees."""
    box = terms.box
    return Domain(box.south, box.west, box.north, box.east, terms.rows, terms.columns)


def exact_counts(terms: HistogramTerms, fixes: Fixes) -> IntGrid:
    """True number of representative fixes per cell, shape (rows, columns). Never publish it."""
    return domain_of(terms).count(fixes.representatives(terms.fixes_per_user).points).counts


def region_domain(terms: HistogramTerms) -> Domain:
    """The box with the grid of regions, in metres from its south-west corner (equirectangular)."""
    assert terms.regions is not None
    return replace(domain_of(terms), rows=terms.regions.rows, columns=terms.regions.columns).in_metres()


def regions_of(terms: HistogramTerms, fixes: Fixes) -> Regions:
    """The region of each user, or at most ``regions_per_user`` that each declared, in metres on :func:`region_domain`.

    Raises :class:`PlanError` for declared regions and fixes without corners.
    """
    assert terms.regions is not None
    regions = terms.regions
    if regions.origin == "declared":
        if fixes.corners is None:
            raise PlanError(
                "the plan counts declared regions, but the corners of the window are missing; nothing was drawn"
            )
        x, y = _in_metres(terms, fixes.corners.points)
        return fixes.corners.regions(x, y, diameter=regions.diameter_m, per_user=regions.regions_per_user)
    x, y = _in_metres(terms, fixes.points)
    user = np.searchsorted(fixes.users, fixes.user)
    beyond = regions.diameter_m if regions.outliers == "discard" else math.inf
    return extract_regions(user, x, y, nearest=regions.nearest, bandwidth=regions.bandwidth_m, discard_beyond=beyond)


def _in_metres(terms: HistogramTerms, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``points`` in degrees, (n, 2), on :func:`region_domain`."""
    domain, box = region_domain(terms), terms.box
    latitude, longitude = points.T
    degrees = domain_of(terms)
    north, east = degrees.offsets(latitude, longitude)
    return north * (domain.north / (box.north - box.south)), east * (domain.east / degrees.width)


def _draw_regions(terms: HistogramTerms, fixes: Fixes, epsilon: int, noise: Noise) -> EulerHistogram:
    assert terms.regions is not None
    metres = region_domain(terms)
    regions = terms.regions
    euler = Euler(regions.diameter_m, regions.regions_per_user, regions.inference, regions.total_share)
    released = euler.fit(regions_of(terms, fixes), metres, epsilon, noise)
    return replace(released, domain=replace(domain_of(terms), rows=terms.regions.rows, columns=terms.regions.columns))


def mechanism_of(name: str, terms: HistogramTerms) -> SpatialMechanism:
    """The mechanism of that name with the parameters of the terms."""
    given = terms.parameters(name)
    if name == "e2epriv":
        return E2EPriv(terms.sizes, _tuning_queries(terms), **given)
    mechanisms: dict[str, Callable[[], SpatialMechanism]] = {
        "auto": lambda: Auto(terms.goal),
        "uniform": Uniform,
        "singular": Singular,
        "ug": UniformGrid,
        "ag": AdaptiveGrid,
        "quadtree": lambda: QuadTree(**given),
        "kdtree": lambda: KdTree(**given),
        "privlet": Privlet,
        "htf": lambda: HTF(goal=terms.goal, **given),
        "sparse": lambda: SparseHierarchy(goal=terms.goal),
    }
    return mechanisms[name]()


def _tuning_queries(terms: HistogramTerms) -> Rectangles:
    """Random rectangles of whole cells, the same in every window; squares of configured shares of the box, if any."""
    rng = np.random.default_rng(_TUNING_SEED)
    if terms.tuning_areas:
        side = np.sqrt(np.resize(np.array(terms.tuning_areas), terms.tuning_queries))[:, None]
        shape = np.array([terms.rows, terms.columns])
        lengths = np.maximum(np.rint(side * shape), 1).astype(np.int64)
        low = rng.integers(0, shape - lengths + 1)
        return Rectangles(low[:, 0], (low + lengths)[:, 0], low[:, 1], (low + lengths)[:, 1])
    corners = rng.integers(0, [terms.rows, terms.columns], (terms.tuning_queries, 2, 2))
    low, high = corners.min(axis=1), corners.max(axis=1) + 1
    return Rectangles(low[:, 0], high[:, 0], low[:, 1], high[:, 1])


def histogram_body(drawn: DrawnHistogram, feed: str, window: dict[str, str]) -> dict[str, Any]:
    """The body of the message."""
    body: dict[str, Any] = {
        "feed": feed,
        "window": window,
        "relation": "participation",
        "epsilon": from_micro(drawn.epsilon_micro),
        "mechanism": drawn.mechanism,
        "fixes_per_user": drawn.fixes_per_user,
    }
    regions = drawn.regions
    if regions is not None and regions.origin == "declared":
        body["declared_regions"] = {"diameter_m": regions.diameter_m, "per_user": regions.regions_per_user}
    elif regions is not None:
        body["regions"] = {
            "nearest": regions.nearest,
            "diameter_m": regions.diameter_m,
            "bandwidth_m": regions.bandwidth_m,
        }
        if regions.outliers == "discard":
            body["regions"]["outliers"] = regions.outliers
    return body | drawn.histogram.to_release()
