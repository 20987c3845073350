"""Judges what a feed released by its input and output topics alone, its configuration, and the charges in its ledger.

Pure: functions over recorded messages. Nothing of the service's planning, drawing or protocol is used. Every rule of
:data:`RULES` is one function from a recording to its violations.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.faults.recount import DAY, WindowCounts
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, SPATIAL_HISTOGRAM, WINDOW, validator

_QUANTUM_KMH = 0.01
_MICRO = 1_000_000
_SIGMAS = 6.5
"""Noisy totals may differ from the recount by so many standard deviations. They are sums over dozens of cells, so
nearly normal: the odds of a false alarm are below 1e-8 a window."""
_DIGITS = 1e-5
"""Scales are published to six digits."""


class OutputRecord(NamedTuple):
    """One message of an output topic, as often as it was written."""

    topic: str
    ce_id: str
    value: bytes


class Withholding(NamedTuple):
    """From ``begin`` until ``end`` (epoch seconds) the ledger was lost, and ``committed`` windows had been committed
    before."""

    begin: float
    end: float
    committed: int


class Violation(NamedTuple):
    """A broken rule, how it was broken, and the window (its start; empty if the rule is not about one window)."""

    rule: str
    window: str
    what: str


@dataclass(frozen=True)
class Recording:
    """What one feed was sent and what it released.

    ``windows``: the recount of its input by the start of each slot. ``ledger``: units spent by period and pseudonym.
    ``seen``: when a reader of the output topic first saw each window's marker, epoch seconds. ``until``: windows that
    ended by this time are due.
    """

    config: Config
    windows: Mapping[int, WindowCounts]
    outputs: Sequence[OutputRecord]
    ledger: Mapping[str, Mapping[int, int]]
    seen: Mapping[int, float]
    until: float
    withholdings: Sequence[Withholding] = ()
    _bodies: dict[str, Any] = field(default_factory=dict, init=False)

    @cached_property
    def distinct(self) -> dict[str, bytes]:
        """The first value written under each identifier."""
        values: dict[str, bytes] = {}
        for record in self.outputs:
            values.setdefault(record.ce_id, record.value)
        return values

    @cached_property
    def of_window(self) -> dict[int, list[str]]:
        """Identifiers of each window's messages, without its marker, ascending."""
        wanted: dict[int, list[str]] = defaultdict(list)
        for topic, ce_id in {(record.topic, record.ce_id) for record in self.outputs}:
            if topic in (HEXAGON_SPEED, SPATIAL_HISTOGRAM):
                wanted[self._slot(self.body(ce_id))].append(ce_id)
        return {slot: sorted(identifiers) for slot, identifiers in wanted.items()}

    @cached_property
    def markers(self) -> dict[int, Any]:
        """Body of the close marker of each released window, by the start of its slot."""
        identifiers = {record.ce_id for record in self.outputs if record.topic == WINDOW}
        return {self._slot(body): body for body in map(self.body, identifiers)}

    @property
    def released(self) -> list[tuple[int, Any]]:
        """Released windows in the order of their numbers."""
        return sorted(self.markers.items(), key=lambda item: int(item[1]["sequence"]))

    def body(self, ce_id: str) -> Any:
        """The decoded message."""
        if ce_id not in self._bodies:
            self._bodies[ce_id] = msgspec.json.decode(self.distinct[ce_id])
        return self._bodies[ce_id]

    def cells(self, slot: int) -> dict[str, Any]:
        """Bodies of a window's hexagons by cell."""
        bodies = (self.body(ce_id) for ce_id in self.of_window.get(slot, []) if ce_id.startswith(HEXAGON_SPEED))
        return {body["cell"]: body for body in bodies}

    @cached_property
    def windows_of_users(self) -> dict[str, Counter[int]]:
        """In how many released windows of each period each user has events that count."""
        times: dict[str, Counter[int]] = defaultdict(Counter)
        for slot, marker in self.markers.items():
            if slot in self.windows and not marker.get("withheld"):
                times[self.period(slot)].update(np.unique(self.windows[slot].user).tolist())
        return times

    @property
    def is_public(self) -> bool:
        """Whether counts are public."""
        return self.config.relation == NeighbouringRelation.VALUES

    @property
    def slot_seconds(self) -> int:
        return int(self.config.window.slot.total_seconds())

    def period(self, slot: int) -> str:
        """Name of the ledger period that ``slot`` lies in."""
        date = datetime.fromtimestamp(slot, UTC).date().isoformat()
        length = int(self.config.privacy.period.total_seconds())
        return date if length == DAY else f"{date}.{slot % DAY // length}"

    @staticmethod
    def _slot(body: Any) -> int:
        return round(datetime.fromisoformat(body["window"]["start"]).timestamp())


def check(recording: Recording) -> list[Violation]:
    """Every violation of every rule; none where the feed kept all of them."""
    return [
        Violation(rule, "" if slot is None else _text(slot), what)
        for rule, violations in RULES.items()
        for slot, what in violations(recording)
    ]


Violations = Iterator[tuple[int | None, str]]


