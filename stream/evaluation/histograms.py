"""Compares spatial histograms of a recording with true counts, so that an operator can choose their ε. Not private."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import get_args

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray
from dpcore.budget import from_micro
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.euler import EulerHistogram
from dpcore.spatial.range_noise import Intervals
from dpcore.spatial.regions import Footprints
from dpcore.spatial.release import Released
from stream.config import Config
from stream.config.loading import with_section
from stream.evaluation.evaluate import planned_windows
from stream.evaluation.scores import Family, HistogramScore
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.histograms.histograms import domain_of, draw_histograms, region_domain, regions_of
from stream.terms import HistogramTerms

FAMILIES: tuple[Family, ...] = get_args(Family)
RANGES = 300
"""Number of ranges in each family."""
SQUARE_SHARES = (0.02, 0.06, 0.10)
"""Areas of the squares, as shares of the box."""
SANITY = 20.0
"""Least divisor of relative errors, as in the literature: error / max(truth, 20)."""
CLASSES = (0, 1, 6, 21, 101)
"""Least true count of each class for which coverage is reported, as small numbers need right intervals, too."""
_SEED = 11


@dataclass
class _Answers:
    """Columns of one mechanism and family: one row a range and draw, shape (Q,) each."""

    epsilon: int
    truth: list[FloatArray] = field(default_factory=list)
    error: list[FloatArray] = field(default_factory=list)
    low: list[FloatArray] = field(default_factory=list)
    high: list[FloatArray] = field(default_factory=list)

    def add(self, histogram: Released, ranges: Rectangles, truth: FloatArray) -> None:
        """What ``histogram`` answers to ``ranges``, beside their true counts."""
        self.truth.append(truth)
        self.error.append(histogram.answers(ranges) - truth)
        intervals = histogram.intervals(ranges)
        if intervals is not None:
            self.low.append(intervals.low)
            self.high.append(intervals.high)


class _Questions:
    """The ranges that are asked of every histogram of one window, and their true counts."""

    def __init__(self, plan: HistogramTerms, fixes: Fixes) -> None:
        self._plan, self._fixes = plan, fixes
        self._ranges = {family: _ranges(family, domain_of(plan)) for family in FAMILIES}
        self._truth = {family: _inside(plan, fixes, ranges) for family, ranges in self._ranges.items()}

    def to(self, histogram: Released, family: Family) -> tuple[Rectangles, FloatArray]:
        """Ranges in the cells that ``histogram`` counts in, and what it is to answer: regions for euler, else fixes."""
        ranges = self._ranges[family]
        if not isinstance(histogram, EulerHistogram):
            return ranges, self._truth[family]
        met = _cells_met(ranges, domain_of(self._plan), histogram.domain)
        return met, _met(self._plan, self._fixes, met)


def with_histogram_epsilon(config: Config, epsilon: float) -> Config:
    """``config`` with another epsilon of its histograms, its budget in proportion to what a window costs.

    Raises :class:`stream.config.ConfigError` for an epsilon that a configuration may not have.
    """
    assert config.histogram is not None
    given = config.histogram.model_dump(exclude_unset=True) | {"epsilon": epsilon}
    changed = with_section(config, "histogram", given)
    privacy = config.privacy
    keys = privacy.keys_for(privacy.ledger_grant, privacy.ledger_budget * changed.window_grant // config.window_grant)
    return with_section(changed, "privacy", privacy.model_dump(by_alias=True) | keys)


def evaluate_histograms(
    config: Config, windows: dict[int, npt.NDArray[np.void]], trials: int, on_window: Callable[[], None] = lambda: None
) -> list[HistogramScore]:
    """Score the configured histograms over ``windows`` (slot -> rows), ``trials`` draws each.

    The truth of a range: users whose representative fixes lie in it, all users, no grid; for euler, users whose region
    meets its cells. Ranges are random corners, and squares of 2, 6 and 10 % of the box.
    """
    started = time.monotonic()
    answers: dict[tuple[str, Family], _Answers] = {}
    totals: list[int] = []
    for planned in planned_windows(config, windows):
        plan, fixes = planned.plan.terms.histogram, planned.fixes
        if plan is None or fixes is None:
            break
        totals.append(len(fixes.users))
        questions = _Questions(plan, fixes)
        for drawn in (drawn for _ in range(trials) for drawn in draw_histograms(planned.plan, fixes, Noise())):
            for family in FAMILIES:
                table = answers.setdefault((drawn.mechanism, family), _Answers(drawn.epsilon_micro))
                table.add(drawn.histogram, *questions.to(drawn.histogram, family))
        on_window()
    seconds = time.monotonic() - started
    return [
        _score(mechanism, family, table, float(np.mean(totals)), len(totals), seconds)
        for (mechanism, family), table in sorted(answers.items())
    ]


def _score(
    mechanism: str, family: Family, table: _Answers, counted: float, windows: int, seconds: float
) -> HistogramScore:
    truth, error = np.concatenate(table.truth), np.concatenate(table.error)
    hold, width = None, None
    # Some draws may have no intervals: Euler's inference may fail, and its draws are released as they are.
    if len(table.low) == len(table.truth):
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


def by_class(truth: FloatArray, hold: BoolArray) -> dict[str, float]:
    """Share of the ranges of each of :data:`CLASSES` whose interval holds their number."""
    shares = {}
    for least, following in pairwise((*CLASSES, np.inf)):
        at = (truth >= least) & (truth < following)
        name = f"{least:g}" if following == least + 1 else f"{least:g} and more" if following == np.inf else ""
        if at.any():
            shares[name or f"{least:g} to {following - 1:g}"] = float(hold[at].mean())
    return shares


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


def _inside(plan: HistogramTerms, fixes: Fixes, ranges: Rectangles) -> FloatArray:
    points = fixes.representatives(plan.fixes_per_user).points
    x, y = domain_of(plan).cell_coordinates(points[:, 0], points[:, 1])
    sides = zip(ranges.x0, ranges.x1, ranges.y0, ranges.y1, strict=True)
    return np.array([np.count_nonzero((x >= a) & (x < b) & (y >= c) & (y < d)) for a, b, c, d in sides])


def _cells_met(ranges: Rectangles, points: Domain, regions: Domain) -> Rectangles:
    """The whole cells of the grid of regions that each range meets."""
    x, y = regions.rows / points.rows, regions.columns / points.columns
    return Rectangles(np.floor(ranges.x0 * x), np.ceil(ranges.x1 * x), np.floor(ranges.y0 * y), np.ceil(ranges.y1 * y))


def _met(plan: HistogramTerms, fixes: Fixes, ranges: Rectangles) -> FloatArray:
    """Regions of all users that meet each range of whole cells, shape (Q,)."""
    assert plan.regions is not None
    metres = region_domain(plan)
    components = Footprints.of(regions_of(plan, fixes), metres, plan.regions.diameter_m).total()
    return EulerHistogram(metres, components, 0.0, "covert").answers(ranges)
