"""Scores of estimators, computed from columns of errors. NOT PRIVATE: errors are computed from true values.

Whether the intervals of means hold the truth, judged cell by cell. NOT PRIVATE: it is computed from true values.

Weighted by events, or pooled over cells, a few cells whose intervals always miss do not show. A hexagon of a motorway
is such a cell: most of its speeds are above ``value.upper``, so the clipped mean, which is released, is far below the
mean. So every cell is judged by both: the mean of its clipped speeds, and that of its speeds as they were measured.
"""

from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from dpcore.arrays import BoolArray, FloatArray, IdArray, IntArray
from dpcore.contributions import Contributions
from stream.config.value import ValueConfig
from stream.messages.message import cell_text
from stream.terms import QUANTUM

_ROUNDING = 1e-9
"""Tolerance for floats: a number this close to the end of an interval counts as inside."""


@dataclass(frozen=True)
class CellCoverage:
    """One cell over windows and draws: number of ``releases`` and ``events`` of all of them; means over events, in
    km/h, of the ``shown`` value, of ``clipped`` and of ``measured`` speeds; shares of 95 % intervals that hold the mean
    of either.
    """

    cell: str
    releases: int
    events: int
    shown: float
    clipped: float
    measured: float
    covers_clipped: float
    covers_measured: float


class Verdicts:
    """Rows (cell, events, shown, clipped, measured, covers clipped, covers measured) of windows and draws in turn."""

    def __init__(self) -> None:
        self._cells: list[IdArray] = []
        self._rows: list[FloatArray] = []

    def add(
        self, cells: IdArray, events: FloatArray, shown: FloatArray, interval: FloatArray, truths: FloatArray
    ) -> None:
        """Released ``cells`` (n,) with the ``interval`` as it is released, (2, n), and ``truths`` (2, n): the mean of
        clipped and of measured speeds, in km/h.
        """
        low, high = interval
        covers = (low - _ROUNDING <= truths) & (truths <= high + _ROUNDING)
        self._cells.append(cells)
        self._rows.append(np.stack([events, shown, *truths, *covers.astype(np.float64)]))

    def by_cell(self) -> tuple[CellCoverage, ...]:
        """Every cell, those first whose intervals miss the measured mean most often, the busiest of equals."""
        if not self._cells:
            return ()
        cells, index = np.unique(np.concatenate(self._cells), return_inverse=True)
        events, shown, clipped, measured, *covers = np.concatenate(self._rows, axis=1)

        def summed(column: FloatArray) -> FloatArray:
            return np.asarray(np.bincount(index, weights=column, minlength=len(cells)), dtype=np.float64)

        releases, total = np.bincount(index, minlength=len(cells)), summed(events)
        means = [summed(column * events) / total for column in (shown, clipped, measured)]
        shares = [summed(column) / releases for column in covers]
        order = np.lexsort((-total, shares[1]))
        columns = (cells, releases, total.astype(np.int64), *means, *shares)
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        return tuple(CellCoverage(cell_text(cell), *numbers) for cell, *numbers in rows)


def means_of(contributions: Contributions) -> FloatArray:
    """The mean over samples of each cell, shape (C,), in km/h."""
    counts = contributions.counts
    return contributions.cell_sums() * QUANTUM / counts.by_cell(counts.samples)


Family = Literal["random", "square"]
"""Families of ranges: random corners, or squares with a share of the box's area."""

USEFUL_KMH = 5.0
"""A value within this many km/h of the truth is useful."""
USEFUL_SHARE = 1 / 13
"""The same of another value than a speed, as a share of its range."""


def useful_error(value: ValueConfig) -> float:
    """Error up to which a value is useful, in its unit."""
    return USEFUL_KMH if value.is_speed else USEFUL_SHARE * (value.upper - value.lower)


_OF_NO_VALUE = ("variance", "distribution")
"""Statistics whose errors are not in the unit of the value."""


