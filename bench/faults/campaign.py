"""Runs the faults of one site one after the other, measures how long each feed takes to publish again, and has it
checked."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.faults.checker import Recording, Violation, check, due
from bench.faults.injectors import FAULTS, Ended
from bench.faults.observing import committed, ledger, outputs, recount
from bench.faults.site import Site, SiteSizes

_PATIENCE_SECONDS = 300.0
"""How long a feed may take to publish again before the campaign gives up on it."""
_DRAIN_SECONDS = 600.0
_REVIVE_SECONDS = 5.0
"""How often workers that ended by themselves are looked for."""


@dataclass(frozen=True)
class Schedule:
    """Which faults, how many at most and for how long at most. ``lasting``: bounds of the seconds that a fault lasts.

    ``waits``: whether the next fault waits until every feed has recovered from this one.
    """

    faults: tuple[str, ...]
    count: int
    seconds: float
    lasting: tuple[float, float]
    waits: bool = True


@dataclass
class Outcome:
    """What a site went through, and what the checker says of each of its feeds."""

    faults: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    recovery: list[tuple[float, str]] = field(default_factory=list)
    """Seconds until a feed published again, and after which fault."""
    violations: list[str] = field(default_factory=list)
    recordings: list[Recording] = field(default_factory=list)
    windows: int = 0
    messages: int = 0
    repeats: int = 0
    events: int = 0
    accepted: int = 0

    def add(self, other: Outcome) -> None:
        """Add what another site went through."""
        for name, times in other.faults.items():
            self.faults[name] += times
        for name in ("recovery", "violations", "recordings"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("windows", "messages", "repeats", "events", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def order_of(schedule: Schedule, rng: np.random.Generator) -> Iterator[str]:
    """The names of the faults in turn: every one once in random order, then again in another."""
    left = schedule.count
    while left > 0:
        yield from rng.permutation(schedule.faults).tolist()[:left]
        left -= len(schedule.faults)


def run_site(sizes: SiteSizes, schedule: Schedule, seed: int, say: Callable[[str], None]) -> Outcome:
    """Run one site to its end and check it. ``say`` is called after every fault with a line about it."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="hexveil-faults-") as folder:
        site = Site(Path(folder), sizes, seed)
        with site.running():
            say("the servers and workers run")
            _begin(site)
            injected = _inject(site, schedule, outcome, say)
            _drain(site, outcome, say)
            _measure(site, injected, outcome)
        if outcome.violations:
            say(f"the logs of its servers and workers are kept in {_kept(Path(folder))}")
    return outcome


def _kept(folder: Path) -> Path:
    """A folder that stays, with all logs of ``folder``."""
    kept = Path(tempfile.mkdtemp(prefix="hexveil-faults-violations-"))
    for log in folder.rglob("*.log"):
        shutil.copy(log, kept / "-".join(log.relative_to(folder).parts))
    return kept


def _begin(site: Site) -> None:
    """Wait until every feed has published a window: before, there is nothing to lose."""
    for feed in site.feeds:
        if site.observer.next_window(feed.name, 0.0, _PATIENCE_SECONDS) is None:
            raise RuntimeError(f"feed {feed.name} published nothing; its worker's log:\n{_log(site, feed.name)}")


def _inject(site: Site, schedule: Schedule, outcome: Outcome, say: Callable[[str], None]) -> list[tuple[str, Ended]]:
    """The faults, each with its end."""
    deadline, injected = time.monotonic() + schedule.seconds, []
    for name in order_of(schedule, site.rng):
        if time.monotonic() > deadline:
            break
        try:
            ended = FAULTS[name](site, float(site.rng.uniform(*schedule.lasting)))
        except RuntimeError as error:
            outcome.violations.append(f"{name}: {error}")
            ended = Ended(time.time(), [])
        injected.append((name, ended))
        outcome.faults[name] += 1
        site.revive()
        slowest = 0.0
        for feed in ended.feeds if schedule.waits else ():
            seconds = _next_window(site, feed, ended.at)
            if seconds is None:
                say(f"{feed} published nothing; the end of its worker's log:\n{_log(site, feed)}")
            slowest = max(slowest, seconds or _PATIENCE_SECONDS)
        say(f"{name}: {', '.join(ended.feeds)}" + f" published again after {slowest:.1f} s" * schedule.waits)
    return injected


def _next_window(site: Site, feed: str, after: float) -> float | None:
    """Seconds from ``after`` until ``feed`` published a window; None if it did not in :data:`_PATIENCE_SECONDS`."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        seconds = site.observer.next_window(feed, after, _REVIVE_SECONDS)
        if seconds is not None:
            return seconds
        site.revive()
    return None


def _wait_for(site: Site, feed: str, slots: Collection[int]) -> None:
    """Wait until all of ``slots`` are published, or :data:`_DRAIN_SECONDS` are over."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not site.observer.wait_for(feed, slots, _REVIVE_SECONDS) and time.monotonic() < deadline:
        site.revive()


