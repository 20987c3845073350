"""Spatial histograms of a window: plan, draw, message body. Each protects participation, under either relation.

A user who pays contributes at most ``fixes_per_user`` fixes to every histogram, and one region to "euler", or the last
``regions_per_user`` that they declared, chosen from their own rows; "euler" has the noise of so many. All histograms use
the same users, so their shares of ε add up. A user pays for all of them or takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.budget import from_micro
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    E2EPriv,
    Histogram,
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
from dpcore.spatial.euler import Euler
from dpcore.spatial.regions import Regions, extract_regions
from dpcore.spatial.release import Released, rounded
from stream.config import Config
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.plan import HistogramPlan, Plan, PlanError, RegionPlan
from stream.windows import utc_text

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]

_TUNING_SEED = 7
"""Public seed of the tuning queries, which contain no data."""


@dataclass(frozen=True)
class DrawnHistogram:
    """One released histogram, its budget in µε, and how many fixes of a user it counts: 1 where it counts ``regions``."""

    mechanism: str
    epsilon_micro: int
    fixes_per_user: int
    histogram: Released
    regions: RegionPlan | None = None


def plan_histograms(fixes: Fixes | None, config: Config) -> HistogramPlan | None:
    """The plan of the histograms, from the configuration; None without ``[histogram]``. Raises :class:`PlanError`."""
    settings = config.histogram
    if settings is None:
        return None
    if fixes is None:
        raise PlanError(
            "the configuration has histograms, but the fixes of the window are missing; nothing was planned"
        )
    box, euler = settings.domain or config.feed.domain, settings.euler
    return HistogramPlan(
        mechanisms=tuple(settings.epsilons_micro),
        epsilons=tuple(settings.epsilons_micro.values()),
        epsilon_micro=settings.epsilon_micro,
        cost=config.histogram_grant,
        goal=settings.goal,
        fixes_per_user=settings.fixes_per_user,
        south=box.south,
        west=box.west,
        north=box.north,
        east=box.east,
        rows=settings.rows,
        columns=settings.columns,
        sizes=settings.grid_sizes,
        tuning_queries=settings.tuning_queries,
        regions=None if euler is None else RegionPlan(**euler.model_dump()),
        fixes_digest=fixes.digest,
        tuning_areas=() if settings.e2epriv is None else settings.e2epriv.tuning_areas,
        parameters=settings.parameters,
    )


def asked_of(plan: HistogramPlan, fixes: Fixes | None, users: IdArray) -> IntArray:
    """The charge of each of ``users`` for the histograms: the whole cost if they have a fix in the box, else 0; shape
    (L,).
    """
    present = np.isin(users, fixes.users) if fixes is not None else np.zeros(len(users), dtype=bool)
    return np.where(present, plan.cost, 0)


def contributing(plan: Plan, fixes: Fixes | None) -> Fixes:
    """The fixes of users whose charge covers the histograms. Raises :class:`PlanError` if the fixes are not those planned."""
    if plan.histogram is None or fixes is None or fixes.digest != plan.histogram.fixes_digest:
        raise PlanError(
            f"the fixes of window {utc_text(plan.window.start)} changed after they were planned; nothing was drawn. "
            "Restore Redis from its append-only file"
        )
    users, charges = plan.charged_users()
    return fixes.of(users[charges >= plan.histogram.cost])


def draw_histograms(plan: Plan, fixes: Fixes | None, noise: Noise) -> list[DrawnHistogram]:
    """Draw every histogram of the plan, ordered by name. Raises :class:`PlanError` if the fixes are not those planned."""
    settings = plan.histogram
    if settings is None:
        return []
    mine = contributing(plan, fixes)
    drawn: list[DrawnHistogram] = []
    released: Histogram
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


def domain_of(plan: HistogramPlan) -> Domain:
    """The public box and its grid, in degrees."""
    return Domain(plan.south, plan.west, plan.north, plan.east, plan.rows, plan.columns)


def exact_counts(plan: HistogramPlan, fixes: Fixes) -> IntGrid:
    """True number of representative fixes per cell, shape (rows, columns). Never publish it."""
    return domain_of(plan).count(fixes.representatives(plan.fixes_per_user).points).counts


def region_domain(plan: HistogramPlan) -> Domain:
    """The box with the grid of regions, in metres from its south-west corner (equirectangular)."""
    assert plan.regions is not None
    return replace(domain_of(plan), rows=plan.regions.rows, columns=plan.regions.columns).in_metres()


def regions_of(plan: HistogramPlan, fixes: Fixes) -> Regions:
    """The region of each user, or at most ``regions_per_user`` that each declared, in metres on :func:`region_domain`.

    Raises :class:`PlanError` for a plan of declared regions and fixes without corners.
    """
    assert plan.regions is not None
    regions = plan.regions
    if regions.origin == "declared":
        if fixes.corners is None:
            raise PlanError(
                "the plan counts declared regions, but the corners of the window are missing; nothing was drawn"
            )
        x, y = _in_metres(plan, fixes.corners.points)
        return fixes.corners.regions(x, y, diameter=regions.diameter_m, per_user=regions.regions_per_user)
    x, y = _in_metres(plan, fixes.points)
    user = np.searchsorted(fixes.users, fixes.user)
    beyond = regions.diameter_m if regions.outliers == "discard" else math.inf
    return extract_regions(user, x, y, nearest=regions.nearest, bandwidth=regions.bandwidth_m, discard_beyond=beyond)


def _in_metres(plan: HistogramPlan, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``points`` in degrees, (n, 2), on :func:`region_domain`."""
    domain = region_domain(plan)
    latitude, longitude = points.T
    degrees = domain_of(plan)
    north, east = degrees.offsets(latitude, longitude)
    return north * (domain.north / (plan.north - plan.south)), east * (domain.east / degrees.width)


