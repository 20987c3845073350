"""Everything that a window's release depends on beside its rows and the ledger: frozen, stored in the plan, and stated
once.

The configuration knows files and servers as well, and may be edited while a window is open. So :meth:`Terms.of` takes
from it what statistics read, when a window is planned; whoever draws the window later, under whatever configuration,
reads the terms that were charged.
"""

from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, Self

import msgspec

from dpcore.accounting import NANO, epsilon_of_rho
from dpcore.budget import from_micro
from dpcore.participation import Weight
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import MAX_CELLS_PER_USER, MAX_EVENTS_PER_USER
from stream.config.histogram import TUNING_QUERIES, HistogramConfig, Inference
from stream.config.public_cells import MAX_NUMBERS
from stream.config.section import BoundingBox
from stream.config.speed import CLIPPED_NORMAL, MOMENTS, MOVING_KM_H
from stream.config.value import QUANTUM, SPEED, SPEED_UNIT
from stream.windows import Horizon, Period, Slotting, Window

__all__ = ["CLIPPED_NORMAL", "MAX_NUMBERS", "MOMENTS", "MOVING_KM_H", "MOVING_QUANTA", "QUANTUM", "Box", "Terms"]

MOVING_QUANTA = round(MOVING_KM_H / QUANTUM)
"""Quanta from which on a report moves."""

Given = tuple[tuple[str, bool | int | float | str | None], ...]
"""Arguments of a mechanism by name, sorted: hashable."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a stored plan: kept without what has its default, and refused with a field that this version does not
    know, because noise would be drawn as if it were not there."""


class Box(Struct, frozen=True):
    """A public box in degrees."""

    south: float
    west: float
    north: float
    east: float

    @classmethod
    def of(cls, box: BoundingBox) -> Self:
        """The box of a configuration."""
        return cls(south=box.south, west=box.west, north=box.north, east=box.east)


class Zcdp(Struct, frozen=True):
    """The privacy parameters under zCDP: rho of a window and of a period, and the delta of every stated ε."""

    rho: float
    rho_budget: float
    delta: float


class PrivacyTerms(Struct, frozen=True):
    """``grant``: the most that a user pays in a window for speed; ``budget``: in a period; both in the ledger's unit,
    which is nρ with ``zcdp`` and µε without. ``epsilon``, ``stated_budget``: the same as ε, as messages state it.
    ``service``: hours of service with rolling grants, as seconds since local midnight; None: all day.
    """

    epsilon: float
    stated_budget: float
    grant: int
    budget: int
    paced: bool = False
    rolling: bool = False
    service: tuple[int, int] | None = None
    zcdp: Zcdp | None = None

    def serves(self, begin: int, end: int) -> bool:
        """Whether a part of [``begin``, ``end``), seconds since local midnight, lies in the hours of service."""
        if self.service is None:
            return True
        opens, closes = self.service
        within = begin < closes, end > opens
        return all(within) if opens < closes else any(within)

    def stated(self, budget: int) -> float:
        """A period's ``budget`` in the ledger's unit as ε."""
        return self.stated_budget if budget == self.budget else self.converted(budget)

    def converted(self, units: int) -> float:
        """An amount of the ledger's unit as ε; under zCDP at delta, rounded up."""
        return from_micro(units) if self.zcdp is None else epsilon_of_rho(units, self.zcdp.delta)

    def stated_rho(self, budget: int) -> float | None:
        """A period's ``budget`` in nρ as ρ; None under pure ε."""
        if self.zcdp is None:
            return None
        return self.zcdp.rho_budget if budget == self.budget else budget / NANO


class SpeedTerms(Struct, frozen=True):
    """The statistics of the value, and what each relation does for them: see :class:`stream.config.speed.SpeedConfig`.

    ``upper_quanta``, ``typical``: above the value's lower bound, from which all values count inside.
    """

    upper_quanta: int
    statistics: tuple[str, ...]
    mean_mechanism: str
    suppression: Literal["chop-user", "none"]
    allocation: Literal["exact-loss", "uniform"]
    clipping: Literal["residual", "none"]
    post_processing: tuple[str, ...]
    cdf_bins: int
    sum_cap: float = 0.0
    min_users: int = 1
    typical: float | None = None

    @property
    def upper(self) -> float:
        """U, the width of the value's range, in its unit."""
        return self.upper_quanta * QUANTUM

    @property
    def clips(self) -> bool:
        """Whether means of users are clipped to ranges around a forecast."""
        return self.clipping == "residual" and "mean" in self.statistics


class ValueTerms(Struct, frozen=True):
    """What is measured, in which unit, and the lower bound from which values count inside, in quanta."""

    name: str = SPEED
    unit: str = SPEED_UNIT
    lower_quanta: int = 0

    @property
    def is_speed(self) -> bool:
        """Whether distance by time explains the value."""
        return self.name == SPEED

    @property
    def lower(self) -> float:
        """The lower bound in the value's unit."""
        return self.lower_quanta * QUANTUM


