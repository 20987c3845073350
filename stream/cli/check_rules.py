"""The public rules that bound what one event, one user and one window may do, as ``hexveil check`` prints them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import MAX_CELLS_PER_USER, MAX_EVENTS_PER_USER, MAX_FUTURE, ORIGIN_DEGREES
from stream.config.public_cells import MAX_CELLS


class Rule(NamedTuple):
    """One bound. ``value`` is in ``unit``; ``rule`` says what happens at it."""

    bounds: str
    """What it bounds: an event, a user, or a window."""
    key: str
    """Its key in the configuration; a word for it where it is fixed."""
    value: float
    unit: str
    rule: str
    fixed: bool = False
    """Whether it is part of Hexveil and no key of the configuration."""

    @property
    def amount(self) -> str:
        """Value and unit as text."""
        for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")) if self.unit == "s" else ():
            if self.value >= size and self.value % size == 0:
                return f"{self.value / size:g} {unit}"
        value = int(self.value) if self.value == int(self.value) else self.value
        return f"{value:,} {self.unit}".replace(",", " ")


def rules_of(config: Config) -> list[Rule]:
    """Every rule of a configuration: of events, of users, of windows."""
    return [*_of_events(config), *_of_users(config), *_of_windows(config)]


def text_of(rules: list[Rule]) -> Iterator[str]:
    """The rules as lines, for people."""
    for bounded in dict.fromkeys(rule.bounds for rule in rules):
        yield f"Public rules that bound {bounded}:"
        for rule in rules:
            if rule.bounds == bounded:
                yield f"  {rule.key}{' (fixed)' if rule.fixed else ''}: {rule.amount}: {rule.rule}"


def _of_events(config: Config) -> Iterator[Rule]:
    from stream.ingestion.arrays import MAX_ARRAY_BYTES, MAX_EVENTS
    from stream.ingestion.decoding import MAX_MESSAGE_BYTES
    from stream.ingestion.unpacking import MAX_BATCH_BYTES

    event, window = "an event", config.window
    if window.lateness == "append-time":
        late = "an event is in time if the broker appended it by its window's end plus this"
    else:
        late = "an event is in time while no partition has events later than its window's end plus this"
    yield Rule(event, "window.allowed_delay", _seconds(window.allowed_delay), "s", late)
    if window.lateness == "event-time":
        silent = "a partition that was read to its end and brought nothing newer for this long is ignored"
        yield Rule(event, "window.idle_timeout", _seconds(window.idle_timeout), "s", silent)
    yield Rule(event, "window.max_age", _seconds(window.max_age), "s", "older events are refused on arrival")
    yield Rule(event, "ahead", _seconds(MAX_FUTURE), "s", "events further ahead are refused", fixed=True)
    origin = "events this near to latitude 0, longitude 0 are refused"
    yield Rule(event, "origin", ORIGIN_DEGREES, "degrees", origin, fixed=True)
    if config.fastest_km_h is not None:
        yield Rule(event, "feed.quality.fastest_km_h", config.fastest_km_h, "km/h", "faster events are refused")
    yield Rule(event, "message", MAX_MESSAGE_BYTES, "bytes", "longer messages are refused alone", fixed=True)
    if config.relation == NeighbouringRelation.PARTICIPATION:
        yield Rule(event, "elements", 1, "events", "messages with an array, of any size, are refused", fixed=True)
    else:
        longer = "longer messages with an array are refused alone"
        yield Rule(event, "array", MAX_ARRAY_BYTES, "bytes", longer, fixed=True)
        yield Rule(event, "elements", MAX_EVENTS, "events", "arrays with more are refused as a whole", fixed=True)
    unpacked = "batches of messages that unpack to more are refused as a whole"
    yield Rule(event, "batch", MAX_BATCH_BYTES, "bytes", unpacked, fixed=True)


def _of_users(config: Config) -> Iterator[Rule]:
    user, standing_m = "a user", config.feed.quality.standing_m
    if config.frozen:
        moving = ", where it reports a speed above 0" if config.relation == NeighbouringRelation.PARTICIPATION else ""
        frozen = f"a stay at exactly one position that lasts longer within a window is refused{moving}"
        yield Rule(user, "feed.quality.frozen", _seconds(config.frozen), "s", frozen)
    if config.teleport_km_h:
        jump = "if it is reached, and left, only by steps that are faster, and longer than 1 km"
        teleport = f"a fix of a window is refused {jump}"
        yield Rule(user, "feed.quality.teleport_km_h", config.teleport_km_h, "km/h", teleport)
    if standing_m is not None:
        stays = "events of a window in which a user moves farther than this, at reported speeds of 0 alone, are refused"
        yield Rule(user, "feed.quality.standing_m", standing_m, "m", stays)
    first = "in each window a user counts with their first events, up to this number"
    yield Rule(user, "events", MAX_EVENTS_PER_USER, "events", first, fixed=True)
    most = "and of these events with those in the cells that have most of them, up to this number of cells"
    yield Rule(user, "cells", MAX_CELLS_PER_USER, "cells", most, fixed=True)
    value = config.value
    if not value.is_speed:
        yield Rule(user, "value.lower", value.lower, value.unit, "lower values are clipped to it")
    yield Rule(user, "value.upper", value.upper, value.unit, "higher values are clipped to it")
    if config.participation is not None:
        counted = "a user counts in the cells where they have most samples, up to this number"
        yield Rule(user, "participation.cells_per_user", config.participation.cells_per_user, "cells", counted)
        if config.participation.weight == "sample":
            samples = "and in each of these cells with up to this number of samples"
            yield Rule(
                user, "participation.samples_per_cell", config.participation.samples_per_cell, "samples", samples
            )
    if config.histogram is not None:
        fixes = "a user counts in histograms with up to this number of their fixes"
        yield Rule(user, "histogram.fixes_per_user", config.histogram.fixes_per_user, "fixes", fixes)


def _of_windows(config: Config) -> Iterator[Rule]:
    window = "a window"
    yield Rule(window, "window.slot", _seconds(config.window.slot), "s", "the length of a window")
    if config.publication is not None:
        margin = (
            "a window is published this long after its end and allowed_delay; one whose draw takes longer, a multiple "
            "later"
        )
        yield Rule(window, "window.publication_margin", _seconds(config.publication.margin), "s", margin)
    if config.participation is not None:
        listed = "the public list may have up to this number of cells; each of them is published in every window"
        yield Rule(window, "public cells", MAX_CELLS, "cells", listed, fixed=True)
    if config.relation == NeighbouringRelation.VALUES:
        from dpcore.suppression import MAX_EVALUATIONS
        from stream.statistics.values.plan import MAX_PAIRS

        few = "cells with fewer users are suppressed"
        yield Rule(window, "speed.min_users", config.speed.min_users, "users", few)
        pairs = "with more pairs of a cell and a user, suppression is not tried"
        yield Rule(window, "pairs", MAX_PAIRS, "pairs", pairs, fixed=True)
        steps = "suppression ends after this number of evaluations of its error function"
        yield Rule(window, "suppression", MAX_EVALUATIONS, "evaluations", steps, fixed=True)


def _seconds(span: timedelta) -> float:
    return span.total_seconds()
