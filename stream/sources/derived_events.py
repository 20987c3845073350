"""Events of recordings, with the speeds that the feed asks for.

The events pass through :class:`~stream.sources.snapshot_events.SnapshotEvents`, as those of live sources do, so the
same fixes give the same speeds. They are sorted by time before. Then a derived speed is a function of the vehicle's own
fixes alone: what is forgotten is older than every fix that follows, so neither the chunks in which a file is read nor
other vehicles change it, as relation "participation" requires.

Whether a speed is derived follows from whether a number is there, never from the number, which relation "values"
protects: an event with a number goes on byte for byte, and the service judges it as it does where no speed is derived.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime

import numpy as np

from dpcore.arrays import BoolArray, FloatArray
from stream.config.feed import FeedConfig
from stream.ingestion.decoding import MAX_MESSAGE_BYTES, Reason
from stream.ingestion.formats import claims_utc, recording_format, time_us, utc_of_local
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import NO_PLACE, SnapshotError, SnapshotRows
from stream.sources.timestamps import cause_of_left_out
from stream.windows import Slotting

AT_ONCE = 20_000
"""Events of one derivation: few enough that its columns need little memory, many enough that its calls cost little."""


class DerivedEvents(SnapshotEvents):
    """Gives canonical events, in order of time, the speeds that ``feed.speeds`` asks for."""

    def __init__(self, feed: FeedConfig, slotting: Slotting) -> None:
        super().__init__(feed, slotting, feed.speeds)
        self._domain = feed.domain
        self._format = recording_format(feed, "canonical")

    @property
    def cause_of_refusals(self) -> str | None:
        """The same of events, whose fields and units are declared here."""
        return cause_of_left_out(self.tally.refused)

    def of(self, values: Iterable[bytes], clock: int) -> tuple[Messages, list[int]]:
        """The events of ``values`` that get a derived speed, and the indexes of all other values that go on as they
        are: of events with a speed, and of what cannot be decoded.

        ``clock``: µs UTC; no event of these or later values is older, and what is older by enough is forgotten.
        Raises :class:`SnapshotError` for too many vehicles.
        """
        rows, others = SnapshotRows(None, None), []
        for at, value in enumerate(values):
            try:
                has_speed = self._add(rows, value)
            except Exception:  # whatever error hostile bytes cause, what follows is read
                rows.refused["unreadable"] += 1
                others.append(at)
                continue
            if has_speed:
                self.tally.events += 1
                others.append(at)
        return self.take(rows.snapshot(clock)), others

    def _add(self, rows: SnapshotRows, value: bytes) -> bool:
        """Add the fix of an event, or count why it is refused; whether the event has a speed, so goes on anyway."""
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError("no event")
        fix = self._format.read(value)
        user, time, lat, lng, speed = (read(fix) for read in self._format.getters)
        name, moment = str(user), self._moment(time)
        why = rows.why_refused(name, moment, lat, lng)
        if why is None:
            speed_ms = math.nan if speed is None else speed * self._format.kmh / 3.6
            rows.add(name, moment, lat, lng, speed_ms)
        elif speed is None:
            swapped = self._domain.contains(lng, lat)
            rows.refused[Reason.SWAPPED_AXES.value if why == NO_PLACE and swapped else why] += 1
        return speed is not None

    def _moment(self, time: datetime | int | float) -> int:
        """µs UTC, as the service reads it. Raises :class:`ValueError` for a local time that occurs twice or never."""
        if self._clocks is None or not claims_utc(time):
            return time_us(time)
        moments, wrong = utc_of_local(np.array([time_us(time)]), self._clocks)
        if wrong[0]:
            raise ValueError("a local time that occurs twice or never")
        return int(moments[0])

    def _sent(self, speed: FloatArray, is_derived: BoolArray) -> BoolArray:
        return is_derived & ~np.isnan(speed)

    def _remembered(self, newest: dict[str, int]) -> dict[str, int]:
        """By the clock alone, so that no other vehicle decides. Their number is bounded by that of the derivation."""
        return {vehicle: moment for vehicle, moment in newest.items() if moment >= self._clock}


def with_speeds(blocks: Iterable[Messages], events: DerivedEvents) -> Iterator[Messages]:
    """``blocks`` of canonical messages, sorted by time, with derived speeds. What is no event is passed on, so that the
    service refuses it. Raises :class:`RecordingError` for too many vehicles.
    """
    for block in blocks:
        if not block.values:
            yield block
        for begin in range(0, len(block.values), AT_ONCE):
            part = block.part(begin, begin + AT_ONCE)
            try:
                messages, others = events.of(part.values, int(part.due[0]))
            except SnapshotError as error:
                raise RecordingError(str(error)) from None
            yield _joined(messages, part, others)


def _joined(derived: Messages, whole: Messages, others: list[int]) -> Messages:
    due = np.concatenate([derived.due, whole.due[others]])
    keys = derived.keys + [whole.keys[at] for at in others]
    values = derived.values + [whole.values[at] for at in others]
    order = np.argsort(due, kind="stable")
    index = order.tolist()
    return Messages(due[order], [keys[at] for at in index], [values[at] for at in index], whole.unread)