class HexagonTerms(Struct, frozen=True):
    """``resolution`` of the hexagons; with ``merge_until`` sparse ones are merged, down to ``coarsest_resolution``."""

    resolution: int
    coarsest_resolution: int
    merge_until: float | None = None


class ParticipationTerms(Struct, frozen=True):
    """What one user may contribute under relation "participation": see
    :class:`stream.config.speed.ParticipationConfig`.

    ``shares``: of moments, number of users, percentiles and the mean of the area.
    """

    weight: Weight
    cells_per_user: int
    samples_per_cell: int
    shares: tuple[int, int, int, int]


class FixRules(Struct, frozen=True):
    """Rules by which fixes are refused when their window is closed (:mod:`stream.statistics.fix_rules`); 0 for none.

    ``frozen_us``: all fixes of a longer stay are refused; ``moving_us``: those that report a speed above 0.
    """

    frozen_us: int = 0
    moving_us: int = 0
    teleport_km_h: float = 0.0
    standing_m: float = 0.0

    @classmethod
    def of(cls, config: Config) -> Self:
        """The configured ones. Only under "participation" may a rule read speeds."""
        frozen_us = config.frozen // timedelta(microseconds=1)
        reads_speeds = config.participation is not None
        return cls(
            frozen_us=0 if reads_speeds else frozen_us,
            moving_us=frozen_us if reads_speeds else 0,
            teleport_km_h=config.teleport_km_h,
            standing_m=config.feed.quality.standing_m or 0.0,
        )


class UserLimits(Struct, frozen=True):
    """Most ``cells`` and ``events`` of a user that count (:mod:`stream.statistics.window_rows`); 0 for no limit."""

    cells: int = 0
    events: int = 0


class RegionTerms(Struct, frozen=True):
    """How a user's region is computed, and the grid that counts regions: see
    :class:`stream.config.histogram.EulerConfig`."""

    rows: int
    columns: int
    nearest: int
    diameter_m: float
    bandwidth_m: float
    inference: Inference
    total_share: float
    outliers: Literal["shrink", "discard"] = "shrink"
    origin: Literal["fixes", "declared"] = "fixes"
    regions_per_user: int = 1


class HistogramTerms(Struct, frozen=True):
    """The spatial histograms: µε of each of ``mechanisms`` on a public ``box`` and grid.

    Every user contributes who has a fix in the box and pays ``cost`` (in the ledger's unit, for all histograms).
    ``given``: arguments of mechanisms other than their defaults.
    """

    mechanisms: tuple[str, ...]
    epsilons: tuple[int, ...]
    epsilon_micro: int
    cost: int
    goal: Literal["absolute", "relative"]
    fixes_per_user: int
    box: Box
    rows: int
    columns: int
    sizes: tuple[int, ...]
    tuning_queries: int
    regions: RegionTerms | None = None
    tuning_areas: tuple[float, ...] = ()
    given: tuple[tuple[str, Given], ...] = ()

    @classmethod
    def of(cls, settings: HistogramConfig, config: Config) -> Self:
        """The configured ones."""
        euler = settings.euler
        return cls(
            mechanisms=tuple(settings.epsilons_micro),
            epsilons=tuple(settings.epsilons_micro.values()),
            epsilon_micro=settings.epsilon_micro,
            cost=config.histogram_grant,
            goal=settings.goal,
            fixes_per_user=settings.fixes_per_user,
            box=Box.of(settings.domain or config.feed.domain),
            rows=settings.rows,
            columns=settings.columns,
            sizes=settings.grid_sizes,
            tuning_queries=TUNING_QUERIES,
            regions=None if euler is None else RegionTerms(**euler.model_dump(), **settings.region_rules),
            tuning_areas=settings.tuning_areas,
            given=tuple((name, tuple(sorted(given.items()))) for name, given in settings.parameters.items()),
        )

    def parameters(self, mechanism: str) -> dict[str, Any]:
        """Arguments of a mechanism other than its defaults."""
        return dict(dict(self.given).get(mechanism, ()))


class Reading(Struct, frozen=True):
    """How the rows of a window are read: which fixes are refused, what of a user counts, to what values are clipped.

    ``box``: of the fixes that histograms count, None without one; ``declared``: whether users declare regions in it.
    """

    upper_quanta: int
    lower_quanta: int = 0
    limits: UserLimits = UserLimits()
    rules: FixRules = FixRules()
    box: Box | None = None
    declared: bool = False

    @property
    def positions(self) -> bool:
        """Whether a histogram or a rule reads the positions of events."""
        return self.box is not None or self.rules != FixRules()


