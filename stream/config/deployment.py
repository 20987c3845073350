"""The configuration of one deployment as one immutable :class:`Config`; rules that join sections are checked here."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Self

import h3
from pydantic import BaseModel, ConfigDict, model_validator

from dpcore.relation import NeighbouringRelation
from stream.config.feed import PARTICIPATION_FASTEST_KM_H, PARTICIPATION_FROZEN, FeedConfig, WindowConfig
from stream.config.histogram import HistogramConfig
from stream.config.privacy import LedgerConfig, PrivacyConfig, SigningConfig, live_problems
from stream.config.servers import KafkaConfig, PublicConfig, RedisConfig, SurfaceConfig
from stream.config.speed import HexagonConfig, ParticipationConfig, SpeedConfig
from stream.config.value import ValueConfig, value_problems
from stream.windows import Horizon, PublicationTimes, Slotting

_PARTICIPATION_MARGIN = timedelta(minutes=1)
"""More than closing a window took wherever it was measured."""


_ONE_NOISE = ("allocated", "baseline", "array-averaging", "pooled-minimax")
"""Mechanisms whose released mean is the exact one, clipped and weighted as public counts say, and Laplace noise of its
scale. The others clip it to a range that noise of its own chose first, and no released number says how wrong that range
may be.
"""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and the remedy."""


