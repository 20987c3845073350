"""Error of spatial histograms against the truth, over a recording: how an operator chooses their ε. Not private."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpcore.budget import from_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.euler import EulerHistogram
from dpcore.spatial.intervals import Intervals
from dpcore.spatial.regions import Footprints
from stream.config import Config
from stream.config.histogram import HistogramConfig
from stream.evaluation.evaluate import planned_windows
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.histograms.histograms import domain_of, draw_histograms, region_domain, regions_of
from stream.statistics.plan import HistogramPlan

FloatArray = npt.NDArray[np.float64]
Family = Literal["random", "square"]

FAMILIES: tuple[Family, ...] = get_args(Family)
RANGES = 300
"""Ranges per family."""
SQUARE_SHARES = (0.02, 0.06, 0.10)
"""Of the box: areas of the squares."""
SANITY = 20.0
"""Smoothing of relative errors, as the literature has it: error / max(truth, 20)."""
CLASSES = (0, 1, 6, 21, 101)
"""Least true count of each class in which coverage is told: an interval must hold small numbers as often as large ones."""
_SEED = 11


@dataclass(frozen=True)
class HistogramScore:
    """Error of one mechanism's answers over all windows and draws. ``width``: median of 95 % intervals. ``coverage``: share of
    them that hold the truth; ``covered``: the same by class of true counts, where there are any. None without intervals.
    """

    mechanism: str
    ranges: Family
    epsilon: float
    mae: float
    relative: float
    relative_median: float
    width: float | None
    coverage: float | None
    covered: dict[str, float]
    counted: float
    windows: int
    seconds: float


@dataclass
class _Answers:
    """Columns of one mechanism and family."""

    epsilon: int
    truth: list[FloatArray] = field(default_factory=list)
    error: list[FloatArray] = field(default_factory=list)
    low: list[FloatArray] = field(default_factory=list)
    high: list[FloatArray] = field(default_factory=list)


def with_histogram_epsilon(config: Config, epsilon: float) -> Config:
    """``config`` with another epsilon of its histograms, its budget in proportion to what a window costs."""
    assert config.histogram is not None
    changed = config.model_copy(
        update={"histogram": HistogramConfig(**(config.histogram.model_dump() | {"epsilon": epsilon}))}
    )
    privacy, ratio = config.privacy, changed.window_grant / config.window_grant
    name = "budget" if privacy.rho_budget is None else "rho_budget"
    given = privacy.model_dump(by_alias=True)
    return changed.model_copy(update={"privacy": type(privacy)(**(given | {name: given[name] * ratio}))})


def evaluate_histograms(
    config: Config,
    windows: dict[int, npt.NDArray[np.void]],
    trials: int,
    on_window: Callable[[], None] = lambda: None,
) -> list[HistogramScore]:
    """Score the configured histograms over ``windows`` (slot -> rows), ``trials`` draws each.

    The truth of a range: users whose representative fixes lie in it, all users, no grid; for euler, users whose region
    meets its cells. Ranges are random corners, and squares of 2, 6 and 10 % of the box.
    """
    started = time.monotonic()
    found: dict[tuple[str, Family], _Answers] = {}
    totals: list[int] = []
    for planned in planned_windows(config, windows):
        plan, fixes = planned.plan.histogram, planned.fixes
        if plan is None or fixes is None:
            break
        totals.append(len(fixes.users))
        asked = {family: _ranges(family, domain_of(plan)) for family in FAMILIES}
        exact = {family: _inside(plan, fixes, ranges) for family, ranges in asked.items()}
        for _ in range(trials):
            for drawn in draw_histograms(planned.plan, fixes, Noise()):
                for family, ranges in asked.items():
                    truth, put = exact[family], ranges
                    if isinstance(drawn.histogram, EulerHistogram):
                        put = _cells_met(ranges, domain_of(plan), drawn.histogram.domain)
                        truth = _met(plan, fixes, put)
                    table = found.setdefault((drawn.mechanism, family), _Answers(drawn.epsilon_micro))
                    table.truth.append(truth)
                    table.error.append(drawn.histogram.answers(put) - truth)
                    intervals = drawn.histogram.intervals(put)
                    if intervals is not None:
                        table.low.append(intervals.low)
                        table.high.append(intervals.high)
        on_window()
    seconds = time.monotonic() - started
    return [
        _score(mechanism, family, table, float(np.mean(totals)), len(totals), seconds)
        for (mechanism, family), table in sorted(found.items())
    ]


def _score(
    mechanism: str, family: Family, table: _Answers, counted: float, windows: int, seconds: float
) -> HistogramScore:
    truth, error = np.concatenate(table.truth), np.concatenate(table.error)
    hold, width = None, None
    if len(table.low) == len(
        table.truth
    ):  # else some draws gave none: Euler's inference may fail and release its draws
        intervals = Intervals(np.concatenate(table.low), np.concatenate(table.high))
        hold, width = intervals.hold(truth), float(np.median(intervals.high - intervals.low))
    relative = np.abs(error) / np.maximum(truth, SANITY)
    return HistogramScore(
        mechanism=mechanism,
        ranges=family,
        epsilon=from_micro(table.epsilon),
        mae=float(np.abs(error).mean()),
        relative=float(relative.mean()),
        relative_median=float(np.median(relative)),
        width=width,
        coverage=None if hold is None else float(hold.mean()),
        covered={} if hold is None else by_class(truth, hold),
        counted=counted,
        windows=windows,
        seconds=seconds,
    )


def by_class(truth: FloatArray, hold: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Share of the ranges of each of :data:`CLASSES` whose interval holds their number."""
    found = {}
    for least, following in pairwise((*CLASSES, np.inf)):
        at = (truth >= least) & (truth < following)
        name = f"{least:g}" if following == least + 1 else f"{least:g} and more" if following == np.inf else ""
        if at.any():
            found[name or f"{least:g} to {following - 1:g}"] = float(hold[at].mean())
    return found


