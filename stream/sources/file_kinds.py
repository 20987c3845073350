"""Guesses what a file is that cannot be read as a recording, and says what to do with it."""

import csv
import re
import string
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stream.config.feed import FeedFields
from stream.ingestion.formats import known_fields

SEPARATORS = (",", ";", "\t", "|")
"""Usual separators of columns. Another one does if the header then has the fields that are looked for."""
_LONGEST_HEADER = 1 << 16
_NEVER_SEPARATE = frozenset(string.ascii_letters + string.digits + "_-.\"'\r\n\0")
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""
_LARGEST_TREE, _DEEPEST_LIST = 64 << 20, 5
"""Bytes of a document in which a list of events is looked for, and how deep."""
HEAD_BYTES = 4096
"""So many first bytes tell what a file is."""
GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
"""The byte order mark, which some programs write before text in UTF-8."""
_BEGINNINGS = (
    (PARQUET, "a Parquet file that is compressed by gzip: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"BZh", "compressed by bzip2: unpack it, or compress it with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it, or compress it with gzip"),
    (b"\xfd7zXZ", "compressed by xz: unpack it, or compress it with gzip"),
    (b"SQLite format 3", "an SQLite database: export the table of positions as CSV"),
    (b"\xff\xfe", "text in UTF-16: set feed.encoding = 'utf-16'"),
    (b"\xfe\xff", "text in UTF-16: set feed.encoding = 'utf-16'"),
    (b"<", "XML, as SIRI is: send its vehicle positions with 'hexveil siri-vm'"),
)
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_GTFS_RT_VERSION = b"\x0a"  # field 1 (header), length-delimited; within it field 1, the version
_GTFS_RT_OTHER_FORMS = re.compile(
    rb'\s*(\{\s*"header"\s*:\s*\{[^{}]*"gtfs_?realtime_?version"|'
    rb'\{\s*"entity"\s*:\s*\[\s*\{[^\[]*"(vehicle|trip_?update|alert)"\s*:\s*\{)',
    re.IGNORECASE,
)


def seems_to_be(path: Path) -> str | None:
    """What the file seems to be, judged by its first bytes, with the remedy; None if they do not tell.

    Also None for Parquet: it was read as a table, or else its reader said what is wrong with it.
    """
    stored = _stored_head(path)
    if stored.startswith(PARQUET):
        return None
    head = unpacked(stored)
    text = head.removeprefix(BOM).lstrip(b" \t")
    for beginning, what in _BEGINNINGS:
        if text.startswith(beginning):
            return f"It seems to be {what}."
    if head[257:262] == b"ustar":
        return "It seems to be a tar archive: unpack it first."
    if is_gtfs_realtime(head):
        return "It seems to be a GTFS-realtime message: send it with 'hexveil gtfs-rt'."
    if b"\0" in text[:2]:
        return "It seems to be text in UTF-16 without a byte order mark: convert it to UTF-8."
    listed = lists_in(path) if text[:1] == b"{" else []
    return f"Its events are in a list: set feed.records = {listed[0]!r}." if listed else None


def lists_in(path: Path) -> list[str]:
    """The paths of lists of objects in a JSON document, that with the most objects first."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_TREE)
        text = zlib.decompressobj(31).decompress(text, _LARGEST_TREE) if text.startswith(GZIP) else text
        tree = msgspec.json.decode(text.decode("utf-8-sig", "replace"))
    except (OSError, ValueError, zlib.error, RecursionError):
        return []
    counts = Counter[tuple[str, ...]]()
    _count_lists(tree, (), counts)
    return [".".join(names) for names in sorted(counts, key=lambda names: (-counts[names], len(names)))]


def _count_lists(tree: Any, path: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> None:
    """Count the objects in lists, by path. A path leads through lists to what is in all of their objects."""
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        if path:
            counts[path] += len(tree)
        for part in tree:
            _count_lists(part, path, counts)
    elif isinstance(tree, dict) and len(path) < _DEEPEST_LIST:
        for name, value in tree.items():
            if name and "." not in name and isinstance(value, dict | list):
                _count_lists(value, (*path, name), counts)


def records_at(text: bytes, path: str) -> list[bytes] | None:
    """The elements of the list at ``path`` in a JSON document, as they are written; None if there is no such list.

    Of a list on the way, all of its elements are looked at, or the one whose index the path names.
    """
    values: list[Any] = [text.decode("utf-8", "replace").encode()]
    try:
        for key in path.split("."):
            values = [part for value in values for part in _at(value, key)]
        return [bytes(part) for value in values for part in _raw_list(value)]
    except (msgspec.DecodeError, LookupError, RecursionError):
        return None


def _at(value: bytes | msgspec.Raw, key: str) -> list[Any]:
    if bytes(value).lstrip()[:1] != b"[":
        return [_raw_object(value)[key]]
    parts = _raw_list(value)
    return [parts[int(key)]] if key.isdecimal() else [_raw_object(part)[key] for part in parts]


_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_remark(line: bytes) -> bool:
    """Whether a line before the header of a table is none of it: a remark, or what tells spreadsheets the separator."""
    return line.removeprefix(BOM)[:1] == b"#" or line.lower().startswith(b"sep=")


def is_gtfs_realtime(head: bytes) -> bool:
    """Whether the first bytes are those of a GTFS-realtime message in protobuf or JSON: its header with the version."""
    is_binary = head.startswith(_GTFS_RT_VERSION) and head[2:3] == _GTFS_RT_VERSION and head[4:5] in (b"1", b"2")
    return is_binary or _GTFS_RT_OTHER_FORMS.match(head.removeprefix(BOM)) is not None


def is_html(head: bytes) -> bool:
    """Whether the first bytes are those of a page, as servers send in place of a feed."""
    return head.removeprefix(BOM).lstrip()[:14].lower().startswith((b"<html", b"<!doctype html"))


def unpacked(head: bytes) -> bytes:
    """The first bytes of a file, decompressed if they are of gzip; none if they are damaged."""
    try:
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES) if head.startswith(GZIP) else head
    except zlib.error:
        return b""


def head_of(path: Path) -> bytes:
    """The first bytes of a file, decompressed; none if it cannot be read."""
    return unpacked(_stored_head(path))


def _stored_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def columns_of(header: bytes, fields: FeedFields) -> tuple[str, list[str]]:
    """Separator and column names of a CSV's header: those with most of ``fields``, else those with most columns."""
    return max(
        header_readings(header),
        key=lambda reading: (
            len(set(fields.paths) & set(reading[1])),
            reading[0] in SEPARATORS and len(reading[1]) > 1,
            len(reading[1]),
        ),
    )


def header_readings(header: bytes) -> list[tuple[str, list[str]]]:
    """Each character of a header that may separate columns, the usual ones first, and the names between."""
    others = sorted({chr(byte) for byte in header if byte < 128} - set(SEPARATORS) - _NEVER_SEPARATE)
    candidates = SEPARATORS if len(header) > _LONGEST_HEADER else (*SEPARATORS, *others)
    return [(separator, _split(header, separator)) for separator in candidates]


def is_header(line: bytes, fields: FeedFields) -> bool:
    """Whether the first line of a file is the header of a CSV: it names ``fields``, or has five columns, no JSON."""
    if line.lstrip(b"\xef\xbb\xbf \t")[:1] in (b"", b"{", b"[", b"<") or b"\0" in line or b'":' in line:
        return False
    separator, names = columns_of(line, fields)
    return set(fields.paths) - {fields.value} <= set(names) or (
        separator in SEPARATORS and len(names) >= 5 and all(name.isprintable() for name in names)
    )


def _split(header: bytes, separator: str) -> list[str]:
    try:
        return next(csv.reader([header.decode("utf-8-sig").rstrip("\r")], delimiter=separator), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def is_row(names: Iterable[str]) -> bool:
    """Whether the first line of a table is already a row of it. Whoever says so must not quote it."""
    return sum(_NUMBER.fullmatch(name.strip()) is not None for name in names) >= 2


def wrong_header(names: list[str], missing: set[str], fields: FeedFields) -> str:
    """Why a CSV with the columns ``names`` does not fit the format, with the remedy."""
    fitting = next((name for name, known in known_fields().items() if set(known.paths) <= set(names)), None)
    hint = "" if fitting is None else f"; its header has the columns of {fitting!r}: give --format {fitting}"
    if is_row(names):
        return (
            "its first line has numbers, so it is no header: write the names of its columns before it, like "
            f"{','.join(fields.paths)}"
        )
    if any("." in path for path in fields.paths):
        return f"the format is nested, and nested formats are not read from CSV; write one JSON object a line{hint}"
    if hint:
        return f"no column {', '.join(sorted(missing))} in its header{hint}"
    return (
        f"its header {', '.join(names)[:200]!r} has no column {', '.join(sorted(missing))}; name its columns in "
        "[feed.fields] and set feed.format = 'declared'"
    )
