"""Decodes SIRI Vehicle Monitoring (XML) into columns, with a reason for each refused activity.

Source: CEN/TS 15531-3 (SIRI), VehicleMonitoringDelivery with VehicleActivity. Element names are read without their
namespace, because producers use several: what stands before the colon is not looked up, as each element would otherwise
be a copy of the whole name of its namespace. The XML is parsed by expat without entities: a document with a document
type is refused before any of its declarations is read, so nothing is expanded and nothing is fetched.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from xml.parsers.expat import ExpatError, ParserCreate
from zoneinfo import ZoneInfo

from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.ingestion.formats import number, read_instant, time_us
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT, Decode, Snapshot, SnapshotError, SnapshotRows

_DEEPEST = 40
MOST_ELEMENTS = 2_000_000
"""Elements of a document; a vehicle of a detailed profile has 50. They bound an answer's processor time to seconds."""
_LONGEST_TEXT = 1024
_ACTIVITY = "VehicleActivity"
_JOURNEY = "MonitoredVehicleJourney"
_FIELDS = {
    ("RecordedAtTime",): "time",
    (_JOURNEY, "OperatorRef"): "operator",
    (_JOURNEY, "VehicleRef"): "vehicle",
    (_JOURNEY, "Velocity"): "velocity",
    (_JOURNEY, "VehicleLocation", "Latitude"): "lat",
    (_JOURNEY, "VehicleLocation", "Longitude"): "lng",
}
"""Paths within a VehicleActivity."""
_UTC = re.compile(r"([zZ]|[+-]00:?00)$")
"""The end of a time that claims UTC."""
_DEGREES = {"", "wgs84", "epsg:4326", "4326", "urn:ogc:def:crs:epsg::4326"}
"""Names of coordinates in degrees, in lower case."""


class SiriVehicleMonitoring(SnapshotEvents):
    """Events of SIRI-VM documents. ``Velocity`` is in ``feed.speed_unit``; times without a zone are in
    ``feed.timezone``."""

    def decoder(self, feed: FeedConfig) -> Decode:
        """The decoder of SIRI-VM documents."""
        clocks = None if feed.times_zone is None else ZoneInfo(feed.times_zone)
        zone, kmh = ZoneInfo(feed.timezone), SPEED_TO_KMH[self.unit]
        return partial(decode_siri, zone=zone, kmh=kmh, times_zone=clocks)


def decode_siri(
    body: bytes,
    received_us: int | None,
    zone: ZoneInfo,
    kmh: float,
    times_zone: ZoneInfo | None = None,
) -> Snapshot:
    """The vehicles of one document. ``zone``: that of times without one; ``kmh``: one unit of ``Velocity`` in km/h;
    ``times_zone``: of times that claim UTC and are local.

    The user is ``OperatorRef:VehicleRef``, because a vehicle's reference is unique within its operator; without an
    operator, it is ``VehicleRef``. Raises :class:`SnapshotError` for bytes that are not such a document.
    """
    document = _Document(body)
    response_us = _instant_us(document.response_time, zone)
    rows = SnapshotRows(response_us, received_us, times_zone)
    for activity in document.activities:
        if activity.get("axes", "").lower() not in _DEGREES:
            rows.refused["other-coordinates"] += 1
        elif "lat" not in activity or "lng" not in activity:
            rows.refused["no-position"] += 1
        elif "time" in activity and _instant_us(activity["time"], zone) is None:
            rows.refused["time-unreadable"] += 1
        else:
            _add(rows, activity, zone, kmh)
    return rows.snapshot()


def _add(rows: SnapshotRows, activity: Mapping[str, str], zone: ZoneInfo, kmh: float) -> None:
    vehicle, operator = activity.get("vehicle", ""), activity.get("operator", "")
    name = f"{operator}:{vehicle}" if vehicle and operator else vehicle
    moment = _instant_us(activity.get("time"), zone)
    velocity = _number(activity.get("velocity"))
    place = _number(activity["lat"]), _number(activity["lng"])
    rows.add(name, moment, *place, velocity * kmh / 3.6, is_utc=_UTC.search(activity.get("time", "")) is not None)


def _number(text: str | None) -> float:
    if text is None:
        return math.nan
    try:
        return float(text)  # an infinite one counts as reported
    except ValueError:
        with suppress(ValueError, OverflowError):
            return number(text)  # with a decimal comma
        return math.nan


def _instant_us(text: str | None, zone: ZoneInfo) -> int | None:
    if text is None:
        return None
    try:
        return time_us(read_instant(text, zone))
    except (ValueError, OverflowError):
        return None


class _Document:
    """Texts of the fields of every VehicleActivity (``activities``), and the delivery's ResponseTimestamp."""

    def __init__(self, body: bytes) -> None:
        if len(body) > LARGEST_SNAPSHOT:
            raise SnapshotError(f"{len(body)} bytes are more than the {LARGEST_SNAPSHOT} of one snapshot")
        self.activities: list[dict[str, str]] = []
        self.response_time: str | None = None
        self._path: list[str] = []
        self._begins: int | None = None
        self._text: list[str] | None = None
        self._size = 0
        self._elements = 0
        self._is_siri = False
        parser = ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._refuse_type
        try:
            parser.Parse(body, True)
        except ExpatError as error:
            raise SnapshotError(f"not a SIRI document in XML ({error})") from None
        except (LookupError, ValueError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"not a SIRI document in XML ({type(error).__name__})") from None
        if not self._is_siri:
            raise SnapshotError(
                "XML without a VehicleMonitoringDelivery, which SIRI-VM has; check the address and the key"
            )

    def _refuse_type(self, *_: object) -> None:
        raise SnapshotError(
            "XML with a document type, which SIRI does not have; it may define entities, so it is not read"
        )

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        local = name.rpartition(":")[2]
        self._path.append(local)
        self._elements += 1
        if self._elements > MOST_ELEMENTS:
            raise SnapshotError(
                f"XML with more than {MOST_ELEMENTS} elements, which is too much for the vehicles of a city"
            )
        if len(self._path) > _DEEPEST:
            raise SnapshotError(f"XML with more than {_DEEPEST} levels, which SIRI-VM does not need")
        self._is_siri = self._is_siri or local.lower().startswith("vehiclemonitoringdelivery")
        if self._begins is None and local == _ACTIVITY:
            self._begins = len(self._path)
            self.activities.append({})
        elif self._begins is not None and local == "VehicleLocation":
            self.activities[-1]["axes"] = attributes.get("srsName", attributes.get("SrsName", ""))
        wanted = self._field() is not None or (self._begins is None and local == "ResponseTimestamp")
        self._text, self._size = ([] if wanted else None), 0

    def _field(self) -> str | None:
        return None if self._begins is None else _FIELDS.get(tuple(self._path[self._begins :]))

    def _characters(self, text: str) -> None:
        if self._text is not None and self._size <= _LONGEST_TEXT:
            self._text.append(text)
            self._size += len(text)

    def _end(self, _: str) -> None:
        if self._text is not None:
            text, field = "".join(self._text).strip()[: _LONGEST_TEXT + 1], self._field()
            if field is not None and text:
                self.activities[-1].setdefault(field, text)
            elif field is None and self.response_time is None:
                self.response_time = text
        self._text = None
        self._path.pop()
        if self._begins is not None and len(self._path) < self._begins:
            self._begins = None
