"""Snapshots of vehicle positions of any format: columns, with a reason for each entry that is refused. Pure."""

import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from zoneinfo import ZoneInfo

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from stream.config.feed import MAX_FUTURE
from stream.ingestion.formats import utc_of_local
from stream.sources.file_kinds import GZIP
from stream.windows import EARLIEST_S, LATEST_S

LARGEST_SNAPSHOT = 32 << 20
"""Largest snapshot in bytes after decompression; a city of 10 000 vehicles publishes about 1 MB of protobuf."""
LONGEST_ID = 256
"""Largest number of characters of an identifier; the service refuses longer ones as well."""
MAX_FUTURE_US = MAX_FUTURE // timedelta(microseconds=1)
IN_FUTURE = "time-in-future"
"""Why a vehicle is refused whose timestamp can only come from a wrong clock."""
LEAST_SPEED_MS = 0.01
"""A speed above 0 and below this is a rounding error and no measurement."""
MOST_SPEED_MS = 1e6
"""Reported speeds are moved into this bound on both sides: no vehicle reaches it, and any unit converts it."""
NO_PLACE = "no-place"
"""Why a position that is on no map, or at 0, 0, is refused."""


def bounded_speed(speed: float) -> float:
    """A reported speed (m/s) within ±:data:`MOST_SPEED_MS`; NaN stays NaN, as then none was reported.

    Every other number counts as reported, also one that is infinite because its format holds no larger one. Relation
    "values" protects it, so it may decide neither whether there is an event nor whether its speed is derived.
    """
    return math.nan if math.isnan(speed) else min(max(speed, -MOST_SPEED_MS), MOST_SPEED_MS)


class SnapshotError(ValueError):
    """Bytes that are not a snapshot of the format; the message says what they look like."""


def decompressed(body: bytes) -> bytes:
    """``body``, decompressed if its first bytes are those of gzip, whatever it is called: at most one byte more than a
    snapshot may have.

    No format of snapshots begins with these bytes. Raises :class:`SnapshotError` for a gzip stream that is damaged or
    cut short.
    """
    if not body.startswith(GZIP) or len(body) > LARGEST_SNAPSHOT:
        return body
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(LARGEST_SNAPSHOT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotError(f"{len(body)} bytes of gzip that are damaged or cut short ({error})") from None


@dataclass(frozen=True)
class Snapshot:
    """Columns (n,) of the vehicles with a position. ``time``: µs UTC; ``lat``/``lng``: degrees; ``speed``: m/s, NaN =
    none.

    ``header``, ``arrival``: its own time and that of its arrival (µs UTC), None if unknown; ``clock``: the earlier of
    them. ``refused``: number of other entries by reason.
    """

    clock: int | None
    header: int | None
    arrival: int | None
    vehicles: list[str]
    time: IntArray
    lat: FloatArray
    lng: FloatArray
    speed: FloatArray
    refused: Counter[str]
    ahead_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    """By how many seconds times of its entries, refused ones too, are ahead of its own or of its arrival."""


@dataclass
class SnapshotRows:
    """Collects the entries of one snapshot. An entry without a time gets that of the header, else ``received_us``.

    ``times_zone``: that of the clocks of entries whose times claim UTC and are local.
    Times that are more than five minutes after the arrival, if that is unknown after the header, come from a wrong
    clock: such a header is no time of anything, and such an entry is refused, as the service would.
    """

    header_us: int | None
    received_us: int | None
    times_zone: ZoneInfo | None = None
    refused: Counter[str] = field(default_factory=Counter)
    _ahead_s: list[float] = field(default_factory=list)
    _vehicles: list[str] = field(default_factory=list)
    _numbers: list[tuple[int, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.header_us is not None and not _is_a_time(self.header_us):
            self.header_us = None
        known = self.header_us if self.received_us is None else self.received_us
        self._latest_us = LATEST_S * 1_000_000 if known is None else known + MAX_FUTURE_US
        trusted = self.header_us is not None and self.header_us <= self._latest_us
        self._clock_us = self.header_us if trusted else self.received_us

    def add(
        self, name: str | None, time_us: int | None, lat: float, lng: float, speed_ms: float, *, is_utc: bool = True
    ) -> None:
        """Add one vehicle, or count why it is refused. ``time_us``: None if it has none; ``speed_ms``: NaN if it has
        none.

        ``is_utc``: whether its time claims UTC.
        """
        if time_us is not None and is_utc and self.times_zone is not None and _is_a_time(time_us):
            moment, wrong = utc_of_local(np.array([time_us]), self.times_zone)
            if wrong[0]:
                self.refused["time-unreadable"] += 1
                return
            time_us = int(moment[0])
        if time_us is not None and _is_a_time(time_us) and (clock := self.header_us or self.received_us) is not None:
            self._ahead_s.append((time_us - clock) / 1e6)
        time_us = self._clock_us if time_us is None else time_us
        reason = self.why_refused(name, time_us, lat, lng)
        if reason is not None or name is None or time_us is None:
            self.refused[reason or "no-time"] += 1
            return
        self._vehicles.append(name)
        self._numbers.append((time_us, lat, lng, bounded_speed(speed_ms)))

    def why_refused(self, name: str | None, time_us: int | None, lat: float, lng: float) -> str | None:
        """The reason for which :meth:`add` refuses a vehicle at this time; None if it is added."""
        if not name:
            return "no-vehicle-id"
        if len(name) > LONGEST_ID:
            return "id-too-long"
        if not (abs(lat) <= 90 and abs(lng) <= 180) or (lat == 0 and lng == 0):
            return NO_PLACE
        if time_us is None:
            return "no-time"
        if not _is_a_time(time_us):
            return "time-no-epoch-seconds"
        return IN_FUTURE if time_us > self._latest_us else None

    def snapshot(self, clock: int | None = None) -> Snapshot:
        """What was collected; positions are rounded to 1e-6 degree (0.1 m). ``clock`` replaces that of the snapshot."""
        columns = np.array([row[1:] for row in self._numbers], dtype=np.float64).reshape(-1, 3)
        known = [moment for moment in (self.header_us, self.received_us) if moment is not None]
        return Snapshot(
            min(known, default=None) if clock is None else clock,
            self.header_us,
            self.received_us,
            self._vehicles,
            np.array([row[0] for row in self._numbers], dtype=np.int64),
            columns[:, 0].round(6),
            columns[:, 1].round(6),
            columns[:, 2],
            self.refused,
            ahead_s=np.array(self._ahead_s),
        )


def _is_a_time(time_us: int) -> bool:
    return EARLIEST_S * 1_000_000 <= time_us < LATEST_S * 1_000_000


Decode = Callable[[bytes, int | None], Snapshot]
"""The snapshot in the bytes of a document that arrived at a time (µs UTC)."""
