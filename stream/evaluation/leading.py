"""How narrow the leading numbers of a recording are under one configuration, and which budget pays for them. NOT
PRIVATE.

The leading number of a cell is the one that a reader sees first: the smoothed mean where smoothing is configured, else
the shrunk mean, else the raw mean. Windows are planned, charged, drawn and smoothed by the service's own code.

What an operator wants of a map, in one sentence: how near its number must be, or how soon it must show a jam.
"""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IdArray
from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config
from stream.config.value import SPEED_UNIT
from stream.evaluation.evaluate import PlannedWindow, planned_windows
from stream.statistics.columns import Derived
from stream.statistics.merging import by_planned_cells, resolutions
from stream.statistics.pipeline import area_body, post_process
from stream.statistics.plan import Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import exact_values
from stream.statistics.window_release import speed_of
from stream.windows import Period, Slotting, Window

EXAMPLE = "±5 {unit} for 80 % of events"
EXAMPLE_OF_A_DROP = "see a drop of 8 km/h within 30 min in 80 % of cells"
_NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
_GRAMMAR = re.compile(
    rf"\s*(?:±|\+/?-)\s*{_NUMBER}\s*(\S+?)\s+for\s+{_NUMBER}\s*(?:%|percent)\s+of\s+events\s*", re.IGNORECASE
)
_DROP = re.compile(
    rf"\s*see\s+a\s+drop\s+of\s+{_NUMBER}\s*km/h\s+within\s+{_NUMBER}\s*min\s+in\s+{_NUMBER}\s*(?:%|percent)\s+of\s+cells\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Want:
    """The 95 % interval of the leading number reaches at most ``half_width`` to either side, in ``unit``, in cells
    that have at least ``share`` (above 0, at most 1) of all events.
    """

    half_width: float
    share: float
    unit: str = SPEED_UNIT

    @classmethod
    def parse(cls, text: str, width: float, unit: str = SPEED_UNIT) -> Self:
        """``"±5 km/h for 80 % of events"``; ``+-`` and ``+/-`` are read as ``±``, ``percent`` as ``%``.

        ``width``: U in ``unit``; every value lies within U/2 of the middle of its range, so less is wanted. Raises
        :class:`ValueError` with the wrong value and an example.
        """
        match, example = _GRAMMAR.fullmatch(text), EXAMPLE.format(unit=unit)
        if match is None or match[2].lower() != unit.lower():
            other = f" or {EXAMPLE_OF_A_DROP!r}" if unit == SPEED_UNIT else ""
            raise ValueError(f"{text!r} is not a want; write one like {example!r}{other}")
        half_width, percent = float(match[1]), float(match[3])
        if not 0 < half_width < width / 2:
            raise ValueError(
                f"±{half_width:g} {unit} in {text!r} must be above 0 and below {width / 2:g}, half of the range from "
                f"value.lower to value.upper; write one like {example!r}"
            )
        if not 0 < percent <= 100:
            raise ValueError(f"{percent:g} % in {text!r} must be above 0 and at most 100; write one like {example!r}")
        return cls(half_width, percent / 100, unit)

    def __str__(self) -> str:
        return f"±{self.half_width:g} {self.unit} for {100 * self.share:g} % of events"


@dataclass(frozen=True)
class DropWant:
    """So many ``minutes`` after traffic slows down by ``drop`` km/h, at least ``share`` (above 0, at most 1) of the
    cells show it: the 95 % interval on the screen lies below the mean speed that they would have had.
    """

    drop: float
    minutes: float
    share: float

    @classmethod
    def parse(cls, text: str, upper: float) -> "DropWant | None":
        """``"see a drop of 8 km/h within 30 min in 80 % of cells"``; None for a text that speaks of something else.

        ``upper``: U in km/h. Raises :class:`ValueError` with the wrong value and an example.
        """
        match = _DROP.fullmatch(text)
        if match is None:
            return None
        drop, minutes, percent = (float(number) for number in match.groups())
        if not 0 < drop < upper:
            raise ValueError(
                f"a drop of {drop:g} km/h must be above 0 and below value.upper, {upper:g}; write one like "
                f"{EXAMPLE_OF_A_DROP!r}"
            )
        if not 0 < minutes <= 60:
            raise ValueError(
                f"{minutes:g} min must be above 0 and at most 60, the length of a planted incident; write one like "
                f"{EXAMPLE_OF_A_DROP!r}"
            )
        if not 0 < percent <= 100:
            raise ValueError(
                f"{percent:g} % of cells must be above 0 and at most 100; write one like {EXAMPLE_OF_A_DROP!r}"
            )
        return cls(drop, minutes, percent / 100)

    def __str__(self) -> str:
        return f"see a drop of {self.drop:g} km/h within {self.minutes:g} min in {100 * self.share:g} % of cells"


Windows = dict[int, npt.NDArray[np.void]]


@dataclass(frozen=True)
class Leading:
    """Leading numbers of the cells that have events, shape (C,): events; how far the 95 % interval reaches, in km/h,
    infinite where nothing is released; whether the interval holds the true mean over samples; H3 resolution, below that
    of the window's grid where cells are merged.
    """

    events: FloatArray
    reach: FloatArray
    covers: BoolArray
    resolution: IdArray

    @classmethod
    def joined(cls, parts: list[Self]) -> "Leading":
        """All parts after each other."""
        return Leading(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))

    def share_within(self, half_width: float) -> float:
        """Share of events in cells whose interval reaches at most ``half_width`` km/h."""
        return float(self.events[self.reach <= half_width].sum() / self.events.sum())

    def reach_of(self, share: float) -> float:
        """How far the intervals of the cells with this share of events reach at most, in km/h: a quantile."""
        order = np.argsort(self.reach, kind="stable")
        enough = np.cumsum(self.events[order]) >= share * self.events.sum() * (1 - 1e-12)
        return float(self.reach[order][np.argmax(enough)])

    def covered(self) -> float:
        """Share of events in cells whose interval holds the truth, of those in cells that are released."""
        released = np.isfinite(self.reach)
        total = self.events[released].sum()
        return float(self.events[released & self.covers].sum() / total) if total else 0.0


