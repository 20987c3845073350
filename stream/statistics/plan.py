"""The plan of a window, made before noise is drawn, and the columns that the draw returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.accounting import NANO, epsilon_of_rho
from dpcore.budget import ChargeBasis, from_micro
from dpcore.contributions import Contributions, Counts
from dpcore.level_tree import Sharing, TreeShape
from dpcore.participation import Weight
from dpcore.relation import NeighbouringRelation
from dpcore.scales import LaplaceScales
from stream.config import Config
from stream.config.histogram import Inference
from stream.config.section import BoundingBox
from stream.statistics.fix_rules import FixRules
from stream.windows import Period, Window, utc_text

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]

VARIANCE_GRID = 100
"""Output grid of the variance in quanta²: 0.01 (km/h)²."""
DECIMALS = {
    "mean": 3,
    "mean_smoothed": 3,
    "variance": 2,
    "p15": 2,
    "p50": 2,
    "p85": 2,
    "cdf": 5,
    "events": 1,
    "users": 1,
}
"""Fixed output granularity per statistic."""
PERCENTS = {"p15": 15.0, "p50": 50.0, "p85": 85.0}
"""The percentiles that traffic engineers use."""
CDF = "cdf"
"""The whole distribution, from which percentiles are read."""


class PlanError(RuntimeError):
    """Rows and plan do not belong together, so nothing may be released."""


class ZcdpTerms(msgspec.Struct, frozen=True):
    """The privacy parameters under zCDP: rho per window and per period, and the delta of every stated ε."""

    rho: float
    rho_budget: float
    delta: float
    budget_nano: int


class RegionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a user's region is computed from their fixes, and the grid that counts regions; lengths in metres.

    ``origin`` "declared": the last ``regions_per_user`` that each user declares; then ``nearest`` and the like mean nothing.
    """

    rows: int
    columns: int
    nearest: int
    diameter_m: float
    bandwidth_m: float
    inference: Inference = "covert"
    total_share: float = 0.0
    outliers: Literal["shrink", "discard"] = "shrink"
    origin: Literal["fixes", "declared"] = "fixes"
    regions_per_user: int = 1


class HistogramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of the window's spatial histograms: ``epsilons`` (µε) of each of ``mechanisms``, on a public box and grid.

    Every user contributes who has a fix in the box and pays ``cost`` (in the ledger's unit, for all histograms).
    ``fixes_digest``: digest of all fixes in the box. ``parameters``: arguments of mechanisms other than their defaults.
    """

    mechanisms: tuple[str, ...]
    epsilons: tuple[int, ...]
    epsilon_micro: int
    cost: int
    goal: Literal["absolute", "relative"]
    fixes_per_user: int
    south: float
    west: float
    north: float
    east: float
    rows: int
    columns: int
    sizes: tuple[int, ...]
    tuning_queries: int
    regions: RegionPlan | None
    fixes_digest: str
    tuning_areas: tuple[float, ...] = ()
    parameters: dict[str, dict[str, Any]] = {}

    @property
    def box(self) -> BoundingBox:
        """The public box."""
        return BoundingBox(south=self.south, west=self.west, north=self.north, east=self.east)


_COLUMNS = (
    "cells",
    "users",
    "charges",
    "retained",
    "published",
    "numerators",
    "denominators",
    "lower",
    "upper",
    "merged",
    "sum_caps",
)


class Plan(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={f"{name}_bytes": name for name in _COLUMNS}
):
    """All decisions about a window that are made before noise is drawn.

    ``zcdp``: None under pure ε. Otherwise charges are in nρ, ``budget_micro`` is 0 (nothing may be charged in µε) and noise is
    discrete Gaussian. ``mean_epsilon_micro``: µε of one cell's mean; 0 if the mean is allocated. ``weight``: what counts
    equally under "participation": a sample, a user in a cell, or a user in the window. ``area``: whether the mean of all cells
    is released there. ``sum_cap``: the most that one user adds to Σx of any cell, in quanta; 0 for no caps. Without
    ``sum_caps`` it is the cap of every cell. ``withheld``: the window could not be planned, so nothing is drawn, nobody charged.
    ``max_cells_per_user``, ``max_events_per_user``: limits under which the rows were counted, 0 for none. ``cut_short``: what
    public counts made too costly to try in full. ``chosen``: proposal of least predicted error, "all" samples, "suppressed" or
    "clipped"; "" without a choice. ``most_cells``: of one admitted user, before and after. ``fix_rules``: None for none.
    Columns are stored as little-endian bytes (``…_bytes``) and read through the property of the same name.
    """

    window: Window
    period: Period
    generation: str
    epsilon: float
    budget: float
    budget_micro: int
    statistics: tuple[str, ...]
    cdf_bins: int
    upper_quanta: int
    resolution: int
    relation: NeighbouringRelation
    weight: Weight = "sample"
    mean_mechanism: str
    mean_epsilon_micro: int
    counts_digest: str
    cells_bytes: bytes
    users_bytes: bytes
    charges_bytes: bytes
    retained_bytes: bytes
    published_bytes: bytes
    numerators_bytes: bytes
    denominators_bytes: bytes
    sum_cap: int = 0
    zcdp: ZcdpTerms | None = None
    lower_bytes: bytes = b""
    upper_bytes: bytes = b""
    histogram: HistogramPlan | None = None
    merged_bytes: bytes = b""
    sum_caps_bytes: bytes = b""
    withheld: bool = False
    max_cells_per_user: int = 0
    max_events_per_user: int = 0
    cut_short: tuple[str, ...] = ()
    chosen: str = ""
    most_cells: tuple[int, int] = (0, 0)
    fix_rules: FixRules | None = None
    mean_capacity: int | None = None
    mean_quantile_percent: int = 10
    cdf_factors: tuple[int, ...] = ()
    cdf_sharing: Sharing = "optimal"
    area: bool = False

    @property
    def declares_regions(self) -> bool:
        """Whether users declare the regions that its histograms count."""
        return bool((plan := self.histogram) and plan.regions and plan.regions.origin == "declared")

    @property
    def cdf_shape(self) -> TreeShape:
        """The shape of the tree over the bins of the distribution."""
        return TreeShape(self.cdf_factors, self.cdf_sharing)

    @property
    def cells(self) -> IdArray:
        """Ids of the cells that get a message, shape (C,)."""
        return unpack_ids(self.cells_bytes)

    @property
    def users(self) -> IdArray:
        """Ids of all users with rows in the window, shape (L,)."""
        return unpack_ids(self.users_bytes)

    @property
    def charges(self) -> IntArray:
        """Charge of each of :attr:`users` in µε or nρ; 0 for users who do not take part; shape (L,)."""
        return unpack_integers(self.charges_bytes)

    @property
    def retained(self) -> IntArray:
        """Number of retained samples of each (cell, user) pair, shape (P,); pairs are sorted by cell, as in :attr:`counts_digest`."""
        return unpack_integers(self.retained_bytes)

    @property
    def published(self) -> npt.NDArray[np.bool_]:
        """Whether each of :attr:`cells` is published; the others are suppressed; shape (C,)."""
        return np.frombuffer(self.published_bytes, np.uint8).astype(bool)

    @property
    def scales(self) -> LaplaceScales:
        """Noise scales as flat arrays; under zCDP scales of Gaussians. A numerator of 0 means that no noise is needed.

        Under "values": C scales for each of mean and variance, then C·h for the levels of the distribution. Under
        "participation": one for the polynomials, one for users if they are counted separately, one for each level, one for the area.
        """
        return LaplaceScales(unpack_integers(self.numerators_bytes), unpack_integers(self.denominators_bytes))

    @property
    def ranges(self) -> IntArray | None:
        """Range in quanta to which users' means in each cell are clipped, shape (2, C); None if they are not clipped."""
        if not self.lower_bytes:
            return None
        return np.array([unpack_integers(self.lower_bytes), unpack_integers(self.upper_bytes)])

    @property
    def merged(self) -> IdArray | None:
        """The cell into which each hexagon with rows is merged, ascending by hexagon; None if no hexagon is merged."""
        return unpack_ids(self.merged_bytes) if self.merged_bytes else None

    @property
    def caps(self) -> IntArray | None:
        """The most that one user adds to Σx of each of :attr:`cells`, in quanta, shape (C,); None if sums are not capped."""
        if not self.sum_cap:
            return None
        if not self.sum_caps_bytes:
            return np.full(len(self.cells), self.sum_cap, dtype=np.int64)
        return unpack_integers(self.sum_caps_bytes)

    @property
    def ledger_budget(self) -> int:
        """The most that one user may spend in the period, in the unit of ``charges``."""
        return self.budget_micro if self.zcdp is None else self.zcdp.budget_nano

    @property
    def digest(self) -> str:
        """Digest that identifies this plan."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()

    @property
    def charge_basis(self) -> ChargeBasis:
        """What the charges of this plan may depend on."""
        if self.relation == NeighbouringRelation.PARTICIPATION:
            return "own"
        return "counts" if self.histogram is None else "histograms"

    @property
    def reads_positions(self) -> bool:
        """Whether a histogram or a rule of fixes reads the positions of events."""
        return self.histogram is not None or self.fix_rules is not None

    def charged_users(self) -> tuple[IdArray, IntArray]:
        """The users with a charge above 0, and their charges."""
        charges = self.charges
        return self.users[charges > 0], charges[charges > 0]


def empty_plan(config: Config, window: Window, period: Period, generation: str) -> Plan:
    """The plan of a window without cells, users and charges, on the terms of the configuration: every plan begins
    with it.
    """
    privacy, speed = config.privacy, config.speed
    return Plan(
        window=window,
        period=period,
        generation=generation,
        epsilon=privacy.epsilon,
        budget=privacy.budget,
        budget_micro=0 if privacy.accounting == "zcdp" else privacy.budget_micro,
        statistics=speed.statistics,
        cdf_bins=speed.cdf_bins,
        upper_quanta=speed.upper_quanta,
        resolution=config.hexagons.resolution,
        relation=config.relation,
        mean_mechanism=speed.mean_mechanism,
        mean_capacity=speed.mean_capacity,
        mean_quantile_percent=speed.mean_quantile_percent,
        cdf_factors=speed.cdf_factors,
        cdf_sharing=speed.cdf_sharing,
        mean_epsilon_micro=0,
        counts_digest="",
        cells_bytes=b"",
        users_bytes=b"",
        charges_bytes=b"",
        retained_bytes=b"",
        published_bytes=b"",
        numerators_bytes=b"",
        denominators_bytes=b"",
    )


def pack_ids(column: IdArray) -> bytes:
    """Stored form of a column of ids."""
    return column.astype("<u8").tobytes()


def pack_integers(column: npt.NDArray[Any]) -> bytes:
    """Stored form of a column of integers. Floats must have integer values."""
    return column.astype("<i8").tobytes()


def pack_flags(column: npt.NDArray[np.bool_]) -> bytes:
    """Stored form of a column of flags."""
    return column.astype(np.uint8).tobytes()


def unpack_ids(stored: bytes) -> IdArray:
    """A stored column of ids."""
    return np.frombuffer(stored, "<u8").astype(np.uint64, copy=False)


def unpack_integers(stored: bytes) -> IntArray:
    """A stored column of integers."""
    return np.frombuffer(stored, "<i8").astype(np.int64, copy=False)


def within(plan: Plan, budget: int | None) -> Plan:
    """The plan with ``budget`` (in the ledger's unit) as the budget of the period. None: the plan's own."""
    if budget is None or budget == plan.ledger_budget:
        return plan
    if plan.zcdp is None:
        return msgspec.structs.replace(plan, budget=from_micro(budget), budget_micro=budget)
    zcdp = msgspec.structs.replace(plan.zcdp, rho_budget=budget / NANO, budget_nano=budget)
    return msgspec.structs.replace(plan, budget=epsilon_of_rho(budget, zcdp.delta), zcdp=zcdp)


def encode_plan(plan: Plan) -> bytes:
    """Stored form of a plan."""
    return msgspec.msgpack.encode(plan)


def decode_plan(blob: bytes) -> Plan:
    """The plan that a stored form represents; raises :class:`PlanError` for a form that this version does not know."""
    try:
        return msgspec.msgpack.decode(blob, type=Plan)
    except msgspec.DecodeError as error:
        raise PlanError(
            f"a stored plan cannot be read ({error}); nothing was drawn. If a newer version made it, upgrade this worker; otherwise "
            "restore Redis from its append-only file"
        ) from None


def counts_digest(counts: Counts) -> str:
    """Digest of who contributed how often where. A plan fits only rows with its digest."""
    state = hashlib.sha256()
    for column in (counts.cells, counts.users, counts.pair_cell, counts.pair_user, counts.samples):
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()


def check_rows(plan: Plan, contributions: Contributions) -> None:
    """Raise :class:`PlanError` if the rows are not those that were planned and charged, or clipped to another bound."""
    if contributions.upper != plan.upper_quanta:
        raise PlanError(
            f"speed.upper_bound was changed after window {utc_text(plan.window.start)} was planned: its noise protects speeds up to "
            f"{plan.upper_quanta} quanta, but the rows are clipped to {contributions.upper}; nothing was drawn. Restore the old bound "
            "until the window is released"
        )
    if counts_digest(contributions.counts) != plan.counts_digest:
        raise PlanError(
            f"the rows of window {utc_text(plan.window.start)} changed after they were planned; nothing was drawn. "
            "Restore Redis from its append-only file"
        )


@dataclass(frozen=True)
class Columns:
    """One statistic over all cells, (C,) each, or (C, K) of a distribution, in released units; ``low``/``high`` before clamping."""

    raw: FloatArray
    value: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    top: float

    @classmethod
    def rounded(
        cls,
        name: str,
        estimate: FloatArray,
        scale: FloatArray,
        interval: tuple[FloatArray, FloatArray],
        top: float,
        within: tuple[float | FloatArray, float | FloatArray] | None = None,
    ) -> Columns:
        """Statistic ``name``, rounded to its granularity; the interval is widened by the possible rounding error.

        The value is clamped to ``within``, by default [0, ``top``].
        """
        raw, step = np.round(estimate, DECIMALS[name]), 0.5 * 10.0 ** -DECIMALS[name]
        return cls(raw, np.clip(raw, *(within or (0.0, top))), scale, interval[0] - step, interval[1] + step, top)


@dataclass(frozen=True)
class Derived:
    """A post-processed statistic over all cells, shape (C,) each. ``interval``: its ends, None where the method promises none."""

    method: str
    value: FloatArray
    interval: tuple[FloatArray, FloatArray] | None = None
