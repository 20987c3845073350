"""Events of recordings and of topics of others, made canonical, with the speeds that the feed asks for.

The events pass through :class:`~stream.sources.snapshot_events.SnapshotEvents`, as those of live sources do, so the same fixes
give the same speeds. A recording is sorted by time before. Then a derived speed is a function of the vehicle's own fixes alone:
what is forgotten is too old to be compared with any fix that follows, so neither the chunks in which a file is read nor other
vehicles change it, as relation "participation" requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from stream.config import Config
from stream.config.feed import FeedConfig
from stream.ingestion.decoding import MAX_MESSAGE_BYTES
from stream.ingestion.formats import recording_format, time_us
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.opening import open_recording
from stream.sources.ordering import in_time_order
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import Snapshot, SnapshotError, SnapshotRows
from stream.windows import Slotting

AT_ONCE = 20_000
"""Events of one derivation: few enough that its columns need little memory, many enough that its calls cost little."""


class DerivedEvents(SnapshotEvents):
    """Turns messages in ``file_format`` into canonical events of ``feed``, by ``feed.speeds``."""

    def __init__(self, feed: FeedConfig, slotting: Slotting, file_format: str = "canonical") -> None:
        super().__init__(_no_documents, feed, slotting, feed.speeds)
        self._format = recording_format(feed, file_format)

    def of(self, values: Iterable[bytes | None], clock: int | None) -> tuple[Messages, list[int]]:
        """The new events of ``values`` in order of time, and the indexes of those that cannot be decoded.

        An event that comes after a later one of its vehicle is left out, so that it does not matter how values are cut into calls.
        ``clock``: µs UTC; vehicles without a fix since 5 min before it are forgotten. No user may decide about it, and no event
        that counts may be older. None: nothing is forgotten.
        Raises :class:`SnapshotError` for too many vehicles.
        """
        rows, unread = SnapshotRows(None, None), []
        for at, value in enumerate(values):
            try:
                self._add(rows, value)
            except Exception:  # whatever error hostile bytes cause, what follows is read
                rows.refused["unreadable"] += 1
                unread.append(at)
        snapshot = rows.snapshot()
        ordered = _in_order(snapshot)
        self.tally.repeated += len(snapshot.vehicles) - len(ordered)
        return self.take(_part(snapshot, ordered, clock)), unread

    def _add(self, rows: SnapshotRows, value: bytes | None) -> None:
        if value is None or len(value) > MAX_MESSAGE_BYTES:
            raise ValueError("no event")
        fix = self._format.decode(value)
        user, time, lat, lng, speed = (read(fix) for read in self._format.getters)
        speed_ms = float("nan") if speed is None else speed * self._format.kmh / 3.6
        rows.add(str(user), time_us(time), lat, lng, speed_ms)


def late_us(config: Config) -> int | None:
    """How long after its time an event may reach the broker and count at most, µs; None if there is no such limit."""
    window = config.window
    if window.lateness != "append-time":
        return None
    return (window.slot + window.allowed_delay) // timedelta(microseconds=1)


def with_speeds(
    blocks: Iterable[Messages], events: DerivedEvents, clock: Callable[[], int] | None
) -> Iterator[Messages]:
    """``blocks`` of canonical messages with derived speeds. What is no event is passed on, so that the service refuses it.

    ``clock``: µs UTC, for events that come as they happen; None if they are sorted by time. Raises :class:`RecordingError` for
    too many vehicles.
    """
    for block in blocks:
        if not block.values:
            yield block
        for begin in range(0, len(block.values), AT_ONCE):
            part = block.part(begin, begin + AT_ONCE)
            try:
                messages, unread = events.of(part.values, int(part.due[0]) if clock is None else clock())
            except SnapshotError as error:
                raise RecordingError(str(error)) from None
            refused = Messages(part.due[unread], [None] * len(unread), [part.values[at] for at in unread], len(unread))
            yield _joined(messages, refused)


def derived_recording(
    config: Config,
    path: Path,
    file_format: str,
    events: DerivedEvents,
    on_progress: Callable[[int, int], None] = lambda done, size: None,
) -> Iterator[Messages]:
    """The events of a recording, sorted by time, with derived speeds. Raises :class:`RecordingError` for what cannot be read."""
    with open_recording(path, file_format, config.feed) as recording:

        def read() -> Iterator[Messages]:
            for block in recording:
                yield block
                on_progress(recording.position, recording.size)

        yield from with_speeds(in_time_order(read()), events, None)


def _in_order(snapshot: Snapshot) -> list[int]:
    """Indexes of the vehicles whose time is not before an earlier one of theirs in the snapshot."""
    newest, ordered = dict[str, int](), []
    for at, (vehicle, moment) in enumerate(zip(snapshot.vehicles, snapshot.time.tolist(), strict=True)):
        if newest.get(vehicle, moment) <= moment:
            newest[vehicle] = moment
            ordered.append(at)
    return ordered


def _part(whole: Snapshot, at: list[int], clock: int | None) -> Snapshot:
    return replace(
        whole,
        clock=clock,
        vehicles=[whole.vehicles[index] for index in at],
        time=whole.time[at],
        lat=whole.lat[at],
        lng=whole.lng[at],
        speed=whole.speed[at],
    )


def _joined(first: Messages, second: Messages) -> Messages:
    due = np.concatenate([first.due, second.due])
    return Messages(due, first.keys + second.keys, first.values + second.values, first.unread + second.unread)


def _no_documents(_: bytes, __: int | None) -> Snapshot:
    raise SnapshotError("recordings come as messages, not as documents")