class Config(BaseModel):
    """The configuration of one deployment, checked before anything starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    relation: NeighbouringRelation
    feed: FeedConfig
    window: WindowConfig = WindowConfig()
    privacy: PrivacyConfig
    ledger: LedgerConfig | None = None
    hexagons: HexagonConfig
    value: ValueConfig
    speed: SpeedConfig = SpeedConfig()
    participation: ParticipationConfig | None = None
    histogram: HistogramConfig | None = None
    signing: SigningConfig | None = None
    kafka: KafkaConfig = KafkaConfig()
    redis: RedisConfig = RedisConfig()
    operator: SurfaceConfig = SurfaceConfig(port=6066)
    public: PublicConfig = PublicConfig(port=8080)

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """A sentence for each choice that another one is in the way of. Only the first is told: what follows relies on
        it."""
        yield from value_problems(self.value, self.feed, self.speed)
        yield from self._problems_of_participation()
        yield from self._problems_of_the_area()
        yield from self._problems_of_the_map()
        yield from self._problems_of_quality()
        yield from live_problems(
            self.relation, self.privacy, self.speed, self.ledger is not None, self.histogram is not None
        )
        yield from self._problems_of_histograms()
        yield from self._problems_of_a_shared_ledger()
        wanted = self.hexagons.merge_until is not None
        if wanted and ("mean" not in self.speed.statistics or self.speed.mean_mechanism != "allocated"):
            yield (
                "hexagons.merge_until needs an allocated mean, whose interval it predicts; put 'mean' into "
                "speed.statistics and set speed.mean_mechanism to 'allocated'"
            )
        yield from self._problems_of_alerts()
        if self.privacy.period % self.window.slot:
            yield (
                f"window.slot {self.window.slot} does not divide privacy.period {self.privacy.period}; "
                "a timeslot must never straddle two ledger periods, so make the slot divide the period"
            )
        try:
            _ = self.slotting
        except ValueError as error:
            yield f"window.slot and privacy.period: {error}"

    def _problems_of_participation(self) -> Iterator[str]:
        if (self.relation == NeighbouringRelation.PARTICIPATION) != (self.participation is not None):
            yield "[participation] and relation = 'participation' go together; give both or neither"
        if self.relation == NeighbouringRelation.VALUES:
            return
        refused = {
            "window.lateness": (
                self.window.lateness != "append-time",
                "one user's largest event time would decide whether others are in time; release a recording with "
                "'hexveil replay --offline'",
                "'append-time'",
            ),
            "speed.mean_mechanism": (self.speed.mean_mechanism != "allocated", "it depends on counts", "'allocated'"),
            "speed.suppression": (self.speed.suppression != "none", "chop-user drops users by true counts", "'none'"),
            "speed.allocation": (
                self.speed.allocation != "uniform",
                "exact-loss chooses noise by true counts",
                "'uniform'",
            ),
            "speed.sum_cap": (self.speed.sum_cap != 0, "the cap depends on the counts of all users", "0"),
            "hexagons.merge_until": (
                self.hexagons.merge_until is not None,
                "merging depends on true counts; for larger hexagons choose a coarser hexagons.resolution",
                "nothing",
            ),
            "speed.min_users": (self.speed.min_users != 1, "a threshold on true counts reveals who was there", "1"),
        }
        problems = [f"{key}: {why}; set it to {fix}" for key, (bad, why, fix) in refused.items() if bad]
        if problems:
            yield "not under relation 'participation': " + "; ".join(problems)

    def _problems_of_the_area(self) -> Iterator[str]:
        settings = self.participation
        if settings is None or not settings.area_share:
            return
        needs = {
            "participation.weight 'share'": settings.weight == "share",
            "'mean' in speed.statistics": "mean" in self.speed.statistics,
            "'kalman' in speed.post_processing": "kalman" in self.speed.post_processing,
        }
        if missing := [what for what, there in needs.items() if not there]:
            yield (
                f"participation.area_share {settings.area_share} needs {' and '.join(missing)}: a user moves the "
                "area's mean by all their weights, and only smoothing reads it; set that, or area_share = 0"
            )

    def _problems_of_the_map(self) -> Iterator[str]:
        known = {*self.speed.statistics, *self.speed.post_processing}
        if self.public.map == "typical" and not {"mean", "kalman"} <= known:
            yield (
                "public.map 'typical' shows what 'kalman' makes of earlier means; add 'kalman' to "
                "speed.post_processing and 'mean' to speed.statistics, or set public.map to 'live'"
            )

    def _problems_of_quality(self) -> Iterator[str]:
        if self.relation == NeighbouringRelation.VALUES:
            given = [key for key in ("fastest_km_h", "standing_m") if getattr(self.feed.quality, key)]
            if given:
                yield (
                    f"feed.quality.{given[0]}: under relation 'values' the number of events is public, so refusing "
                    "some by their "
                    "speed would publish that speed; leave it out. value.upper clips speeds that are too high"
                )
        frozen = self.feed.quality.frozen
        if frozen is not None and frozen >= self.window.slot:
            yield (
                f"feed.quality.frozen {frozen} is not shorter than window.slot {self.window.slot}, and the rule reads "
                "the events of one window: it would never refuse any; give less"
            )

    def _problems_of_histograms(self) -> Iterator[str]:
        if self.privacy.ledger_budget < self.window_grant:
            (unit, per_one), speed = self.privacy.ledger_unit, self.privacy.ledger_grant
            all_units = (self.privacy.ledger_budget, self.window_grant, self.histogram_grant)
            budget, window, rest = (f"{units / per_one:g}" for units in all_units)
            yield (
                f"privacy.budget allows {unit.split('_')[1]} {budget}, below the {window} of one window, "
                f"{speed / per_one:g} for speed and {rest} for the histograms, so no window could ever be released; "
                "raise budget or lower histogram.epsilon"
            )
        if self.histogram is not None and self.histogram.domain and not self.feed.domain.holds(self.histogram.domain):
            yield (
                "histogram.domain reaches outside feed.domain, where every fix is refused; keep it inside, or leave "
                "it out"
            )
        quality = self.feed.quality
        rules = {"teleport_km_h": self.teleport_km_h, "frozen": self.frozen, "standing_m": quality.standing_m}
        given = [f"feed.quality.{name}" for name, value in rules.items() if value]
        if self.declares_regions and given:
            yield (
                f"histogram.euler.origin 'declared': the corners of a region have one time, and {', '.join(given)} "
                "would refuse some as jumps "
                'or stays; set teleport_km_h = 0 and frozen = "0s" in [feed.quality], and leave standing_m out'
            )
        if self.declares_regions and self.feed.derives_speeds:
            yield (
                f"histogram.euler.origin 'declared': feed.speeds {self.feed.speeds!r} takes the corners of a region, "
                "which have one time, for fixes of a journey and drops most of them; set feed.speeds to 'reported'"
            )
        if self.histogram is not None:
            self.histogram.check_regions(self.histogram.domain or self.feed.domain)

    def _problems_of_a_shared_ledger(self) -> Iterator[str]:
        if self.ledger is None:
            return
        if self.relation == NeighbouringRelation.PARTICIPATION or self.histogram is not None:
            what = "[histogram]" if self.relation == NeighbouringRelation.VALUES else "relation 'participation'"
            yield (
                f"[ledger] name {self.ledger.name!r} is not for {what}: feeds that share a ledger charge in the order "
                "in which they are ready, which depends on how many events others sent; so one user's presence could "
                "decide in which feed another still has budget. Leave out [ledger], or release the feeds under "
                "relation 'values' without histograms"
            )
        if self.privacy.horizon is not None:
            yield (
                f"[ledger] name {self.ledger.name!r} is not for privacy.horizon: the feeds of a ledger may state other "
                "budgets, and of a block that has begun nobody could lower what was granted. Leave out one of them"
            )

    def _problems_of_alerts(self) -> Iterator[str]:
        relative = [rule.name for rule in self.public.alerts if rule.relative]
        if relative and self.relation == NeighbouringRelation.PARTICIPATION:
            yield (
                f"public.alerts: {', '.join(relative)} compares with usual; under relation 'participation' a mean is a "
                "ratio of noisy "
                "numbers, and no bound is known for the noise of an average of ratios; use below or above"
            )
        problems = list(self._problems_of_rules()) if self.public.alerts else []
        if problems:
            yield "public.alerts: " + "; ".join(problems)

    def _problems_of_rules(self) -> Iterator[str]:
        speed, finest, domain = self.speed, self.hexagons.resolution, self.feed.domain
        if "mean" not in speed.statistics:
            yield "rules are about means, and speed.statistics has none; put 'mean' into it, or leave out the rules"
        if self.relation == NeighbouringRelation.VALUES and speed.mean_mechanism not in _ONE_NOISE:
            yield (
                f"speed.mean_mechanism {speed.mean_mechanism!r} draws the range of values with noise that its scale "
                f"does not describe, so no bound on false alarms holds; set it to one of {', '.join(_ONE_NOISE)}, or "
                "leave out the rules"
            )
        coarsest = finest if self.hexagons.merge_until is None else self.hexagons.coarsest_resolution
        sizes = f"{finest}" if coarsest == finest else f"{coarsest} to {finest}"
        for rule in self.public.alerts:
            beyond = next((one for one in (rule.below, rule.above) if one is not None), None)
            if beyond is not None and not self.value.lower < beyond < self.value.upper:
                yield (
                    f"rule {rule.name}: {beyond:g} is not between value.lower and value.upper, to which means are "
                    "clipped"
                )
            if rule.relative and not self.value.is_speed:
                yield f"rule {rule.name}: only a speed is slower than usual; of {self.value.name} give below or above"
            wrong = [cell for cell in rule.cells if not coarsest <= h3.get_resolution(cell) <= finest]
            if wrong:
                yield (
                    f"rule {rule.name}: cell {wrong[0]} has resolution {h3.get_resolution(wrong[0])}, but released "
                    f"cells have {sizes} (hexagons.resolution); write cells of that resolution"
                )
            if rule.area is not None and not domain.meets(rule.area):
                yield (
                    f"rule {rule.name}: its area lies outside feed.domain, where every fix is refused; write one that "
                    "overlaps it"
                )

    @property
    def fastest_km_h(self) -> float | None:
        """Events that are faster are refused; None: none are. Under "values" no event is refused by its speed."""
        if self.relation == NeighbouringRelation.VALUES or not self.value.is_speed:
            return None
        fastest = self.feed.quality.fastest_km_h
        return (PARTICIPATION_FASTEST_KM_H if fastest is None else fastest) or None

    @property
    def teleport_km_h(self) -> float:
        """Fixes that are reached and left faster are refused; 0: none are."""
        reads = self.relation == NeighbouringRelation.PARTICIPATION and self.value.is_speed
        default = PARTICIPATION_FASTEST_KM_H if reads else 0.0
        given = self.feed.quality.teleport_km_h
        return default if given is None else given

    @property
    def frozen(self) -> timedelta:
        """What is reported from one position for longer is refused, under "participation" at a speed above 0 only; 0:
        nothing is.
        """
        reads = self.relation == NeighbouringRelation.PARTICIPATION and self.value.is_speed
        possible = reads and self.window.slot > PARTICIPATION_FROZEN
        given = self.feed.quality.frozen
        return (PARTICIPATION_FROZEN if possible else timedelta(0)) if given is None else given

    @property
    def declares_regions(self) -> bool:
        """Whether users declare regions, by events with one time."""
        return self.histogram is not None and self.histogram.declares_regions

    @property
    def histogram_grant(self) -> int:
        """What a user with a fix in the box pays in one window for all spatial histograms, in the ledger's unit."""
        return 0 if self.histogram is None else self.histogram.cost(self.privacy.accounting)

    @property
    def window_grant(self) -> int:
        """The most that one user may be charged in one window, for speed and histograms, in the ledger's unit."""
        return self.privacy.ledger_grant + self.histogram_grant

    @property
    def shared_ledger(self) -> str | None:
        """Name of the ledger that this feed shares with others; None: it has a ledger of its own."""
        return None if self.ledger is None else self.ledger.name

    @property
    def slotting(self) -> Slotting:
        """Timeslots, ledger periods and blocks of the horizon."""
        given, horizon = self.privacy, None
        if given.horizon is not None:
            horizon = Horizon(given.horizon.period, given.horizon_budget)
        return Slotting(self.window.slot, given.period, self.feed.timezone, horizon)

    @property
    def publication(self) -> PublicationTimes | None:
        """Instants at which windows are published; None: as soon as they are committed.

        Under "participation" there always are: the length of a draw follows from the data.
        """
        margin = self.window.publication_margin
        if margin is None and self.relation == NeighbouringRelation.PARTICIPATION:
            margin = _PARTICIPATION_MARGIN
        return None if margin is None else PublicationTimes(self.window.allowed_delay, margin)

    @property
    def ledger_policy(self) -> str:
        """What must not change while a ledger is used: the relation, the periods and the unit, as text."""
        accounting = self.privacy.accounting
        counted = "" if accounting == "pure" else f", accounting {accounting}"
        blocks = "" if self.privacy.horizon is None else f", blocks of {self.privacy.horizon.period}"
        return (
            f"relation {self.relation}, periods of {self.privacy.period}{blocks}, time zone "
            f"{self.feed.timezone}{counted}"
        )