@dataclass(frozen=True)
class TrialOutcome:
    """One configuration on one recording. ``half_width``: of the wanted share of events, in km/h; ``budget``: ε that
    pays for a period, ``ledger_budget`` the same in the ledger's unit.
    """

    epsilon: float
    budget: float
    ledger_budget: int
    half_width: float
    share: float
    covered: float


class Spending:
    """The least budget with which nobody is refused, if every period is as busy as the recorded part of it."""

    def __init__(self, grant: int, slotting: Slotting) -> None:
        self._grant, self._slotting = grant, slotting
        self._spent: dict[str, dict[int, int]] = {}
        self._slots: dict[Period, list[int]] = {}
        self._most: dict[Period, int] = {}

    def add(self, plan: Plan) -> None:
        """Charges of one window, later than those before. Its users were admitted if a whole grant was left."""
        self._slots.setdefault(plan.period, []).append(plan.window.start)
        spent = self._spent.setdefault(plan.period.key, {})
        users, charges = plan.charged_users()
        for user, charge in zip(users.tolist(), charges.tolist(), strict=True):
            before = spent.get(user, 0)
            self._most[plan.period] = max(self._most.get(plan.period, 0), before + self._grant)
            spent[user] = before + charge

    def ledger_budget(self) -> int:
        """In the ledger's unit: the most of what the periods need, each by its own recorded slots. A part of a period
        counts for all of it in proportion: a half day needs twice what it spent, but never above a whole grant for
        every slot.
        """
        return max(self._needed(period, slots) for period, slots in self._slots.items())

    def _needed(self, period: Period, slots: list[int]) -> int:
        inside = self._slotting.slots_in(Window(period.start, period.end))
        seen, whole = sum(min(slots) <= slot <= max(slots) for slot in inside), len(inside)
        return min(self._grant * whole, -(-self._most.get(period, self._grant) * whole // seen))


def with_terms(config: Config, epsilon: float, windows: int) -> Config:
    """``config`` with another ε of a window and a budget that pays ``windows`` of them in full."""
    privacy = config.privacy
    grant = privacy.units(epsilon)
    keys = privacy.keys_for(grant, windows * (grant + config.histogram_grant))
    return config.model_copy(update={"privacy": type(privacy)(**(privacy.model_dump(by_alias=True) | keys))})


def simulate(config: Config, windows: Windows, want: Want, draws: int, seed: int) -> TrialOutcome:
    """Release ``windows`` (slot -> rows) ``draws`` times with noise from ``seed``, which never leaves the boundary."""
    every, ledger_budget = released(config, windows, draws, seed)
    return TrialOutcome(
        epsilon=config.privacy.epsilon,
        budget=config.privacy.stated_epsilon(ledger_budget),
        ledger_budget=ledger_budget,
        half_width=every.reach_of(want.share),
        share=every.share_within(want.half_width),
        covered=every.covered(),
    )


def released(config: Config, windows: Windows, draws: int, seed: int) -> tuple[Leading, int]:
    """The leading numbers of all cells, windows and draws, and the least budget in the ledger's unit, as
    :func:`simulate`."""
    noise = Noise(np.random.default_rng(seed).bytes)
    memories: list[Memory | None] = [None] * draws
    spending, parts = Spending(config.window_grant, config.slotting), []
    for planned in planned_windows(config, windows):
        spending.add(planned.plan)
        for draw_number, memory in enumerate(memories):
            leading, memories[draw_number] = _leading(planned, memory, noise)
            parts.append(leading)
    return Leading.joined(parts), spending.ledger_budget()


def _leading(planned: PlannedWindow, memory: Memory | None, noise: Noise) -> tuple[Leading, Memory | None]:
    plan = planned.remembering(memory)
    samples, speed = by_planned_cells(plan, planned.contributions), speed_of(plan.terms)
    columns = speed.draw(plan, samples, noise)
    bodies = speed.body(plan, samples.counts, columns)
    derived, memory = post_process(plan, bodies, memory, area_body(columns, plan.terms.value))
    mean = columns["mean"]
    leading = derived.get("mean") or Derived("none", mean.value, (mean.low, mean.high))
    return _judged(plan, samples, leading), memory


def _judged(plan: Plan, samples: Contributions, leading: Derived) -> Leading:
    counts, top = samples.counts, plan.terms.speed.upper
    assert leading.interval is not None, "means have intervals, released and modelled ones"
    low, high = np.clip(leading.interval, 0.0, top)
    reach = np.where(plan.published, np.maximum(high - leading.value, leading.value - low), np.inf)
    at = np.minimum(np.searchsorted(plan.cells, counts.cells), len(plan.cells) - 1)
    listed = plan.cells[at] == counts.cells
    truth = exact_values(plan, samples)["mean"]
    covers = listed & (low[at] <= truth + 1e-9) & (truth <= high[at] + 1e-9)
    events = counts.by_cell(counts.samples).astype(np.float64)
    return Leading(events, np.where(listed, reach[at], np.inf), covers, resolutions(counts.cells))
