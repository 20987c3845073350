"""Reads recordings as the service does: rows of the events that it takes, and why it refuses the others. One that
contains no events of the feed is refused with the reason.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from dpcore.arrays import FloatArray, IntArray
from dpcore.relation import NeighbouringRelation
from stream.config import Config, find_config, load_config
from stream.config.feed import FeedConfig, FeedFields, SpeedUnit
from stream.config.search import template
from stream.config.section import BoundingBox
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import bound_problem, check_rows
from stream.diagnosis.users import events_as_users, everywhere_at_once
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format, user_field
from stream.ingestion.pseudonyms import KEY_BYTES, load_user_key
from stream.sources.derived_events import DerivedEvents, with_speeds
from stream.sources.file_kinds import seems_to_be
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.recording import in_time_order, open_recording
from stream.sources.snapshot_events import SnapshotEvents
from stream.storage.row_store import ROW

WORKER = "hexveil worker"


class InspectionError(ValueError):
    """A source that cannot be inspected; the message says why and what to do."""


@dataclass(frozen=True)
class Observations:
    """Fixes in order of arrival, shape (n,), as a reader with ``feed`` takes them.

    ``user``: number of the vehicle; ``time_us``: µs UTC; ``lat``/``lng``: degrees; ``speed``: in the feed's own unit,
    NaN if none; ``arrived_us``: µs UTC, below 0 if unknown. ``kind``: what the source is, in words. ``format``: a known
    format, or "declared" with ``feed.fields``. ``speed_unit``: the unit that the format fixes, or None. ``local``:
    share of times without a zone, read in that of the fields. ``offset``: of most times from UTC, like "+05:30"; None
    if unknown. ``command``: that reads the source, :data:`WORKER` for a topic. ``notes``: what is to be said of how it
    was recognised. ``refused``: events that are no fix, by reason. ``documents``: snapshots; 0 for events.
    """

    kind: str
    format: str
    feed: FeedConfig
    user: IntArray
    time_us: IntArray
    lat: FloatArray
    lng: FloatArray
    speed: FloatArray
    arrived_us: IntArray
    speed_unit: SpeedUnit | None = None
    local: float = 0.0
    offset: str | None = None
    command: str = "hexveil replay"
    notes: tuple[str, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    documents: int = 0

    def __len__(self) -> int:
        return len(self.user)

    @property
    def is_live(self) -> bool:
        """Whether a command of its own reads the feed, and sends canonical events."""
        return self.documents > 0

    @property
    def fields(self) -> FeedFields | None:
        """Paths of the fields; None for snapshots."""
        return self.feed.fields


def numbered(users: list[object]) -> IntArray:
    """Each identifier as a number, in order of first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(str(user), len(numbers)) for user in users], dtype=np.int64)


Progress = Callable[[int], None]
_ANY_AGE = timedelta(days=36500)


def inspection_config(given: Config | None) -> Config:
    """The configuration by which a source is read: the ``given`` one, else the shipped one with the globe as domain."""
    if given is not None:
        return given
    shipped = load_config(find_config(template("values"), "values"))
    globe = BoundingBox(south=-90, west=-180, north=90, east=180)
    feed = FeedConfig(name="inspected", topic="inspected", timezone="UTC", domain=globe)
    return shipped.model_copy(update={"feed": feed})


def ageless(config: Config) -> Config:
    """The configuration without a limit on the age of events, which is meant for live feeds."""
    return config.model_copy(update={"window": config.window.model_copy(update={"given_max_age": _ANY_AGE})})


def read_recording(
    config: Config,
    path: Path,
    file_format: str,
    on_progress: Progress = lambda events: None,
    key: bytes | None = None,
    most: float = math.inf,
) -> tuple[npt.NDArray[np.void], Refusals]:
    """All valid events of a recording as rows, and why others were refused. Events may have any age.

    ``key``: of the pseudonyms, if it is not the configured one. ``most``: no further block is read after so many
    events. Raises :class:`~stream.sources.lines.RecordingError`.
    """
    one_each = config.relation == NeighbouringRelation.PARTICIPATION
    with open_recording(path, file_format, config.feed, one_each=one_each) as recording:

        def blocks() -> Iterator[Messages]:
            events = 0
            for block in recording:
                yield block
                events += len(block.values)
                on_progress(events)

        if not config.feed.derives_speeds:
            return read_messages(config, blocks(), key, file_format, most)
        events = DerivedEvents(config.feed, config.slotting)
        rows, refusals = read_messages(config, with_speeds(in_time_order(blocks()), events), key, file_format)
    left_out = events.tally.refused - Counter({"unreadable": events.tally.refused["unreadable"]})
    refusals.leave_out(left_out + Counter({"without-speed": events.tally.without_speed}), events.tally.derived)
    return rows, refusals


def read_messages(
    config: Config,
    blocks: Iterable[Messages],
    key: bytes | None = None,
    file_format: str = "canonical",
    most: float = math.inf,
) -> tuple[npt.NDArray[np.void], Refusals]:
    """All valid events of messages as rows, and why others were refused. Events may have any age.

    ``file_format``: of the recording of which they were made; an event that could not be converted is as it was.
    ``most``: no further block is read after so many events.
    """
    key = load_user_key(config.privacy.user_key_file) if key is None else key
    decoder, now_us = Decoder(ageless(config), key), time.time_ns() // 1000
    parts, refusals = [np.zeros(0, dtype=ROW)], Refusals(config.feed, file_format)
    for block in blocks:
        batch = decoder.decode(block.values, now_us)
        parts.append(batch.rows)
        refusals.add(block.values, batch)
        if refusals.taken + refusals.refused >= most:
            break
    return np.concatenate(parts), refusals


