"""Snapshots of vehicle positions as canonical events: one per vehicle and timestamp, with reported or derived speed."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import structlog

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.relation import NeighbouringRelation
from stream.config.feed import SPEED_TO_KMH, FeedConfig, SpeedSource, SpeedUnit
from stream.sources.derived_speed import SpeedDerivation
from stream.sources.messages import Messages
from stream.sources.snapshots import (
    IN_FUTURE,
    LEAST_SPEED_MS,
    MAX_FUTURE_US,
    MOST_SPEED_MS,
    Decode,
    Snapshot,
    SnapshotError,
    decompressed,
)
from stream.sources.timestamps import BEHIND_US, REMEDIES, UNCHANGED, Judged, RefusalWatch, TimestampWatch, local_as_utc
from stream.windows import LATEST_S, Slotting

log = structlog.get_logger()

_FORGET_US = 6 * 3_600_000_000
MOST_REMEMBERED = 2**20
"""Vehicles whose newest timestamp is remembered; of more, the half that was seen last."""
_CLOCKS_DIFFER_US = 10_000_000
"""How much two clocks may differ: a timestamp at most this much after its arrival is not doubted."""
_MOVING_KMH, _STANDS_KMH = 12.0, 1.0
_ENOUGH = 200
_LEAST_TIMES, _MOST_TIMES = 10, 1_000
"""Times of vehicles that are compared with those of their snapshots: at least, and the newest of more."""

_encode = msgspec.json.Encoder().encode


@dataclass
class Tally:
    """Counts of the vehicles of all snapshots and what was done with them. Inside the trust boundary only.

    ``earlier``: those of ``repeated`` whose timestamp is earlier than one that was sent. ``set_back``: vehicles of
    which a later timestamp turned out to be wrong.
    """

    snapshots: int = 0
    unreadable: int = 0
    events: int = 0
    derived: int = 0
    repeated: int = 0
    earlier: int = 0
    set_back: int = 0
    without_speed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    driving: int = 0
    driving_but_reported_still: int = 0

    @property
    def reported_speeds_are_wrong(self) -> bool:
        """Whether most of the vehicles whose positions change report a speed of 0."""
        return self.driving >= _ENOUGH and self.driving_but_reported_still > self.driving / 2


class SnapshotEvents:
    """Turns snapshots, in order of arrival, into messages for ``feed``.

    A vehicle whose timestamp did not advance gives no new event, unless its newest timestamp turns out to be wrong
    because it is still ahead of a later document.
    ``speeds`` is chosen by the operator and never depends on the data: what one vehicle reports must not decide how the
    speed of another one is found.
    """

    unit_of_format: SpeedUnit = "km/h"
    """In which reported speeds are, unless ``feed.speed_unit`` says otherwise."""

    def __init__(
        self,
        feed: FeedConfig,
        slotting: Slotting,
        speeds: SpeedSource = "missing",
        relation: NeighbouringRelation = NeighbouringRelation.VALUES,
    ) -> None:
        if feed.format != "canonical":
            raise ValueError(
                f"feed.format is {feed.format!r}; events from snapshots are canonical: set feed.format to 'canonical'"
            )
        self.tally = Tally()
        self.unit = feed.given_speed_unit or self.unit_of_format
        """In which reported speeds are read."""
        self._clocks = None if feed.times_zone is None else ZoneInfo(feed.times_zone)
        self._ahead_s = np.zeros(0)
        self._decode = self.decoder(feed)
        self._slotting, self._speeds = slotting, speeds
        self._only_measured = relation == NeighbouringRelation.PARTICIPATION
        self._per_kmh = 1 / SPEED_TO_KMH[feed.speed_unit]
        self._derivation = SpeedDerivation()
        self._newest: dict[str, int] = {}
        self._clock = 0
        self._behind = 0
        self._watch, self._refusals = TimestampWatch(), RefusalWatch()

    @property
    def cause_of_refusals(self) -> str | None:
        """What is wrong where vehicles are refused for the most frequent reason, and what to do; None if unknown."""
        return self.clocks_problem or next(
            (REMEDIES.get(reason) for reason, _ in self.tally.refused.most_common(1)), None
        )

    @property
    def clocks_problem(self) -> str | None:
        """What is wrong with the clocks of vehicles, if their times are steadily off those of the snapshots."""
        return local_as_utc(self._ahead_s, "the snapshot's own time") if len(self._ahead_s) >= _LEAST_TIMES else None

    def note_clocks(self, ahead_s: FloatArray) -> None:
        """Take by how many seconds times of vehicles are ahead of their snapshot's own."""
        self._ahead_s = np.concatenate([self._ahead_s, ahead_s])[-_MOST_TIMES:]

    @property
    def reads_no_speeds(self) -> bool:
        """Whether every speed is derived, whatever is reported."""
        return self._speeds == "derived"

    def decoder(self, feed: FeedConfig) -> Decode:
        """What reads a document of the format. A source that takes messages has no documents."""
        return _no_documents

    def events(self, body: bytes, received_us: int | None = None) -> Messages:
        """The new events of one snapshot in order of time. Raises :class:`SnapshotError` for others and too many."""
        return self.of_document(self.decoded(body, received_us))

    def decoded(self, body: bytes, received_us: int | None = None) -> Snapshot:
        """One snapshot, packed or not, of which nothing is taken yet. Raises :class:`SnapshotError` for other bytes."""
        try:
            return self._decode(decompressed(body), received_us)
        except ValueError:
            self.tally.unreadable += 1
            raise

    def of_document(self, snapshot: Snapshot) -> Messages:
        """:meth:`take`, with a warning if hardly any vehicle gives an event because of its timestamp."""
        tally = self.tally
        repeated, earlier = tally.repeated, tally.earlier
        messages = self.take(snapshot)
        ahead, vehicles = snapshot.refused[IN_FUTURE], len(snapshot.vehicles)
        fresh = vehicles - (tally.repeated - repeated)
        document = Judged(fresh, self._behind, tally.earlier - earlier, ahead, vehicles + ahead)
        moment = snapshot.clock if snapshot.arrival is None else snapshot.arrival
        self._say(document, self._clock if moment is None else moment)
        return messages

    def unchanged(self, received_us: int) -> None:
        """Note an answer that says that the document is the one before; warns if it has been so for five minutes."""
        self._say(UNCHANGED, received_us)

    def _say(self, document: Judged, moment: int) -> None:
        trouble = self._watch.judged(document, moment)
        if trouble is not None:
            log.warning(self.clocks_problem or trouble[0], vehicles=document.entries, documents=trouble[1])

    def take(self, snapshot: Snapshot, documents: int = 1) -> Messages:
        """The new events of a snapshot that was decoded from so many documents, in order of time.

        Raises :class:`SnapshotError` for too many vehicles.
        """
        self.tally.snapshots += documents
        self.tally.refused += snapshot.refused
        self.note_clocks(snapshot.ahead_s)
        if snapshot.arrival is not None:
            trouble = self._refusals.judged(len(snapshot.vehicles), snapshot.refused, snapshot.arrival)
            if trouble is not None:
                log.warning(trouble)
        if snapshot.clock is not None:
            was_ahead = self._clock > snapshot.clock + MAX_FUTURE_US
            self._clock = snapshot.clock if was_ahead else max(self._clock, snapshot.clock)
        return self._messages(snapshot, self._fresh(snapshot))

    def _fresh(self, snapshot: Snapshot) -> IntArray:
        """Indexes of the vehicles whose timestamp is newer than any before that is not disproved, in order of time."""
        fresh, newest, latest = [], self._newest, self._latest(snapshot)
        set_back: dict[str, int] = {}
        for index in np.argsort(snapshot.time, kind="stable").tolist():
            vehicle, moment = snapshot.vehicles[index], int(snapshot.time[index])
            before = newest.get(vehicle, -1)
            if before > moment and before > latest:
                set_back[vehicle] = moment
            elif before >= moment:
                self.tally.earlier += before > moment
                continue
            newest[vehicle] = moment
            fresh.append(index)
        self.tally.repeated += len(snapshot.vehicles) - len(fresh)
        self._behind = self._number_behind(snapshot, fresh)
        if set_back:
            self.tally.set_back += len(set_back)
            self._derivation.forget_after(set_back)
        if len(newest) > 2 * len(snapshot.vehicles) + 4096:
            self._newest = self._remembered(newest)
        return np.array(fresh, dtype=np.int64)

    def _number_behind(self, snapshot: Snapshot, fresh: list[int]) -> int:
        """How many of these vehicles are far behind. The first document does not tell, because it also has the last
        fixes of those that are parked.
        """
        if snapshot.arrival is None or self.tally.snapshots < 2:
            return 0
        return int(np.count_nonzero(snapshot.time[fresh] < snapshot.arrival - BEHIND_US))

    def _latest(self, snapshot: Snapshot) -> int:
        """A timestamp of an earlier document that is after this (µs UTC) came from a clock that was ahead.

        Where arrivals are known, a clock that is right is never ahead of a later arrival. Else a document may be an old
        one that came late, so only a timestamp that the service would refuse beside this header is disproved by it.
        """
        if snapshot.arrival is not None:
            return snapshot.arrival + _CLOCKS_DIFFER_US
        if snapshot.clock is None:
            return LATEST_S * 1_000_000
        return snapshot.clock + MAX_FUTURE_US

    def _remembered(self, newest: dict[str, int]) -> dict[str, int]:
        oldest = self._clock - _FORGET_US
        newest = {vehicle: moment for vehicle, moment in newest.items() if moment >= oldest}
        if len(newest) <= MOST_REMEMBERED:
            return newest
        return dict(sorted(newest.items(), key=lambda item: item[1])[-MOST_REMEMBERED // 2 :])

    def _messages(self, snapshot: Snapshot, chosen: IntArray) -> Messages:
        vehicles = [snapshot.vehicles[index] for index in chosen.tolist()]
        time, lat, lng = snapshot.time[chosen], snapshot.lat[chosen], snapshot.lng[chosen]
        reported = self._reported(snapshot.speed[chosen]) * 3.6
        derived = self._derivation.derive(vehicles, time, lat, lng, self._periods(time), self._clock)
        self._compare(reported, derived)
        if self._speeds == "reported":
            speed = reported
        elif self._speeds == "derived":
            speed = derived
        else:
            speed = np.where(np.isnan(reported), derived, reported)
        is_derived = (self._speeds != "reported") & ((self._speeds == "derived") | np.isnan(reported))
        known = np.flatnonzero(self._sent(speed, is_derived))
        self.tally.without_speed += int(np.isnan(speed).sum())
        self.tally.derived += int(is_derived[known].sum())
        self.tally.events += len(known)
        shown = (speed * self._per_kmh).round(3)
        values = [
            _encode(
                {
                    "user": vehicles[k],
                    "time": self._stamp(int(time[k])),
                    "lat": float(lat[k]),
                    "lng": float(lng[k]),
                    "speed": float(shown[k]),
                }
                | ({"derived": True} if is_derived[k] else {})
            )
            for k in known.tolist()
        ]
        return Messages(time[known], [vehicles[k].encode() for k in known.tolist()], values)

    def _stamp(self, us: int) -> int | str:
        """A time as the service reads it: with its offset where ``feed.times_zone`` says that others are local."""
        return us // 1000 if self._clocks is None else datetime.fromtimestamp(us / 1e6, self._clocks).isoformat()

    def _reported(self, speed: FloatArray) -> FloatArray:
        """The speeds (m/s) that count as reported, NaN for the others.

        Under "participation" a number that is no measurement counts as missing, and is so derived from its user's own
        fixes. Under "values" the number is protected, so no number does.
        """
        if not self._only_measured:
            return speed
        is_none = (speed < 0) | ((speed > 0) & (speed < LEAST_SPEED_MS)) | (speed >= MOST_SPEED_MS)
        return np.where(is_none, np.nan, speed)

    def _sent(self, speed: FloatArray, is_derived: BoolArray) -> BoolArray:
        return ~np.isnan(speed)

    def _periods(self, time: IntArray) -> IntArray:
        """Start of each row's ledger period, µs UTC."""
        slots = self._slotting.slot_starts(time)
        starts = {slot: self._slotting.period_of(slot).start for slot in np.unique(slots).tolist()}
        return np.array([starts[slot] for slot in slots.tolist()], dtype=np.int64) * 1_000_000

    def _compare(self, reported: FloatArray, derived: FloatArray) -> None:
        driving = (derived > _MOVING_KMH) & ~np.isnan(reported)
        self.tally.driving += int(driving.sum())
        self.tally.driving_but_reported_still += int((driving & (reported < _STANDS_KMH)).sum())


def _no_documents(_: bytes, __: int | None) -> Snapshot:
    raise SnapshotError("this source takes messages, not documents")
