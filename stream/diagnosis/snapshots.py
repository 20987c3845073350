"""Reads snapshots of positions for an inspection, GTFS-realtime or SIRI-VM, with the readers of both commands."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from stream.config import Config
from stream.config.feed import SPEED_TO_KMH, SpeedSource
from stream.diagnosis.reading import InspectionError, Observations, inspection_config, numbered, read_messages
from stream.diagnosis.refusals import Refusals
from stream.sources.file_kinds import HEAD_BYTES, head_of, is_gtfs_realtime, is_html, unpacked
from stream.sources.lines import RecordingError, StandardInput, open_stored
from stream.sources.messages import Messages
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT, Snapshot, SnapshotError
from stream.sources.timestamps import REMEDIES

Form = Literal["GTFS-realtime", "SIRI-VM"]

_LOCAL_TIME = re.compile(rb"RecordedAtTime>\s*[0-9-]{10}T\d\d:\d\d(:\d\d(\.\d+)?)?\s*<")
"""A time without a zone."""
_MOST = LARGEST_SNAPSHOT + 1
"""Bytes that are read of a file: enough to notice one that is larger than a snapshot may be."""
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


def snapshots_in(path: Path) -> tuple[list[Path], Form] | None:
    """The files of a folder of snapshots in order of name, or the one file, and their form; None if it has none.

    The form of a folder is that of most of its files, so notes and pages of errors among them do not matter.
    """
    files = files_of(path)
    if files == [path]:
        with closing(open_stored(path)) as stored:
            form = form_of(unpacked(stored.peek(HEAD_BYTES)))
        return None if form is None else (files, form)
    heads = (head for head in map(head_of, files) if not is_html(head))
    forms = Counter(known for head in heads if (known := form_of(head)) is not None)
    return (files, forms.most_common(1)[0][0]) if forms else None


def reader_of(form: str, config: Config, speeds: SpeedSource) -> SnapshotEvents:
    """The reader of the command for this form. Raises :class:`InspectionError` if it cannot be used."""
    try:
        if "siri" in form.lower():
            from stream.sources.siri import SiriVehicleMonitoring as Reader
        else:
            from stream.sources.vehicle_positions import GtfsRealtime as Reader  # type: ignore[assignment]
        return Reader(config.feed, config.slotting, speeds, config.relation)
    except ModuleNotFoundError:
        raise InspectionError("GTFS-realtime needs its bindings; pip install 'hexveil[gtfs]'") from None
    except ValueError as error:
        raise InspectionError(str(error)) from None


def files_of(path: Path) -> list[Path]:
    """The files of a folder in order of their names, or the file itself."""
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))


def _decoded(files: list[Path], reader: SnapshotEvents, problems: list[str]) -> Iterator[tuple[Path, Snapshot]]:
    """The snapshots in ``files``, of which ``-`` is standard input; those that are none are added to ``problems``."""
    for path in files:
        try:
            with closing(open_stored(path)) as stored:
                body = stored.read_whole(_MOST) if isinstance(stored, StandardInput) else stored.read(_MOST)
            yield path, reader.decoded(body)
        except (SnapshotError, OSError) as error:
            problems.append(f"{path}: {error}")
        except RecordingError as error:
            problems.append(str(error))


def events_of(files: list[Path], reader: SnapshotEvents, problems: list[str]) -> Iterator[Messages]:
    """The new events of each file in turn. A file that is no snapshot is skipped and added to ``problems``."""
    for path, snapshot in _decoded(files, reader, problems):
        try:
            messages = reader.of_document(snapshot)
        except SnapshotError as error:
            problems.append(f"{path}: {error}")
            continue
        if messages.values:
            yield messages


def observe_snapshots(files: list[Path], form: Form, limit: int, given: Config | None) -> Observations:
    """Observations of snapshots until there are ``limit`` fixes. Raises :class:`InspectionError`."""
    given = inspection_config(given)
    reader, problems, snapshots = reader_of(form, given, "missing"), list[str](), list[Snapshot]()
    refused, fixes, several = Counter[str](), 0, "a folder of SIRI-VM" if form == "SIRI-VM" else "a folder of snapshots"
    for _, snapshot in _decoded(files, reader, problems):
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
        kind=form if len(files) == 1 else several,
        format="canonical",
        feed=given.feed,
        user=numbered([name for each in snapshots for name in each.vehicles]),
        time_us=np.concatenate([each.time for each in snapshots]),
        lat=np.concatenate([each.lat for each in snapshots]),
        lng=np.concatenate([each.lng for each in snapshots]),
        speed=np.concatenate([each.speed for each in snapshots]) * own,
        arrived_us=np.repeat(*np.array(headers, dtype=np.int64).T),
        speed_unit=None if form == "SIRI-VM" else "m/s",
        local=float(form == "SIRI-VM" and any(_LOCAL_TIME.search(_without_marks(head_of(file))) for file in files[:5])),
        command="hexveil siri-vm" if form == "SIRI-VM" else "hexveil gtfs-rt",
        notes=tuple(notes),
        refused=refused + Counter({"no snapshot": len(problems)} if problems else {}),
        documents=len(snapshots),
    )


def _nothing(refused: Counter[str], problems: list[str]) -> InspectionError:
    remedy = next((REMEDIES[reason] for reason, _ in refused.most_common(1) if reason in REMEDIES), None)
    why = (
        ", ".join([*(f"{count} {reason}" for reason, count in refused.most_common()), *problems][:_NAMED])
        or "it is empty"
    )
    return InspectionError(f"no vehicle positions in it: {why}" + ("" if remedy is None else f". Likely {remedy}"))


def read_snapshots(
    config: Config, path: Path, form: str, key: bytes | None = None
) -> tuple[npt.NDArray[np.void], Refusals, SnapshotEvents]:
    """The rows that the service makes of stored snapshots, and why vehicles are refused, as its command counts them.

    Raises :class:`InspectionError` if none can be read.
    """
    reader, problems = reader_of(form, config, config.feed.speeds), list[str]()
    rows, refusals = read_messages(config, events_of(files_of(path), reader, problems), key)
    left_out = reader.tally.refused + Counter({"without-speed": reader.tally.without_speed})
    refusals.leave_out(left_out, reader.tally.derived)
    if problems and not refusals.taken + refusals.refused:
        raise _nothing(Counter(), problems)
    return rows, refusals, reader