def _ranges(family: Family, domain: Domain) -> Rectangles:
    """The same ranges in every window, in cell units."""
    rng = np.random.default_rng(_SEED)
    if family == "random":
        x, y = (np.sort(rng.uniform(0, size, (RANGES, 2)), axis=1) for size in domain.shape)
        return Rectangles(x[:, 0], x[:, 1], y[:, 0], y[:, 1])
    side = np.sqrt(np.resize(SQUARE_SHARES, RANGES))
    low = rng.uniform(0, 1, (2, RANGES)) * (1 - side)
    return Rectangles(
        low[0] * domain.rows, (low[0] + side) * domain.rows, low[1] * domain.columns, (low[1] + side) * domain.columns
    )


def _inside(plan: HistogramPlan, fixes: Fixes, ranges: Rectangles) -> FloatArray:
    """Representative fixes of all users in each range, shape (Q,)."""
    points = fixes.representatives(plan.fixes_per_user).points
    x, y = domain_of(plan).cell_coordinates(points[:, 0], points[:, 1])
    return np.array([np.count_nonzero((x >= a) & (x < b) & (y >= c) & (y < d)) for a, b, c, d in _columns(ranges)])


def _columns(ranges: Rectangles) -> Iterator[tuple[float, float, float, float]]:
    return zip(ranges.x0, ranges.x1, ranges.y0, ranges.y1, strict=True)


def _cells_met(ranges: Rectangles, points: Domain, regions: Domain) -> Rectangles:
    """The whole cells of the grid of regions that each range meets."""
    x, y = regions.rows / points.rows, regions.columns / points.columns
    return Rectangles(np.floor(ranges.x0 * x), np.ceil(ranges.x1 * x), np.floor(ranges.y0 * y), np.ceil(ranges.y1 * y))


def _met(plan: HistogramPlan, fixes: Fixes, ranges: Rectangles) -> FloatArray:
    """Regions of all users that meet each range of whole cells, shape (Q,)."""
    assert plan.regions is not None
    metres = region_domain(plan)
    components = Footprints.of(regions_of(plan, fixes), metres, plan.regions.diameter_m).total()
    return EulerHistogram(metres, components, 0.0, "covert").answers(ranges)
