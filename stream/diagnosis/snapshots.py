"""Reads snapshots of positions for an inspection, GTFS-realtime or SIRI-VM, with the readers of ``hexveil gtfs-rt`` and
``siri-vm``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from stream.config import Config, find_config, load_config
from stream.config.feed import SPEED_TO_KMH, FeedConfig, SpeedSource
from stream.config.search import template
from stream.config.section import BoundingBox
from stream.diagnosis.observations import InspectionError, Observations, numbered
from stream.diagnosis.reading import read_messages
from stream.sources.file_kinds import head_of, is_gtfs_realtime, is_html
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.refused_vehicles import REMEDIES
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT, Snapshot, SnapshotError
from stream.sources.stored_snapshots import without_clocks_ahead

Form = Literal["GTFS-realtime", "SIRI-VM"]

_LOCAL_TIME = re.compile(rb"RecordedAtTime>\s*[0-9-]{10}T\d\d:\d\d(:\d\d(\.\d+)?)?\s*<")
"""A time without a zone."""
_NAMED = 4
"""Reasons that are named where nothing could be read."""


def form_of(head: bytes) -> Form | None:
    """The form of a snapshot by its first bytes, decompressed; None if it seems to be none."""
    if _without_marks(head).lstrip()[:1] == b"<":
        return "SIRI-VM"
    return "GTFS-realtime" if is_gtfs_realtime(head) else None


def _without_marks(text: bytes) -> bytes:
    """ASCII of UTF-8 or UTF-16, without a mark of its order of bytes."""
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return text[2:].replace(b"\0", b"")
    return text.removeprefix(b"\xef\xbb\xbf")


def observe_snapshot(path: Path, form: Form, given: Config | None = None) -> Observations:
    """Observations of one snapshot. Raises :class:`InspectionError`."""
    return _observe([path], form, form, 1, given)


def observe_folder(path: Path, limit: int, given: Config | None = None) -> Observations | None:
    """Observations of a folder of snapshots, in order of their names; None if it has none. Raises
    :class:`InspectionError`.

    Its form is that of most of its files, so notes and pages of errors among them do not matter.
    """
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    heads = [head for file in files if not is_html(head := head_of(file))]
    forms = Counter(known for head in heads if (known := form_of(head)) is not None)
    if not forms:
        return None
    form: Form = "SIRI-VM" if forms["SIRI-VM"] > forms["GTFS-realtime"] else "GTFS-realtime"
    return _observe(files, form, "a folder of SIRI-VM" if form == "SIRI-VM" else "a folder of snapshots", limit, given)


def reader_of(form: str, config: Config, speeds: SpeedSource) -> SnapshotEvents:
    """The reader of the command for this form. Raises :class:`InspectionError` if it is not installed, or cannot be
    used."""
    feed = config.feed
    try:
        if "siri" in form.lower():
            from stream.sources.siri import SiriVehicleMonitoring as Reader
        else:
            from stream.sources.gtfs_rt import GtfsRealtime as Reader  # type: ignore[assignment]
        return Reader(feed, config.slotting, speeds, config.relation)
    except ModuleNotFoundError:
        raise InspectionError("GTFS-realtime needs its bindings; pip install 'hexveil[gtfs]'") from None
    except ValueError as error:
        raise InspectionError(str(error)) from None


def files_of(path: Path) -> list[Path]:
    """The files of a folder in order of their names, or the file itself."""
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))


def decoded(files: list[Path], reader: SnapshotEvents, problems: list[str]) -> Iterator[tuple[Path, Snapshot]]:
    """The snapshots in ``files``; those that are none are added to ``problems``."""
    for path in files:
        try:
            with path.open("rb") as file:
                yield path, reader.decoded(file.read(LARGEST_SNAPSHOT + 1))
        except (SnapshotError, RecordingError, OSError) as error:
            problems.append(f"{path}: {error}")


# long: one local for each column
def _observe(files: list[Path], form: Form, kind: str, limit: int, given: Config | None) -> Observations:
    """Observations of snapshots until there are ``limit`` fixes."""
    if given is None:
        shipped = load_config(find_config(template("values"), "values"))
        domain = BoundingBox(south=-90, west=-180, north=90, east=180)
        feed = FeedConfig(name="inspected", topic="inspected", timezone="UTC", domain=domain)
        given = shipped.model_copy(update={"feed": feed})
    reader, problems, snapshots, refused, fixes = (
        reader_of(form, given, "missing"),
        list[str](),
        list[Snapshot](),
        Counter[str](),
        0,
    )
    for _, snapshot in decoded(files, reader, problems):
        snapshots.append(snapshot)
        refused += snapshot.refused
        fixes += len(snapshot.vehicles)
        if fixes >= limit:
            break
    if not fixes and not any(len(each.ahead_s) for each in snapshots):
        raise _nothing(refused, problems)
    headers = [(-1 if each.header is None else each.header, len(each.vehicles)) for each in snapshots]
    own = 3.6 / SPEED_TO_KMH[reader.unit]
    ahead = np.concatenate([each.ahead_s for each in snapshots])
    reader.note_clocks(ahead)
    notes = [] if reader.clocks_problem is None else [f"{reader.clocks_problem[0].upper()}{reader.clocks_problem[1:]}."]
    if len(snapshots) == 1:
        notes.append(
            "One snapshot is too few to tell the unit of its speeds, or whether its identifiers last: inspect an hour "
            "of them."
        )
    return Observations(
        kind=kind,
        format="canonical",
        feed=given.feed,
        user=numbered([name for each in snapshots for name in each.vehicles]),
        time_us=np.concatenate([each.time for each in snapshots]),
        lat=np.concatenate([each.lat for each in snapshots]),
        lng=np.concatenate([each.lng for each in snapshots]),
        speed=np.concatenate([each.speed for each in snapshots]) * own,
        arrived_us=np.repeat(*np.array(headers, dtype=np.int64).T),
        speed_unit=None if form == "SIRI-VM" else "m/s",
        local=float(form == "SIRI-VM" and any(_has_local_times(file) for file in files[:5])),
        command="hexveil siri-vm" if form == "SIRI-VM" else "hexveil gtfs-rt",
        notes=tuple(notes),
        refused=refused + Counter({"no snapshot": len(problems)} if problems else {}),
        documents=len(snapshots),
    )


def _has_local_times(file: Path) -> bool:
    return _LOCAL_TIME.search(_without_marks(head_of(file))) is not None


def _nothing(refused: Counter[str], problems: list[str]) -> InspectionError:
    """Says why no fix was found, and what to do if most of what was found is refused for one reason."""
    remedy = next((REMEDIES[reason] for reason, _ in refused.most_common(1) if reason in REMEDIES), None)
    why = (
        ", ".join([*(f"{count} {reason}" for reason, count in refused.most_common()), *problems][:_NAMED])
        or "it is empty"
    )
    return InspectionError(f"no vehicle positions in it: {why}" + ("" if remedy is None else f". Likely {remedy}"))


def read_snapshots(
    config: Config, path: Path, form: str, key: bytes
) -> tuple[npt.NDArray[np.void], Counter[str], SnapshotEvents]:
    """The rows that the service makes of stored snapshots, and why vehicles are refused, as its command counts them."""
    reader = reader_of(form, config, config.feed.speeds)

    def blocks() -> Iterator[Messages]:
        for _, snapshot in without_clocks_ahead(decoded(files_of(path), reader, [])):
            try:
                yield reader.of_document(snapshot)
            except SnapshotError:
                continue

    rows, refusals = read_messages(config, blocks(), key)
    left_out = reader.tally.refused + Counter({"without-speed": reader.tally.without_speed})
    return rows, refusals.counts + left_out, reader
