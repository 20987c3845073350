"""Recognises what a file, an answer or the messages of a topic are, and reads them with the service's readers."""

from __future__ import annotations

import csv
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream.config import Config
from stream.config.feed import SPEED_TO_KMH, Encoding, FeedConfig, FeedFields
from stream.diagnosis.columns import Guess, GuessError, guess, guess_fields, known_format, paths_of
from stream.diagnosis.observations import WORKER, InspectionError, Observations, numbered
from stream.diagnosis.reading import ageless, inspection_config
from stream.diagnosis.snapshots import observe_snapshots, snapshots_in
from stream.diagnosis.times import TimeForm
from stream.diagnosis.users import events_as_users, odd_names
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.decoding import Decoder, FixColumns
from stream.ingestion.formats import FeedFormat, feed_format, recording_format, times_us
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.file_kinds import PARQUET, SEPARATORS, header_readings, is_remark, is_row, lists_in, seems_to_be
from stream.sources.lines import Lines, RecordingError, open_stored
from stream.sources.opening import Folder, open_recording, recordings_in
from stream.sources.recording import Recording

if TYPE_CHECKING:
    from stream.sources.tables import Table

_SAMPLE, _LOOKED_AT = 2_000, 50
"""Events whose fields and values are looked at."""
_CALLED = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_NO_GUESS = Guess(FeedFields(user="user", time="time", lat="lat", lng="lng"), None)
"""Where the configuration names the fields."""


class _Sample(NamedTuple):
    """What the beginning of a source shows: what it is, in words, some events as trees, encoding, path of its list."""

    kind: str
    trees: list[Mapping[str, Any]]
    encoding: Encoding = "utf-8"
    records: str | None = None


def observe_file(path: Path, limit: int, given: Config | None = None) -> Observations:
    """Events of a Parquet, CSV or NDJSON file or folder, or of a snapshot or a folder of them; about ``limit`` at most.

    ``given``: the configuration by which it is to be read; without it, its form and its fields are guessed. Raises
    :class:`InspectionError`.
    """
    try:
        snapshots = snapshots_in(path)
        if snapshots is not None:
            return observe_snapshots(*snapshots, limit, given)
        return _observe_recording(path, limit, given)
    except (RecordingError, OSError) as error:
        raise InspectionError(str(error)) from None


def _observe_recording(path: Path, limit: int, given: Config | None) -> Observations:
    first = recordings_in(path)[0]
    sample = _sample(first)
    if given is not None:
        return _read(path, limit, given, given.feed.recorded_format, sample.kind, _NO_GUESS)
    try:
        known = guess(sample.trees)
    except GuessError as error:
        raise InspectionError(_why_none(error, sample, first)) from None
    seen = _guessed(path, limit, sample, known)
    if (why := events_as_users(seen.user, seen.time_us, f"field {known.fields.user!r}")) is not None:
        try:
            again = guess(sample.trees, {known.fields.user})
        except GuessError as error:
            raise InspectionError(f"{why}; {error}") from None
        seen = _guessed(path, limit, sample, again)
    return seen


def _guessed(path: Path, limit: int, sample: _Sample, known: Guess) -> Observations:
    """The source as it is read with guessed fields."""
    return _read(path, limit, *_guessed_config(sample, known), sample.kind, known)


def _guessed_config(sample: _Sample, known: Guess) -> tuple[Config, str]:
    """The configuration with guessed fields, and the format of the events."""
    config = inspection_config(None)
    paths = chain.from_iterable(paths_of(tree) for tree in sample.trees[:_LOOKED_AT])
    form = known_format(paths, known.fields) or "declared"
    feed = FeedConfig(
        **config.feed.model_dump(include={"name", "topic"}),
        timezone=(known.times and known.times.zone) or config.feed.timezone,
        domain=config.feed.domain,
        speeds="missing",
        fields=known.fields if form == "declared" else None,
        encoding=sample.encoding,
        records=sample.records,
    )
    return config.model_copy(update={"feed": feed}), form


def _read(path: Path, limit: int, config: Config, file_format: str, kind: str, known: Guess) -> Observations:
    """The events of a recording that the service takes, with the speeds that are reported, if any."""
    any_speed = config.feed.model_copy(update={"format": "canonical", "speeds": "missing"})
    parts: list[FixColumns] = []
    with open_recording(path, file_format, any_speed) as recording:
        blocks = _blocks(recording, recording_format(any_speed, "canonical"))
        taken = 0
        for part in blocks:
            parts.append(part)
            taken += len(part.user)
            if taken >= limit:
                break
    return _taken(config, parts, file_format, kind, known)