def _draw_regions(plan: HistogramPlan, fixes: Fixes, epsilon: int, noise: Noise) -> Histogram:
    assert plan.regions is not None
    metres = region_domain(plan)
    regions = plan.regions
    euler = Euler(regions.diameter_m, regions.regions_per_user, regions.inference, regions.total_share)
    released = euler.fit(regions_of(plan, fixes), metres, epsilon, noise)
    return replace(released, domain=replace(domain_of(plan), rows=plan.regions.rows, columns=plan.regions.columns))


def mechanism_of(name: str, plan: HistogramPlan) -> SpatialMechanism:
    """The mechanism of that name with the plan's parameters."""
    given = plan.parameters.get(name, {})
    if name == "e2epriv":
        return E2EPriv(plan.sizes, _tuning_queries(plan), **given)
    mechanisms: dict[str, Callable[[], SpatialMechanism]] = {
        "auto": lambda: Auto(plan.goal),
        "uniform": Uniform,
        "singular": Singular,
        "ug": UniformGrid,
        "ag": AdaptiveGrid,
        "quadtree": lambda: QuadTree(**given),
        "kdtree": lambda: KdTree(**given),
        "privlet": Privlet,
        "htf": lambda: HTF(goal=plan.goal, **given),
        "sparse": lambda: SparseHierarchy(goal=plan.goal),
    }
    return mechanisms[name]()


def _tuning_queries(plan: HistogramPlan) -> Rectangles:
    """Random rectangles of whole cells, the same in every window; squares of the configured shares of the box, if any."""
    rng = np.random.default_rng(_TUNING_SEED)
    if plan.tuning_areas:
        side = np.sqrt(np.resize(np.array(plan.tuning_areas), plan.tuning_queries))[:, None]
        shape = np.array([plan.rows, plan.columns])
        lengths = np.maximum(np.rint(side * shape), 1).astype(np.int64)
        low = rng.integers(0, shape - lengths + 1)
        return Rectangles(low[:, 0], (low + lengths)[:, 0], low[:, 1], (low + lengths)[:, 1])
    corners = rng.integers(0, [plan.rows, plan.columns], (plan.tuning_queries, 2, 2))
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