@dataclass(frozen=True)
class Charges:
    """Distribution of the charges of users over windows, in integer units of the ledger (``unit``: µε or nρ)."""

    unit: str
    least: int
    p5: float
    median: float
    p95: float
    most: int

    @classmethod
    def of(cls, charges: IntArray, unit: str) -> Self:
        """Summary of all charges (n,), users who took no part included at 0."""
        if not len(charges):
            return cls(unit, 0, 0.0, 0.0, 0.0, 0)
        p5, median, p95 = np.percentile(charges, [5, 50, 95]).tolist()
        return cls(unit, int(charges.min()), p5, median, p95, int(charges.max()))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the scores of one run share. ``useful``: error up to which a value is useful, in its ``unit``. ``cells``,
    ``events``: of all windows, once for all trials, released or not. ``duality_gap``: largest relative distance of the
    noise scales' objective to its proved lower bound. ``plans``: windows by what their plans retained; ``most_cells``:
    most cells of one user before and after, in the window where they are most. ``seconds``: wall time of all trials.
    """

    mechanism: str
    unit: str
    useful: float
    epsilon: float
    trials: int
    windows: int
    cells: int
    events: int
    charges: Charges
    duality_gap: float | None
    plans: dict[str, int]
    most_cells: tuple[int, int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Score(Run):
    """Event-weighted errors of one estimator of one statistic, over all windows and trials, in ``unit``.

    ``statistic`` "distribution": the error is the Kolmogorov distance of the released distribution. ``mae``, ``rmse``,
    ``bias``: of the clamped value, over the events in cells that have one; None if none has. ``released``: share of
    all events that are in such cells. ``noise``: mean absolute noise. ``worst_error``: the largest worst-case error E
    that a release states, the bound of its bias plus its noise. ``coverage``: share of cells whose 95 % interval holds
    what noise was added to; of modelled values, the truth. ``useful_coverage``: share of all events that are in cells
    whose value is within ``useful`` of the truth, ``useful_cells``: share of all cells with events; what has no value
    counts as missed. ``map``: error of each cell, ``cell_coverage``: whether the intervals of each cell hold the truth,
    the worst cells first (both of means only).
    """

    statistic: str
    estimator: str
    mae: float | None
    rmse: float | None
    bias: float | None
    released: float
    noise: float | None
    worst_error: float | None
    coverage: float | None
    useful_coverage: float | None
    useful_cells: float | None
    cell_coverage: tuple[CellCoverage, ...] = field(repr=False)


@dataclass(frozen=True)
class HistogramScore:
    """Error of one mechanism's answers over all windows and draws. ``width``: median of 95 % intervals. ``coverage``:
    share of them that hold the truth; ``covered``: the same by class of true counts, where there are any. None without
    intervals.
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


class Errors:
    """Columns of one estimator over windows and trials: error, weight; noise; covered."""

    def __init__(self) -> None:
        self.error: list[FloatArray] = []
        self.weight: list[FloatArray] = []
        self.noise: list[FloatArray] = []
        self.noise_weight: list[FloatArray] = []
        self.covered: list[BoolArray] = []
        self.verdicts = Verdicts()
        self.worst_error: float | None = None

    def add(self, error: FloatArray, weight: FloatArray) -> None:
        """Errors (n,) of cells, weighted by their events; without truth they are no numbers and left out."""
        known = np.isfinite(error)
        self.error.append(error[known])
        self.weight.append(weight[known])

    def add_worst_error(self, worst: float) -> None:
        """The largest worst-case error that a window states."""
        self.worst_error = max(worst, self.worst_error or 0.0)

    def add_noise(self, noise: FloatArray, weight: FloatArray) -> None:
        """Noise (n,) of as many cells."""
        self.noise.append(np.abs(noise))
        self.noise_weight.append(weight)

    def score(self, statistic: str, estimator: str, run: Run) -> Score:
        """The sums. ``run`` says how many events and cells there are, of which those without a value are missed."""
        error, weight = np.concatenate(self.error), np.concatenate(self.weight)
        total, speeds = float(weight.sum()), statistic not in _OF_NO_VALUE
        share = weight / total if total else weight
        events, cells = (max(run.trials * number, 1) for number in (run.events, run.cells))
        useful = np.abs(error) <= run.useful
        unit = {"variance": f"({run.unit})^2", "distribution": "1"}.get(statistic, run.unit)
        return Score(
            **vars(run) | {"unit": unit},
            statistic=statistic,
            estimator=estimator,
            mae=float(share @ np.abs(error)) if total else None,
            rmse=float(np.sqrt(share @ np.square(error))) if total else None,
            bias=float(share @ error) if total else None,
            released=total / events,
            noise=self._noise(),
            worst_error=self.worst_error,
            coverage=float(np.concatenate(self.covered).mean()) if any(map(len, self.covered)) else None,
            useful_coverage=float(weight @ useful) / events if speeds else None,
            useful_cells=int(useful.sum()) / cells if speeds else None,
            cell_coverage=self.verdicts.by_cell(),
        )

    def _noise(self) -> float | None:
        if not self.noise:
            return None
        weight = np.concatenate(self.noise_weight)
        return float(weight @ np.concatenate(self.noise) / weight.sum()) if weight.sum() > 0 else None