def _measure(site: Site, injected: Sequence[tuple[str, Ended]], outcome: Outcome) -> None:
    """Note how long after each fault every feed that it concerned published a window."""
    for name, ended in injected:
        for feed in ended.feeds:
            later = [seen - ended.at for seen in site.observer.seen[feed].values() if seen > ended.at]
            outcome.recovery.append((min(later, default=_PATIENCE_SECONDS), name))
            if not later:
                outcome.violations.append(f"{feed} published nothing after: {name}")


def _drain(site: Site, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Stop sending, wait for every due window, stop the workers, and check each feed."""
    site.feeder.stop()
    sizes, ended = site.sizes, time.time()
    until = ended + sizes.ahead + 3 * sizes.slot
    recordings = []
    for feed in site.feeds:
        counted = recount(site.bootstrap, feed.config)
        outcome.events += counted.events
        outcome.accepted += counted.accepted
        last = until if feed.kind == "riders" else float("inf")
        recording = Recording(feed.config, counted.windows(), [], {}, {}, last, feed.withholdings)
        recordings.append(recording)
        if feed.kind != "riders":
            _wait_for(site, feed.name, due(recording))
    for feed in site.feeds:
        last_slot = int(until) // sizes.slot * sizes.slot - sizes.slot
        if feed.kind == "riders":
            _wait_for(site, feed.name, [last_slot])
            first = min(site.observer.seen[feed.name], default=last_slot)
            _wait_for(site, feed.name, range(first, last_slot, sizes.slot))
    for feed in site.feeds:
        _wait_for_what_is_committed(site, feed.name)
    site.end_workers()
    released = outputs(site.bootstrap)
    for feed, recording in zip(site.feeds, recordings, strict=True):
        spent, seen = ledger(site.redis.url, feed.name), dict(site.observer.seen[feed.name])
        _judge(replace(recording, outputs=released[feed.name], ledger=spent, seen=seen), outcome, say)


def _wait_for_what_is_committed(site: Site, feed: str) -> None:
    """Wait for a moment at which everything committed was published, so that no number is missing."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while len(site.observer.seen[feed]) < committed(site.redis.url, feed) and time.monotonic() < deadline:
        time.sleep(0.05)


def _judge(recording: Recording, outcome: Outcome, say: Callable[[str], None]) -> None:
    name = recording.config.feed.name
    violations = check(recording)
    outcome.recordings.append(recording)
    outcome.windows += len(recording.markers)
    outcome.messages += len(recording.outputs)
    outcome.repeats += len(recording.outputs) - len(recording.distinct)
    outcome.violations += [f"{name}: {_said(violation)}" for violation in violations]
    say(f"{name}: {len(recording.markers)} windows, {len(violations)} violations")


def _said(violation: Violation) -> str:
    return f"{violation.rule}: {violation.window} {violation.what}"


def _log(site: Site, name: str) -> str:
    file = next(feed.file for feed in site.feeds if feed.name == name).parent / "worker.log"
    return "\n".join(file.read_text(errors="replace").splitlines()[-30:])


def figures(outcome: Outcome, seconds: float) -> dict[str, object]:
    """The results as JSON can hold them; recovery in seconds."""
    times = np.array([time for time, _ in outcome.recovery] or [0.0])
    slowest: dict[str, float] = {}
    for recovery, name in outcome.recovery:
        slowest[name] = max(slowest.get(name, 0.0), round(recovery, 1))
    return {
        "seconds": round(seconds),
        "relations": sorted({str(recording.config.relation) for recording in outcome.recordings}),
        "faults": sum(outcome.faults.values()),
        "windows": outcome.windows,
        "events": outcome.events,
        "events_in_time": outcome.accepted,
        "messages": outcome.messages,
        "repeated_messages": outcome.repeats,
        "violations": sorted(outcome.violations),
        "recovery_seconds": {
            "p50": round(float(np.quantile(times, 0.5)), 1),
            "p99": round(float(np.quantile(times, 0.99)), 1),
            "max": round(float(times.max()), 1),
        },
        "faults_of_each_kind": dict(sorted(outcome.faults.items())),
        "slowest_recovery_of_each_kind": dict(sorted(slowest.items())),
    }


def seeds(seed: int, sites: int) -> list[int]:
    """A seed for each of so many sites."""
    return [int(value) for value in np.random.default_rng(seed).integers(1 << 31, size=sites)]