def repeats_differ(recording: Recording) -> Violations:
    """A message that is published again has the same bytes."""
    values: dict[str, set[bytes]] = defaultdict(set)
    for record in recording.outputs:
        values[record.ce_id].add(record.value)
    for ce_id, versions in values.items():
        if len(versions) > 1:
            yield None, f"{ce_id} was published in {len(versions)} versions"


def invalid(recording: Recording) -> Violations:
    """Every message fits the schema of its topic."""
    for topic in OUTPUT_TOPICS:
        checks = validator(topic)
        for ce_id in {record.ce_id for record in recording.outputs if record.topic == topic}:
            if not checks.is_valid(recording.body(ce_id)):
                yield None, f"{ce_id} does not fit its schema"


def due(recording: Recording) -> set[int]:
    """Starts of the windows that must be released: under "values" those with events, else all since the first one."""
    slot, until = recording.slot_seconds, recording.until
    if recording.is_public:
        return {start for start in recording.windows if start + slot <= until}
    first = min(recording.markers, default=math.inf)
    return set() if first == math.inf else set(range(int(first), int(until) - slot + 1, slot))


def not_once(recording: Recording) -> Violations:
    """Every due window is released, no other is, and every message belongs to a released window."""
    wanted, released = due(recording), set(recording.markers)
    for start in sorted(wanted - released):
        yield start, "is due and was not released"
    for start in sorted(released - recording.windows.keys() if recording.is_public else ()):
        yield start, "was released and had no events"
    for start in sorted(set(recording.of_window) - released):
        yield start, "has messages and no close marker"


def markers_wrong(recording: Recording) -> Violations:
    """A marker states number and digest of its window's messages, and the terms of the configuration."""
    privacy, histogram = recording.config.privacy, recording.config.histogram
    for start, marker in recording.markers.items():
        identifiers = recording.of_window.get(start, [])
        digest = hashlib.sha256(b"".join(recording.distinct[ce_id] for ce_id in identifiers)).hexdigest()
        if marker["messages"] != len(identifiers):
            yield start, f"has {len(identifiers)} messages, its marker says {marker['messages']}"
        if marker["digest"] != f"sha256:{digest}":
            yield start, "has a digest that its messages do not have"
        terms = (marker["epsilon"], marker["budget"], marker.get("histogram_epsilon"))
        if terms != (privacy.epsilon, privacy.budget, None if histogram is None else histogram.epsilon):
            yield start, f"states epsilon, budget and histogram_epsilon as {terms}"
        if marker.get("withheld"):
            yield start, "was withheld"


def numbers_wrong(recording: Recording) -> Violations:
    """Windows are numbered 1, 2, 3, … by one ledger, and each continues the memory that the one before left."""
    numbers = Counter(marker["sequence"] for marker in recording.markers.values())
    for number in range(1, max(numbers, default=0) + 1):
        if numbers[number] != 1:
            yield None, f"number {number} was given to {numbers[number]} windows"
    generations = {marker["generation"] for marker in recording.markers.values()}
    if len(generations) > 1:
        yield None, f"{len(generations)} ledgers released windows"
    before = None
    for start, marker in recording.released:
        if "memory" in marker:
            if marker["memory"]["before"] != before:
                yield start, "does not continue the memory of the window before it"
            before = marker["memory"]["after"]


def counts_wrong(recording: Recording) -> Violations:
    """Under "values", cells, events and users are those of the input. Else noisy totals are within the noise of
    them."""
    if not recording.is_public:
        yield from _totals_wrong(recording)
        return
    for start, marker in recording.markers.items():
        if marker.get("withheld"):
            continue
        stated = {cell: (body["events"], body["users"]) for cell, body in recording.cells(start).items()}
        counted = recording.windows[start].by_cell() if start in recording.windows else {}
        wrong = sorted(cell for cell in stated.keys() | counted.keys() if stated.get(cell) != counted.get(cell))
        if wrong:
            cell = wrong[0]
            what = f"{len(wrong)} cells are miscounted; {cell}: "
            yield start, f"{what}{stated.get(cell)} (events, users) released, {counted.get(cell)} sent"


def _totals_wrong(recording: Recording) -> Violations:
    """Totals of users over all cells, for each window and for all together."""
    cells_of = {start: recording.cells(start) for start in recording.markers}
    if len({frozenset(cells) for cells in cells_of.values()}) > 1:
        yield None, "windows list different cells"
    totals: list[tuple[int | None, float, float, int, int]] = []
    for start, cells in cells_of.items():
        released = sum(body["users"]["raw"] for body in cells.values())
        variance = sum(2 * body["users"]["scale"] ** 2 for body in cells.values())
        totals.append((start, released, variance, *_users_between(recording, start)))
    totals.append((None, *(sum(column) for column in list(zip(*totals, strict=True))[1:])))
    for where, released, variance, least, most in totals:
        margin = _SIGMAS * math.sqrt(variance)
        if not least - margin <= released <= most + margin:
            yield where, f"{released:.0f} users released, {least} to {most} sent, noise of ±{margin:.0f}"


