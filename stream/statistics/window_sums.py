"""A window of which sums were kept instead of its rows, as its statistics read it. Pure.

Which events count was decided when they arrived (:mod:`stream.storage.stored_sums`), so the limit of a user's events is not applied
again. Partitions that hold rows of the window, because its state was changed while it was open, are summed up first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpcore.contributions import Contributions, Counts
from dpcore.pair_sums import PairSums, Summable
from stream.config import Config
from stream.config.needs_rows import needs_rows
from stream.statistics.merging import by_planned_cells
from stream.statistics.plan import Plan, PlanError
from stream.statistics.user_limits import UserLimits
from stream.windows import Window, utc_text


@dataclass(frozen=True)
class WindowSums:
    """``stored``: the sums of all events that may count; ``contributions``: those of the cells of each user that do, within ``limits``."""

    stored: PairSums
    contributions: PairSums
    limits: UserLimits

    @classmethod
    def of(cls, stored: PairSums, limits: UserLimits) -> WindowSums:
        """Of a user in too many cells count those with most of their events, the lowest cell first where they have equally many."""
        counted = limits.counted_pairs(stored.counts)
        return cls(stored, stored if counted is None else stored.among(counted), limits)

    def as_planned(self, plan: Plan, config: Config) -> WindowSums:
        """The sums as ``plan`` reads them; it may have been made under other limits.

        Raises :class:`PlanError` if it reads positions.
        """
        if plan.reads_positions:
            raise PlanError(
                f"window {utc_text(plan.window.start)} was planned by positions, but its state are sums; nothing was drawn. Restore Redis "
                "from its append-only file"
            )
        limits = UserLimits(plan.max_cells_per_user, plan.max_events_per_user)
        return self if limits == self.limits else WindowSums.of(self.stored, limits)

    def in_cells_of(self, plan: Plan) -> PairSums:
        """The contributions by the cells of ``plan``; raises as :func:`stream.statistics.merging.by_planned_cells`."""
        return by_planned_cells(plan, self.contributions)

    @property
    def counts(self) -> Counts:
        """Who contributed how often where."""
        return self.contributions.counts

    @property
    def fixes(self) -> None:
        """No positions were kept."""
        return

    @property
    def refused(self) -> dict[str, int]:
        """No rule refuses events of sums when their window is closed."""
        return {}

    @property
    def beyond_limits(self) -> int:
        """Number of events in cells that do not count, because their user was in too many; for operators only."""
        return int(self.stored.counts.samples.sum() - self.counts.samples.sum())


def values_of(plan: Plan, contributions: Summable) -> Contributions:
    """The single values; raises :class:`PlanError` if only their sums were kept."""
    if isinstance(contributions, PairSums):
        raise PlanError(
            f"window {utc_text(plan.window.start)} was planned for statistics that read single events, but its state are sums; nothing "
            "was drawn. Restore Redis from its append-only file"
        )
    return contributions


def check_sums(stored: PairSums, last_us: int, window: Window, config: Config) -> PairSums:
    """The sums of ``window``, as values of at most the configured bound. Raises :class:`PlanError` where they cannot be released.

    Sensitivities hold for values up to U. So sums of values that were clipped to more than the configured U are not released with it.
    """
    upper, name = config.speed.upper_quanta, utc_text(window.start)
    if problems := needs_rows(config):
        raise PlanError(
            f"window {name} holds sums, which the configuration cannot be released from; nothing was planned. Restore the old settings until "
            f"it is released: {'; '.join(problems)}"
        )
    if stored.upper > upper:
        raise PlanError(
            f"speed.upper_bound was lowered while window {name} was open: its sums are of speeds up to {stored.upper} quanta, above {upper}; "
            "nothing was planned. Restore the old bound until the window is released"
        )
    if last_us >= window.end * 1_000_000:
        raise PlanError(
            f"window.slot was changed while window {name} was open: its sums have events after its end {utc_text(window.end)}; nothing was "
            "planned. Restore the old length until it is released"
        )
    return replace(stored, upper=upper)