def _blocks(recording: Recording | Table | Folder, reader: FeedFormat) -> Iterator[FixColumns]:
    for part in recording.parts() if isinstance(recording, Folder) else [recording]:
        if isinstance(part, Recording):
            yield from (_decoded(block.values, reader) for block in part)
        else:
            yield from part.columns()


def _decoded(values: Iterable[bytes], reader: FeedFormat) -> FixColumns:
    """The events among ``values``, with NaN for a speed that is none."""
    fixes = []
    for value in values:
        try:
            fixes.append([read(reader.read(value)) for read in reader.getters])
        except Exception:  # the service refuses it, and says why where events are counted
            continue
    user, moments, lat, lng, speed = zip(*fixes, strict=True) if fixes else ((), (), (), (), ())
    none = np.zeros(len(user), dtype=bool)
    places = np.array(lat, dtype=float), np.array(lng, dtype=float)
    return FixColumns(list(user), times_us(list(moments)), *places, np.array(speed, dtype=float), none, none)


def _taken(
    config: Config,
    parts: list[FixColumns],
    file_format: str,
    kind: str,
    known: Guess,
    arrived_us: NDArray[np.int64] | None = None,
) -> Observations:
    """The decoded events that the service takes, whatever their speed."""
    users = list(chain.from_iterable(part.user for part in parts))
    time_us, lat, lng, speed, missing, wrong = (
        np.concatenate([getattr(part, name) for part in parts]) if parts else np.zeros(0)
        for name in ("time_us", "lat", "lng", "speed", "missing", "wrong")
    )
    columns = FixColumns(
        users, time_us.astype(np.int64), lat, lng, np.zeros(len(users)), missing.astype(bool), wrong.astype(bool)
    )
    batch = Decoder(ageless(config), secrets.token_bytes(KEY_BYTES)).decode_columns(columns, time.time_ns() // 1000)
    at, rows = batch.index, batch.rows
    own = feed_format(config.feed.model_copy(update={"format": file_format}))
    fixed = None if file_format in ("canonical", "declared") else own.unit
    return Observations(
        kind=kind,
        format=file_format,
        feed=config.feed,
        user=numbered([users[index] for index in at.tolist()]),
        time_us=rows["time"].astype(np.int64),
        lat=rows["lat"] * 1e-7,
        lng=rows["lng"] * 1e-7,
        speed=speed[at] * SPEED_TO_KMH[config.feed.speed_unit] / own.kmh,
        arrived_us=np.full(len(at), -1, dtype=np.int64) if arrived_us is None else arrived_us[at],
        speed_unit=fixed,
        local=0.0 if known.times is None else known.times.local,
        offset=None if known.times is None else known.times.offset,
        notes=(*known.notes, *_of_times(known.times), *_of_forms(config.feed, known, kind), *odd_names(users)),
    )


def _of_forms(feed: FeedConfig, known: Guess, kind: str) -> list[str]:
    """What is read although it is written in an unusual form."""
    sentences = []
    if feed.encoding != "utf-8":
        sentences.append(
            f"Its text is not UTF-8: it is read as {feed.encoding}, by feed.encoding. Look at names with accents."
        )
    if known.as_texts and not kind.startswith("CSV"):
        sentences.append(f"Numbers in texts ({', '.join(known.as_texts)}) are read as numbers.")
    return sentences


def _of_times(times: TimeForm | None) -> list[str]:
    if times is not None and times.time_format == "epoch-ns":
        return ["The times are nanoseconds since 1970: divide them so that they are microseconds."]
    if times is None or times.either is None:
        return []
    return [f"The times may be read as {times.time_format!r} or as {times.either!r}: ask whoever runs the feed."]


def _sample(path: Path) -> _Sample:
    """Events at the beginning of a file, as trees, whatever they mean."""
    with open_stored(path) as stored:  # type: ignore[union-attr]
        head = stored.peek(len(PARQUET))
    if head.startswith(PARQUET):
        return _sample_of_table(path)
    encoding = _encoding(path)
    lines = filter(None, (line.rstrip(b"\r") for line in chain.from_iterable(Lines(path, None, encoding))))
    first = next((line for line in lines if not is_remark(line)), b"")
    if first.lstrip()[:1] not in (b"{", b"["):
        return _sample_of_csv(first, lines, encoding)
    trees = list(islice(_objects(chain([first], lines)), _SAMPLE))
    kind = (
        "JSON, arrays of objects"
        if may_hold_several(first) and first.lstrip()[:1] == b"["
        else "JSON, one object per line"
    )
    if len(trees) <= 1:
        for records in lists_in(path):
            listed = list(islice(_objects(chain.from_iterable(Lines(path, None, encoding, records))), _SAMPLE))
            if set(guess_fields(chain.from_iterable(map(paths_of, listed[:_LOOKED_AT])))) >= {"lat", "lng"}:
                return _Sample(f"JSON, a list at {records!r}", listed, encoding, records)
    return _Sample(kind, trees, encoding)


def _objects(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        several = elements(line) if may_hold_several(line) else None
        for text in several or [line]:
            try:
                tree = msgspec.json.decode(text.decode("utf-8", "replace"))
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                continue
            if isinstance(tree, dict):
                yield tree


def _sample_of_csv(header: bytes, lines: Iterator[bytes], encoding: Encoding) -> _Sample:
    separator, names = max(header_readings(header), key=_sense)
    trees: list[Mapping[str, Any]] = []
    for line in islice(lines, _SAMPLE):
        try:
            row = next(csv.reader([line.decode("utf-8", "replace")], delimiter=separator), [])
        except csv.Error:
            continue
        if len(row) == len(names):
            trees.append(dict(zip(names, row, strict=True)))
    called = _CALLED.get(separator, repr(separator))
    return _Sample(f"CSV, separated by {called}", trees or [dict.fromkeys(names, "")], encoding)


def _sense(reading: tuple[str, list[str]]) -> tuple[int, bool, int]:
    """How much sense a reading of a header makes: fields that are recognised, then a usual separator, then columns."""
    separator, names = reading
    return len(guess_fields(names)), separator in SEPARATORS and len(names) > 1, len(names)


def _sample_of_table(path: Path) -> _Sample:
    try:
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise InspectionError(f"{path}: Parquet needs pyarrow; pip install 'hexveil[parquet]'") from None
    try:
        with ParquetFile(path) as file:
            batch = next(file.iter_batches(_SAMPLE), None)
            trees = [] if batch is None else batch.to_pylist()
            names = file.schema_arrow.names
    except Exception as error:  # whatever error hostile bytes cause
        raise InspectionError(f"{path}: not a readable Parquet file ({str(error)[:160]})") from None
    return _Sample("Parquet", [_texts(tree) for tree in trees] or [dict.fromkeys(names, "")])


def _texts(tree: Any) -> Any:
    """A row with its timestamps as text, as other files have them."""
    if isinstance(tree, dict):
        return {name: _texts(value) for name, value in tree.items()}
    return tree.isoformat() if hasattr(tree, "isoformat") else tree


def _encoding(path: Path) -> Encoding:
    """The encoding of a file's text, by its first block."""
    text = next(iter(Lines(path).blocks()), b"")
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    known: tuple[Encoding, ...] = ("utf-8", "cp1252")
    for encoding in known:
        try:
            text[: text.rfind(b"\n") + 1 or None].decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "utf-8" if 0 in text else "latin-1"


def _why_none(error: GuessError, sample: _Sample, path: Path) -> str:
    kind = seems_to_be(path) or ""
    paths = set(chain.from_iterable(paths_of(tree) for tree in sample.trees[:50]))
    if not paths or not all(name.isprintable() for name in paths):
        nothing = "no JSON objects, no header of a table, no Parquet and no GTFS-realtime in it"
        return f"{nothing}. {kind or 'If it is empty, or of another format, name another file or topic.'}"
    if is_row(set().union(*sample.trees[:50])):
        return (
            "its first line has numbers, so it is no header: write the names of its columns before it, like "
            "user,time,lat,lng,speed"
        )
    return (
        f"{error}; rename fields, or declare them in [feed.fields]. "
        f"A table needs a header, whose names any one character separates. {kind}".strip()
    )


def observe_messages(
    messages: list[bytes], arrived_us: NDArray[np.int64], limit: int, given: Config | None = None
) -> Observations:
    """Observations of the messages of a topic. ``arrived_us``: when each arrived, µs UTC. Raises
    :class:`InspectionError`."""
    sample = _Sample("JSON, messages of a topic", list(islice(_objects(messages), _SAMPLE)))
    if given is not None:
        known, config, form = _NO_GUESS, given, given.feed.recorded_format
    else:
        try:
            known = guess(sample.trees)
        except GuessError as error:
            raise InspectionError(f"{error}; name them in [feed.fields]") from None
        config, form = _guessed_config(sample, known)
    events = [
        (event, int(at))
        for message, at in zip(messages, arrived_us.tolist(), strict=True)
        for event in _events(message)
    ]
    reader = recording_format(config.feed.model_copy(update={"format": "canonical", "speeds": "missing"}), form)
    parts, arrived = [], []
    for event, at in events[:limit]:
        part = _decoded([event], reader)
        if part.user:
            parts.append(part)
            arrived.append(at)
    taken = _taken(config, parts, form, sample.kind, known, np.array(arrived, dtype=np.int64))
    return replace(taken, command=WORKER)


def _events(message: bytes) -> list[bytes]:
    return (elements(message) if may_hold_several(message) else None) or [message]