_HELD = 100_000
"""Number of events that are searched for one that the feed accepts, before any event is sent."""
_COMPARED = 20_000
"""Number of accepted events whose speeds are compared with their positions."""
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Accepted:
    """What an operator accepts of a recording: speeds that positions contradict, and users that occur once.

    ``reader``: of the snapshots of which it was made, if it was. Each vehicle occurs once in one.
    """

    any_speed: bool = False
    users_are_events: bool = False
    reader: SnapshotEvents | None = None

    @property
    def is_one_snapshot(self) -> bool:
        """Whether nothing was read but one snapshot."""
        return self.reader is not None and self.reader.tally.snapshots < 2


def require_events(path: Path, refusals: Refusals) -> None:
    """Raise :class:`RecordingError` with the reasons and the likely cause if no event of a recording can be used."""
    if refusals.taken:
        return
    kind = seems_to_be(path)
    if not refusals.refused:
        raise RecordingError(f"{path} contains no events; name a recording")
    reasons = [*refusals.told(), *([] if kind is None else [kind])]
    raise RecordingError("\n".join([f"{path}: none of its {refusals.refused} events can be used", *reasons]))


def speed_problem(
    rows: NDArray[np.void], config: Config, file_format: str, accepted: Accepted
) -> tuple[str, bool] | None:
    """Why the speeds of a recording cannot be right, or are doubtful, with the remedy; None if positions agree.

    And whether it is to be refused: if they cannot be right, and another unit would fit.
    """
    own = feed_format(config.feed.model_copy(update={"format": file_format})).unit
    check = check_rows(rows, own if accepted.reader is None else accepted.reader.unit)
    if check.others:
        return (
            f"the speeds of {check.others:.0%} of the vehicles fit their positions in another unit than the others': "
            "have them sent in one unit, or let all be derived: feed.speeds = 'derived'."
        ), False
    if not (check.contradicts or check.is_doubtful):
        return None
    if not check.fits:
        return f"{check.sentence()}: hexveil inspect says more.", False
    remedy = f"set feed.speed_unit = {check.fits[0]!r}"
    if file_format not in ("canonical", "declared"):
        remedy = f"give another --format, or declare the fields and the unit {check.fits[0]!r} in [feed]"
    if len(check.fits) > 1 or check.is_doubtful:
        remedy = f"ask whoever runs the feed, and {remedy}"
    return f"{check.sentence()}: {remedy}.", check.contradicts


def judged(
    rows: NDArray[np.void], refusals: Refusals, config: Config, path: Path, file_format: str, accepted: Accepted
) -> list[str]:
    """What is odd about the events of a recording. Raises :class:`RecordingError` for one that is refused.

    A field that names events is refused under either relation: each would have a budget of its own. Under
    "participation" no speed refuses, because what is sent or released must not depend on them, and nor does a
    recording without events.
    """
    values, times = config.relation == NeighbouringRelation.VALUES, rows["time"].astype(np.int64)
    if values:
        require_events(path, refusals)
    once = events_as_users(rows["user"], times, user_field(config.feed, file_format))
    if once is not None and not (accepted.users_are_events or accepted.is_one_snapshot):
        raise RecordingError(f"{path}: {once}")
    problem = speed_problem(rows, config, file_format, accepted) if config.value.is_speed else None
    if problem is not None and problem[1] and values and not accepted.any_speed:
        raise RecordingError(f"{path}: {problem[0]} If they are right as they are, give --any-speed")
    odd = (
        None if problem is None else problem[0],
        bound_problem(rows["value"], config.value),
        everywhere_at_once(rows["user"], times, rows["lat"] * 1e-7, rows["lng"] * 1e-7),
    )
    return [sentence for sentence in odd if sentence is not None]


def recognised(
    blocks: Iterable[Messages],
    config: Config,
    path: Path,
    file_format: str,
    *,
    accepted: Accepted = Accepted(),
    note: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Messages]:
    """All of ``blocks``. The first are read immediately, until 20 000 events are accepted or the source is silent.

    Raises :class:`RecordingError` with the reasons if none of the first hundred thousand events is accepted, or
    :func:`judged` refuses the accepted ones. ``note`` is called with what is odd about them otherwise.
    """
    # Any key will do, because these pseudonyms are discarded.
    decoder, refusals = Decoder(config, secrets.token_bytes(KEY_BYTES)), Refusals(config.feed, file_format)
    looked_at, rows, source = list[Messages](), list[NDArray[np.void]](), iter(blocks)
    for block in source:
        if not block.values:
            if refusals.taken:
                break
            continue
        looked_at.append(block)
        for at in range(0, len(block.values), _AT_ONCE):
            values = block.values[at : at + _AT_ONCE]
            batch = decoder.decode(values, time.time_ns() // 1000)
            refusals.add(values, batch)
            rows.append(batch.rows)
            if enough := refusals.taken >= _COMPARED or refusals.taken + refusals.refused >= _HELD:
                break
        if enough:
            break
    require_events(path, refusals)
    for sentence in judged(np.concatenate(rows), refusals, config, path, file_format, accepted):
        note(sentence)
    return chain(looked_at, source)
