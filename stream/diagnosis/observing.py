"""Recognises what a file, an answer or the messages of a topic are, and reads them with the service's readers."""

import csv
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dpcore.arrays import IntArray
from stream.config import Config
from stream.config.feed import SPEED_TO_KMH, Encoding, FeedConfig, FeedFields
from stream.diagnosis.columns import Guess, GuessError, guess, guess_fields, known_format, paths_of
from stream.diagnosis.reading import WORKER, InspectionError, Observations, ageless, inspection_config, numbered
from stream.diagnosis.snapshots import observe_snapshots, snapshots_in
from stream.diagnosis.times import TimeForm
from stream.diagnosis.users import events_as_users, odd_names
from stream.ingestion.arrays import elements, may_hold_several
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format, recording_format, times_us
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.file_kinds import PARQUET, SEPARATORS, header_readings, is_remark, is_row, lists_in, seems_to_be
from stream.sources.lines import Lines, RecordingError, open_stored
from stream.sources.recording import open_recording, recordings_in, table_lines

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
    return _read(path, limit, *_guessed_config(sample, known), sample.kind, known)


def _guessed_config(sample: _Sample, known: Guess) -> tuple[Config, str]:
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
    feed = _any_speed(config)
    with open_recording(path, file_format, feed) as recording:
        fixes = list(islice(_fixes(chain.from_iterable(b.values for b in recording), feed, "canonical"), limit))
    return _taken(config, fixes, file_format, kind, known)


def _any_speed(config: Config) -> FeedConfig:
    return config.feed.model_copy(update={"format": "canonical", "speeds": "missing"})


def _fixes(
    values: Iterable[bytes], feed: FeedConfig, file_format: str, arrived: Iterable[int] = repeat(-1)
) -> Iterator[tuple[Any, ...]]:
    """User, time, latitude, longitude, speed (None: there is none) and arrival of each event of ``values``."""
    reader = recording_format(feed, file_format)
    for value, arrived_us in zip(values, arrived, strict=False):
        try:
            fix = reader.read(value)
            yield *(read(fix) for read in reader.getters), arrived_us
        except Exception:  # the service refuses it, and says why where events are counted
            continue


def _taken(config: Config, fixes: list[tuple[Any, ...]], file_format: str, kind: str, known: Guess) -> Observations:
    users, moments, lat, lng, speed, arrived_us = zip(*fixes, strict=True) if fixes else ((),) * 6
    places = np.array(lat, dtype=float), np.array(lng, dtype=float)
    decoder = Decoder(ageless(config), secrets.token_bytes(KEY_BYTES))
    columns = times_us(list(moments)), *places, np.zeros(len(users))
    batch = decoder.decode_fixes(list(users), columns, time.time_ns() // 1000)
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
        speed=np.array(speed, dtype=float)[at] * SPEED_TO_KMH[config.feed.speed_unit] / own.kmh,
        arrived_us=np.array(arrived_us, dtype=np.int64)[at],
        speed_unit=fixed,
        local=0.0 if known.times is None else known.times.local,
        offset=None if known.times is None else known.times.offset,
        notes=(*known.notes, *_of_times(known.times), *_of_encoding(config.feed), *odd_names(users)),
    )


def _of_encoding(feed: FeedConfig) -> list[str]:
    if feed.encoding == "utf-8":
        return []
    return [f"Its text is not UTF-8: it is read as {feed.encoding}, by feed.encoding. Look at names with accents."]


def _of_times(times: TimeForm | None) -> list[str]:
    if times is not None and times.time_format == "epoch-ns":
        return ["The times are nanoseconds since 1970: divide them so that they are microseconds."]
    if times is None or times.either is None:
        return []
    return [f"The times may be read as {times.time_format!r} or as {times.either!r}: ask whoever runs the feed."]


def _sample(path: Path) -> _Sample:
    with open_stored(path) as stored:  # type: ignore[union-attr]
        head = stored.peek(len(PARQUET))
    if head.startswith(PARQUET):
        return _Sample("Parquet", list(islice(_objects(chain.from_iterable(table_lines(path, path))), _SAMPLE)))
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
    messages: list[bytes], arrived_us: IntArray, limit: int, given: Config | None = None
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
    events = (
        (event, at)
        for message, at in zip(messages, arrived_us.tolist(), strict=True)
        for event in (elements(message) if may_hold_several(message) else None) or [message]
    )
    whole = list(islice(events, limit))
    fixes = _fixes([event for event, _ in whole], _any_speed(config), form, [at for _, at in whole])
    return replace(_taken(config, list(fixes), form, sample.kind, known), command=WORKER)