def _users_between(recording: Recording, slot: int) -> tuple[int, int]:
    """How many users a window under "participation" counts: at least those who surely have budget left, at most all."""
    if slot not in recording.windows:
        return 0, 0
    users = np.unique(recording.windows[slot].user)
    times = recording.windows_of_users[recording.period(slot)]
    affordable = recording.config.privacy.budget // _cost(recording.config)
    sure = sum(times[user] <= affordable for user in users.tolist())
    return sure, len(users)


def _cost(config: Config) -> float:
    """ε that one user pays for a window where the charge is the same for everybody who takes part."""
    return config.privacy.epsilon + (0.0 if config.histogram is None else config.histogram.epsilon)


def expected_ledger(recording: Recording) -> dict[str, dict[int, tuple[float, float]]]:
    """µε that each user must have spent by period, and how far rounding may put the ledger from it.

    With histograms, and under "participation", everybody who can pay is charged the same. Otherwise a charge is the sum
    over the user's cells of sensitivity / scale: the sensitivity follows from the recount, the scale is published.
    """
    expected: dict[str, dict[int, tuple[float, float]]] = {}
    config = recording.config
    if not recording.is_public or config.histogram is not None:
        cost, budget = round(_cost(config) * _MICRO), round(config.privacy.budget * _MICRO)
        for period, times in recording.windows_of_users.items():
            expected[period] = {user: (cost * min(n, budget // cost), 0.0) for user, n in times.items()}
        return expected
    for slot, marker in recording.markers.items():
        if slot not in recording.windows or marker.get("withheld"):
            continue
        losses = expected.setdefault(recording.period(slot), {})
        for user, loss in _losses(recording, slot):
            spent, rounding = losses.get(user, (0.0, 0.0))
            losses[user] = (spent + loss, rounding + 1 + loss * _DIGITS)
    return expected


def _losses(recording: Recording, slot: int) -> Iterator[tuple[int, float]]:
    """µε that each (cell, user) of a window costs by its mean, from the published scales."""
    upper, cells = recording.config.value.upper_quanta, recording.cells(slot)
    for cell, user, samples in zip(*(column.tolist() for column in recording.windows[slot]), strict=True):
        body = cells.get(f"{cell:x}")
        if body is None or "mean" not in body or body["mean"]["scale"] == 0:
            continue
        quanta = body["mean"]["scale"] * body["events"] / _QUANTUM_KMH
        yield user, _MICRO * upper * samples / quanta


def ledger_wrong(recording: Recording) -> Violations:
    """The ledger holds what the released windows cost, no more and no less, and nobody is above the budget."""
    budget = round(recording.config.privacy.budget * _MICRO)
    expected = expected_ledger(recording)
    for period in sorted(expected.keys() | recording.ledger.keys()):
        due_of, spent_of = expected.get(period, {}), recording.ledger.get(period, {})
        above = [user for user, spent in spent_of.items() if spent > budget]
        above += [user for user, (spent, rounding) in due_of.items() if spent - rounding > budget]
        if above:
            yield None, f"{len(above)} users are above the budget in period {period}"
        for sign, what in ((1, "less"), (-1, "more")):
            wrong = [
                user
                for user in due_of.keys() | spent_of.keys()
                if sign * (due_of.get(user, (0, 0))[0] - spent_of.get(user, 0)) > due_of.get(user, (0, 0))[1]
            ]
            if wrong:
                user = wrong[0]
                yield (
                    None,
                    f"{len(wrong)} users were charged {what} than was released in period {period}, like "
                    f"{spent_of.get(user, 0)} instead of {due_of.get(user, (0, 0))[0]:.0f} µε",
                )


def released_while_lost(recording: Recording) -> Violations:
    """While the ledger is lost, only windows appear that were committed before."""
    for lost in recording.withholdings:
        for start, marker in recording.markers.items():
            if marker["sequence"] > lost.committed and lost.begin <= recording.seen.get(start, 0.0) <= lost.end:
                yield start, f"was released while the ledger remembered {lost.committed} windows at most"


def too_early(recording: Recording) -> Violations:
    """No window appears before its end and the allowed delay, and the margin where there is one."""
    window, instants = recording.config.window, recording.config.publication
    wait = window.allowed_delay.total_seconds() + (0.0 if instants is None else instants.margin.total_seconds())
    for start, seen in recording.seen.items():
        if seen < start + recording.slot_seconds + wait:
            yield start, f"was seen {start + recording.slot_seconds + wait - seen:.1f} s too early"


def _text(slot: int) -> str:
    return datetime.fromtimestamp(slot, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


RULES: dict[str, Callable[[Recording], Violations]] = {
    "a repeat has the same bytes": repeats_differ,
    "a message fits its schema": invalid,
    "a due window is released once": not_once,
    "a marker states its messages": markers_wrong,
    "windows are numbered by one ledger": numbers_wrong,
    "counts are those of the input": counts_wrong,
    "the ledger holds what was released": ledger_wrong,
    "a lost ledger releases nothing": released_while_lost,
    "a window waits for its instant": too_early,
}
"""Each rule by the sentence that it checks."""