class Terms(Struct, frozen=True):
    """The terms of a window. ``ledger``: name of the ledger that the feed shares with others; None for its own.

    ``slot_s`` and ``period_s``: seconds of a timeslot and of a ledger period in ``timezone``; ``horizon``: seconds of a
    block of periods, and its budget in the ledger's unit. ``participation`` is there under that relation alone.
    """

    feed: str
    relation: NeighbouringRelation
    timezone: str
    slot_s: int
    period_s: int
    privacy: PrivacyTerms
    hexagons: HexagonTerms
    speed: SpeedTerms
    value: ValueTerms = ValueTerms()
    ledger: str | None = None
    horizon: tuple[int, int] | None = None
    participation: ParticipationTerms | None = None
    histogram: HistogramTerms | None = None
    limits: UserLimits = UserLimits()
    rules: FixRules = FixRules()

    @classmethod
    def of(cls, config: Config) -> Self:
        """The terms of a configuration."""
        value, speed, window = config.value, config.speed, config.window
        typical = None if value.typical is None else value.typical - value.lower
        return cls(
            feed=config.feed.name,
            relation=config.relation,
            timezone=config.feed.timezone,
            slot_s=window.slot // timedelta(seconds=1),
            period_s=config.privacy.period // timedelta(seconds=1),
            privacy=_privacy(config),
            hexagons=HexagonTerms(**config.hexagons.model_dump()),
            speed=SpeedTerms(upper_quanta=value.upper_quanta, typical=typical, **speed.model_dump()),
            value=ValueTerms(name=value.name, unit=value.unit, lower_quanta=value.lower_quanta),
            ledger=config.shared_ledger,
            horizon=_horizon(config),
            participation=_participation(config),
            histogram=None if config.histogram is None else HistogramTerms.of(config.histogram, config),
            limits=UserLimits(cells=MAX_CELLS_PER_USER, events=MAX_EVENTS_PER_USER),
            rules=FixRules.of(config),
        )

    @property
    def window_grant(self) -> int:
        """The most that one user may be charged in one window, for speed and histograms, in the ledger's unit."""
        return self.privacy.grant + (0 if self.histogram is None else self.histogram.cost)

    @property
    def reading(self) -> Reading:
        """How the rows of a window are read under these terms."""
        histogram = self.histogram
        regions = None if histogram is None else histogram.regions
        return Reading(
            upper_quanta=self.speed.upper_quanta,
            lower_quanta=self.value.lower_quanta,
            limits=self.limits,
            rules=self.rules,
            box=None if histogram is None else histogram.box,
            declared=regions is not None and regions.origin == "declared",
        )

    def releasing(self, statistics: tuple[str, ...]) -> "Terms":
        """The terms of a window that releases these ``statistics`` of speed only."""
        return msgspec.structs.replace(self, speed=msgspec.structs.replace(self.speed, statistics=statistics))

    def period_of(self, window: Window) -> Period:
        """The ledger period of ``window``."""
        return self._slotting.period_of(window.start)

    def window_at(self, slot: int) -> Window:
        """The timeslot that holds ``slot`` (epoch seconds)."""
        return self._slotting.window(slot)

    @property
    def _slotting(self) -> Slotting:
        return _slotting(self.slot_s, self.period_s, self.timezone, self.horizon)


@lru_cache(maxsize=8)
def _slotting(slot_s: int, period_s: int, timezone: str, horizon: tuple[int, int] | None) -> Slotting:
    blocks = None if horizon is None else Horizon(timedelta(seconds=horizon[0]), horizon[1])
    return Slotting(timedelta(seconds=slot_s), timedelta(seconds=period_s), timezone, blocks)


def _horizon(config: Config) -> tuple[int, int] | None:
    privacy = config.privacy
    return None if privacy.horizon is None else (privacy.horizon.period // timedelta(seconds=1), privacy.horizon_budget)


def _privacy(config: Config) -> PrivacyTerms:
    privacy = config.privacy
    grant, budget, zcdp = privacy.ledger_grant, privacy.ledger_budget, None
    if privacy.delta is not None:
        zcdp = Zcdp(rho=grant / NANO, rho_budget=budget / NANO, delta=privacy.delta)
    return PrivacyTerms(
        epsilon=privacy.epsilon,
        stated_budget=privacy.budget,
        grant=grant,
        budget=budget,
        paced=privacy.admission == "paced",
        rolling=privacy.admission == "rolling",
        service=privacy.service,
        zcdp=zcdp,
    )


def _participation(config: Config) -> ParticipationTerms | None:
    settings = config.participation
    if settings is None:
        return None
    return ParticipationTerms(
        weight=settings.weight,
        cells_per_user=settings.cells_per_user,
        samples_per_cell=settings.samples_per_cell,
        shares=(4, 1, 4, settings.area_share),
    )
